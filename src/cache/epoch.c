/* Epochs: which windows a layer codes with, from a profile or from its own blocks. */
#include "base/base.h"
#include "cache/cache_internal.h"

#include <string.h>

gaac_status gaac_cache_pool(gaac_cache *cache, uint32_t unit_bytes, gaac_pool **pool, gaac_error *error)
{
    for (uint32_t i = 0; i < cache->pool_count; i++)
        if (cache->pools[i]->unit_bytes == unit_bytes) {
            *pool = cache->pools[i];
            return GAAC_OK;
        }
    if (cache->pool_count == GAAC_MAX_POOLS)
        return gaac_fail(error, GAAC_ERROR_UNSUPPORTED, "more than %d sizes of slots in one cache", GAAC_MAX_POOLS);
    gaac_pool *made = gaac_calloc(&cache->allocator, sizeof *made);
    if (made == NULL)
        return gaac_fail(error, GAAC_ERROR_OUT_OF_MEMORY, "no memory for a pool of slots");
    const uint64_t units = (uint64_t)cache->layers * cache->sequences * cache->blocks_per_sequence + 1;
    const gaac_status status = gaac_pool_init(made, unit_bytes, units, &cache->budget, &cache->allocator, error);
    if (status != GAAC_OK) {
        gaac_free(&cache->allocator, made, sizeof *made);
        return status;
    }
    cache->pools[cache->pool_count++] = made;
    *pool = made;
    return GAAC_OK;
}

/* An epoch number that no block refers to, or -1. */
static int free_epoch(gaac_layer *layer)
{
    for (int i = 0; i < GAAC_MAX_EPOCHS; i++) {
        gaac_epoch *epoch = &layer->epochs[i];
        if (epoch->codec == NULL || (epoch->blocks == 0 && i != layer->current)) {
            gaac_codec_destroy(epoch->codec);
            *epoch = (gaac_epoch){0};
            return i;
        }
    }
    return -1;
}

static gaac_status begin_epoch(gaac_cache *cache, gaac_layer *layer, const gaac_windows *windows, uint32_t pool_bytes,
                               gaac_error *error)
{
    const int number = free_epoch(layer);
    if (number < 0)
        return gaac_fail(error, GAAC_ERROR_UNSUPPORTED, "a layer has blocks of %d calibrations", GAAC_MAX_EPOCHS);
    gaac_epoch *epoch = &layer->epochs[number];
    const gaac_codec_config config = {layer->layout.shape, GAAC_SCHEME_PRODUCTION, windows, pool_bytes,
                                      &cache->allocator};
    gaac_status status = gaac_codec_create(&epoch->codec, &config, error);
    if (status == GAAC_OK)
        status = gaac_cache_pool(cache, epoch->codec->slot_bytes, &epoch->slots, error);
    if (status != GAAC_OK) {
        gaac_codec_destroy(epoch->codec);
        *epoch = (gaac_epoch){0};
        return status;
    }
    layer->current = number;
    layer->epochs_made++;
    layer->finalized_at_epoch = layer->finalized;
    layer->window_fallbacks = 0;
    layer->patience = layer->patience == 0                  ? GAAC_RECENT_BLOCKS
                      : layer->patience < GAAC_MAX_PATIENCE ? 2 * layer->patience
                                                            : layer->patience;
    return GAAC_OK;
}

gaac_status gaac_epoch_from_profile(gaac_cache *cache, gaac_layer *layer, const gaac_profile *profile,
                                    gaac_error *error)
{
    gaac_profile_layer found;
    if (!gaac_profile_find_layer(profile, layer->index, &found))
        return gaac_fail(error, GAAC_ERROR_MISMATCH,
                         "the profile has no layer %u: it is for another model; calibrate this one", layer->index);
    const gaac_shape *want = &layer->layout.shape, *have = &found.shape;
    if (memcmp(want, have, sizeof *want) != 0)
        return gaac_fail(error, GAAC_ERROR_MISMATCH,
                         "the profile's layer %u has %u KV heads of %u/%u, the model's %u of %u/%u: it is for another "
                         "model; calibrate this one",
                         layer->index, have->kv_heads, have->head_dim_k, have->head_dim_v, want->kv_heads,
                         want->head_dim_k, want->head_dim_v);
    gaac_profile_info info;
    gaac_profile_get_info(profile, &info);
    if (info.scheme != GAAC_SCHEME_PRODUCTION)
        return gaac_fail(error, GAAC_ERROR_MISMATCH, "the profile is for the scheme '%s'; a cache codes with '%s'",
                         gaac_scheme_name(info.scheme), gaac_scheme_name(GAAC_SCHEME_PRODUCTION));
    layer->tokens_calibrated = info.tokens;
    return begin_epoch(cache, layer, found.windows, found.pool_bytes, error);
}

/* ---- self-calibration ----------------------------------------------------------------------- */

typedef struct block_list {
    const gaac_cache *cache;
    const gaac_layer *layer;
    const gaac_block_name *names;
} block_list;

static const uint8_t *listed_block(void *context, size_t block, uint8_t *scratch)
{
    const block_list *list = context;
    return gaac_block_raw(list->cache, list->layer, list->names[block], scratch);
}

