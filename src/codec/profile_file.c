/* Profiles in files. */
#include "base/base.h"
#include "codec/profile_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- reading ---------------------------------------------------------------------------------- */

/* Opens a regular file of at most GAAC_PROFILE_MAX_FILE bytes. Without O_NONBLOCK a pipe would wait here for
 * its writer; regular files don't mind it. */
static gaac_status open_regular(const char *path, int *file, size_t *size, gaac_error *error)
{
    *file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat about;
    if (*file < 0 || fstat(*file, &about) != 0)
        return gaac_fail(error, GAAC_ERROR_IO, "can't read the profile %s: %s", path, strerror(errno));
    if (!S_ISREG(about.st_mode))
        return gaac_fail(error, GAAC_ERROR_IO, "can't read the profile %s: it is not a regular file", path);
    if (about.st_size > GAAC_PROFILE_MAX_FILE)
        return gaac_fail(error, GAAC_ERROR_CORRUPT, "%s is not a GAAC profile: it has %" PRIdMAX " bytes, more than %d",
                         path, (intmax_t)about.st_size, GAAC_PROFILE_MAX_FILE);
    *size = (size_t)about.st_size;
    return GAAC_OK;
}

/* Reads up to `size` bytes: fewer if the file has become shorter (the parser finds out). */
static bool read_all(int file, uint8_t *bytes, size_t *size)
{
    size_t have = 0;
    while (have < *size) {
        const ssize_t got = read(file, bytes + have, *size - have);
        if (got < 0 && errno != EINTR)
            return false;
        if (got == 0)
            break;
        have += got > 0 ? (size_t)got : 0;
    }
    *size = have;
    return true;
}

static gaac_status parse_file(gaac_profile **profile, const char *path, const uint8_t *bytes, size_t size,
                              const gaac_allocator *allocator, gaac_error *error)
{
    gaac_error reason = {GAAC_OK, ""};
    const gaac_status status = gaac_profile_parse(profile, bytes, size, allocator, &reason);
    if (status == GAAC_OK)
        return GAAC_OK;
    /* A long path keeps its end, which tells more. */
    const size_t length = strlen(path), most = 100;
    return gaac_fail(error, status, "profile %s%s: %s", length > most ? "..." : "",
                     length > most ? path + length - most : path, reason.message);
}

gaac_status gaac_profile_load(gaac_profile **profile, const char *path, const gaac_allocator *allocator,
                              gaac_error *error)
{
    *profile = NULL;
    const gaac_allocator hook = gaac_allocator_or_default(allocator);
    int file = -1;
    size_t size = 0;
    gaac_status status = open_regular(path, &file, &size, error);
    if (status == GAAC_OK) {
        const size_t allocated = size + 1; /* an empty file too gets its message from the parser */
        uint8_t *bytes = gaac_calloc(&hook, allocated);
        if (bytes == NULL)
            status = gaac_fail(error, GAAC_ERROR_OUT_OF_MEMORY, "no memory to read a profile of %zu bytes", size);
        else if (!read_all(file, bytes, &size))
            status = gaac_fail(error, GAAC_ERROR_IO, "can't read the profile %s: %s", path, strerror(errno));
        else
            status = parse_file(profile, path, bytes, size, &hook, error);
        gaac_free(&hook, bytes, allocated);
    }
    if (file >= 0)
        (void)close(file);
    return status;
}

/* ---- writing ---------------------------------------------------------------------------------- */

enum { TEMPORARY_SUFFIX = 48, TEMPORARY_ATTEMPTS = 100 };

/* Creates a file beside `path` and leaves its name. Another save under way, or one that a crash cut off, has
 * a name of its own. */
static int create_temporary(const char *path, char *name, size_t bytes)
{
    int file = -1;
    for (unsigned attempt = 0; attempt < TEMPORARY_ATTEMPTS; attempt++) {
        (void)snprintf(name, bytes, "%s.%ld-%u.tmp", path, (long)getpid(), attempt);
        file = open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (file >= 0 || errno != EEXIST)
            break;
    }
    return file;
}

static bool write_all(int file, const uint8_t *bytes, size_t size)
{
    while (size > 0) {
        const ssize_t put = write(file, bytes, size);
        if (put == 0)
            errno = EIO;
        if (put == 0 || (put < 0 && errno != EINTR))
            return false;
        if (put > 0) {
            bytes += put;
            size -= (size_t)put;
        }
    }
    return true;
}

/* Writes the temporary and renames it. False with errno set, and then no temporary is left. */
static bool replace_file(const char *path, char *temporary, size_t temporary_bytes, const uint8_t *bytes, size_t size)
{
    const int file = create_temporary(path, temporary, temporary_bytes);
    if (file < 0)
        return false;
    bool done = write_all(file, bytes, size) && fsync(file) == 0;
    int reason = errno;
    if (close(file) != 0 && done) {
        done = false;
        reason = errno;
    }
    if (done && rename(temporary, path) != 0) {
        done = false;
        reason = errno;
    }
    if (!done) {
        (void)unlink(temporary);
        errno = reason;
    }
    return done;
}

/* Renaming over a device or a pipe would put a file in its place. */
static bool may_be_replaced(const char *path)
{
    struct stat about;
    return stat(path, &about) != 0 || S_ISREG(about.st_mode);
}

static gaac_status write_file(const gaac_profile *profile, const char *path, const uint8_t *bytes, size_t size,
                              gaac_error *error)
{
    const size_t temporary_bytes = strlen(path) + TEMPORARY_SUFFIX;
    char *temporary = gaac_calloc(&profile->allocator, temporary_bytes);
    if (temporary == NULL)
        return gaac_fail(error, GAAC_ERROR_OUT_OF_MEMORY, "no memory for the name of a temporary file");
    gaac_status status = GAAC_OK;
    if (!replace_file(path, temporary, temporary_bytes, bytes, size))
        status = gaac_fail(error, GAAC_ERROR_IO, "can't write the profile %s: %s", path, strerror(errno));
    gaac_free(&profile->allocator, temporary, temporary_bytes);
    return status;
}

gaac_status gaac_profile_save(const gaac_profile *profile, const char *path, gaac_error *error)
{
    if (!may_be_replaced(path))
        return gaac_fail(error, GAAC_ERROR_IO, "can't write the profile %s: it is there and not a regular file", path);
    uint8_t *bytes;
    size_t size;
    gaac_status status = gaac_profile_serialize(profile, &bytes, &size, error);
    if (status != GAAC_OK)
        return status;
    status = write_file(profile, path, bytes, size, error);
    gaac_free(&profile->allocator, bytes, size);
    return status;
}
