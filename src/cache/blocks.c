/* The life of a block: empty, open, complete, coded, and back. */
#include "base/base.h"
#include "cache/cache_internal.h"

#include <string.h>

static uint8_t *raw_memory(const gaac_layer *layer, const gaac_block *block)
{
    return gaac_pool_unit(layer->raw, block->unit);
}

static uint8_t *slot_memory(const gaac_layer *layer, const gaac_block *block)
{
    return gaac_pool_unit(layer->epochs[block->epoch].slots, block->unit);
}

/* Adds or takes away a block from the layer's sums. */
static void account(gaac_layer *layer, const gaac_block *block, int sign)
{
    const uint64_t one = (uint64_t)(int64_t)sign;
    layer->count[block->state] += one;
    if (block->state == GAAC_STATE_CODED) {
        layer->slot_bytes += one * layer->epochs[block->epoch].codec->slot_bytes;
        layer->stored_n += one * block->stored_n;
        layer->exceptions += one * block->exceptions;
        layer->epochs[block->epoch].blocks += one;
    }
}

void gaac_block_set_state(gaac_layer *layer, gaac_block *block, gaac_block_state state)
{
    account(layer, block, -1);
    block->state = (uint8_t)state;
    account(layer, block, 1);
}

static unsigned cells_mask(unsigned cell, unsigned count)
{
    return ((1u << count) - 1) << cell;
}

const uint8_t *gaac_block_raw(const gaac_cache *cache, const gaac_layer *layer, gaac_block_name name, uint8_t *scratch)
{
    const gaac_block *block = gaac_block_at(cache, layer, name.sequence, name.block);
    if (block->state == GAAC_STATE_EMPTY)
        return cache->zero_block;
    if (gaac_block_is_raw(block))
        return raw_memory(layer, block);
    /* A slot of our own always decodes: nothing but the encoder wrote it. */
    (void)gaac_decode_raw_block(layer->epochs[block->epoch].codec, slot_memory(layer, block),
                                gaac_entries_at(cache, layer, name.sequence, name.block), scratch, NULL);
    return scratch;
}

/* Waits for the rest of a rewrite at most until GAAC_REOPENED_BLOCKS others were reopened after it. */
static gaac_status remember_reopened(gaac_cache *cache, gaac_layer *layer, gaac_block_name name, gaac_error *error)
{
    gaac_status status = GAAC_OK;
    if (layer->reopened_count == GAAC_REOPENED_BLOCKS) {
        const gaac_block_name oldest = layer->reopened[layer->reopened_first];
        const gaac_block *block = gaac_block_at(cache, layer, oldest.sequence, oldest.block);
        layer->reopened_first = (layer->reopened_first + 1) % GAAC_REOPENED_BLOCKS;
        layer->reopened_count--;
        if (block->state == GAAC_STATE_OPEN && block->valid)
            status = gaac_block_finalize(cache, layer, oldest, error);
    }
    layer->reopened[(layer->reopened_first + layer->reopened_count++) % GAAC_REOPENED_BLOCKS] = name;
    return status;
}

/* A block's rows in the tables count from its first write until it is dropped. */
static void add_row(gaac_cache *cache, const gaac_layer *layer)
{
    cache->budget.used += gaac_layer_row_bytes(layer);
    gaac_budget_add_resident(&cache->budget, gaac_layer_row_bytes(layer));
}

static void take_row_away(gaac_cache *cache, const gaac_layer *layer)
{
    cache->budget.used -= gaac_layer_row_bytes(layer);
    cache->budget.resident -= gaac_layer_row_bytes(layer);
}

static gaac_status open_empty(gaac_cache *cache, gaac_layer *layer, gaac_block *block, gaac_error *error)
{
    uint32_t unit;
    const gaac_status status = gaac_pool_take(layer->raw, GAAC_TAKE_NEW, &unit, error);
    if (status != GAAC_OK)
        return status;
    memset(gaac_pool_unit(layer->raw, unit), 0, layer->layout.raw_bytes);
    add_row(cache, layer);
    block->unit = unit;
    block->written[GAAC_K] = block->written[GAAC_V] = 0;
    block->valid = false;
    block->finite = true;
    gaac_block_set_state(layer, block, GAAC_STATE_OPEN);
    return GAAC_OK;
}

