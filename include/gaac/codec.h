/* GAAC codec: calibration of the exponent windows, encoding and decoding of 16-token blocks.
 *
 * Method: GAAC (group-adaptive additive coding). Two families of schemes live behind one interface:
 * the production scheme, whose bytes docs/format.md specifies, and the paper's, kept for study. */
#ifndef GAAC_CODEC_H
#define GAAC_CODEC_H

#include "gaac/common.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum gaac_scheme {
    GAAC_SCHEME_PRODUCTION = 0,     /* nested windows, 1-bit tags, indexed exceptions: docs/format.md */
    GAAC_SCHEME_PAPER = 1,          /* 3-bit / 4-bit / raw groups of eight, 2-bit tags, independent windows */
    GAAC_SCHEME_PAPER_4_RAW = 2,    /* the paper's ablation without the 3-bit mode */
    GAAC_SCHEME_PAPER_2_3_4_RAW = 3 /* the paper's ablation with a 2-bit mode */
} gaac_scheme;

/* "production", "paper", "paper-4-raw", "paper-2-3-4-raw"; NULL for no scheme. Thread-safe. */
GAAC_API const char *gaac_scheme_name(gaac_scheme scheme);

/* ---- calibration ---------------------------------------------------------------------------- */

/* How often each exponent occurs: per KV head and channel of K; per token parity (even, odd), KV
 * head and channel of V. One layer. Not thread-safe; different objects are independent. */
typedef struct gaac_histogram gaac_histogram;

GAAC_API gaac_status gaac_histogram_create(gaac_histogram **histogram, const gaac_shape *shape,
                                           const gaac_allocator *allocator, gaac_error *error);
GAAC_API void gaac_histogram_destroy(gaac_histogram *histogram); /* NULL is fine */

/* Counts `tokens` tokens. The first counts as even. */
GAAC_API gaac_status gaac_histogram_add(gaac_histogram *histogram, const gaac_kv_rows *rows, size_t tokens,
                                        gaac_error *error);
/* Adds another histogram of the same shape. */
GAAC_API gaac_status gaac_histogram_merge(gaac_histogram *histogram, const gaac_histogram *other, gaac_error *error);
GAAC_API uint64_t gaac_histogram_tokens(const gaac_histogram *histogram);

/* Copies the 256 counts of one channel, both parities of V added. */
GAAC_API gaac_status gaac_histogram_counts(const gaac_histogram *histogram, gaac_part part, uint32_t head,
                                           uint32_t channel, uint64_t counts[256], gaac_error *error);

/* The exponent windows of one layer for one scheme. Immutable once made: thread-safe. */
typedef struct gaac_windows gaac_windows;

/* Chooses the windows that cost the fewest bits on a histogram (docs/format.md, "Calibration").
 * Production: per channel the base b4 that minimises (elements inside the window of 16 but outside
 * the nested window of 8) + `exception_weight` x (elements outside both); 0 means the default, 10.
 * Paper: per channel the contiguous windows of each width that cover the most exponents. */
GAAC_API gaac_status gaac_windows_choose(gaac_windows **windows, const gaac_histogram *histogram, gaac_scheme scheme,
                                         double exception_weight, const gaac_allocator *allocator, gaac_error *error);

/* Windows from their table (as a profile stores it): see gaac_windows_table for the order. Values
 * out of range are GAAC_ERROR_CORRUPT. */
GAAC_API gaac_status gaac_windows_from_table(gaac_windows **windows, const gaac_shape *shape, gaac_scheme scheme,
                                             const uint8_t *table, size_t bytes, const gaac_allocator *allocator,
                                             gaac_error *error);
GAAC_API void gaac_windows_destroy(gaac_windows *windows); /* NULL is fine */

/* The table, owned by `windows`. Production: K bases [kv_heads][head_dim_k], then V bases
 * [2 = token parity][kv_heads][head_dim_v]. Paper schemes: for each width that the scheme has, from
 * the narrowest, K bases [kv_heads][head_dim_k] then V bases [kv_heads][head_dim_v]. */
GAAC_API const uint8_t *gaac_windows_table(const gaac_windows *windows, size_t *bytes);
/* Bytes of such a table. */
GAAC_API size_t gaac_windows_table_bytes(const gaac_shape *shape, gaac_scheme scheme);

