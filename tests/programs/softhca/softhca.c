// A fake adapter, for tests: plays the device file `uverbs0`, its sysfs and an mlx5 adapter for the process that
// preloads it. libibverbs and libmlx5 in that process are the real ones, and unmodified: they ring real doorbells and
// read real completion entries; a thread of this library answers them by script. It says nothing about real hardware.
//
// $SOFTHCA_DIR has `sysfs` (stands for /sys/class/infiniband*) and `infiniband/uverbs0` (stands for the device file).
// $SOFTHCA_SERVICE_NS: what each request takes, one after another (default 20000).
// $SOFTHCA_LATENCY_NS: what comes on top for each, overlapping (default 0).
// $SOFTHCA_FAIL_AT: this request of a queue pair, from 0 on, ends with RETRY_EXC.
//
// Only what the tests use is answered, through the old write() commands; ioctl says ENOTTY, and libibverbs then falls
// back. No data is moved, and no receive completes.
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <rdma/ib_user_verbs.h>
#include <rdma/mlx5-abi.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <unistd.h>

enum { OBJECTS = 256, QUEUE = 8192 };

struct completion_queue {
    uint8_t *entries;
    volatile uint32_t *doorbell;
    uint32_t size, entry_size, produced;
};

struct work {
    uint64_t due;
    uint16_t entry;
    uint8_t opcode, signalled, syndrome;
    uint32_t bytes;
};

struct queue_pair {
    uint32_t number, index, send_entries, state;
    uint8_t *send_queue;
    volatile uint32_t *doorbell;
    struct completion_queue *send_cq;
    uint16_t taken;
    int broken;
    uint64_t busy_until, count;
    struct work work[QUEUE];
    uint32_t first, last;
};

static struct completion_queue *queues[OBJECTS];
static struct queue_pair *pairs[OBJECTS];
static atomic_int made_queues, made_pairs, made_regions, made_domains, stopping;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_t adapter_thread;
static int adapter_runs, device = -1;
static uint64_t service_ns = 20000, latency_ns;
static long fail_at = -1;

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ull + now.tv_nsec;
}

// ---- the adapter

static void complete(struct queue_pair *pair, const struct work *work) {
    struct completion_queue *queue = pair->send_cq;
    uint8_t *entry = queue->entries + (size_t)(queue->produced & (queue->size - 1)) * queue->entry_size;
    entry += queue->entry_size == 128 ? 64 : 0;
    uint8_t owner = !!(queue->produced & queue->size);
    memset(entry, 0, 63);
    *(uint32_t *)(entry + 56) = htobe32((uint32_t)work->opcode << 24 | pair->number);
    *(uint16_t *)(entry + 60) = htobe16(work->entry);
    *(uint32_t *)(entry + 32) = htobe32(pair->index);
    if (work->syndrome) {
        entry[54] = 0x81;
        entry[55] = work->syndrome;
    } else {
        *(uint32_t *)(entry + 44) = htobe32(work->bytes);
    }
    atomic_thread_fence(memory_order_release);
    ((volatile uint8_t *)entry)[63] = (work->syndrome ? MLX5_CQE_REQ_ERR : MLX5_CQE_REQ) << 4 | owner;
    queue->produced++;
}

static uint32_t be32_at(const uint8_t *at) { return be32toh(*(const uint32_t *)at); }

// Takes the next request from the send queue.
static void take(struct queue_pair *pair) {
    uint8_t *end = pair->send_queue + pair->send_entries * 64ul;
    uint8_t *request = pair->send_queue + (pair->taken & (pair->send_entries - 1)) * 64ul;
    struct work *work = &pair->work[pair->last++ % QUEUE];
    uint32_t head = be32_at(request), pieces = be32_at(request + 4) & 0x3f;
    *work = (struct work){.entry = pair->taken, .opcode = head & 0xff, .signalled = request[11] & 8};
    int remote = work->opcode == MLX5_OPCODE_RDMA_WRITE || work->opcode == MLX5_OPCODE_RDMA_READ;
    for (uint32_t piece = remote ? 2 : 1; piece < pieces; piece++) {
        uint8_t *at = request + piece * 16;
        uint32_t length = be32_at(at >= end ? at - (end - pair->send_queue) : at);
        work->bytes += length & 0x7fffffff;
        if (length >> 31) {
            work->bytes &= 0x3ff;
            break;
        }
    }
    uint64_t now = now_ns(), start = now > pair->busy_until ? now : pair->busy_until;
    pair->busy_until = start + service_ns;
    work->due = pair->busy_until + latency_ns;
    if (pair->broken) {
        work->syndrome = 0x05;
        work->due = now;
    } else if ((long)pair->count == fail_at) {
        work->syndrome = 0x15;
        pair->broken = 1;
    }
    pair->count++;
    pair->taken += (pieces * 16 + 63) / 64;
}