/* Decodes a slot back. Cells from the first rewritten one on are expected to be rewritten in turn, as
 * engines do when they roll back or reuse a run of cells: the block then closes when the last is. */
static gaac_status reopen_coded(gaac_cache *cache, gaac_layer *layer, gaac_block_name name, gaac_error *error)
{
    gaac_block *block = gaac_block_at(cache, layer, name.sequence, name.block);
    uint32_t unit;
    gaac_status status = gaac_pool_take(layer->raw, GAAC_TAKE_REOPEN, &unit, error);
    if (status != GAAC_OK)
        return status;
    const uint32_t *entries = gaac_entries_at(cache, layer, name.sequence, name.block);
    status = gaac_decode_raw_block(layer->epochs[block->epoch].codec, slot_memory(layer, block), entries,
                                   gaac_pool_unit(layer->raw, unit), error);
    if (status != GAAC_OK) {
        gaac_pool_give(layer->raw, unit);
        return status;
    }
    gaac_pool_give(layer->epochs[block->epoch].slots, block->unit);
    gaac_block_set_state(layer, block, GAAC_STATE_OPEN);
    block->unit = unit;
    layer->reopens++;
    return GAAC_OK;
}

/* At the limit, reopened blocks wait no longer: without this a cache that is full of coded blocks could
 * not be written again, and its caller not use the cells of a request that is over. */
static gaac_status make_room_to_reopen(gaac_cache *cache, const gaac_layer *layer, gaac_error *error)
{
    const gaac_budget *budget = &cache->budget;
    const bool full = budget->limit != 0 && budget->used + layer->layout.raw_bytes > budget->limit;
    return full ? gaac_cache_settle(cache, error) : GAAC_OK;
}

gaac_status gaac_block_open(gaac_cache *cache, gaac_layer *layer, gaac_block_name name, unsigned cell, unsigned count,
                            gaac_error *error)
{
    gaac_block *block = gaac_block_at(cache, layer, name.sequence, name.block);
    if (block->state == GAAC_STATE_EMPTY)
        return open_empty(cache, layer, block, error);
    if (block->state == GAAC_STATE_OPEN || block->state == GAAC_STATE_WAITING)
        return GAAC_OK; /* a waiting block is written in place and goes on waiting */
    gaac_status status = block->state == GAAC_STATE_CODED ? make_room_to_reopen(cache, layer, error) : GAAC_OK;
    /* First the list: making room in it may finalize any open block, this one too were it open already. */
    if (status == GAAC_OK)
        status = remember_reopened(cache, layer, name, error);
    if (status == GAAC_OK && block->state == GAAC_STATE_CODED)
        status = reopen_coded(cache, layer, name, error);
    else if (status == GAAC_OK)
        gaac_block_set_state(layer, block, GAAC_STATE_OPEN);
    if (status != GAAC_OK)
        return status;
    block->valid = true;
    const uint16_t kept = (uint16_t)(count < GAAC_BLOCK_TOKENS ? cells_mask(0, cell) : 0);
    block->written[GAAC_K] = block->written[GAAC_V] = kept;
    return GAAC_OK;
}

gaac_status gaac_block_written(gaac_cache *cache, gaac_layer *layer, gaac_block_name name, gaac_part part,
                               unsigned cell, unsigned count, gaac_error *error)
{
    gaac_block *block = gaac_block_at(cache, layer, name.sequence, name.block);
    block->written[part] |= (uint16_t)cells_mask(cell, count);
    if (block->written[GAAC_K] != GAAC_FULL_MASK || block->written[GAAC_V] != GAAC_FULL_MASK)
        return GAAC_OK;
    block->valid = true;
    return block->state == GAAC_STATE_OPEN ? gaac_block_finalize(cache, layer, name, error) : GAAC_OK;
}

