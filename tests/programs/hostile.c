// Targets that suffer, or misbehave, while they are recorded. Each ends with an exit status of its own when nothing
// went wrong, and says on standard error what did.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/futex.h>
#include <linux/seccomp.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static atomic_int stop, bad;
static atomic_long signals;

static void wrong(const char *what, long result)
{
    fprintf(stderr, "wrong: %s gave %ld, errno %d\n", what, result, errno);
    bad++;
}

// Until the test closes standard input.
static void *watch_input(void *unused)
{
    char byte;
    while (read(0, &byte, 1) > 0) {}
    stop = 1;
    return unused;
}

static void ready(void)
{
    printf("ready \n");
    fflush(stdout);
}

static unsigned long churn(unsigned long x, int rounds)
{
    while (rounds-- > 0) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
    }
    return x;
}

static void on_signal(int number) { signals += number != 0; }

static void *send_sums(void *unused)
{
    int pair[2];
    unsigned long sent = 88172645463325252UL, expected = sent, got;
    socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
    while (!stop) {
        sent = churn(sent, 50);
        expected = churn(expected, 50);
        if (write(pair[0], &sent, 8) != 8) wrong("write", 0);
        if (read(pair[1], &got, 8) != 8 || got != expected) wrong("read", 0);
        usleep(300);
    }
    return unused;
}

static void *wait_for_timers(void *unused)
{
    int epoll = epoll_create1(0), timer = timerfd_create(CLOCK_MONOTONIC, 0);
    struct itimerspec every = {{0, 3000000}, {0, 3000000}};
    struct epoll_event event = {.events = EPOLLIN};
    unsigned long ticks;
    timerfd_settime(timer, 0, &every, 0);
    epoll_ctl(epoll, EPOLL_CTL_ADD, timer, &event);
    while (!stop) {
        int count = epoll_wait(epoll, &event, 1, -1);
        if (count != 1) wrong("epoll_wait", count);
        if (read(timer, &ticks, 8) != 8) wrong("read of a timer", 0);
    }
    return unused;
}

static void *time_out(void *unused)
{
    static int word;
    int udp = socket(AF_INET, SOCK_DGRAM, 0);
    struct sockaddr_in any = {.sin_family = AF_INET};
    struct timeval limit = {0, 4000};
    struct timespec pause = {0, 3000000};
    struct pollfd nothing = {-1, 0, 0};
    char byte;
    bind(udp, (struct sockaddr *)&any, sizeof any);
    setsockopt(udp, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    while (!stop) {
        long result = syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 0, &pause, 0, 0);
        if (result != -1 || errno != ETIMEDOUT) wrong("futex", result);
        if ((result = nanosleep(&pause, 0))) wrong("nanosleep", result);
        if ((result = poll(&nothing, 1, 3))) wrong("poll", result);
        if ((result = recv(udp, &byte, 1, 0)) != -1 || errno != EAGAIN) wrong("recv", result);
    }
    return unused;
}

static void *start_others(void *unused)
{
    while (!stop) {
        struct addrinfo *found;
        int status, result = getaddrinfo("localhost", "80", 0, &found);
        if (result) wrong("getaddrinfo", result);
        else freeaddrinfo(found);
        pid_t child = fork();
        if (child == 0) _exit(churn(7, 1000) == churn(7, 1000) ? 3 : 4);
        if (waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 3)
            wrong("a child", status);
        usleep(5000);
    }
    return unused;
}

// Many threads that check what they get, under signals.
static int survive(void)
{
    void *(*bodies[])(void *) = {send_sums, wait_for_timers, time_out, start_others};
    pthread_t threads[9];
    sigset_t set;
    struct itimerval every = {{0, 10000}, {0, 10000}};
    sigemptyset(&set);
    sigaddset(&set, SIGALRM);
    pthread_sigmask(SIG_BLOCK, &set, 0);
    for (int i = 0; i < 8; i++) pthread_create(&threads[i], 0, bodies[i % 4], 0);
    pthread_create(&threads[8], 0, watch_input, 0);
    sigaction(SIGALRM, &(struct sigaction){.sa_handler = on_signal}, 0);
    pthread_sigmask(SIG_UNBLOCK, &set, 0);
    setitimer(ITIMER_REAL, &every, 0);
    ready();
    while (!stop) pause();
    for (int i = 0; i < 9; i++) pthread_join(threads[i], 0);
    return bad || !signals ? 1 : 42;
}

