/* NumPy's .npy files (format versions 1-3), mapped and checked. */
#ifndef GAAC_TOOL_NPY_H
#define GAAC_TOOL_NPY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gaac/common.h"

enum { NPY_MAX_DIMENSIONS = 8 };

typedef struct npy_file {
    char type[16]; /* as in the header: "<u2" */
    bool fortran_order;
    unsigned dimensions;
    uint64_t shape[NPY_MAX_DIMENSIONS];
    const void *data; /* inside the mapping or the bytes given; 16-byte aligned by the format (not by every writer) */
    uint64_t data_bytes; /* that follow the header: what the shape needs is the caller's to check */
    void *mapping;       /* NULL after npy_parse */
    size_t mapping_bytes;
} npy_file;

/* GAAC_ERROR_IO when the file can't be read or is not a regular one (a pipe is never waited for),
 * GAAC_ERROR_CORRUPT when it is no .npy. Any bytes are safe. */
gaac_status npy_open(npy_file *file, const char *path, gaac_error *error);
/* The same of bytes in memory, which have to outlive `file`. */
gaac_status npy_parse(npy_file *file, const void *bytes, size_t size, gaac_error *error);
void npy_close(npy_file *file);

#endif
