/* What the cache's own files share. */
#ifndef GAAC_CACHE_INTERNAL_H
#define GAAC_CACHE_INTERNAL_H

#include "cache/pool.h"
#include "cache/view.h"

enum {
    GAAC_FULL_MASK = 0xffff, /* all 16 cells of a block */
    GAAC_MAX_EPOCHS = 64,    /* of a layer; the table entry has seven bits */
    GAAC_MAX_POOLS = 192,
    GAAC_DEFAULT_CALIBRATION = 1024, /* tokens that wait raw for the first windows of a cache's own */
    GAAC_RECENT_BLOCKS = 256,        /* finalized blocks (4096 tokens) that a later epoch calibrates on */
    GAAC_MAX_PATIENCE = 4096,        /* most finalized blocks (65536 tokens) that one epoch has to last */
    GAAC_DRIFT_WINDOW = 64,          /* finalized blocks between two looks at the fallbacks */
    GAAC_DRIFT_FALLBACKS = 4,        /* in a window: 6% raw cost more than a new epoch's tables */
    GAAC_REOPENED_BLOCKS = 64,       /* blocks of a layer that may wait, reopened, for the rest of a rewrite */
};

typedef enum gaac_block_state {
    GAAC_STATE_EMPTY = 0,
    GAAC_STATE_OPEN,     /* raw, some cells still to come */
    GAAC_STATE_WAITING,  /* raw, complete: no windows yet, or raw mode */
    GAAC_STATE_FALLBACK, /* raw, complete: did not fit a slot */
    GAAC_STATE_CODED,
} gaac_block_state;

typedef struct gaac_block {
    uint32_t unit;       /* in the layer's raw pool, or in its epoch's slot pool */
    uint32_t stored_n;   /* coded: 4-bit groups */
    uint16_t written[2]; /* [part] cells written since the block was opened or reopened */
    uint16_t exceptions; /* coded */
    uint8_t state : 4;
    uint8_t valid : 1;  /* every cell holds a value, whatever `written` says (a reopened block) */
    uint8_t finite : 1; /* no NaN or infinity was ever written since it was opened */
    uint8_t epoch;
} gaac_block;

typedef struct gaac_block_name {
    uint32_t sequence;
    uint32_t block;
} gaac_block_name;

/* Windows in use from some time on. */
typedef struct gaac_epoch {
    gaac_codec *codec; /* NULL: free */
    gaac_pool *slots;
    uint64_t blocks; /* coded in it now */
} gaac_epoch;

typedef struct gaac_layer {
    gaac_layout layout;
    uint32_t index;     /* the model's layer number */
    gaac_block *blocks; /* [sequence][block] */
    uint32_t *entries;  /* [sequence][block][entry] */
    size_t blocks_bytes, entries_bytes;
    uint32_t entry_count; /* of a block */
    gaac_pool *raw;
    gaac_epoch epochs[GAAC_MAX_EPOCHS];
    int current; /* epoch that codes, -1 before the first */
    uint32_t epochs_made;
    /* Complete blocks that wait for the first epoch, oldest first. */
    gaac_block_name *waiting;
    size_t waiting_count, waiting_capacity;
    /* The last finalized blocks, to calibrate a new epoch on; and the watch for drift. */
    gaac_block_name recent[GAAC_RECENT_BLOCKS];
    uint64_t finalized;          /* since the cache was made */
    uint64_t finalized_at_epoch; /* when the current epoch began */
    uint64_t patience;           /* blocks before another epoch may begin: doubles each time */
    uint32_t window_fallbacks;
    /* Reopened blocks, oldest first (ring). */
    gaac_block_name reopened[GAAC_REOPENED_BLOCKS];
    uint32_t reopened_first, reopened_count;
    /* Sums over blocks as they are now. */
    uint64_t count[GAAC_STATE_CODED + 1];
    uint64_t slot_bytes, stored_n, exceptions;
    uint64_t tokens_calibrated;
    bool self_calibrated; /* the current epoch is the cache's own, not a profile's */
    /* Events. */
    uint64_t encodes, reopens, fallbacks;
} gaac_layer;