#ifdef __x86_64__
#define ALLOW(name) \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_##name, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

// Killed at any system call that looking up names does not need.
static int confined(void)
{
    struct sock_filter filter[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        ALLOW(read), ALLOW(write), ALLOW(openat), ALLOW(close), ALLOW(socket), ALLOW(connect), ALLOW(sendto),
        ALLOW(recvfrom), ALLOW(recvmsg), ALLOW(sendmsg), ALLOW(sendmmsg), ALLOW(poll), ALLOW(bind),
        ALLOW(getsockname), ALLOW(getpeername), ALLOW(setsockopt), ALLOW(getsockopt), ALLOW(ioctl), ALLOW(uname),
        ALLOW(mmap), ALLOW(munmap), ALLOW(mprotect), ALLOW(madvise), ALLOW(brk), ALLOW(lseek), ALLOW(pread64),
        ALLOW(newfstatat), ALLOW(fstat), ALLOW(stat), ALLOW(access), ALLOW(futex), ALLOW(nanosleep),
        ALLOW(clock_nanosleep), ALLOW(clock_gettime), ALLOW(getrandom), ALLOW(getpid), ALLOW(gettid),
        ALLOW(fcntl), ALLOW(exit), ALLOW(exit_group),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS)};
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    struct addrinfo *found;
    struct pollfd input = {0, POLLIN, 0};
    int count = 0;
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) return 2;
    ready();
    while (poll(&input, 1, 1) == 0) {
        if (getaddrinfo("localhost", "80", 0, &found) == 0) {
            freeaddrinfo(found);
            count++;
        }
    }
    return count ? 43 : 1;
}
#endif

