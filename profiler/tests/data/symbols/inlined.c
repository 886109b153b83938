// Blocks in a function that is inlined through three others, two of them in the one that is called.
#include <unistd.h>

#define INLINE static inline __attribute__((always_inline))

static volatile long total;

INLINE long innermost(char *bytes, long len) {
    long got = read(0, bytes, len); // line 9
    return got + bytes[0];
}

INLINE long between(char *bytes, long len) {
    total += len;
    return innermost(bytes, len) + 1; // line 15
}

__attribute__((noinline)) long called(long len) {
    char bytes[64] = {0};
    long got = between(bytes, len); // line 20
    total += got;
    return got * 2;
}

INLINE long outermost(long len) {
    long got = called(len); // line 26
    return got + total;
}

int main(void) {
    long got = outermost(16); // line 31
    total += got;
    return total == 12345;
}
