/* GAAC cache: the compressed KV cache of a model.
 *
 * A cache has layers and sequences. Each (layer, sequence) is a row of `tokens_per_sequence` cells,
 * in blocks of GAAC_BLOCK_TOKENS. A cell is written in two halves, K and V, in any order and as
 * often as the caller likes; cells never written read as zero. A block whose cells are all written
 * is encoded into a slot and its raw memory released ("finalized"); a write into a finalized block
 * decodes it back first. Reads see plain BF16 at any time.
 *
 * Memory: slots and raw blocks live in pools whose address space is reserved when the cache is
 * made and whose pages are committed when first needed and given back when freed. */
#ifndef GAAC_CACHE_H
#define GAAC_CACHE_H

#include "gaac/profile.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One call at a time may change a cache (write, fill, copy, drop, settle, adopt). Reads, statistics
 * and gaac_attention may run beside each other, not beside a change. */
typedef struct gaac_cache gaac_cache;

typedef enum gaac_cache_mode {
    GAAC_CACHE_CODED = 0,
    GAAC_CACHE_RAW = 1 /* same paths, nothing is ever encoded: the proof of losslessness */
} gaac_cache_mode;

typedef struct gaac_cache_config {
    const gaac_shape *shapes;      /* [layers] */
    const uint32_t *layer_indices; /* [layers] the model's layer numbers, for the profile; NULL = 0, 1, ... */
    uint32_t layers;
    uint32_t sequences;
    uint64_t tokens_per_sequence; /* cells of a sequence; rounded up to whole blocks */
    gaac_cache_mode mode;
    const gaac_profile *profile;     /* copied as needed; NULL = calibrate on the first tokens */
    uint64_t memory_limit;           /* bytes of slots, raw blocks and tables; 0 = none. Of it, a raw block a layer (an
                                         eighth at most) is kept for rewriting what is full */
    uint32_t calibration_tokens;     /* complete tokens a layer that self-calibration waits
                                        for; 0 = the default, 1024 */
    const gaac_allocator *allocator; /* or NULL */
} gaac_cache_config;

GAAC_API gaac_status gaac_cache_create(gaac_cache **cache, const gaac_cache_config *config, gaac_error *error);
GAAC_API void gaac_cache_destroy(gaac_cache *cache); /* NULL is fine */

GAAC_API uint32_t gaac_cache_layers(const gaac_cache *cache);
GAAC_API bool gaac_cache_shape(const gaac_cache *cache, uint32_t layer, gaac_shape *shape);

/* Writes K or V of `count` cells. Row i goes to cell cells[i], or to first + i when cells is NULL;
 * it holds kv_heads * head_dim BF16 elements, head by head, row_stride elements from row to row.
 * On GAAC_ERROR_MEMORY_LIMIT or _OUT_OF_MEMORY the rows before the failing one are written, the rest
 * not, and the cache stays sound. */
GAAC_API gaac_status gaac_cache_write(gaac_cache *cache, uint32_t layer, gaac_part part, uint32_t sequence,
                                      uint64_t first, const int64_t *cells, size_t count, const uint16_t *rows,
                                      size_t row_stride, gaac_error *error);

/* Reads K or V of the cells first .. first + count - 1, laid out as for gaac_cache_write. */
GAAC_API gaac_status gaac_cache_read(const gaac_cache *cache, uint32_t layer, gaac_part part, uint32_t sequence,
                                     uint64_t first, size_t count, uint16_t *rows, size_t row_stride,
                                     gaac_error *error);

/* Copies cells first .. first + count - 1, K and V, of all layers from one sequence to another. */
GAAC_API gaac_status gaac_cache_copy(gaac_cache *cache, uint32_t from_sequence, uint32_t to_sequence, uint64_t first,
                                     uint64_t count, gaac_error *error);

/* Forgets cells (they read as zero again) and gives whole blocks' memory back. sequence
 * GAAC_ALL_SEQUENCES means each. Can't fail: cells of a complete block that is only partly dropped keep
 * their values. */
#define GAAC_ALL_SEQUENCES UINT32_MAX
GAAC_API void gaac_cache_drop(gaac_cache *cache, uint32_t sequence, uint64_t first, uint64_t count);

/* Encodes every block whose cells all hold values but which waits for more writes (blocks that were
 * reopened by an overwrite). Callers use it after a bulk rewrite such as a RoPE shift. */
GAAC_API gaac_status gaac_cache_settle(gaac_cache *cache, gaac_error *error);

/* The profile that the cache coded with last: the one given, or the one it made (GAAC_ERROR_UNSUPPORTED
 * before it has made one). The caller destroys it. info supplies the descriptive fields; its tokens
 * and scheme are filled in here. */
GAAC_API gaac_status gaac_cache_export_profile(const gaac_cache *cache, const gaac_profile_info *info,
                                               gaac_profile **profile, gaac_error *error);

typedef struct gaac_cache_stats {
    /* cells and blocks */
    uint64_t blocks_coded;   /* finalized into slots */
    uint64_t blocks_raw;     /* finalized raw: did not fit (fallback) */
    uint64_t blocks_waiting; /* complete, raw, waiting for calibration; all complete ones in raw mode */
    uint64_t blocks_open;    /* being filled */
    /* bytes now in use, by class */
    uint64_t bytes_slots;
    uint64_t bytes_raw_fallback;
    uint64_t bytes_raw_waiting;
    uint64_t bytes_raw_open;
    uint64_t bytes_tables;   /* block tables, entries, windows, bookkeeping */
    uint64_t bytes_resident; /* committed from the operating system: pools (free units in them too) and tables */
    uint64_t bytes_resident_peak;
    /* what the same finalized blocks (coded and fallback) are as BF16 and as exact code */
    uint64_t bytes_finalized_bf16;
    uint64_t bytes_finalized_code;     /* gaac_block_info.coded_bytes summed; BF16 for fallbacks */
    uint64_t bytes_finalized_resident; /* slots, fallback blocks and their share of table entries */
    /* coding, over the blocks that are coded now */
    uint64_t groups_3bit, groups_4bit, exceptions;
    /* events since the cache was made */
    uint64_t encodes, decodes_to_reopen, fallbacks;
    uint32_t epochs; /* calibrations in use over all layers, highest count of any layer */
} gaac_cache_stats;

#define GAAC_ALL_LAYERS UINT32_MAX
GAAC_API gaac_status gaac_cache_get_stats(const gaac_cache *cache, uint32_t layer, gaac_cache_stats *stats,
                                          gaac_error *error);

#ifdef __cplusplus
}
#endif
#endif