// A thread that calls itself like an attack, and waits for names and sockets that do.
static void *ask_evil(void *name)
{
    static const char *labels[] = {"\033[31mx", "a\nb;c 7", "\xe2\x80\xaertl", "\xff\xfe\x80", "<script>", "\"'&-->", "]]>"};
    int server = socket(AF_INET, SOCK_DGRAM, 0), client = socket(AF_INET, SOCK_DGRAM, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(53)};
    struct timeval limit = {0, 30000};
    char byte;
    prctl(PR_SET_NAME, name);
    // An address of its own for each process, so that tests do not meet.
    address.sin_addr.s_addr = htonl(0x7f400000 | (getpid() & 0xfffff));
    if (bind(server, (struct sockaddr *)&address, sizeof address)) wrong("bind", 0);
    connect(client, (struct sockaddr *)&address, sizeof address);
    setsockopt(client, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    for (int i = 0; i < 21; i++) {
        const char *label = labels[i % 7];
        unsigned char query[300] = {0, i, 1, 0, 0, 1};
        int at = 12;
        query[at++] = strlen(label);
        memcpy(query + at, label, strlen(label));
        at += strlen(label);
        for (int more = 0; i % 3 == 0 && more < 3; more++, at += 50) {
            query[at++] = 50;
            memset(query + at, i % 2 ? 0x1b : 'x', 50);
        }
        at++;
        query[at + 1] = i % 2 ? 1 : 255;
        query[at + 3] = 1;
        send(client, query, at + 4, 0);
        recv(client, &byte, 1, 0);
    }
    close(server);
    close(client);
    return name;
}

static int evil_names(void)
{
    char byte;
    ready();
    if (read(0, &byte, 1) != 1) return 1;
    ask_evil("\033[2J;\n\"'<&");
    ask_evil("\xff\xfe\xe2\x80\xae x 7");
    while (read(0, &byte, 1) > 0) {}
    return bad ? 1 : 44;
}

// What a reader of CPython 3.12 takes for its runtime: 3000 threads, each 600 functions deep with long names.
unsigned long Py_Version = 0x030c00f0, _PyRuntime[4096], PyCode_Type[64];
static unsigned long interpreter[64], codes[8];

static unsigned long text(int length, int first)
{
    unsigned char *object = calloc(1, length + 64);
    *(unsigned long *)(object + 16) = length;
    *(unsigned *)(object + 32) = 0x64;
    for (int i = 0; i < length; i++) object[40 + i] = "\033[31m;\n<&\"'"[(i + first) % 11];
    return (unsigned long)object;
}

static unsigned long code(int number)
{
    unsigned char *object = calloc(1, 256), *lines = calloc(1, (256 << 10) + 64);
    unsigned long *words = (unsigned long *)object;
    *(unsigned long *)(lines + 16) = (256 << 10) - 8;
    memset(lines + 32, 0x80 | 11 << 3, 256 << 10);
    words[1] = (unsigned long)PyCode_Type;
    words[14] = text(2000, number + 3);
    words[15] = words[16] = text(2000, number);
    words[17] = (unsigned long)lines;
    return (unsigned long)object;
}

static void add_thread(unsigned long tid)
{
    unsigned long previous = 0, *state = calloc(32, 8), *c_frame = calloc(2, 8);
    for (int i = 0; i < 600; i++) {
        unsigned long *frame = calloc(12, 8);
        frame[0] = codes[i % 8];
        frame[1] = previous;
        frame[7] = codes[i % 8] + 192 + 200000;
        previous = (unsigned long)frame;
    }
    c_frame[0] = previous;
    state[7] = (unsigned long)c_frame;
    state[2] = (unsigned long)interpreter;
    state[18] = tid;
    state[1] = interpreter[9];
    interpreter[9] = (unsigned long)state;
}

static int fake_python(void)
{
    int pair[2];
    char byte;
    struct timeval limit = {0, 20000};
    struct pollfd input = {0, POLLIN, 0};
    _PyRuntime[5] = (unsigned long)interpreter;
    for (int i = 0; i < 8; i++) codes[i] = code(i);
    for (int i = 0; i < 3000; i++) add_thread(getpid());
    socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
    setsockopt(pair[0], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    ready();
    while (poll(&input, 1, 0) == 0) recv(pair[0], &byte, 1, 0);
    return 45;
}

static void *wait_briefly(void *unused)
{
    int udp = socket(AF_INET, SOCK_DGRAM, 0);
    struct timeval limit = {0, 200};
    char byte;
    setsockopt(udp, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    recv(udp, &byte, 1, 0);
    close(udp);
    return unused;
}

// Threads, connections and peers that come and go, as many as there can be.
static int restless(void)
{
    struct pollfd input = {0, POLLIN, 0};
    ready();
    for (unsigned long i = 0; poll(&input, 1, 0) == 0; i++) {
        pthread_t thread;
        int tcp = socket(AF_INET, SOCK_STREAM, 0);
        struct sockaddr_in peer = {.sin_family = AF_INET, .sin_port = htons(1 + i % 9),
            .sin_addr.s_addr = htonl(0x7f800000 | (i * 7919 & 0x7ffffe))};
        connect(tcp, (struct sockaddr *)&peer, sizeof peer);
        close(tcp);
        if (pthread_create(&thread, 0, wait_briefly, 0) == 0) pthread_join(thread, 0);
    }
    return 46;
}

int main(int count, char **words)
{
    const char *what = count > 1 ? words[1] : "";
    if (!strcmp(what, "survive")) return survive();
#ifdef __x86_64__
    if (!strcmp(what, "confined")) return confined();
#endif
    if (!strcmp(what, "evil-names")) return evil_names();
    if (!strcmp(what, "fake-python")) return fake_python();
    if (!strcmp(what, "restless")) return restless();
    return 2;
}
