// Waits for a reply of a peer in a known place.
//
// frames PORT plain|inlined|deep|signal|vdso
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define CALLED __attribute__((noinline)) static
#define INLINED static inline __attribute__((always_inline))

enum { DEPTH = 500, REPLY = 8 };

static int peer;
static volatile long total;

CALLED void inner(void) {
    char reply[REPLY];
    if (send(peer, "", 1, 0) != 1 || recv(peer, reply, REPLY, MSG_WAITALL) != REPLY)
        exit(3);
    total += reply[0];
}

CALLED void middle(void) {
    inner();
    total++;
}

CALLED void outer(void) {
    middle();
    total++;
}

INLINED void inlined_inner(long add) {
    inner();
    total += add;
}

INLINED void inlined_outer(long add) {
    inlined_inner(add + 1);
    total += add;
}

CALLED void around(void) {
    inlined_outer(2);
    total++;
}

CALLED void deep(long left) {
    if (left == 1)
        inner();
    else
        deep(left - 1);
    total++;
}

CALLED void handler(int number) {
    inner();
    total += number;
}

CALLED void raiser(void) {
    syscall(SYS_tgkill, getpid(), syscall(SYS_gettid), SIGUSR1);
    total++;
}

static volatile sig_atomic_t interrupted;

// Waits the first time that it comes while the kernel's code is run.
CALLED void timer(int number, siginfo_t *info, void *context) {
    unsigned long vdso = getauxval(AT_SYSINFO_EHDR);
    unsigned long at = ((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
    (void)number, (void)info;
    if (interrupted || at < vdso || at >= vdso + 8192)
        return;
    interrupted = 1;
    inner();
    total++;
}

CALLED void reader(void) {
    struct timespec now;
    while (!interrupted) {
        clock_gettime(CLOCK_MONOTONIC, &now);
        total += now.tv_nsec & 1;
    }
}

__attribute__((noinline)) static void run(const char *what) {
    if (!strcmp(what, "plain"))
        outer();
    if (!strcmp(what, "inlined"))
        around();
    if (!strcmp(what, "deep"))
        deep(DEPTH);
    if (!strcmp(what, "signal")) {
        signal(SIGUSR1, handler);
        raiser();
    }
    if (!strcmp(what, "vdso")) {
        struct sigaction action = {.sa_sigaction = timer, .sa_flags = SA_SIGINFO};
        struct itimerval often = {{0, 1000}, {0, 1000}}, never = {{0, 0}, {0, 0}};
        sigaction(SIGPROF, &action, NULL);
        setitimer(ITIMER_PROF, &often, NULL);
        reader();
        setitimer(ITIMER_PROF, &never, NULL);
    }
}

int main(int count, char **arguments) {
    struct sockaddr_in address = {.sin_family = AF_INET};
    char line[16];
    if (count != 3)
        return 1;
    address.sin_port = htons(atoi(arguments[1]));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    peer = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(peer, (struct sockaddr *)&address, sizeof address) != 0)
        return 2;
    puts("ready");
    fflush(stdout);
    if (!fgets(line, sizeof line, stdin))
        return 0;
    run(arguments[2]);
    puts("done");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin))
        ;
    return 0;
}
