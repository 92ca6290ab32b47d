/* gaac_cache: creation, and how attention sees its blocks. */
#include "base/base.h"
#include "cache/cache_internal.h"

#include <string.h>

static size_t page_round(size_t bytes)
{
    const size_t page = gaac_page_bytes();
    return (bytes + page - 1) / page * page;
}

/* Tables for every block there could be: address space, resident where blocks were written. */
static void *map_table(size_t bytes)
{
    void *table = gaac_memory_reserve(bytes);
    if (table != NULL && !gaac_memory_commit(table, bytes)) {
        gaac_memory_release(table, bytes);
        return NULL;
    }
    return table;
}

static gaac_status init_layer(gaac_cache *cache, uint32_t number, const gaac_cache_config *config, gaac_error *error)
{
    gaac_layer *layer = &cache->layer[number];
    gaac_status status = gaac_shape_check(&config->shapes[number], error);
    if (status != GAAC_OK)
        return status;
    layer->current = -1;
    layer->index = config->layer_indices != NULL ? config->layer_indices[number] : number;
    gaac_layout_init(&layer->layout, &config->shapes[number]);
    layer->entry_count = layer->layout.shape.kv_heads * layer->layout.coded_units;
    const size_t blocks = (size_t)cache->sequences * cache->blocks_per_sequence;
    layer->blocks_bytes = page_round(blocks * sizeof *layer->blocks);
    layer->entries_bytes = page_round(blocks * layer->entry_count * sizeof *layer->entries + 1);
    layer->blocks = map_table(layer->blocks_bytes);
    layer->entries = map_table(layer->entries_bytes);
    layer->waiting_capacity = cache->calibration_blocks;
    layer->waiting = gaac_calloc(&cache->allocator, layer->waiting_capacity * sizeof *layer->waiting);
    if (layer->blocks == NULL || layer->entries == NULL || layer->waiting == NULL)
        return gaac_fail(error, GAAC_ERROR_OUT_OF_MEMORY, "no memory for the block table of layer %u", layer->index);
    layer->count[GAAC_STATE_EMPTY] = blocks;
    status = gaac_cache_pool(cache, layer->layout.raw_bytes, &layer->raw, error);
    if (status == GAAC_OK && config->profile != NULL && cache->mode == GAAC_CACHE_CODED)
        status = gaac_epoch_from_profile(cache, layer, config->profile, error);
    return status;
}

static gaac_status check_config(const gaac_cache_config *config, gaac_error *error)
{
    if (config->layers == 0 || config->shapes == NULL)
        return gaac_fail(error, GAAC_ERROR_INVALID_ARGUMENT, "a cache needs at least one layer");
    if (config->sequences == 0 || config->tokens_per_sequence == 0)
        return gaac_fail(error, GAAC_ERROR_INVALID_ARGUMENT, "a cache needs at least one sequence of one token");
    if (config->mode != GAAC_CACHE_CODED && config->mode != GAAC_CACHE_RAW)
        return gaac_fail(error, GAAC_ERROR_INVALID_ARGUMENT, "there is no cache mode %d", (int)config->mode);
    if (config->tokens_per_sequence > (uint64_t)UINT32_MAX * 8 ||
        (config->tokens_per_sequence / GAAC_BLOCK_TOKENS + 1) * config->sequences > UINT32_MAX / config->layers)
        return gaac_fail(error, GAAC_ERROR_INVALID_ARGUMENT, "%llu tokens in %u sequences and %u layers are too many",
                         (unsigned long long)config->tokens_per_sequence, config->sequences, config->layers);
    return GAAC_OK;
}

/* The largest raw block, all zero, for blocks that nobody wrote. */
static gaac_status make_zero_block(gaac_cache *cache, const gaac_cache_config *config, gaac_error *error)
{
    for (uint32_t i = 0; i < config->layers; i++) {
        gaac_layout layout;
        const gaac_status status = gaac_shape_check(&config->shapes[i], error);
        if (status != GAAC_OK)
            return status;
        gaac_layout_init(&layout, &config->shapes[i]);
        if (layout.raw_bytes > cache->zero_bytes)
            cache->zero_bytes = layout.raw_bytes;
    }
    cache->zero_block = gaac_calloc(&cache->allocator, cache->zero_bytes);
    return cache->zero_block != NULL ? GAAC_OK : gaac_fail(error, GAAC_ERROR_OUT_OF_MEMORY, "no memory for a cache");
}

/* One raw block a layer: engines rewrite a layer at a time, and what waits, reopened, is encoded when room
 * is needed. At most an eighth, for limits so small that most would be kept back. */
static void set_reserve(gaac_cache *cache)
{
    uint64_t raw = 0;
    for (uint32_t i = 0; i < cache->layers; i++)
        raw += cache->layer[i].layout.raw_bytes;
    const uint64_t most = cache->budget.limit / 8;
    cache->budget.reserve = raw < most ? raw : most;
}

