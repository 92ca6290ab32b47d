/* Coded blocks that travel between machines in a JSON file: a list of blocks as in docs/format.md, section 11, each
 * with the name of its case; `encoder` says who made them. */
#ifndef GAAC_TESTS_CUDA_TRAVEL_H
#define GAAC_TESTS_CUDA_TRAVEL_H

#include "gaac/codec.h"

typedef struct travel_bytes {
    uint8_t *bytes; /* 64-byte aligned */
    size_t size;
} travel_bytes;

/* One block: its windows, its slot and entries, and the BF16 values in it, [token][head][channel]. */
typedef struct travel_block {
    char name[32];
    gaac_shape shape;
    uint32_t pool_bytes; /* a multiple of 128, as GPUs need it */
    travel_bytes windows, entries, slot, k, v;
} travel_block;

enum { TRAVEL_CASES = 7 };

/* Makes a case's block: calibrates on values at random, and encodes some more. Ends the program when that fails. */
travel_block travel_make(unsigned number);
void travel_free(travel_block *block);

/* Rows of a block's values, and a codec for it. */
gaac_kv_rows travel_rows(const travel_block *block);
gaac_codec *travel_codec(const travel_block *block);

/* Files of TRAVEL_CASES blocks. Both end the program when that fails. */
void travel_write(const char *path, const char *encoder, const travel_block blocks[TRAVEL_CASES]);
void travel_read(const char *path, travel_block blocks[TRAVEL_CASES]);

#endif
