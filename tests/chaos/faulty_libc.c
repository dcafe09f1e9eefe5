/*
 * Loaded before the C library: a wall clock that is wrong, and a disk that takes no writes.
 *
 * CHAOS_CONTROL names a file of two 64-bit numbers that a test may change at any time: seconds that the wall clock is
 * ahead, and whether files under CHAOS_DISK can't be written (they fail as on a file system mounted read-only).
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

struct control {
    int64_t seconds_ahead;
    int64_t read_only;
};

static const struct control good = {0, 0};
static const volatile struct control *control = &good;
static const char *disk = "/nowhere";

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

__attribute__((constructor)) static void look(void) {
    const char *path = getenv("CHAOS_CONTROL");
    int fd = path ? open(path, O_RDONLY) : -1;
    if (fd < 0) return;
    void *found = mmap(NULL, sizeof(struct control), PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (found == MAP_FAILED) return;
    disk = getenv("CHAOS_DISK") ? getenv("CHAOS_DISK") : disk;
    control = found;
}

/* The clock */

int clock_gettime(clockid_t clock, struct timespec *now) {
    int result = REAL(clock_gettime)(clock, now);
    if (result == 0 && clock == CLOCK_REALTIME) now->tv_sec += control->seconds_ahead;
    return result;
}

int gettimeofday(struct timeval *now, void *zone) {
    int result = REAL(gettimeofday)(now, zone);
    if (result == 0) now->tv_sec += control->seconds_ahead;
    return result;
}

time_t time(time_t *now) {
    time_t value = REAL(time)(NULL) + control->seconds_ahead;
    if (now) *now = value;
    return value;
}

/* The disk */

static int refused(int fd) {
    char link[64], path[4096];
    if (!control->read_only) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    if (strncmp(path, disk, strlen(disk)) != 0) return 0;
    errno = EROFS;
    return 1;
}

static int refused_path(const char *path, int flags) {
    if (!control->read_only || !(flags & (O_WRONLY | O_RDWR | O_CREAT)) || strncmp(path, disk, strlen(disk)) != 0)
        return 0;
    errno = EROFS;
    return 1;
}

#define OPEN(name)                                       \
    int name(const char *path, int flags, ...) {         \
        va_list rest;                                    \
        va_start(rest, flags);                           \
        mode_t mode = va_arg(rest, mode_t);              \
        va_end(rest);                                    \
        if (refused_path(path, flags)) return -1;        \
        return REAL(name)(path, flags, mode);            \
    }

OPEN(open)
OPEN(open64)

ssize_t write(int fd, const void *data, size_t size) { return refused(fd) ? -1 : REAL(write)(fd, data, size); }

ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
    return refused(fd) ? -1 : REAL(pwrite)(fd, data, size, at);
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    return refused(fd) ? -1 : REAL(pwrite64)(fd, data, size, at);
}

int ftruncate(int fd, off_t size) { return refused(fd) ? -1 : REAL(ftruncate)(fd, size); }

int ftruncate64(int fd, off64_t size) { return refused(fd) ? -1 : REAL(ftruncate64)(fd, size); }
