/* Looks names up, or makes a ring of io_uring: what other programs than the Rust one do, so that it can be built with
   other C libraries. Speaks the protocol of the `workload` programs: says `ready`, waits for a line, does what its
   arguments say, says `done key=value ...` and stays until its standard input is closed. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static unsigned long long now(clockid_t clock) {
    struct timespec at;
    clock_gettime(clock, &at);
    return at.tv_sec * 1000000000ull + at.tv_nsec;
}

static unsigned long long busy(void) {
    unsigned long long running = 0, runnable = 0;
    FILE *file = fopen("/proc/thread-self/schedstat", "r");
    if (file) {
        if (fscanf(file, "%llu %llu", &running, &runnable) != 2)
            running = 0;
        fclose(file);
    }
    return running + runnable;
}

static void say(const char *line) {
    puts(line);
    fflush(stdout);
}

static void go(void) {
    char line[64];
    if (!fgets(line, sizeof line, stdin))
        exit(0);
}

/* The function that tests look for in stacks. */
__attribute__((noinline)) static int lookup_outer(const char *how, const char *what) {
    volatile int code;
    if (!strcmp(how, "getaddrinfo")) {
        struct addrinfo hints = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM}, *found = NULL;
        code = getaddrinfo(what, NULL, &hints, &found);
        if (!code)
            freeaddrinfo(found);
    } else if (!strcmp(how, "gethostbyname")) {
        code = gethostbyname(what) ? 0 : h_errno;
    } else {
        struct sockaddr_in address = {.sin_family = AF_INET};
        char host[256];
        inet_pton(AF_INET, what, &address.sin_addr);
        code = getnameinfo((void *)&address, sizeof address, host, sizeof host, NULL, 0, NI_NAMEREQD);
    }
    return code;
}

/* struct io_uring_params has 120 bytes. */
static int ring(void) {
    unsigned int parameters[30] = {0};
    return syscall(__NR_io_uring_setup, 4, parameters);
}

int main(int count, char **words) {
    if (count < 3)
        return 2;
    const char *how = words[1], *what = words[2];
    int is_ring = !strcmp(how, "ring"), fd = -2, code = 0;
    if (is_ring && !strcmp(what, "early"))
        fd = ring();
    say("ready");
    go();
    unsigned long long before = busy(), start = now(CLOCK_MONOTONIC);
    if (!is_ring)
        code = lookup_outer(how, what);
    else if (strcmp(what, "early") && strcmp(what, "never"))
        fd = ring();
    /* Gone before anybody looks at descriptors; the call itself is seen. */
    if (is_ring && !strcmp(what, "short")) {
        syscall(__NR_io_uring_enter, fd, 0, 0, 0, NULL, 0);
        close(fd);
    }
    unsigned long long end = now(CLOCK_MONOTONIC);
    printf("done code=%d fd=%d ns=%llu busy=%llu end=%llu\n", code, fd, end - start, busy() - before, end);
    fflush(stdout);
    go();
    return 0;
}