static gaac_status calibrate_on(gaac_cache *cache, gaac_layer *layer, const gaac_block_name *names, size_t count,
                                gaac_error *error)
{
    block_list list = {cache, layer, names};
    const gaac_block_source source = {listed_block, &list, count};
    gaac_windows *windows = NULL;
    uint32_t pool_bytes = 0;
    gaac_status status = gaac_calibrate_blocks(&layer->layout, &source, GAAC_SCHEME_PRODUCTION, &cache->allocator,
                                               &windows, &pool_bytes, error);
    if (status == GAAC_OK)
        status = begin_epoch(cache, layer, windows, pool_bytes, error);
    if (status == GAAC_OK) {
        layer->tokens_calibrated = (uint64_t)count * GAAC_BLOCK_TOKENS;
        layer->self_calibrated = true;
    }
    gaac_windows_destroy(windows);
    return status;
}

/* Drops from the list what is no longer a complete waiting block (dropped since), keeping the order. */
static void prune_waiting(const gaac_cache *cache, gaac_layer *layer)
{
    size_t kept = 0;
    for (size_t i = 0; i < layer->waiting_count; i++) {
        const gaac_block_name name = layer->waiting[i];
        if (gaac_block_at(cache, layer, name.sequence, name.block)->state == GAAC_STATE_WAITING)
            layer->waiting[kept++] = name;
    }
    layer->waiting_count = kept;
}

gaac_status gaac_epoch_first(gaac_cache *cache, gaac_layer *layer, gaac_error *error)
{
    prune_waiting(cache, layer);
    if (layer->waiting_count < layer->waiting_capacity)
        return GAAC_OK;
    gaac_status status = calibrate_on(cache, layer, layer->waiting, layer->waiting_count, error);
    if (status != GAAC_OK)
        return status;
    const size_t count = layer->waiting_count;
    layer->waiting_count = 0;
    for (size_t i = 0; i < count && status == GAAC_OK; i++)
        status = gaac_block_finalize(cache, layer, layer->waiting[i], error);
    return status;
}

/* The recent finalized blocks that are still there, oldest first; returns how many. */
static size_t list_recent(const gaac_cache *cache, const gaac_layer *layer, gaac_block_name names[GAAC_RECENT_BLOCKS])
{
    const uint64_t count = layer->finalized < GAAC_RECENT_BLOCKS ? layer->finalized : GAAC_RECENT_BLOCKS;
    size_t kept = 0;
    for (uint64_t i = layer->finalized - count; i < layer->finalized; i++) {
        const gaac_block_name name = layer->recent[i % GAAC_RECENT_BLOCKS];
        const unsigned state = gaac_block_at(cache, layer, name.sequence, name.block)->state;
        if (state == GAAC_STATE_CODED || state == GAAC_STATE_FALLBACK)
            names[kept++] = name;
    }
    return kept;
}

void gaac_epoch_watch(gaac_cache *cache, gaac_layer *layer)
{
    if (layer->finalized % GAAC_DRIFT_WINDOW != 0)
        return;
    /* Two reasons: blocks stop fitting (keys drift with position), or the first windows came from fewer
     * tokens than there are by now. */
    const bool drifted = layer->window_fallbacks >= GAAC_DRIFT_FALLBACKS;
    const bool early = layer->tokens_calibrated < (uint64_t)GAAC_RECENT_BLOCKS * GAAC_BLOCK_TOKENS;
    layer->window_fallbacks = 0;
    if (!(drifted || (early && layer->self_calibrated)) ||
        layer->finalized - layer->finalized_at_epoch < layer->patience)
        return;
    gaac_block_name names[GAAC_RECENT_BLOCKS];
    const size_t count = list_recent(cache, layer, names);
    if (count >= GAAC_DRIFT_WINDOW && calibrate_on(cache, layer, names, count, NULL) == GAAC_OK)
        for (size_t i = 0; i < count; i++)
            gaac_block_retry(cache, layer, names[i]);
}

void gaac_layer_free_epochs(gaac_layer *layer)
{
    for (int i = 0; i < GAAC_MAX_EPOCHS; i++)
        gaac_codec_destroy(layer->epochs[i].codec);
}

gaac_status gaac_cache_export_profile(const gaac_cache *cache, const gaac_profile_info *info, gaac_profile **profile,
                                      gaac_error *error)
{
    *profile = NULL;
    for (uint32_t i = 0; i < cache->layers; i++)
        if (cache->layer[i].current < 0)
            return gaac_fail(error, GAAC_ERROR_UNSUPPORTED,
                             "layer %u has not been calibrated: it needs %u complete tokens; give more text",
                             cache->layer[i].index, cache->calibration_blocks * GAAC_BLOCK_TOKENS);
    gaac_profile_info filled = *info;
    filled.scheme = GAAC_SCHEME_PRODUCTION;
    filled.tokens = cache->layer[0].tokens_calibrated;
    gaac_profile *made = NULL;
    gaac_status status = gaac_profile_create(&made, &filled, &cache->allocator, error);
    for (uint32_t i = 0; status == GAAC_OK && i < cache->layers; i++) {
        const gaac_layer *layer = &cache->layer[i];
        const gaac_codec *codec = layer->epochs[layer->current].codec;
        const gaac_profile_layer entry = {layer->layout.shape, codec->windows, codec->pool_bytes, layer->index};
        status = gaac_profile_add_layer(made, &entry, error);
    }
    if (status != GAAC_OK) {
        gaac_profile_destroy(made);
        return status;
    }
    *profile = made;
    return GAAC_OK;
}
