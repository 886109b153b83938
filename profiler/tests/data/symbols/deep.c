/* main -> deep (forty times, 1 KiB of stack each) -> inner, which blocks reading standard input. */
#include <unistd.h>

static volatile int sink;

__attribute__((noinline)) int inner(int fd)
{
	char byte;
	int got = (int)read(fd, &byte, 1);
	sink += got;
	return got;
}

__attribute__((noinline)) int deep(int fd, int depth)
{
	volatile char ballast[1024];
	ballast[depth] = (char)fd;
	int got = depth > 0 ? deep(fd, depth - 1) : inner(fd);
	sink += ballast[depth] + got;
	return got;
}

int main(void)
{
	return deep(0, 39) + sink;
}