gaac_status gaac_cache_create(gaac_cache **cache, const gaac_cache_config *config, gaac_error *error)
{
    *cache = NULL;
    gaac_status status = check_config(config, error);
    if (status != GAAC_OK)
        return status;
    const gaac_allocator hook = gaac_allocator_or_default(config->allocator);
    gaac_cache *made = gaac_calloc(&hook, sizeof *made);
    if (made == NULL)
        return gaac_fail(error, GAAC_ERROR_OUT_OF_MEMORY, "no memory for a cache");
    made->allocator = hook;
    made->mode = config->mode;
    made->layers = config->layers;
    made->sequences = config->sequences;
    made->blocks_per_sequence = (config->tokens_per_sequence + GAAC_BLOCK_TOKENS - 1) / GAAC_BLOCK_TOKENS;
    const uint32_t tokens = config->calibration_tokens > 0 ? config->calibration_tokens : GAAC_DEFAULT_CALIBRATION;
    made->calibration_blocks = tokens / GAAC_BLOCK_TOKENS > 4 ? tokens / GAAC_BLOCK_TOKENS : 4;
    made->budget.limit = config->memory_limit;
    made->layer = gaac_calloc(&hook, config->layers * sizeof *made->layer);
    if (made->layer == NULL)
        status = gaac_fail(error, GAAC_ERROR_OUT_OF_MEMORY, "no memory for a cache of %u layers", config->layers);
    if (status == GAAC_OK)
        status = make_zero_block(made, config, error);
    for (uint32_t i = 0; status == GAAC_OK && i < config->layers; i++)
        status = init_layer(made, i, config, error);
    if (status != GAAC_OK) {
        gaac_cache_destroy(made);
        return status;
    }
    set_reserve(made);
    *cache = made;
    return GAAC_OK;
}

static void free_layer(gaac_cache *cache, gaac_layer *layer)
{
    gaac_layer_free_epochs(layer);
    gaac_memory_release(layer->blocks, layer->blocks_bytes);
    gaac_memory_release(layer->entries, layer->entries_bytes);
    gaac_free(&cache->allocator, layer->waiting, layer->waiting_capacity * sizeof *layer->waiting);
}

void gaac_cache_destroy(gaac_cache *cache)
{
    if (cache == NULL)
        return;
    const gaac_allocator hook = cache->allocator;
    for (uint32_t i = 0; cache->layer != NULL && i < cache->layers; i++)
        free_layer(cache, &cache->layer[i]);
    for (uint32_t i = 0; i < cache->pool_count; i++) {
        gaac_pool_free(cache->pools[i]);
        gaac_free(&hook, cache->pools[i], sizeof *cache->pools[i]);
    }
    gaac_free(&hook, cache->layer, cache->layers * sizeof *cache->layer);
    gaac_free(&hook, cache->zero_block, cache->zero_bytes);
    gaac_free(&hook, cache, sizeof *cache);
}

uint32_t gaac_cache_layers(const gaac_cache *cache)
{
    return cache->layers;
}

bool gaac_cache_shape(const gaac_cache *cache, uint32_t layer, gaac_shape *shape)
{
    if (layer >= cache->layers)
        return false;
    *shape = cache->layer[layer].layout.shape;
    return true;
}

/* ---- attention's view ----------------------------------------------------------------------- */

const gaac_layout *gaac_cache_layout(const gaac_cache *cache, uint32_t layer)
{
    return &cache->layer[layer].layout;
}

const gaac_allocator *gaac_cache_allocator(const gaac_cache *cache)
{
    return &cache->allocator;
}

uint64_t gaac_cache_cells(const gaac_cache *cache)
{
    return cache->blocks_per_sequence * GAAC_BLOCK_TOKENS;
}

bool gaac_cache_has(const gaac_cache *cache, uint32_t layer, uint32_t sequence)
{
    return layer < cache->layers && sequence < cache->sequences;
}

void gaac_cache_block(const gaac_cache *cache, uint32_t layer, uint32_t sequence, uint64_t block, gaac_block_view *view)
{
    const gaac_layer *l = &cache->layer[layer];
    const gaac_block *b = gaac_block_at(cache, l, sequence, block);
    *view = (gaac_block_view){.class_ = GAAC_BLOCK_EMPTY, .data = cache->zero_block, .finite = true};
    if (b->state == GAAC_STATE_EMPTY)
        return;
    view->finite = b->finite;
    if (b->state == GAAC_STATE_CODED) {
        const gaac_epoch *epoch = &l->epochs[b->epoch];
        view->class_ = GAAC_BLOCK_CODED;
        view->data = gaac_pool_unit(epoch->slots, b->unit);
        view->entries = gaac_entries_at(cache, l, sequence, block);
        view->codec = epoch->codec;
    } else {
        view->class_ = GAAC_BLOCK_RAW;
        view->data = gaac_pool_unit(l->raw, b->unit);
    }
}