struct gaac_cache {
    gaac_allocator allocator;
    gaac_cache_mode mode;
    uint32_t layers, sequences;
    uint64_t blocks_per_sequence;
    uint32_t calibration_blocks;
    gaac_budget budget;
    gaac_pool *pools[GAAC_MAX_POOLS]; /* slot pools by size, raw pools by size */
    uint32_t pool_count;
    uint8_t *zero_block; /* what an empty block looks like: the largest raw block, all zero */
    size_t zero_bytes;
    gaac_layer *layer; /* [layers] */
};

/* blocks.c */
static inline size_t gaac_block_number(const gaac_cache *cache, uint32_t sequence, uint64_t block)
{
    return (size_t)sequence * cache->blocks_per_sequence + block;
}
static inline gaac_block *gaac_block_at(const gaac_cache *cache, const gaac_layer *layer, uint32_t sequence,
                                        uint64_t block)
{
    return &layer->blocks[gaac_block_number(cache, sequence, block)];
}
static inline uint32_t *gaac_entries_at(const gaac_cache *cache, const gaac_layer *layer, uint32_t sequence,
                                        uint64_t block)
{
    return layer->entries + gaac_block_number(cache, sequence, block) * layer->entry_count;
}
/* Bytes of the block table and of entries that a block takes. */
static inline uint32_t gaac_layer_row_bytes(const gaac_layer *layer)
{
    return (uint32_t)(sizeof(gaac_block) + layer->entry_count * sizeof(uint32_t));
}
static inline bool gaac_block_is_raw(const gaac_block *block)
{
    return block->state == GAAC_STATE_OPEN || block->state == GAAC_STATE_WAITING || block->state == GAAC_STATE_FALLBACK;
}
/* Makes the block raw and open for a write of `count` cells from `cell` (0..15) on. */
gaac_status gaac_block_open(gaac_cache *cache, gaac_layer *layer, gaac_block_name name, unsigned cell, unsigned count,
                            gaac_error *error);
/* After a write: finalizes the block if it is complete. */
gaac_status gaac_block_written(gaac_cache *cache, gaac_layer *layer, gaac_block_name name, gaac_part part,
                               unsigned cell, unsigned count, gaac_error *error);
/* Encodes a raw block whose cells all hold values, or leaves it as a fallback or waiting. */
gaac_status gaac_block_finalize(gaac_cache *cache, gaac_layer *layer, gaac_block_name name, gaac_error *error);
/* Tries a fallback block again, under windows that it has not seen. */
void gaac_block_retry(gaac_cache *cache, gaac_layer *layer, gaac_block_name name);
void gaac_block_drop(gaac_cache *cache, gaac_layer *layer, gaac_block_name name);
void gaac_block_set_state(gaac_layer *layer, gaac_block *block, gaac_block_state state);
/* The block as a raw block: its own memory, or decoded into scratch (layout.raw_bytes, 64-byte aligned). */
const uint8_t *gaac_block_raw(const gaac_cache *cache, const gaac_layer *layer, gaac_block_name name, uint8_t *scratch);

/* access.c: gaac_cache_drop of one layer and sequence. */
void gaac_cache_drop_layer(gaac_cache *cache, uint32_t layer, uint32_t sequence, uint64_t first, uint64_t count);

/* epoch.c */
/* Adds a pool of units of this size, or finds it. */
gaac_status gaac_cache_pool(gaac_cache *cache, uint32_t unit_bytes, gaac_pool **pool, gaac_error *error);
gaac_status gaac_epoch_from_profile(gaac_cache *cache, gaac_layer *layer, const gaac_profile *profile,
                                    gaac_error *error);
/* The first epoch from the waiting blocks, once there are enough; then finalizes them. */
gaac_status gaac_epoch_first(gaac_cache *cache, gaac_layer *layer, gaac_error *error);
/* A look at the fallbacks every GAAC_DRIFT_WINDOW blocks; begins a new epoch when there are too many. A
 * failure to calibrate leaves the current epoch in place. */
void gaac_epoch_watch(gaac_cache *cache, gaac_layer *layer);
void gaac_layer_free_epochs(gaac_layer *layer);

#endif
