/* Blocks in a signal handler: main -> raiser -> (signal) -> handler -> read. */
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static volatile int sink;

static __attribute__((noinline)) void handler(int number)
{
	char byte;
	sink += (int)read(0, &byte, 1) + number;
}

__attribute__((noinline)) int raiser(void)
{
	sink += (int)syscall(SYS_kill, getpid(), SIGUSR1);
	return sink;
}

int main(void)
{
	struct sigaction action;
	memset(&action, 0, sizeof action);
	action.sa_handler = handler;
	sigaction(SIGUSR1, &action, 0);
	return raiser() + sink;
}
