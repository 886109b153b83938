// A job that "uses CUDA": maps stand-ins for libcuda and libcupti from its own folder, launches kernels from one thread
// until its standard input says something (or not at all), while other threads wait in every way there is, check that no
// wait ends with EINTR, and add up in vector registers what has to come out right.
//   cuda_job FOLDER [quiet] [WAIT…]     WAIT: futex poll epoll sleep vector; no WAIT: only the launching thread
// spinning, blocking: a thread that computes, all-reduces, and waits for both in a CUDA synchronisation. More words: filtered (a thread that waits in poll and dies with the process at memfd_create), fork (the launching
// thread forks children that launch too), nocupti (no libcupti by its name), storm (a thread that sleeps while signals
// rain on it, each of which has to be handled once), busy (a thread that always runs), many (opens FOLDER/many0.so and so
// on, as far as there are), init (calls cuInit), workers (forks two children that live as long as it does), filter=FILE
// (the whole process has this system-call filter, sock_filter after sock_filter).
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <immintrin.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#ifdef __GLIBC__ // musl's compiler does not find the kernel's headers
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#endif

static atomic_int over, eintr, wrong, early, turns;
static atomic_long launched, forked, sent, handled;
static int forks;
static uint32_t (*flush)(uint32_t);
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t never = PTHREAD_COND_INITIALIZER;
// Opened before any thread runs, so that the number of descriptors is the same from the first moment on.
static int pipe_ends[2], epoll_set;
static uint32_t (*synchronize)(int);
static void (*run)(const char *, uint64_t, uint32_t, uint64_t, uint64_t);
static const char *nccl = "_Z39ncclDevKernel_AllReduce_Sum_f32_RING_LL24ncclDevKernelArgsStorageILm4096EE";

static uint64_t ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ull + t.tv_nsec;
}
static void check(int failed, uint64_t begun, uint64_t wanted) {
    if (failed && errno == EINTR) eintr++;
    if (!over && ns() - begun < wanted) early++;
    turns++;
}
static void *futex_thread(void *x) {
    while (!over) {
        struct timespec t;
        clock_gettime(CLOCK_REALTIME, &t);
        t.tv_nsec += 70000000;
        if (t.tv_nsec >= 1000000000) { t.tv_sec++; t.tv_nsec -= 1000000000; }
        pthread_mutex_lock(&lock);
        int result = pthread_cond_timedwait(&never, &lock, &t);
        pthread_mutex_unlock(&lock);
        if (result == EINTR) eintr++;
        if (result != ETIMEDOUT) wrong++;
        turns++;
    }
    return x;
}
static void *poll_thread(void *x) {
    while (!over) {
        struct pollfd fd = {pipe_ends[0], POLLIN, 0};
        uint64_t begun = ns();
        check(poll(&fd, 1, 70) < 0, begun, 69000000);
    }
    return x;
}
static void *epoll_thread(void *x) {
    struct epoll_event event;
    while (!over) {
        uint64_t begun = ns();
        check(epoll_wait(epoll_set, &event, 1, 70) < 0, begun, 69000000);
    }
    return x;
}
static void *sleep_thread(void *x) {
    while (!over) {
        struct timespec t = {0, 70000000};
        uint64_t begun = ns();
        check(nanosleep(&t, 0) < 0, begun, 70000000);
    }
    return x;
}
// Vector registers over a wait: what a careless guest leaves in them shows.
static void *vector_thread(void *x) {
    while (!over) {
        struct timespec t = {0, 30000000};
        __m128i in = _mm_set_epi32(0x1234567, turns, 0x89abcd, 42), low, high;
        long result = 35; // nanosleep
        asm volatile("movdqa %[in], %%xmm3\n\tmovdqa %[in], %%xmm15\n\tsyscall\n\t"
                     "movdqa %%xmm3, %[low]\n\tmovdqa %%xmm15, %[high]"
                     : "+a"(result), [low] "=m"(low), [high] "=m"(high)
                     : "D"(&t), "S"(0L), [in] "m"(in)
                     : "rcx", "r11", "xmm3", "xmm15", "memory");
        if (memcmp(&in, &low, sizeof in) || memcmp(&in, &high, sizeof in)) wrong++;
        if (result == -EINTR) eintr++;
        turns++;
    }
    return x;
}
static void *busy_thread(void *x) {
    while (!over) turns++;
    return x;
}
static void *filtered_thread(void *x) {
#ifdef __GLIBC__
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_memfd_create, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {4, filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) wrong++;
#endif
    return poll_thread(x);
}
#ifndef __GLIBC__ // musl has no queue by thread
#define pthread_sigqueue(thread, number, value) ((void)(value), pthread_kill(thread, number))
#endif
static void on_signal(int number) { (void)number; handled++; }
static void *storm_thread(void *x) {
    while (!over || handled != sent) {
        struct timespec t = {0, 5000000};
        nanosleep(&t, 0);
        turns++;
    }
    return x;
}
static void *rain_thread(void *x) {
    pthread_t *under = x;
    union sigval nothing = {0};
    while (!over) {
        // Of a queue that is full nothing is lost that was not refused.
        if (!pthread_sigqueue(*under, SIGRTMIN + 3, nothing)) sent++;
        struct timespec t = {0, 300000};
        nanosleep(&t, 0);
    }
    return x;
}
// What a child launches must not reach the recorder of its parent, and not harm the child.
static void fork_one(void) {
    pid_t child = fork();
    if (child == 0) {
        alarm(30);
        for (int i = 0; i < 200; i++) run("kernel_of_a_child", 0, 7, 1000, 1000);
        flush(1);
        struct timespec t = {0, 30000000};
        nanosleep(&t, 0);
        _exit(0);
    }
    int status = 1;
    if (child < 0 || waitpid(child, &status, 0) != child || status) wrong++;
    forked++;
}
static void *launch_thread(void *x) {
    for (int i = 0; !over; i++) {
        if (forks) fork_one();
        run(nccl, 0, 20, 50000, 300000);
        run("gemm_kernel", 0, 7, 10000, 200000);
        run(0, 4096, 7, 20000, 100000);
        launched += 3;
        struct timespec t = {0, 2000000};
        nanosleep(&t, 0);
    }
    return x;
}
// A step: computes, all-reduces, and waits for both.
static void *step_thread(void *asleep) {
    while (!over) {
        run("gemm_kernel", 0, 7, 1000000, 4000000);
        run(nccl, 0, 20, 5000000, 15000000);
        launched += 3;
        synchronize(asleep != 0);
    }
    return 0;
}
static void *load(const char *folder, const char *name) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    void *handle = dlopen(path, RTLD_NOW);
    if (!handle) { fprintf(stderr, "%s\n", dlerror()); exit(1); }
    return handle;
}
static void fork_workers(void) {
#ifdef __GLIBC__
    for (int i = 0; i < 2; i++) {
        if (fork()) continue;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (;;) pause();
    }
#endif
}
static void filter_all(const char *path) {
#ifdef __GLIBC__
    static struct sock_filter filter[4096];
    FILE *file = fopen(path, "r");
    struct sock_fprog program = {0, filter};
    if (file) program.len = fread(filter, sizeof *filter, 4096, file), fclose(file);
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) exit(4);
#else
    (void)path;
