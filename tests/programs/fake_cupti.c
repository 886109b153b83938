// Stands in for libcupti, and says what it was asked. Built as libcupti.so.12; the job (cuda_job.c) plays the GPU by
// calling fake_run(), which gives the records and API callbacks that CUPTI would.
// FAKE_CUPTI: "taken" (another client has it), "old" (before CUDA 12.0), "12.4" (no finalising), "nosyncs" (calls that
// wait are not recorded).
#define _GNU_SOURCE
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { MEMCPY = 1, RUNTIME = 5, KERNEL = 10, RUNTIME_DOMAIN = 2, LAUNCH = 211, STREAM_SYNC = 131, NOT_NEEDED = 0, TAKEN = 39 };
typedef void (*callback_t)(void *, uint32_t, uint32_t, const void *);
typedef void (*requested_t)(uint8_t **, size_t *, size_t *);
typedef void (*completed_t)(void *, uint32_t, uint8_t *, size_t, size_t);

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static callback_t callback;
static uint64_t (*stamp)(void);
static requested_t requested;
static completed_t completed;
static int kernels, copies, runtime, launches, syncs, api_callbacks; // a launch is told where its kind and itself are on
static long finalized, correlation, dropped;
static uint32_t thread_ids;
static uint64_t busy_until;
static struct buffer { uint8_t *at; size_t size, used; } full[64], open_buffer;
static int full_count;

static void take(void) { pthread_mutex_lock(&lock); }
static void give(void) { pthread_mutex_unlock(&lock); }
__attribute__((constructor)) static void whole_in_children(void) { pthread_atfork(take, give, give); }

static int mode_is(const char *name) { const char *mode = getenv("FAKE_CUPTI"); return mode && !strcmp(mode, name); }
long fake_finalized(void) { return finalized; }
long fake_active(void) { return kernels || copies || runtime || callback || thread_ids; }

static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t); // not the clock that the recorder wants: it has to bring its own
    return stamp ? stamp() : t.tv_sec * 1000000000ull + t.tv_nsec;
}

// The GPU's own clock, whatever clock the recorder brings.
static uint64_t gpu_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static uint8_t *room(size_t size) {
    if (open_buffer.at && open_buffer.used + size > open_buffer.size) {
        if (full_count < 64) full[full_count++] = open_buffer;
        open_buffer.at = 0;
    }
    if (!open_buffer.at) {
        size_t records = 0;
        open_buffer.used = 0;
        requested(&open_buffer.at, &open_buffer.size, &records);
        if (!open_buffer.at) { dropped++; return 0; }
    }
    uint8_t *record = open_buffer.at + open_buffer.used;
    open_buffer.used += size;
    memset(record, 0, size);
    return record;
}

static void put32(uint8_t *at, int offset, uint32_t value) { memcpy(at + offset, &value, 4); }
static void put64(uint8_t *at, int offset, uint64_t value) { memcpy(at + offset, &value, 8); }

// One launch of `name` (a copy of `bytes` where it is null) that starts `queue` after it and takes `duration`.
void fake_run(const char *name, uint64_t bytes, uint32_t stream, uint64_t queue, uint64_t duration) {
    uint32_t site[32] = {1};
    pthread_mutex_lock(&lock);
    uint64_t begun = now();
    uint32_t id = (uint32_t)++correlation;
    uint64_t done = gpu_now() + queue + duration;
    if (busy_until < done) busy_until = done;
    uint8_t *at;
    if (name && kernels && (at = room(208))) {
        put32(at, 0, KERNEL); put64(at, 16, begun + queue); put64(at, 24, begun + queue + duration);
        put32(at, 48, stream); put32(at, 92, id); put64(at, 104, (uint64_t)(uintptr_t)name);
    }
    if (!name && copies && (at = room(96))) {
        put32(at, 0, MEMCPY); at[4] = 1; put64(at, 8, bytes);
        put64(at, 16, begun + queue); put64(at, 24, begun + queue + duration);
        put32(at, 40, stream); put32(at, 44, id);
    }
    if (runtime && launches && (at = room(40))) { // after what it launched: it is on its way still
        put32(at, 0, RUNTIME); put32(at, 4, LAUNCH); put64(at, 8, begun); put64(at, 16, begun + 1000);
        put32(at, 32, id);
    }
    callback_t call = api_callbacks ? callback : 0;
    pthread_mutex_unlock(&lock);
    if (call) { site[0] = 0; call(0, RUNTIME_DOMAIN, LAUNCH, site); site[0] = 1; call(0, RUNTIME_DOMAIN, LAUNCH, site); }
}

