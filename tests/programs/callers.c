// Waits for replies of a peer in a function without a frame that is reached through several callers, and keeps
// anything in the frame pointer register meanwhile.
//
// callers PORT ROUNDS LOG: two threads, with a connection each, wait ROUNDS times for each of the callers by turns.
// LOG gets a line `TID CALLER BEGIN END` for each wait, times of CLOCK_MONOTONIC in nanoseconds.
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { CALLERS = 3, THREADS = 2, REPLY = 8 };

static int rounds;

struct call {
    unsigned long begin, end;
};

struct job {
    pthread_t thread;
    int fd;
    long tid;
    struct call *calls;
};

static unsigned long now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ul + now.tv_nsec;
}

// What the register holds: nonsense, or a place on the stack whose words are other ones every time.
static unsigned long garbage(unsigned long *words) {
    static _Thread_local unsigned long state = 88172645463325252ul;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    words[0] = (unsigned long)(words + 2 + state % 4 * 2);
    words[1] = 0x555500000000ul + state % 0xffffff;
    return state & 1 ? state : (unsigned long)words;
}

static __attribute__((noinline)) void receive(int fd, unsigned long register_value) {
    char reply[REPLY];
    long left = REPLY;
    while (left > 0) {
        long result;
        register long flags __asm__("r10") = 0;
        register long address __asm__("r8") = 0;
        register long length __asm__("r9") = 0;
        __asm__ volatile("xchgq %%rbp, %%rbx\n\tsyscall\n\txchgq %%rbp, %%rbx"
                         : "=a"(result), "+b"(register_value)
                         : "0"((long)SYS_recvfrom), "D"((long)fd), "S"(reply), "d"(left), "r"(flags), "r"(address),
                           "r"(length)
                         : "rcx", "r11", "memory");
        if (result <= 0)
            exit(3);
        left -= result;
    }
}

static __attribute__((noinline)) void exchange(int fd, struct call *call) {
    unsigned long words[12] = {0};
    if (send(fd, "", 1, 0) != 1)
        exit(2);
    call->begin = now_ns();
    receive(fd, garbage(words));
    call->end = now_ns();
}

// The first two have frames of the same size.
#define CALLER(name, size)                                                                                            \
    static __attribute__((noinline)) void name(int fd, struct call *call) {                                          \
        volatile char room[size];                                                                                     \
        room[0] = 1;                                                                                                  \
        exchange(fd, call);                                                                                           \
        __asm__ volatile("# " #name);                                                                                 \
        room[0] = 2;                                                                                                  \
    }

CALLER(first_caller, 64)
CALLER(second_caller, 64)
CALLER(third_caller, 640)

static void *work(void *argument) {
    struct job *job = argument;
    struct call *call = job->calls;
    job->tid = syscall(SYS_gettid);
    for (int round = 0; round < rounds; round++) {
        first_caller(job->fd, call++);
        second_caller(job->fd, call++);
        third_caller(job->fd, call++);
    }
    return NULL;
}

int main(int count, char **arguments) {
    static struct job jobs[THREADS];
    char line[16];
    int one = 1;
    if (count != 4)
        return 1;
    rounds = atoi(arguments[2]);
    for (int index = 0; index < THREADS; index++) {
        struct sockaddr_in peer = {.sin_family = AF_INET, .sin_port = htons(atoi(arguments[1]))};
        peer.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        jobs[index].fd = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(jobs[index].fd, (struct sockaddr *)&peer, sizeof peer) != 0)
            return 2;
        setsockopt(jobs[index].fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    }
    puts("ready");
    fflush(stdout);
    if (!fgets(line, sizeof line, stdin))
        return 0;
    for (int index = 0; index < THREADS; index++)
        if (!(jobs[index].calls = calloc(rounds * CALLERS, sizeof(struct call))))
            return 3;
    for (int index = 0; index < THREADS; index++)
        pthread_create(&jobs[index].thread, NULL, work, &jobs[index]);
    FILE *log = fopen(arguments[3], "w");
    if (!log)
        return 4;
    for (int index = 0; index < THREADS; index++) {
        pthread_join(jobs[index].thread, NULL);
        for (int call = 0; call < rounds * CALLERS; call++)
            fprintf(log, "%ld %d %lu %lu\n", jobs[index].tid, call % CALLERS, jobs[index].calls[call].begin,
                    jobs[index].calls[call].end);
    }
    if (fclose(log) != 0)
        return 5;
    puts("done");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin))
        ;
    return 0;
}
