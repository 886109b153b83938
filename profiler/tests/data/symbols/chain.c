/* main -> outer -> middle -> inner, which blocks reading standard input. */
#include <unistd.h>

static volatile int sink;

__attribute__((noinline)) int inner(int fd)
{
	char byte;
	int got = (int)read(fd, &byte, 1);
	sink += got;
	return got;
}

__attribute__((noinline)) int middle(int fd)
{
	int got = inner(fd) + 1;
	sink += got;
	return got;
}

__attribute__((noinline)) int outer(int fd)
{
	int got = middle(fd) + 1;
	sink += got;
	return got;
}

int main(void)
{
	return outer(0) + sink;
}