/* ---- finalizing ----------------------------------------------------------------------------- */

static gaac_status wait_for_epoch(gaac_cache *cache, gaac_layer *layer, gaac_block_name name, gaac_error *error)
{
    gaac_block *block = gaac_block_at(cache, layer, name.sequence, name.block);
    gaac_block_set_state(layer, block, GAAC_STATE_WAITING);
    if (cache->mode == GAAC_CACHE_RAW)
        return GAAC_OK;
    if (layer->waiting_count < layer->waiting_capacity)
        layer->waiting[layer->waiting_count++] = name;
    return layer->waiting_count == layer->waiting_capacity ? gaac_epoch_first(cache, layer, error) : GAAC_OK;
}

/* Encodes into a slot of the current epoch. Sets *coded; without room in the slot pool the block stays
 * raw, which is always correct. */
static void encode_block(gaac_cache *cache, gaac_layer *layer, gaac_block_name name, bool *coded)
{
    gaac_block *block = gaac_block_at(cache, layer, name.sequence, name.block);
    gaac_epoch *epoch = &layer->epochs[layer->current];
    uint32_t slot;
    *coded = false;
    /* The raw block is given back right after, so that the limit may be passed by one slot. */
    if (gaac_pool_take(epoch->slots, GAAC_TAKE_SWAP, &slot, NULL) != GAAC_OK)
        return;
    gaac_block_info info;
    layer->encodes++;
    (void)gaac_encode_raw_block(epoch->codec, raw_memory(layer, block), gaac_pool_unit(epoch->slots, slot),
                                gaac_entries_at(cache, layer, name.sequence, name.block), &info, NULL);
    if (!info.coded) {
        gaac_pool_give(epoch->slots, slot);
        return;
    }
    gaac_pool_give(layer->raw, block->unit);
    account(layer, block, -1);
    block->unit = slot;
    block->epoch = (uint8_t)layer->current;
    block->stored_n = info.groups_by_mode[1];
    block->exceptions = (uint16_t)info.exceptions;
    block->state = GAAC_STATE_CODED;
    account(layer, block, 1);
    *coded = true;
}

gaac_status gaac_block_finalize(gaac_cache *cache, gaac_layer *layer, gaac_block_name name, gaac_error *error)
{
    gaac_block *block = gaac_block_at(cache, layer, name.sequence, name.block);
    if (!gaac_block_is_raw(block))
        return GAAC_OK; /* a list may name a block twice */
    if (cache->mode == GAAC_CACHE_RAW || layer->current < 0)
        return wait_for_epoch(cache, layer, name, error);
    block->finite = gaac_raw_block_finite(&layer->layout, raw_memory(layer, block));
    bool coded;
    encode_block(cache, layer, name, &coded);
    if (!coded) {
        gaac_block_set_state(layer, block, GAAC_STATE_FALLBACK);
        layer->fallbacks++;
        layer->window_fallbacks++;
    }
    layer->recent[layer->finalized++ % GAAC_RECENT_BLOCKS] = name;
    gaac_epoch_watch(cache, layer);
    return GAAC_OK;
}

void gaac_block_retry(gaac_cache *cache, gaac_layer *layer, gaac_block_name name)
{
    bool coded;
    if (gaac_block_at(cache, layer, name.sequence, name.block)->state == GAAC_STATE_FALLBACK)
        encode_block(cache, layer, name, &coded);
}

void gaac_block_drop(gaac_cache *cache, gaac_layer *layer, gaac_block_name name)
{
    gaac_block *block = gaac_block_at(cache, layer, name.sequence, name.block);
    if (block->state == GAAC_STATE_EMPTY)
        return;
    if (block->state == GAAC_STATE_CODED)
        gaac_pool_give(layer->epochs[block->epoch].slots, block->unit);
    else
        gaac_pool_give(layer->raw, block->unit);
    take_row_away(cache, layer);
    account(layer, block, -1);
    memset(block, 0, sizeof *block);
    account(layer, block, 1);
}
