/* Three names of one function, and a gap behind another. */
__attribute__((noinline)) int __libc_receive(int fd)
{
	return fd * 3;
}

int receive(int) __attribute__((weak, alias("__libc_receive")));
int __receive(int) __attribute__((alias("__libc_receive")));

__attribute__((noinline, aligned(4096))) int padded(int fd)
{
	return fd + 1;
}
