/* KV dumps: .npy files of uint16 BF16 bits, [layer][0 = K, 1 = V][token][KV head][head_dim]. */
#ifndef GAAC_TOOL_KV_DUMP_H
#define GAAC_TOOL_KV_DUMP_H

#include "npy.h"

typedef struct kv_dump {
    npy_file npy;
    const uint16_t *data;
    gaac_shape shape; /* head_dim_k == head_dim_v */
    uint32_t layers;
    uint64_t tokens;
} kv_dump;

/* Opens and checks a dump: type, order, dimensions, size, at least one token, a shape that can be coded.
 * Messages don't name the path. */
gaac_status kv_dump_open(kv_dump *dump, const char *path, gaac_error *error);
/* The same of bytes in memory, which have to outlive `dump`. */
gaac_status kv_dump_parse(kv_dump *dump, const void *bytes, size_t size, gaac_error *error);
void kv_dump_close(kv_dump *dump);

/* Elements from one token of K (or V) to the next. */
size_t kv_dump_token_stride(const kv_dump *dump);
/* The rows of one layer from a token on: all KV heads. */
gaac_kv_rows kv_dump_rows(const kv_dump *dump, uint32_t layer, uint64_t token);
/* The first element of one head of K or V. */
const uint16_t *kv_dump_head(const kv_dump *dump, uint32_t layer, gaac_part part, uint64_t token, uint32_t head);

#endif
