/* Calls of a function that the recorder counts: in a library that is loaded late, fast, and in several processes. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile long done;

#ifdef LIBRARY
__attribute__((noinline)) void library_step(void) { done++; }
#else
__attribute__((noinline)) void program_step(void) { done++; }

/* `load LIBRARY GO STOP COUNT`: loads the library when the file GO is there, calls its function until STOP is there, and
   writes the number of calls to COUNT. */
static int load(char **files)
{
	while (access(files[1], F_OK))
		usleep(10000);
	void *library = dlopen(files[0], RTLD_NOW);
	void (*step)(void) = library ? (void (*)(void))dlsym(library, "library_step") : NULL;
	if (!step)
		return 1;
	long calls = 0;
	for (; access(files[2], F_OK); calls++) {
		step();
		usleep(10000);
	}
	FILE *count = fopen(files[3], "w");
	if (!count)
		return 1;
	fprintf(count, "%ld", calls);
	return fclose(count);
}

int main(int argc, char **argv)
{
	if (argc == 6 && !strcmp(argv[1], "load"))
		return load(argv + 2);
	if (argc != 4 || strcmp(argv[1], "processes"))
		return 2;
	/* `processes HOW-MANY CALLS`: as fast as each can. */
	long processes = atol(argv[2]), calls = atol(argv[3]);
	for (long i = 0; i < processes; i++) {
		if (fork() == 0) {
			for (long call = 0; call < calls; call++)
				program_step();
			return 0;
		}
	}
	while (wait(NULL) > 0)
		;
	return 0;
}
#endif
