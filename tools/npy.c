#include "npy.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "data_error.h"

/* The header is a Python dict literal: {'descr': '<u2', 'fortran_order': False, 'shape': (3, 2), }. */
typedef struct cursor {
    const char *at, *end;
} cursor;

static void skip_space(cursor *c)
{
    while (c->at < c->end && (*c->at == ' ' || *c->at == '\t' || *c->at == '\n'))
        c->at++;
}

static bool take(cursor *c, char wanted)
{
    skip_space(c);
    if (c->at == c->end || *c->at != wanted)
        return false;
    c->at++;
    return true;
}

static bool take_word(cursor *c, const char *word)
{
    const size_t length = strlen(word);
    skip_space(c);
    if ((size_t)(c->end - c->at) < length || memcmp(c->at, word, length) != 0)
        return false;
    c->at += length;
    return true;
}

static bool take_string(cursor *c, char *out, size_t size)
{
    skip_space(c);
    const char quote = c->at < c->end ? *c->at : 0;
    if (quote != '\'' && quote != '"')
        return false;
    size_t length = 0;
    for (c->at++; c->at < c->end && *c->at != quote; c->at++) {
        if (*c->at == '\\' || *c->at < ' ' || length + 1 >= size)
            return false;
        out[length++] = *c->at;
    }
    out[length] = 0;
    return take(c, quote);
}

static bool take_shape(cursor *c, npy_file *file)
{
    if (!take(c, '('))
        return false;
    while (!take(c, ')')) {
        if (file->dimensions == NPY_MAX_DIMENSIONS)
            return false;
        uint64_t value = 0;
        skip_space(c);
        if (c->at == c->end || *c->at < '0' || *c->at > '9')
            return false;
        for (; c->at < c->end && *c->at >= '0' && *c->at <= '9'; c->at++) {
            if (value > UINT64_MAX / 10 - 1)
                return false;
            value = value * 10 + (uint64_t)(*c->at - '0');
        }
        file->shape[file->dimensions++] = value;
        if (!take(c, ',')) {
            /* Without a comma the tuple must end. */
            if (!take(c, ')'))
                return false;
            break;
        }
    }
    return true;
}

static bool parse_header(npy_file *file, const char *text, size_t bytes)
{
    cursor c = {text, text + bytes};
    unsigned seen = 0;
    if (!take(&c, '{'))
        return false;
    while (!take(&c, '}')) {
        char key[16];
        if (!take_string(&c, key, sizeof key) || !take(&c, ':'))
            return false;
        unsigned field;
        if (!strcmp(key, "descr") && take_string(&c, file->type, sizeof file->type)) {
            field = 1;
        } else if (!strcmp(key, "shape") && take_shape(&c, file)) {
            field = 2;
        } else if (!strcmp(key, "fortran_order")) {
            file->fortran_order = take_word(&c, "True");
            if (!file->fortran_order && !take_word(&c, "False"))
                return false;
            field = 4;
        } else {
            return false;
        }
        if (seen & field)
            return false;
        seen |= field;
        if (!take(&c, ',')) {
            if (!take(&c, '}'))
                return false;
            break;
        }
    }
    skip_space(&c);
    return seen == 7 && c.at == c.end;
}

/* Without O_NONBLOCK a pipe would wait here for its writer; regular files don't mind it. */
static gaac_status map_file(npy_file *file, const char *path, gaac_error *error)
{
    const int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (descriptor < 0)
        return data_error(error, GAAC_ERROR_IO, "can't be opened (%s); check the path", strerror(errno));
    struct stat status;
    const bool known = fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode);
    gaac_status result = GAAC_OK;
    if (!known) {
        result = data_error(error, GAAC_ERROR_IO, "not a regular file; save the dump and give its path");
    } else if (status.st_size == 0) {
        result = data_error(error, GAAC_ERROR_CORRUPT, "the file is empty; dump the KV cache again");
    } else {
        file->mapping_bytes = (size_t)status.st_size;
        file->mapping = mmap(NULL, file->mapping_bytes, PROT_READ, MAP_PRIVATE, descriptor, 0);
        if (file->mapping == MAP_FAILED) {
            file->mapping = NULL;
            result = data_error(error, GAAC_ERROR_IO, "can't be mapped (%s); copy it to a local disk", strerror(errno));
        }
    }
    close(descriptor);
    return result;
}

gaac_status npy_parse(npy_file *file, const void *bytes, size_t size, gaac_error *error)
{
    *file = (npy_file){0};
    const uint8_t *at = bytes;
    static const char magic[] = "\x93NUMPY";
    if (!at || size < 12 || memcmp(at, magic, 6) != 0)
        return data_error(error, GAAC_ERROR_CORRUPT, "not a NumPy .npy file; save the array with numpy.save");
    const unsigned version = at[6];
    const size_t start = version == 1 ? 10 : 12;
    size_t length = at[8] | (size_t)at[9] << 8;
    if (version != 1)
        length |= (size_t)at[10] << 16 | (size_t)at[11] << 24;
    if (version < 1 || version > 3 || length > size - start || !parse_header(file, (const char *)at + start, length))
        return data_error(error, GAAC_ERROR_CORRUPT,
                          "the .npy header is damaged or of a kind this command can't read; save the array again");
    file->data = at + start + length;
    file->data_bytes = size - start - length;
    return GAAC_OK;
}

gaac_status npy_open(npy_file *file, const char *path, gaac_error *error)
{
    *file = (npy_file){0};
    npy_file mapped = {0};
    gaac_status status = map_file(&mapped, path, error);
    if (status != GAAC_OK)
        return status;
    status = npy_parse(file, mapped.mapping, mapped.mapping_bytes, error);
    file->mapping = mapped.mapping;
    file->mapping_bytes = mapped.mapping_bytes;
    if (status != GAAC_OK)
        npy_close(file);
    return status;
}

void npy_close(npy_file *file)
{
    if (file->mapping)
        munmap(file->mapping, file->mapping_bytes);
    *file = (npy_file){0};
}
