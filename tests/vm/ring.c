// Two queue pairs of one process, each on a device of its own, and requests from the first to the second over the wire between.
//
// ring FROM TO GID_INDEX WAY OPERATION PHASE…: WAY is `wr` (ibv_wr_*) or `post` (ibv_post_send), OPERATION `write` or `send`. A phase
// is `DEPTHxCOUNTxSIGNAL`: COUNT requests of BYTES with at most DEPTH outstanding, of which each SIGNAL-th one (and the last)
// asks for a completion; or `line`: wait for one on standard input. After a failure the phase ends when nothing is outstanding.
// Completions are waited for in the channel. With `send` the second queue pair has no receives.
//
// Prints `ready qp=N peer=N`, and at the end `done posted=N completed=N failed=N p50=NS`, the median from before a post to after the
// poll, of requests of depth 1.
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

enum { MOST = 1 << 16, BYTES = 1024, QUEUE = 256 };

struct side {
    struct ibv_context *context;
    struct ibv_pd *domain;
    struct ibv_comp_channel *channel;
    struct ibv_cq *queue;
    struct ibv_qp *pair;
    struct ibv_mr *region;
    union ibv_gid gid;
};

static struct side from, to;
static int gid_index, by_wr, sends;
static unsigned long posted, done, failed, singles;
static unsigned long posted_at[MOST], took[MOST];

static unsigned long now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ul + now.tv_nsec;
}

static void open_side(struct side *side, const char *name) {
    int count;
    struct ibv_device **devices = ibv_get_device_list(&count);
    CHECK(devices);
    for (int at = 0; at < count; at++)
        if (!strcmp(ibv_get_device_name(devices[at]), name))
            side->context = ibv_open_device(devices[at]);
    CHECK(side->context);
    CHECK((side->domain = ibv_alloc_pd(side->context)));
    char *memory = aligned_alloc(4096, 4096);
    CHECK((side->region = ibv_reg_mr(side->domain, memory, BYTES, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)));
    CHECK((side->channel = ibv_create_comp_channel(side->context)));
    CHECK((side->queue = ibv_create_cq(side->context, QUEUE, NULL, side->channel, 0)));
    struct ibv_qp_init_attr_ex wanted = {
        .send_cq = side->queue, .recv_cq = side->queue, .qp_type = IBV_QPT_RC, .pd = side->domain,
        .comp_mask = IBV_QP_INIT_ATTR_PD | (by_wr ? IBV_QP_INIT_ATTR_SEND_OPS_FLAGS : 0),
        .send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_SEND,
        .cap = {.max_send_wr = QUEUE, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1}};
    CHECK((side->pair = ibv_create_qp_ex(side->context, &wanted)));
    CHECK(!ibv_query_gid(side->context, 1, gid_index, &side->gid));
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE};
    CHECK(!ibv_modify_qp(side->pair, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
}

static void connect_side(struct side *side, const struct side *peer) {
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer->pair->qp_num, .max_dest_rd_atomic = 1,
        .min_rnr_timer = 1,
        .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = peer->gid, .sgid_index = gid_index, .hop_limit = 4}}};
    CHECK(!ibv_modify_qp(side->pair, &attr,
                         IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                             IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
    // The answer may take 4.096 us * 2^14 = 67 ms, twice; a peer without receives is not asked again.
    attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 1, .rnr_retry = 0, .max_rd_atomic = 1};
    CHECK(!ibv_modify_qp(side->pair, &attr,
                         IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                             IBV_QP_MAX_QP_RD_ATOMIC));
}

static void post(int signalled) {
    uintptr_t address = (uintptr_t)from.region->addr;
    posted_at[posted % MOST] = now_ns();
    if (by_wr) {
        struct ibv_qp_ex *pair = ibv_qp_to_qp_ex(from.pair);
        ibv_wr_start(pair);
        pair->wr_id = posted;
        pair->wr_flags = signalled ? IBV_SEND_SIGNALED : 0;
        if (sends)
            ibv_wr_send(pair);
        else
            ibv_wr_rdma_write(pair, to.region->rkey, (uintptr_t)to.region->addr);
        ibv_wr_set_sge(pair, from.region->lkey, address, BYTES);
        CHECK(!ibv_wr_complete(pair));
    } else {
        struct ibv_sge piece = {.addr = address, .length = BYTES, .lkey = from.region->lkey};
        struct ibv_send_wr request = {.wr_id = posted, .sg_list = &piece, .num_sge = 1,
                                      .opcode = sends ? IBV_WR_SEND : IBV_WR_RDMA_WRITE,
                                      .send_flags = signalled ? IBV_SEND_SIGNALED : 0},
                           *bad;
        request.wr.rdma.remote_addr = (uintptr_t)to.region->addr;
        request.wr.rdma.rkey = to.region->rkey;
        CHECK(!ibv_post_send(from.pair, &request, &bad));
    }
    posted++;
}

static int poll_all(int single) {
    struct ibv_wc found[16];
    int any = 0, count;
    while ((count = ibv_poll_cq(from.queue, 16, found)) > 0) {
        unsigned long now = now_ns();
        for (int at = 0; at < count; at++) {
            if (found[at].status)
                failed++;
            else if (single && singles < MOST)
                took[singles++] = now - posted_at[found[at].wr_id % MOST];
            done = found[at].wr_id + 1;
        }
        any = 1;
    }
    CHECK(count == 0);
    return any;
}

static void wait_some(int single) {
    if (poll_all(single))
        return;
    CHECK(!ibv_req_notify_cq(from.queue, 0));
    if (poll_all(single))
        return;
    struct ibv_cq *queue;
    void *mark;
    CHECK(!ibv_get_cq_event(from.channel, &queue, &mark));
    ibv_ack_cq_events(queue, 1);
    poll_all(single);
}

static void run(const char *phase) {
    char line[64];
    if (!strcmp(phase, "line")) {
        CHECK(fgets(line, sizeof line, stdin));
        return;
    }
    unsigned long depth, count, signal;
    CHECK(sscanf(phase, "%lux%lux%lu", &depth, &count, &signal) == 3);
    unsigned long end = posted + count;
    while (done < end) {
        while (!failed && posted < end && posted - done < depth)
            post((posted + 1) % signal == 0 || posted + 1 == end);
        if (failed && done == posted)
            return;
        wait_some(depth == 1);
    }
}

static int compare(const void *one, const void *other) {
    unsigned long a = *(const unsigned long *)one, b = *(const unsigned long *)other;
    return (a > b) - (a < b);
}

int main(int count, char **words) {
    CHECK(count > 6);
    gid_index = atoi(words[3]);
    by_wr = !strcmp(words[4], "wr");
    sends = !strcmp(words[5], "send");
    open_side(&from, words[1]);
    open_side(&to, words[2]);
    connect_side(&to, &from);
    connect_side(&from, &to);
    printf("ready qp=%u peer=%u\n", from.pair->qp_num, to.pair->qp_num);
    fflush(stdout);
    for (int at = 6; at < count; at++)
        run(words[at]);
    qsort(took, singles, sizeof *took, compare);
    printf("done posted=%lu completed=%lu failed=%lu p50=%lu\n", posted, done, failed,
           singles ? took[(singles + 1) / 2 - 1] : 0);
    fflush(stdout);
    return 0;
}