/* ---- codec ---------------------------------------------------------------------------------- */

/* Encodes and decodes the blocks of one layer. Immutable once made: every call below is thread-safe
 * on one codec. */
typedef struct gaac_codec gaac_codec;

typedef struct gaac_codec_config {
    gaac_shape shape;
    gaac_scheme scheme;
    const gaac_windows *windows;     /* of the same shape and scheme; copied */
    uint32_t pool_bytes;             /* capacity of a slot's shared variable part: a multiple of 64;
                                        0 = room for the largest block (never raw for lack of room) */
    const gaac_allocator *allocator; /* or NULL */
} gaac_codec_config;

GAAC_API gaac_status gaac_codec_create(gaac_codec **codec, const gaac_codec_config *config, gaac_error *error);
GAAC_API void gaac_codec_destroy(gaac_codec *codec); /* NULL is fine */

GAAC_API size_t gaac_codec_slot_bytes(const gaac_codec *codec);  /* fixed parts and pool: a slot's size */
GAAC_API size_t gaac_codec_entry_count(const gaac_codec *codec); /* uint32_t table entries a block */
GAAC_API size_t gaac_codec_raw_bytes(const gaac_codec *codec);   /* the same block as BF16 */

/* What encoding a block came to. Sums over its KV heads, K and V. */
typedef struct gaac_block_info {
    bool coded;                 /* false: it does not fit its slot (or has too many exceptions): keep it raw;
                                   the other fields tell what it would have taken */
    uint32_t coded_bytes;       /* exact bits of the code rounded up, without alignment: what a ratio counts */
    uint32_t pool_bytes;        /* bytes taken in the pool, alignment included (paper schemes: in the escape
                                   area of the tile that needs most, since there each has its own) */
    uint32_t groups;            /* groups of eight elements */
    uint32_t groups_by_mode[4]; /* production: [0] = 3-bit, [1] = 4-bit; paper: 2-, 3-, 4-bit, raw at [0..3] */
    uint32_t exceptions;        /* production: elements outside both windows */
} gaac_block_info;

/* Encodes GAAC_BLOCK_TOKENS tokens into `slot` (gaac_codec_slot_bytes, 64-byte aligned) and
 * `entries` (gaac_codec_entry_count). Never writes outside them. When the block does not fit,
 * returns GAAC_OK with info->coded false, and slot and entries hold nothing of use. Any of the
 * 65,536 BF16 patterns is fine. info may be NULL only if the caller knows that the block fits
 * (pool_bytes 0). */
GAAC_API gaac_status gaac_encode_block(const gaac_codec *codec, const gaac_kv_rows *rows, void *slot, uint32_t *entries,
                                       gaac_block_info *info, gaac_error *error);

/* Decodes a block. Any bytes are safe: what no encoder writes is GAAC_ERROR_CORRUPT or decodes to
 * some values, but nothing outside `slot` is read and nothing outside the rows is written. */
GAAC_API gaac_status gaac_decode_block(const gaac_codec *codec, const void *slot, const uint32_t *entries,
                                       const gaac_kv_rows_out *rows, gaac_error *error);

/* Picks the pool capacity (a multiple of 64) that makes the expected resident bytes a block
 * smallest, raw blocks for those that don't fit counted in, with at most 1% of the blocks raw where
 * the data allows. For the production scheme. pool_needs holds gaac_block_info.pool_bytes of `count` blocks that did
 * not choose the windows. Thread-safe. */
GAAC_API uint32_t gaac_choose_pool_bytes(const gaac_shape *shape, const uint32_t *pool_needs, size_t count);

/* Calibrates one layer on `tokens` tokens (whole blocks count; at least 64): the windows from all of them,
 * the pool capacity from the needs of the last three quarters under windows chosen on the first quarter
 * alone. So long a hold-out shows how keys drift with position under RoPE, which a short one hides: on
 * real KV it is what keeps blocks of later positions inside their slots. Paper schemes get pool_bytes 0. */
GAAC_API gaac_status gaac_calibrate(const gaac_shape *shape, const gaac_kv_rows *rows, size_t tokens,
                                    gaac_scheme scheme, const gaac_allocator *allocator, gaac_windows **windows,
                                    uint32_t *pool_bytes, gaac_error *error);

#ifdef __cplusplus
}
#endif
#endif
