// A wall clock that a test steps while the program runs: LD_PRELOAD, for servers and clients alike.
//
// libfaketime cannot be used: it asks for memory when it is first asked for the time, and jemalloc, with which
// Debian's Redis is linked, asks for the time when it is first asked for memory.
//
// DISTLOCK_CLOCK names a file of one 64-bit number: by how many nanoseconds the wall clock is ahead.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *ahead;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("DISTLOCK_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) {
        return;
    }
    void *mapped = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (mapped != MAP_FAILED) {
        ahead = mapped;
    }
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int failed = syscall(SYS_clock_gettime, clock, now);
    if (failed || !ahead || (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE)) {
        return failed;
    }
    int64_t all = now->tv_sec * 1000000000LL + now->tv_nsec + *ahead;
    now->tv_sec = all / 1000000000;
    now->tv_nsec = all % 1000000000;
    return 0;
}

int gettimeofday(struct timeval *now, void *zone) {
    (void)zone;
    struct timespec exact;
    if (clock_gettime(CLOCK_REALTIME, &exact)) {
        return -1;
    }
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *out) {
    struct timespec exact;
    if (clock_gettime(CLOCK_REALTIME, &exact)) {
        return -1;
    }
    if (out) {
        *out = exact.tv_sec;
    }
    return exact.tv_sec;
}
