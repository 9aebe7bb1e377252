// A disk that is full: LD_PRELOAD, for a program that writes files.
//
// While the file exists that DISTLOCK_FULL names, no file becomes longer: such a write fails with ENOSPC. What a file has
// already can be overwritten, as on a real disk.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

// Whether this file may not reach to `end`.
static int is_full(int file, off_t end) {
    int before = errno;
    const char *flag = getenv("DISTLOCK_FULL");
    struct stat now;
    int full = flag && access(flag, F_OK) == 0 && fstat(file, &now) == 0 && S_ISREG(now.st_mode) && end > now.st_size;
    errno = full ? ENOSPC : before;
    return full;
}

// Where a write of `length` bytes at the present position ends.
static off_t end_of(int file, size_t length) {
    int before = errno;
    struct stat now;
    off_t at = fcntl(file, F_GETFL) & O_APPEND && fstat(file, &now) == 0 ? now.st_size : lseek(file, 0, SEEK_CUR);
    errno = before;
    return at < 0 ? 0 : at + (off_t)length;
}

static size_t length_of(const struct iovec *parts, int count) {
    size_t length = 0;
    for (int n = 0; n < count; n++) {
        length += parts[n].iov_len;
    }
    return length;
}

// The function that this one stands in front of.
#define NEXT(type) ((type)dlsym(RTLD_NEXT, __func__))

#define AT(name)                                                                                                       \
    ssize_t name(int file, const void *bytes, size_t length, off_t at) {                                               \
        typedef ssize_t (*next)(int, const void *, size_t, off_t);                                                     \
        return is_full(file, at + (off_t)length) ? -1 : NEXT(next)(file, bytes, length, at);                           \
    }
AT(pwrite)
AT(pwrite64)

#define PARTS_AT(name)                                                                                                 \
    ssize_t name(int file, const struct iovec *parts, int count, off_t at) {                                           \
        typedef ssize_t (*next)(int, const struct iovec *, int, off_t);                                                \
        return is_full(file, at + (off_t)length_of(parts, count)) ? -1 : NEXT(next)(file, parts, count, at);           \
    }
PARTS_AT(pwritev)
PARTS_AT(pwritev64)

// These answer with the error itself.
#define ROOM(name)                                                                                                     \
    int name(int file, off_t at, off_t length) {                                                                       \
        typedef int (*next)(int, off_t, off_t);                                                                        \
        return is_full(file, at + length) ? ENOSPC : NEXT(next)(file, at, length);                                     \
    }
ROOM(posix_fallocate)
ROOM(posix_fallocate64)

#define MODE_ROOM(name)                                                                                                \
    int name(int file, int mode, off_t at, off_t length) {                                                             \
        typedef int (*next)(int, int, off_t, off_t);                                                                   \
        return is_full(file, at + length) ? -1 : NEXT(next)(file, mode, at, length);                                   \
    }
MODE_ROOM(fallocate)
MODE_ROOM(fallocate64)

ssize_t write(int file, const void *bytes, size_t length) {
    typedef ssize_t (*next)(int, const void *, size_t);
    return is_full(file, end_of(file, length)) ? -1 : NEXT(next)(file, bytes, length);
}

ssize_t writev(int file, const struct iovec *parts, int count) {
    typedef ssize_t (*next)(int, const struct iovec *, int);
    return is_full(file, end_of(file, length_of(parts, count))) ? -1 : NEXT(next)(file, parts, count);
}
