// What a disk has after power was lost: LD_PRELOAD, for a program that writes files.
//
// Each sync of a file leaves a copy of it, as it is then, in the folder that DISTLOCK_SYNCED names. What was written
// since the last sync is not in the copy, as if it had never left the memory of the machine. A file that was removed
// stays until its folder is synced. All files are in one folder.
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

// Whether there is a copy.
static int copied(int from, const char *path) {
    int to = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    char buffer[65536];
    ssize_t some = to < 0 ? -1 : 1;
    for (off_t at = 0; some > 0; at += some) {
        some = pread(from, buffer, sizeof buffer, at);
        if (some > 0 && write(to, buffer, some) != some) {
            some = -1;
        }
    }
    return to >= 0 && close(to) == 0 && some == 0;
}

// What is not in the folder `now` any more.
static int removed(int now, const char *synced) {
    DIR *copies = opendir(synced);
    if (!copies) {
        return 0;
    }
    for (struct dirent *copy = readdir(copies); copy; copy = readdir(copies)) {
        // What begins with a dot is being made.
        if (copy->d_name[0] != '.' && faccessat(now, copy->d_name, F_OK, 0) != 0) {
            unlinkat(dirfd(copies), copy->d_name, 0);
        }
    }
    return closedir(copies) == 0;
}

static int kept(int file) {
    const char *folder = getenv("DISTLOCK_SYNCED");
    char name[PATH_MAX], path[2 * PATH_MAX], copy[2 * PATH_MAX];
    struct stat status;
    if (!folder || fstat(file, &status) != 0) {
        return 1;
    }
    if (S_ISDIR(status.st_mode)) {
        return removed(file, folder);
    }
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    ssize_t length = readlink(path, name, sizeof name - 1);
    if (length < 0) {
        return 0;
    }
    name[length] = 0;
    // The file may be open for writing only.
    int from = open(path, O_RDONLY | O_CLOEXEC);
    snprintf(path, sizeof path, "%s%s", folder, strrchr(name, '/'));
    snprintf(copy, sizeof copy, "%s/.%d", folder, gettid());
    int is_kept = from >= 0 && copied(from, copy) && rename(copy, path) == 0;
    if (from >= 0) {
        close(from);
    }
    return is_kept;
}

static int synced(const char *with, int file) {
    int (*sync)(int) = (int (*)(int))dlsym(RTLD_NEXT, with);
    int status = sync(file);
    if (status == 0 && !kept(file)) {
        // A test without copies would show nothing.
        abort();
    }
    return status;
}

int fsync(int file) { return synced("fsync", file); }

int fdatasync(int file) { return synced("fdatasync", file); }