static int step(struct queue_pair *pair) {
    uint16_t posted = be32toh(pair->doorbell[1]);
    while (pair->taken != posted && pair->last - pair->first < QUEUE)
        take(pair);
    int waiting = pair->first != pair->last;
    while (pair->first != pair->last && pair->work[pair->first % QUEUE].due <= now_ns()) {
        struct work *work = &pair->work[pair->first++ % QUEUE];
        if (work->signalled || work->syndrome)
            complete(pair, work);
    }
    return waiting;
}

static void *adapter(void *unused) {
    pthread_setname_np(pthread_self(), "softhca");
    uint64_t idle_since = now_ns();
    while (!atomic_load(&stopping)) {
        int busy = 0;
        pthread_mutex_lock(&lock);
        for (int at = 0; at < OBJECTS; at++)
            if (pairs[at] && pairs[at]->state >= IBV_QPS_RTS)
                busy |= step(pairs[at]);
        pthread_mutex_unlock(&lock);
        if (busy)
            idle_since = now_ns();
        else if (now_ns() - idle_since > 5000000)
            nanosleep(&(struct timespec){0, 50000}, NULL);
        // Two processors may have many of us.
        sched_yield();
    }
    return unused;
}

static void start(void) {
    if (adapter_runs)
        return;
    const char *text;
    if ((text = getenv("SOFTHCA_SERVICE_NS")))
        service_ns = strtoull(text, NULL, 0);
    if ((text = getenv("SOFTHCA_LATENCY_NS")))
        latency_ns = strtoull(text, NULL, 0);
    if ((text = getenv("SOFTHCA_FAIL_AT")))
        fail_at = strtol(text, NULL, 0);
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    adapter_runs = !pthread_create(&adapter_thread, NULL, adapter, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

// ---- commands to the device

static void limits(struct ib_uverbs_query_device_resp *to) {
    *to = (struct ib_uverbs_query_device_resp){
        .fw_ver = 20ull << 32 | 35 << 16 | 1012, .max_mr_size = ~0ull, .page_size_cap = ~0xfffull, .vendor_id = 0x2c9,
        .vendor_part_id = 4123, .max_qp = 1024, .max_qp_wr = 8192, .max_sge = 30, .max_sge_rd = 30, .max_cq = 1024,
        .max_cqe = 65535, .max_mr = 1024, .max_pd = 1024, .max_qp_rd_atom = 16, .max_qp_init_rd_atom = 16,
        .max_pkeys = 128, .phys_port_cnt = 1};
}

static ssize_t answer(uint64_t to, const void *from, size_t room, size_t size, size_t length) {
    memcpy((void *)to, from, room < size ? room : size);
    return length;
}

static ssize_t create_queue(const struct ib_uverbs_create_cq *asked, uint64_t to, size_t room, size_t length) {
    const struct mlx5_ib_create_cq *own = (const void *)asked->driver_data;
    struct {
        struct ib_uverbs_create_cq_resp base;
        struct mlx5_ib_create_cq_resp own;
    } reply = {0};
    int at = atomic_fetch_add(&made_queues, 1) % OBJECTS;
    struct completion_queue *queue = calloc(1, sizeof *queue);
    *queue = (struct completion_queue){(void *)own->buf_addr, (void *)own->db_addr, asked->cqe + 1, own->cqe_size, 0};
    queues[at] = queue;
    reply.base.cq_handle = at;
    reply.base.cqe = asked->cqe;
    reply.own.cqn = 0x80 + at;
    return answer(to, &reply, room, sizeof reply, length);
}

static ssize_t create_pair(const struct ib_uverbs_create_qp *asked, uint64_t to, size_t room, size_t length) {
    const struct mlx5_ib_create_qp *own = (const void *)asked->driver_data;
    struct {
        struct ib_uverbs_create_qp_resp base;
        struct mlx5_ib_create_qp_resp own;
    } reply = {0};
    int at = atomic_fetch_add(&made_pairs, 1) % OBJECTS;
    struct queue_pair *pair = calloc(1, sizeof *pair);
    pair->number = 0x100 + at;
    // Version 0 of completion entries has no such index.
    pair->index = own->uidx == 0xffffff ? 0 : own->uidx;
    pair->send_entries = own->sq_wqe_count;
    pair->send_queue = (uint8_t *)own->buf_addr + ((size_t)own->rq_wqe_count << own->rq_wqe_shift);
    pair->doorbell = (void *)own->db_addr;
    pair->send_cq = queues[asked->send_cq_handle % OBJECTS];
    pthread_mutex_lock(&lock);
    pairs[at] = pair;
    pthread_mutex_unlock(&lock);
    reply.base.qp_handle = at;
    reply.base.qpn = pair->number;
    reply.base.max_send_wr = asked->max_send_wr;
    reply.base.max_recv_wr = asked->max_recv_wr;
    reply.base.max_send_sge = asked->max_send_sge;
    reply.base.max_recv_sge = asked->max_recv_sge;
    reply.base.max_inline_data = asked->max_inline_data;
    // The first doorbell page of its own.
    reply.own.bfreg_index = 1;
    return answer(to, &reply, room, sizeof reply, length);
}

static ssize_t modify_pair(const struct ib_uverbs_modify_qp *asked, size_t length) {
    struct queue_pair *pair = pairs[asked->qp_handle % OBJECTS];
    pthread_mutex_lock(&lock);
    if (pair && asked->attr_mask & IBV_QP_STATE)
        pair->state = asked->qp_state;
    pthread_mutex_unlock(&lock);
    return length;
}

static ssize_t open_context(const uint64_t *asked, uint64_t to, size_t room, size_t length) {
    const struct mlx5_ib_alloc_ucontext_req_v2 *own = (const void *)(asked + 1);
    struct {
        struct ib_uverbs_get_context_resp base;
        struct mlx5_ib_alloc_ucontext_resp own;
    } reply = {0};
    int ends[2];
    if (pipe2(ends, O_CLOEXEC))
        return -1;
    reply.base.async_fd = ends[0];
    reply.base.num_comp_vectors = 1;
    reply.own.qp_tab_size = 1 << 18;
    reply.own.bf_reg_size = 512;
    reply.own.tot_bfregs = own->total_num_bfregs;
    reply.own.cache_line_size = 64;
    reply.own.max_sq_desc_sz = 1024;
    reply.own.max_rq_desc_sz = 512;
    reply.own.max_send_wqebb = 32768;
    reply.own.max_recv_wr = 32768;
    reply.own.num_ports = 1;
    reply.own.response_length = sizeof reply.own;
    reply.own.cqe_version = getenv("SOFTHCA_CQE_VERSION") ? atoi(getenv("SOFTHCA_CQE_VERSION")) : 1;
    reply.own.eth_min_inline = MLX5_USER_INLINE_MODE_NONE;
    reply.own.log_uar_size = 12;
    reply.own.num_uars_per_page = 1;
    start();
    return answer(to, &reply, room, sizeof reply, length);
}

static ssize_t extended(const struct ib_uverbs_cmd_hdr *header, const struct ib_uverbs_ex_cmd_hdr *more, size_t length) {
    if ((header->command & 0xff) != IB_USER_VERBS_EX_CMD_QUERY_DEVICE) {
        errno = EOPNOTSUPP;
        return -1;
    }
    struct ib_uverbs_ex_query_device_resp reply = {.response_length = sizeof reply, .timestamp_mask = ~0ull};
    limits(&reply.base);
    size_t room = header->out_words * 8ul + more->provider_out_words * 8ul;
    return answer(more->response, &reply, room, sizeof reply, length);
}

static ssize_t command(const void *buffer, size_t length) {
    const struct ib_uverbs_cmd_hdr *header = buffer;
    const void *asked = header + 1;
    if (header->command & IB_USER_VERBS_CMD_FLAG_EXTENDED)
        return extended(header, asked, length);
    uint64_t to = *(const uint64_t *)asked;
    size_t room = header->out_words * 4ul;
    switch (header->command & 0xff) {
    case IB_USER_VERBS_CMD_GET_CONTEXT:
        return open_context(asked, to, room, length);
    case IB_USER_VERBS_CMD_QUERY_DEVICE: {
        struct ib_uverbs_query_device_resp reply;
        limits(&reply);
        return answer(to, &reply, room, sizeof reply, length);
    }
    case IB_USER_VERBS_CMD_QUERY_PORT: {
        struct ib_uverbs_query_port_resp reply = {
            .max_msg_sz = 1 << 30, .gid_tbl_len = 1, .pkey_tbl_len = 1, .lid = 7, .state = IBV_PORT_ACTIVE,
            .max_mtu = IBV_MTU_4096, .active_mtu = IBV_MTU_4096, .active_width = 2, .active_speed = 64,
            .phys_state = 5, .link_layer = IBV_LINK_LAYER_INFINIBAND};
        return answer(to, &reply, room, sizeof reply, length);
    }
    case IB_USER_VERBS_CMD_ALLOC_PD: {
        uint32_t reply[2] = {atomic_fetch_add(&made_domains, 1), 0x10};
        return answer(to, reply, room, sizeof reply, length);
    }
    case IB_USER_VERBS_CMD_REG_MR: {
        uint32_t at = atomic_fetch_add(&made_regions, 1), reply[3] = {at, 0x1000 + (at << 8), 0x1000 + (at << 8)};
        return answer(to, reply, room, sizeof reply, length);
    }
    case IB_USER_VERBS_CMD_CREATE_CQ:
        return create_queue(asked, to, room, length);
    case IB_USER_VERBS_CMD_CREATE_QP:
        return create_pair(asked, to, room, length);
    case IB_USER_VERBS_CMD_MODIFY_QP:
        return modify_pair(asked, length);
    }
    fprintf(stderr, "softhca: command %u is not answered\n", header->command);
    errno = EOPNOTSUPP;
    return -1;
}

__attribute__((destructor)) static void stop(void) {
    if (!adapter_runs)
        return;
    atomic_store(&stopping, 1);
    pthread_join(adapter_thread, NULL);
}

// ---- what libibverbs calls of libc

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static int is_device(const char *path) { return path && !strcmp(path, "/dev/infiniband/uverbs0"); }

// Where a path of the machine's leads to here.
static const char *led(const char *path, char *buffer, size_t size) {
    const char *folder = getenv("SOFTHCA_DIR");
    if (path && folder && !strncmp(path, "/sys/class/infiniband", 21))
        snprintf(buffer, size, "%s/sysfs%s", folder, path + 10);
    else if (folder && is_device(path))
        snprintf(buffer, size, "%s/infiniband/uverbs0", folder);
    else
        return path;
    return buffer;
}

static int open_led(int folder, const char *path, int flags, mode_t mode) {
    char buffer[4096];
    int fd = syscall(SYS_openat, folder, led(path, buffer, sizeof buffer), flags | O_LARGEFILE, mode);
    if (fd >= 0 && is_device(path))
        device = fd;
    return fd;
}

#define OPEN(...)                                                                                                      \
    {                                                                                                                  \
        va_list rest;                                                                                                  \
        va_start(rest, flags);                                                                                         \
        mode_t mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(rest, int) : 0;                                         \
        va_end(rest);                                                                                                  \
        return open_led(__VA_ARGS__, path, flags, mode);                                                               \
    }

int open(const char *path, int flags, ...) OPEN(AT_FDCWD)
int open64(const char *path, int flags, ...) OPEN(AT_FDCWD)
int openat(int folder, const char *path, int flags, ...) OPEN(folder)
int openat64(int folder, const char *path, int flags, ...) OPEN(folder)

DIR *opendir(const char *path) {
    char buffer[4096];
    return NEXT(opendir)(led(path, buffer, sizeof buffer));
}

FILE *fopen(const char *path, const char *mode) {
    char buffer[4096];
    return NEXT(fopen)(led(path, buffer, sizeof buffer), mode);
}

FILE *fopen64(const char *path, const char *mode) { return fopen(path, mode); }

static int device_stat(struct stat *to) {
    *to = (struct stat){.st_mode = S_IFCHR | 0666, .st_rdev = makedev(231, 192), .st_nlink = 1};
    return 0;
}

int stat(const char *restrict path, struct stat *restrict to) {
    char buffer[4096];
    return is_device(path) ? device_stat(to) : NEXT(stat)(led(path, buffer, sizeof buffer), to);
}

int stat64(const char *restrict path, struct stat64 *restrict to) { return stat(path, (struct stat *)to); }

int fstat(int fd, struct stat *to) { return fd >= 0 && fd == device ? device_stat(to) : NEXT(fstat)(fd, to); }

int fstat64(int fd, struct stat64 *to) { return fstat(fd, (struct stat *)to); }

ssize_t write(int fd, const void *buffer, size_t length) {
    return fd >= 0 && fd == device ? command(buffer, length) : syscall(SYS_write, fd, buffer, length);
}

int ioctl(int fd, unsigned long request, ...) {
    va_list rest;
    va_start(rest, request);
    void *argument = va_arg(rest, void *);
    va_end(rest);
    if (fd >= 0 && fd == device) {
        errno = ENOTTY;
        return -1;
    }
    return syscall(SYS_ioctl, fd, request, argument);
}

// Doorbell pages: the offset has a command in its upper bits, and the page below.
void *mmap(void *address, size_t length, int protection, int flags, int fd, off_t offset) {
    if (fd >= 0 && fd == device) {
        uint64_t page = offset >> 12, kind = page >> 8 & 0xff;
        if (kind != 0 && kind != 3) {
            errno = EINVAL;
            return MAP_FAILED;
        }
        protection = PROT_READ | PROT_WRITE;
        offset = (page & 0xff) << 12;
    }
    return (void *)syscall(SYS_mmap, address, length, protection, flags, fd, offset);
}

void *mmap64(void *address, size_t length, int protection, int flags, int fd, off_t offset) {
    return mmap(address, length, protection, flags, fd, offset);
}
