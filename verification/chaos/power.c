/* Records what SQLite writes: preloaded into the service, it appends every write, truncation, sync and removal of
 * the two database files and their logs to the file named by STMS_POWER_LOG. Syncs are recorded before they happen,
 * so that what counts as durable was written before them. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#define FILES 65536
static const char *NAMES[] = {"stms.sqlite", "stms.sqlite-wal", "stms.sqlite-journal",
                              "jobs.sqlite", "jobs.sqlite-wal", "jobs.sqlite-journal"};
static signed char file_of[FILES];
static int log_file = -1;

struct record { uint8_t op, file; uint16_t pad; uint32_t pid; uint64_t offset, length; };

__attribute__((constructor)) static void begin(void) {
    memset(file_of, -1, sizeof file_of);
    const char *path = getenv("STMS_POWER_LOG");
    int (*real)(const char *, int, ...) = dlsym(RTLD_NEXT, "open");
    if (path) log_file = real(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
}

static int named(const char *path) {
    const char *slash = strrchr(path, '/');
    const char *name = slash ? slash + 1 : path;
    for (int i = 0; i < (int)(sizeof NAMES / sizeof *NAMES); i++)
        if (!strcmp(name, NAMES[i])) return i;
    return -1;
}

static void note(char op, int file, uint64_t offset, const void *data, uint64_t length) {
    if (log_file < 0 || file < 0) return;
    struct record head = {(uint8_t)op, (uint8_t)file, 0, (uint32_t)getpid(), offset, length};
    struct iovec parts[2] = {{&head, sizeof head}, {(void *)data, data ? length : 0}};
    /* One append: records of several processes do not mix. A short record ends the recording. */
    if (writev(log_file, parts, 2) != (ssize_t)(sizeof head + (data ? length : 0))) log_file = -1;
}

static int file(int fd) { return fd >= 0 && fd < FILES ? file_of[fd] : -1; }

#define OPEN(symbol)                                                                             \
    int symbol(const char *path, int flags, ...) {                                               \
        static int (*real)(const char *, int, ...);                                              \
        if (!real) real = dlsym(RTLD_NEXT, #symbol);                                             \
        va_list rest;                                                                            \
        va_start(rest, flags);                                                                   \
        mode_t mode = va_arg(rest, mode_t);                                                      \
        va_end(rest);                                                                            \
        int fd = real(path, flags, mode);                                                        \
        if (fd >= 0 && fd < FILES) file_of[fd] = (signed char)named(path);                       \
        return fd;                                                                               \
    }
OPEN(open)
OPEN(open64)

int close(int fd) {
    static int (*real)(int);
    if (!real) real = dlsym(RTLD_NEXT, "close");
    if (fd >= 0 && fd < FILES) file_of[fd] = -1;
    return real(fd);
}

#define PWRITE(symbol, offset_type)                                                              \
    ssize_t symbol(int fd, const void *data, size_t size, offset_type offset) {                  \
        static ssize_t (*real)(int, const void *, size_t, offset_type);                          \
        if (!real) real = dlsym(RTLD_NEXT, #symbol);                                             \
        ssize_t done = real(fd, data, size, offset);                                             \
        if (done > 0) note('W', file(fd), (uint64_t)offset, data, (uint64_t)done);               \
        return done;                                                                             \
    }
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)

ssize_t write(int fd, const void *data, size_t size) {
    static ssize_t (*real)(int, const void *, size_t);
    if (!real) real = dlsym(RTLD_NEXT, "write");
    off_t at = file(fd) < 0 ? 0 : lseek(fd, 0, SEEK_CUR);
    ssize_t done = real(fd, data, size);
    if (done > 0) note('W', file(fd), (uint64_t)at, data, (uint64_t)done);
    return done;
}

#define TRUNCATE(symbol, offset_type)                                                            \
    int symbol(int fd, offset_type size) {                                                       \
        static int (*real)(int, offset_type);                                                    \
        if (!real) real = dlsym(RTLD_NEXT, #symbol);                                             \
        int failed = real(fd, size);                                                             \
        if (!failed) note('T', file(fd), (uint64_t)size, NULL, 0);                               \
        return failed;                                                                           \
    }
TRUNCATE(ftruncate, off_t)
TRUNCATE(ftruncate64, off64_t)

#define SYNC(symbol)                                                                             \
    int symbol(int fd) {                                                                         \
        static int (*real)(int);                                                                 \
        if (!real) real = dlsym(RTLD_NEXT, #symbol);                                             \
        note('S', file(fd), 0, NULL, 0);                                                         \
        return real(fd);                                                                         \
    }
SYNC(fsync)
SYNC(fdatasync)

int unlink(const char *path) {
    static int (*real)(const char *);
    if (!real) real = dlsym(RTLD_NEXT, "unlink");
    int failed = real(path);
    if (!failed) note('U', named(path), 0, NULL, 0);
    return failed;
}