// Waits until all that was launched is done, asleep or looking at the clock again and again.
__attribute__((noinline)) uint32_t cudaStreamSynchronize(int asleep) {
    pthread_mutex_lock(&lock);
    uint64_t begun = now(), until = busy_until;
    pthread_mutex_unlock(&lock);
    if (asleep)
        for (uint64_t at; (at = gpu_now()) < until;) poll(0, 0, (int)((until - at) / 1000000) + 1);
    else
        while (gpu_now() < until) {}
    pthread_mutex_lock(&lock);
    uint8_t *at;
    if (runtime && syncs && (at = room(40))) {
        put32(at, 0, RUNTIME); put32(at, 4, STREAM_SYNC); put64(at, 8, begun); put64(at, 16, now());
        put32(at, 28, thread_ids == 1 ? (uint32_t)gettid() : (uint32_t)pthread_self());
        put32(at, 32, (uint32_t)++correlation);
    }
    pthread_mutex_unlock(&lock);
    return 0;
}
uint32_t cuptiGetThreadIdType(uint32_t *type) { *type = thread_ids; return 0; }
uint32_t cuptiSetThreadIdType(uint32_t type) { thread_ids = type; return 0; }
uint32_t cuptiGetVersion(uint32_t *version) {
    *version = mode_is("old") ? 14 : mode_is("12.4") ? 22 : 28;
    return 0;
}
uint32_t cuptiSubscribe(void **subscriber, callback_t function, void *data) {
    (void)data;
    if (mode_is("taken") || callback) return TAKEN;
    callback = function;
    *subscriber = &callback;
    return 0;
}
uint32_t cuptiUnsubscribe(void *subscriber) { (void)subscriber; callback = 0; api_callbacks = 0; return 0; }
uint32_t cuptiEnableDomain(uint32_t enable, void *subscriber, uint32_t domain) {
    (void)subscriber;
    if (domain == RUNTIME_DOMAIN) api_callbacks = enable;
    return 0;
}
uint32_t cuptiActivityRegisterTimestampCallback(uint64_t (*function)(void)) { stamp = function; return 0; }
uint32_t cuptiActivityRegisterCallbacks(requested_t first, completed_t second) {
    requested = first; completed = second;
    return 0;
}
static uint32_t turn(uint32_t kind, int on) {
    if (kind == KERNEL) kernels = on;
    if (kind == MEMCPY) copies = on;
    if (kind == RUNTIME) runtime = launches = syncs = on;
    return 0;
}
uint32_t cuptiActivityEnable(uint32_t kind) { return turn(kind, 1); }
uint32_t cuptiActivityDisable(uint32_t kind) { return turn(kind, 0); }
uint32_t cuptiActivityEnableRuntimeApi(uint32_t cbid, uint8_t on) {
    if (cbid == LAUNCH) launches = on;
    if (cbid == STREAM_SYNC) syncs = on && !mode_is("nosyncs");
    return 0;
}
uint32_t cuptiActivityEnableDriverApi(uint32_t cbid, uint8_t on) { (void)cbid; (void)on; return 0; }
uint32_t cuptiActivityFlushAll(uint32_t flag) {
    (void)flag;
    pthread_mutex_lock(&lock);
    struct buffer out[65];
    int count = 0;
    if (open_buffer.at && open_buffer.used) { out[count++] = open_buffer; open_buffer.at = 0; }
    while (full_count) out[count++] = full[--full_count]; // the newest first: they come out of order
    pthread_mutex_unlock(&lock);
    for (int i = 0; i < count; i++) completed(0, 0, out[i].at, out[i].size, out[i].used);
    return 0;
}
uint32_t cuptiActivityGetNextRecord(uint8_t *buffer, size_t valid, uint8_t **record) {
    uint8_t *at = *record;
    if (at) { uint32_t kind; memcpy(&kind, at, 4); at += kind == KERNEL ? 208 : kind == MEMCPY ? 96 : 40; }
    else at = buffer;
    if (at >= buffer + valid) return 12;
    *record = at;
    return 0;
}
uint32_t cuptiActivityGetNumDroppedRecords(void *context, uint32_t stream, size_t *count) {
    (void)context; (void)stream;
    *count = __atomic_exchange_n(&dropped, 0, __ATOMIC_RELAXED);
    return 0;
}
uint32_t cuptiFinalize(void) {
    pthread_mutex_lock(&lock);
    callback = 0; stamp = 0; kernels = copies = runtime = launches = syncs = api_callbacks = 0;
    open_buffer.at = 0; full_count = 0; finalized++;
    pthread_mutex_unlock(&lock);
    return 0;
}