#endif
}
static void load_many(const char *folder) {
    char path[4096];
    for (int i = 0;; i++) {
        snprintf(path, sizeof path, "%s/many%d.so", folder, i);
        if (access(path, R_OK) || !dlopen(path, RTLD_NOW)) return;
    }
}
int main(int count, char **words) {
    static const struct { const char *name; void *(*run)(void *); } kinds[] = {
        {"futex", futex_thread}, {"poll", poll_thread}, {"epoll", epoll_thread},
        {"sleep", sleep_thread}, {"vector", vector_thread}, {"filtered", filtered_thread},
        {"busy", busy_thread},
    };
    pthread_t thread[64];
    pthread_t under_storm;
    int threads = 0, quiet = 0, storm = 0, steps = 0;
    const char *cupti_name = "libcupti.so.12";
    struct epoll_event readable = {EPOLLIN, {0}};
    if (pipe(pipe_ends) || (epoll_set = epoll_create1(0)) < 0) return 1;
    if (epoll_ctl(epoll_set, EPOLL_CTL_ADD, pipe_ends[0], &readable)) return 1;
    for (int i = 2; i < count; i++) {
        quiet |= !strcmp(words[i], "quiet");
        storm |= !strcmp(words[i], "storm");
        if (!strcmp(words[i], "spinning")) steps = 1;
        if (!strcmp(words[i], "blocking")) steps = 2;
        forks |= !strcmp(words[i], "fork");
        if (!strcmp(words[i], "many")) load_many(words[1]);
        if (!strncmp(words[i], "filter=", 7)) filter_all(words[i] + 7);
        if (!strcmp(words[i], "nocupti")) cupti_name = "libgpu.so";
    }
    void *cuda = load(words[1], "libcuda.so.1");
    void *cupti = load(words[1], cupti_name);
    run = (void (*)(const char *, uint64_t, uint32_t, uint64_t, uint64_t))dlsym(cupti, "fake_run");
    synchronize = (uint32_t (*)(int))dlsym(cupti, "cudaStreamSynchronize");
    flush = (uint32_t (*)(uint32_t))dlsym(cupti, "cuptiActivityFlushAll");
    long (*finalized)(void) = (long (*)(void))dlsym(cupti, "fake_finalized");
    long (*active)(void) = (long (*)(void))dlsym(cupti, "fake_active");
    for (int i = 2; i < count; i++) {
        if (!strcmp(words[i], "init") && ((int (*)(unsigned))dlsym(cuda, "cuInit"))(0)) return 5;
        if (!strcmp(words[i], "workers")) fork_workers();
    }
    for (int i = 2; i < count; i++)
        for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
            if (!strcmp(words[i], kinds[k].name)) pthread_create(&thread[threads++], 0, kinds[k].run, 0);
    if (!quiet) pthread_create(&thread[threads++], 0, launch_thread, 0);
    if (steps) pthread_create(&thread[threads++], 0, step_thread, steps == 2 ? words : 0);
    if (storm) {
        struct sigaction action = {.sa_handler = on_signal};
        sigaction(SIGRTMIN + 3, &action, 0);
        pthread_create(&under_storm, 0, storm_thread, 0);
        thread[threads++] = under_storm;
        pthread_create(&thread[threads++], 0, rain_thread, &under_storm);
    }
    printf("ready threads=%d\n", threads + 1);
    fflush(stdout);
    char line[16];
    while (fgets(line, sizeof line, stdin)) {
        printf("done eintr=%d wrong=%d early=%d turns=%d launched=%ld finalized=%ld active=%ld "
               "forked=%ld sent=%ld handled=%ld\n", (int)eintr, (int)wrong,
               (int)early, (int)turns, (long)launched, finalized(), active(),
               (long)forked, (long)sent, (long)handled);
        fflush(stdout);
    }
    over = 1;
    for (int i = 0; i < threads; i++) pthread_join(thread[i], 0);
    return handled == sent ? 0 : 3;
}
