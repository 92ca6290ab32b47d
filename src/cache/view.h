/* How attention sees a cache: one block at a time, without copying. */
#ifndef GAAC_CACHE_VIEW_H
#define GAAC_CACHE_VIEW_H

#include "codec/codec_internal.h"
#include "gaac/cache.h"

typedef enum gaac_block_class {
    GAAC_BLOCK_EMPTY = 0, /* nothing was ever written: all zero */
    GAAC_BLOCK_RAW = 1,   /* fragment order, layout->raw_bytes */
    GAAC_BLOCK_CODED = 2  /* a slot */
} gaac_block_class;

typedef struct gaac_block_view {
    gaac_block_class class_;
    const uint8_t *data;     /* slot or raw block, 64-byte aligned; an all-zero raw block when empty */
    const uint32_t *entries; /* coded: [head][coded unit] */
    const gaac_codec *codec; /* coded: of the block's epoch */
    bool finite;             /* no NaN or infinity in K or V: a hidden token's weight of 0 then suffices */
} gaac_block_view;

const gaac_layout *gaac_cache_layout(const gaac_cache *cache, uint32_t layer);
const gaac_allocator *gaac_cache_allocator(const gaac_cache *cache);
uint64_t gaac_cache_cells(const gaac_cache *cache); /* of a sequence, whole blocks */
bool gaac_cache_has(const gaac_cache *cache, uint32_t layer, uint32_t sequence);
/* block < gaac_cache_cells / GAAC_BLOCK_TOKENS; layer and sequence checked by the caller. Thread-safe
 * beside other reads. */
void gaac_cache_block(const gaac_cache *cache, uint32_t layer, uint32_t sequence, uint64_t block,
                      gaac_block_view *view);

#endif
