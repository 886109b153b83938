// Stands in for libcuda: what it does at cuInit to the process that calls it, as far as others see that. Built as
// libcuda.so.1.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>

// A thread of its own, which waits, and which children do not have.
static void *events(void *x) {
    pthread_setname_np(pthread_self(), "cuda-EvtHandlr");
    for (;;) poll(0, 0, -1);
    return x;
}

int cuInit(unsigned flags) {
    (void)flags;
    pthread_t thread;
    if (pthread_create(&thread, 0, events, 0)) return 1;
    const char *path = getenv("CUDA_INJECTION64_PATH");
    void *library = path ? dlopen(path, RTLD_NOW) : 0;
    int (*start)(void) = library ? (int (*)(void))dlsym(library, "InitializeInjection") : 0;
    // What it answers is not looked at, nor whether there is such a file.
    if (start) start();
    return 0;
}
