/* main -> outer -> realigned -> inner: realigned sets up a 64-byte aligned frame with a variable part, so
 * that its frame is found through the frame pointer register or by an expression. */
#include <string.h>
#include <unistd.h>

static volatile int sink;

__attribute__((noinline)) int inner(int fd, void *scratch)
{
	char byte;
	int got = (int)read(fd, &byte, 1);
	sink += got + *(volatile char *)scratch;
	return got;
}

__attribute__((noinline)) int realigned(int fd, int a, int b, int c, int d, int e, int f, int g, int size)
{
	_Alignas(64) char fixed[256];
	char *variable = __builtin_alloca((size_t)size);
	memset(fixed, a + b + c + d, sizeof fixed);
	memset(variable, e + f + g, (size_t)size);
	sink += fixed[size];
	return inner(fd, variable) + fixed[size + 1] + variable[0];
}

__attribute__((noinline)) int outer(int fd)
{
	int got = realigned(fd, 1, 2, 3, 4, 5, 6, 7, 100 + sink) + 1;
	sink += got;
	return got;
}

int main(void)
{
	return outer(0) + sink;
}
