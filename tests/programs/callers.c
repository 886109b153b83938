// Waits for replies of a peer in a function without a frame that is reached through several callers, and keeps
// anything in the frame pointer register meanwhile.
//
// callers PORT ROUNDS: two threads, with a connection each, wait ROUNDS times for each of the callers by turns.
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

struct job {
    pthread_t thread;
    int fd;
    unsigned long ns[CALLERS];
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

static __attribute__((noinline)) unsigned long exchange(int fd) {
    unsigned long words[12] = {0};
    if (send(fd, "", 1, 0) != 1)
        exit(2);
    unsigned long begin = now_ns();
    receive(fd, garbage(words));
    return now_ns() - begin;
}

// The first two have frames of the same size.
#define CALLER(name, size)                                                                                            \
    static __attribute__((noinline)) unsigned long name(int fd) {                                                    \
        volatile char room[size];                                                                                     \
        room[0] = 1;                                                                                                  \
        unsigned long ns = exchange(fd);                                                                              \
        __asm__ volatile("# " #name);                                                                                 \
        return ns + room[0] - 1;                                                                                      \
    }

CALLER(first_caller, 64)
CALLER(second_caller, 64)
CALLER(third_caller, 640)

static void *work(void *argument) {
    struct job *job = argument;
    for (int round = 0; round < rounds; round++) {
        job->ns[0] += first_caller(job->fd);
        job->ns[1] += second_caller(job->fd);
        job->ns[2] += third_caller(job->fd);
    }
    return NULL;
}

int main(int count, char **arguments) {
    static struct job jobs[THREADS];
    char line[16];
    int one = 1;
    if (count != 3)
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
        pthread_create(&jobs[index].thread, NULL, work, &jobs[index]);
    unsigned long ns[CALLERS] = {0};
    for (int index = 0; index < THREADS; index++) {
        pthread_join(jobs[index].thread, NULL);
        for (int caller = 0; caller < CALLERS; caller++)
            ns[caller] += jobs[index].ns[caller];
    }
    printf("done first=%lu second=%lu third=%lu\n", ns[0], ns[1], ns[2]);
    fflush(stdout);
    while (fgets(line, sizeof line, stdin))
        ;
    return 0;
}
