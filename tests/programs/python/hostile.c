/* A program that looks like a Python interpreter from outside, and has garbage where its runtime should be. */
#include <arpa/inet.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

unsigned int Py_Version = 0x030c01f0;
char PyCode_Type[64];
uint64_t _PyRuntime[16];

static uint64_t interpreter[32], thread[64], cframe[4], frames[2][16], code[64], text[64], table[16];

static void lay_out(void)
{
    memset(interpreter, 0, sizeof interpreter);
    _PyRuntime[5] = (uint64_t)interpreter;
    interpreter[9] = (uint64_t)thread;
    thread[1] = (uint64_t)thread;
    thread[2] = (uint64_t)interpreter;
    thread[18] = syscall(SYS_gettid);
    thread[7] = (uint64_t)cframe;
    cframe[0] = (uint64_t)frames[0];
    for (int i = 0; i < 2; i++) {
        frames[i][0] = (uint64_t)code;
        frames[i][1] = 0;
        frames[i][7] = (uint64_t)code + 192;
        frames[i][8] = 0;
    }
    code[1] = (uint64_t)PyCode_Type;
    code[14] = code[15] = code[16] = (uint64_t)text;
    code[17] = (uint64_t)table;
    text[2] = 4;
    text[4] = 0x64;
    memcpy((char *)text + 40, "evil", 5);
}

int main(int argc, char **argv)
{
    const char *kind = argv[2];
    lay_out();
    if (!strcmp(kind, "garbage")) {
        for (int i = 0; i < 16; i++)
            _PyRuntime[i] = 0xdeadbeefdeadbeef * (i + 1);
    } else if (!strcmp(kind, "circle")) {
        frames[0][1] = (uint64_t)frames[1];
        frames[1][1] = (uint64_t)frames[0];
        interpreter[0] = (uint64_t)interpreter;
    } else if (!strcmp(kind, "huge")) {
        text[2] = (uint64_t)1 << 40;
        table[2] = (uint64_t)1 << 40;
    } else if (!strcmp(kind, "escape")) {
        /* Nothing of it may reach a terminal or end a field. */
        memcpy((char *)text + 40, ";\033[\n", 5);
    }
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[1]))};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (argc < 3 || connect(fd, (struct sockaddr *)&address, sizeof address) != 0)
        return 1;
    char line[16], reply[8];
    puts("ready");
    fflush(stdout);
    if (!fgets(line, sizeof line, stdin))
        return 1;
    for (int i = 0; i < 3; i++) {
        if (send(fd, "request!", 8, 0) != 8 || recv(fd, reply, 8, MSG_WAITALL) != 8)
            return 1;
    }
    puts("done");
    fflush(stdout);
    return fgets(line, sizeof line, stdin) ? 0 : 0;
}
