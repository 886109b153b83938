// main -> job::Trainer<int>::run -> job::wait, which blocks reading standard input.
#include <unistd.h>

namespace job {

static volatile int sink;

__attribute__((noinline)) int wait(int fd, const char *)
{
	char byte;
	int got = static_cast<int>(read(fd, &byte, 1));
	sink = sink + got;
	return got;
}

template <typename T> struct Trainer {
	T value;
	__attribute__((noinline)) int run(int fd)
	{
		int got = wait(fd, "unused") + static_cast<int>(value);
		sink = sink + got;
		return got;
	}
};

} // namespace job

int main()
{
	job::Trainer<int> trainer{1};
	return trainer.run(0) + job::sink;
}
