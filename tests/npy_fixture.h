/* Real KV dumps for tests: ../shared/data/kv/NAME.npy, shape [layer][2][token][kv_head][head_dim],
 * uint16. Just enough of the format for those files; the tools have the reader that checks everything. */
#ifndef GAAC_TESTS_NPY_FIXTURE_H
#define GAAC_TESTS_NPY_FIXTURE_H

#include "gaac/common.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct kv_dump {
    uint32_t layers, tokens, heads, head_dim;
    uint16_t *elements; /* owned: kv_dump_free */
} kv_dump;

static inline void kv_dump_free(kv_dump *dump)
{
    free(dump->elements);
    dump->elements = NULL;
}

/* Reads the header and leaves the file at its data. False if it is not such a dump. */
static inline bool kv_dump_read_header(FILE *file, kv_dump *dump)
{
    unsigned char start[10];
    char header[1024] = "";
    if (fread(start, 1, sizeof start, file) != sizeof start || memcmp(start, "\x93NUMPY\x01\x00", 8) != 0)
        return false;
    const size_t bytes = start[8] | (size_t)start[9] << 8;
    if (bytes >= sizeof header || fread(header, 1, bytes, file) != bytes)
        return false;
    const char *shape = strstr(header, "'shape': (");
    uint32_t parts = 0;
    return strstr(header, "'<u2'") != NULL && strstr(header, "'fortran_order': False") != NULL && shape != NULL &&
           sscanf(shape, "'shape': (%u, %u, %u, %u, %u)", &dump->layers, &parts, &dump->tokens, &dump->heads,
                  &dump->head_dim) == 5 &&
           parts == 2;
}

/* False when the file is absent (the caller skips) or not such a dump (after a line on stderr). */
static inline bool kv_dump_load(const char *path, kv_dump *dump)
{
    memset(dump, 0, sizeof *dump);
    FILE *file = fopen(path, "rb");
    if (file == NULL)
        return false;
    bool sound = kv_dump_read_header(file, dump);
    if (sound) {
        const size_t count = (size_t)dump->layers * 2 * dump->tokens * dump->heads * dump->head_dim;
        dump->elements = malloc(count * sizeof *dump->elements);
        sound = dump->elements != NULL && fread(dump->elements, sizeof *dump->elements, count, file) == count;
    }
    if (!sound) {
        fprintf(stderr, "%s is not a KV dump\n", path);
        kv_dump_free(dump);
    }
    (void)fclose(file);
    return sound;
}

static inline gaac_shape kv_dump_shape(const kv_dump *dump)
{
    return (gaac_shape){dump->heads, dump->head_dim, dump->head_dim};
}

/* Rows of a layer from a token on. */
static inline gaac_kv_rows kv_dump_rows(const kv_dump *dump, uint32_t layer, uint32_t token)
{
    const size_t row = (size_t)dump->heads * dump->head_dim;
    const size_t part = dump->tokens * row;
    const uint16_t *k = dump->elements + 2 * layer * part + token * row;
    return (gaac_kv_rows){k, k + part, row, dump->head_dim, row, dump->head_dim};
}

#endif
