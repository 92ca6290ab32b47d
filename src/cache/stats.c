/* Statistics of a cache. */
#include "base/base.h"
#include "cache/cache_internal.h"

#include <string.h>

/* Exact code of the layer's coded blocks: fixed parts, tags, stored N bytes, exceptions. */
static uint64_t code_bytes(const gaac_layer *layer)
{
    const gaac_layout *layout = &layer->layout;
    uint64_t tags = 0;
    for (uint32_t u = 0; u < layout->units; u++)
        tags += layout->unit[u].hv * (uint64_t)GAAC_TAG_BYTES;
    const uint64_t block = layout->fixed_bytes + tags * layout->shape.kv_heads;
    return layer->count[GAAC_STATE_CODED] * block + layer->stored_n + 4 * layer->exceptions;
}

static uint64_t groups(const gaac_layer *layer)
{
    const gaac_layout *layout = &layer->layout;
    uint64_t halves = 0;
    for (uint32_t u = 0; u < layout->units; u++)
        halves += layout->unit[u].hv * (uint64_t)(layout->unit[u].has_k + layout->unit[u].has_v);
    return layer->count[GAAC_STATE_CODED] * halves * 128 * layout->shape.kv_heads;
}

static uint64_t epoch_bytes(const gaac_layer *layer)
{
    uint64_t bytes = 0;
    for (int i = 0; i < GAAC_MAX_EPOCHS; i++)
        if (layer->epochs[i].codec != NULL)
            bytes += layer->epochs[i].codec->bases_bytes + layer->epochs[i].codec->windows->bytes;
    return bytes;
}

static void add_layer(const gaac_layer *layer, gaac_cache_stats *stats)
{
    const uint64_t raw = layer->layout.raw_bytes;
    const uint64_t row = gaac_layer_row_bytes(layer);
    const uint64_t coded = layer->count[GAAC_STATE_CODED], fallback = layer->count[GAAC_STATE_FALLBACK];
    const uint64_t waiting = layer->count[GAAC_STATE_WAITING], open = layer->count[GAAC_STATE_OPEN];
    stats->blocks_coded += coded;
    stats->blocks_raw += fallback;
    stats->blocks_waiting += waiting;
    stats->blocks_open += open;
    stats->bytes_slots += layer->slot_bytes;
    stats->bytes_raw_fallback += fallback * raw;
    stats->bytes_raw_waiting += waiting * raw;
    stats->bytes_raw_open += open * raw;
    stats->bytes_tables += (coded + fallback + waiting + open) * row;
    stats->bytes_tables += epoch_bytes(layer);
    stats->bytes_finalized_bf16 += (coded + fallback) * raw;
    stats->bytes_finalized_code += code_bytes(layer) + fallback * raw;
    stats->bytes_finalized_resident += layer->slot_bytes + fallback * raw + (coded + fallback) * row;
    stats->groups_4bit += layer->stored_n;
    stats->groups_3bit += groups(layer) - layer->stored_n;
    stats->exceptions += layer->exceptions;
    stats->encodes += layer->encodes;
    stats->decodes_to_reopen += layer->reopens;
    stats->fallbacks += layer->fallbacks;
    if (layer->epochs_made > stats->epochs)
        stats->epochs = layer->epochs_made;
}

gaac_status gaac_cache_get_stats(const gaac_cache *cache, uint32_t layer, gaac_cache_stats *stats, gaac_error *error)
{
    memset(stats, 0, sizeof *stats);
    if (layer != GAAC_ALL_LAYERS && layer >= cache->layers)
        return gaac_fail(error, GAAC_ERROR_INVALID_ARGUMENT, "there is no layer %u: the cache has %u", layer,
                         cache->layers);
    for (uint32_t i = 0; i < cache->layers; i++)
        if (layer == GAAC_ALL_LAYERS || layer == i)
            add_layer(&cache->layer[i], stats);
    uint64_t epochs = 0;
    for (uint32_t i = 0; i < cache->layers; i++)
        epochs += epoch_bytes(&cache->layer[i]);
    stats->bytes_resident = cache->budget.resident + epochs;
    stats->bytes_resident_peak = cache->budget.peak + epochs;
    return GAAC_OK;
}
