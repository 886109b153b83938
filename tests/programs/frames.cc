// Waits for replies of a peer where a C++ program handles an exception: in the destructor that runs while the stack is
// unwound, and in the handler. The destructor is inlined into the function that it belongs to.
//
// frames PORT
#include <arpa/inet.h>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <sys/socket.h>
#include <unistd.h>

namespace job {

int peer;
volatile long total;

[[gnu::noinline]] void inner(const char *why) {
    char reply[8];
    if (send(peer, why, 1, 0) != 1 || recv(peer, reply, sizeof reply, MSG_WAITALL) != sizeof reply)
        exit(3);
    total = total + reply[0];
}

struct Guard {
    long kept;
    [[gnu::always_inline]] ~Guard() {
        inner("d");
        total = total + kept;
    }
};

template <typename T> struct Trainer {
    T state;
    [[gnu::noinline]] void step(bool fails) {
        if (fails)
            throw std::runtime_error("step");
        total = total + state;
    }
    [[gnu::noinline]] void guarded(bool fails) {
        Guard guard{state};
        step(fails);
        total = total + 1;
    }
    [[gnu::noinline]] void run(bool fails) {
        try {
            guarded(fails);
        } catch (const std::exception &error) {
            inner(error.what());
            total = total + 2;
        }
    }
};

} // namespace job

int main(int count, char **arguments) {
    sockaddr_in address{};
    char line[16];
    if (count != 2)
        return 1;
    address.sin_family = AF_INET;
    address.sin_port = htons(atoi(arguments[1]));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    job::peer = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(job::peer, reinterpret_cast<sockaddr *>(&address), sizeof address) != 0)
        return 2;
    puts("ready");
    fflush(stdout);
    if (!fgets(line, sizeof line, stdin))
        return 0;
    job::Trainer<int> trainer{7};
    trainer.run(true);
    puts("done");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin))
        ;
    return static_cast<int>(job::total & 1);
}
