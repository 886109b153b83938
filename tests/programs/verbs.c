// Posts RDMA writes through libibverbs and polls for their completions; `softhca` is the adapter.
//
// verbs PHASE…: each phase is `DEPTHxCOUNT` or `DEPTHxCOUNTxSIGNAL`: COUNT requests with at most DEPTH outstanding, of
// which each SIGNAL-th one (and the last) asks for a completion. A phase `leave` posts 3 requests and goes on without polling.
// `before:PHASE` is run before `ready`; the rest when a line comes in.
//
// $VERBS_TIMES gets a line for each single request of the later phases: before and after its post_send, before and after the
// poll that found it, nanoseconds of CLOCK_MONOTONIC.
//
// Prints `ready qp=N`, and at the end `done posted=… completed=… failed=… outer=… inner=… units=… elapsed=…`: medians of the
// times from post to completion of single requests in the later phases: `outer` from before post_send to after the poll that found it,
// `inner` from after post_send to before that poll.
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define CHECK(what)                                                                                                    \
    do {                                                                                                               \
        if (!(what)) {                                                                                                 \
            perror(#what);                                                                                             \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

enum { MOST = 1 << 18, BYTES = 4096 };

static struct ibv_context *context;
static struct ibv_cq *queue;
static struct ibv_qp *pair;
static struct ibv_mr *region;
static unsigned long before_post[MOST], after_post[MOST], outer[MOST], inner[MOST];
static FILE *times;
static unsigned long posted, completed, failed, units;
static int measuring;

static unsigned long now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ul + now.tv_nsec;
}

static void set_up(void) {
    int count;
    struct ibv_device **devices = ibv_get_device_list(&count);
    CHECK(devices && count == 1);
    CHECK((context = ibv_open_device(devices[0])));
    struct ibv_pd *domain = ibv_alloc_pd(context);
    CHECK(domain);
    char *memory = aligned_alloc(4096, BYTES);
    CHECK((region = ibv_reg_mr(domain, memory, BYTES, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)));
    CHECK((queue = ibv_create_cq(context, 1023, NULL, NULL, 0)));
    struct ibv_qp_init_attr wanted = {.send_cq = queue, .recv_cq = queue, .qp_type = IBV_QPT_RC};
    wanted.cap.max_send_wr = 256;
    wanted.cap.max_recv_wr = 1;
    wanted.cap.max_send_sge = wanted.cap.max_recv_sge = 1;
    CHECK((pair = ibv_create_qp(domain, &wanted)));
    struct ibv_qp_attr to = {.qp_state = IBV_QPS_INIT, .port_num = 1};
    CHECK(!ibv_modify_qp(pair, &to, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
    to = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_4096, .dest_qp_num = pair->qp_num,
                              .max_dest_rd_atomic = 1, .ah_attr = {.dlid = 7, .port_num = 1}};
    CHECK(!ibv_modify_qp(pair, &to,
                         IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                             IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
    to = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1};
    CHECK(!ibv_modify_qp(pair, &to,
                         IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                             IBV_QP_MAX_QP_RD_ATOMIC));
}

static void post(int signalled) {
    struct ibv_sge piece = {.addr = (uintptr_t)region->addr, .length = BYTES, .lkey = region->lkey};
    struct ibv_send_wr request = {.wr_id = posted, .sg_list = &piece, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
                                  .send_flags = signalled ? IBV_SEND_SIGNALED : 0},
                       *bad;
    request.wr.rdma.remote_addr = (uintptr_t)region->addr;
    request.wr.rdma.rkey = region->rkey;
    before_post[posted % MOST] = now_ns();
    CHECK(!ibv_post_send(pair, &request, &bad));
    after_post[posted % MOST] = now_ns();
    posted++;
}

static void poll_some(void) {
    struct ibv_wc found;
    unsigned long before = now_ns();
    int count = ibv_poll_cq(queue, 1, &found);
    CHECK(count >= 0);
    if (!count)
        return;
    unsigned long after = now_ns();
    if (found.status)
        failed++;
    else if (measuring && found.wr_id == completed && units < MOST) {
        if (times)
            fprintf(times, "%lu %lu %lu %lu\n", before_post[found.wr_id % MOST], after_post[found.wr_id % MOST], before, after);
        outer[units] = after - before_post[found.wr_id % MOST];
        inner[units] = before - after_post[found.wr_id % MOST];
        units++;
    }
    completed = found.wr_id + 1;
}

static void run(const char *phase) {
    if (!strcmp(phase, "leave")) {
        for (int request = 0; request < 3; request++)
            post(1);
        return;
    }
    unsigned long depth, count, signal = 1;
    CHECK(sscanf(phase, "%lux%lux%lu", &depth, &count, &signal) >= 2);
    unsigned long end = posted + count;
    while (completed < end) {
        while (posted < end && posted - completed < depth)
            post((posted + 1) % signal == 0 || posted + 1 == end);
        poll_some();
    }
}

static int compare(const void *one, const void *other) {
    unsigned long a = *(const unsigned long *)one, b = *(const unsigned long *)other;
    return (a > b) - (a < b);
}

// By nearest rank, as the report has it.
static unsigned long median(unsigned long *values, unsigned long count) {
    qsort(values, count, sizeof *values, compare);
    return count ? values[(count + 1) / 2 - 1] : 0;
}

int main(int count, char **phases) {
    if (getenv("VERBS_TIMES"))
        CHECK((times = fopen(getenv("VERBS_TIMES"), "w")));
    set_up();
    int at = 1;
    for (; at < count && !strncmp(phases[at], "before:", 7); at++)
        run(phases[at] + 7);
    printf("ready qp=%u pid=%d\n", pair->qp_num, getpid());
    fflush(stdout);
    char line[64];
    CHECK(fgets(line, sizeof line, stdin));
    measuring = 1;
    unsigned long start = now_ns(), first = posted, first_done = completed;
    for (; at < count; at++)
        run(phases[at]);
    unsigned long elapsed = now_ns() - start;
    if (times)
        fclose(times);
    printf("done posted=%lu completed=%lu failed=%lu units=%lu outer=%lu inner=%lu elapsed=%lu\n", posted - first,
           completed - first_done, failed, units, median(outer, units), median(inner, units), elapsed);
    fflush(stdout);
    fgets(line, sizeof line, stdin);
    return 0;
}
