/* Counting exponents, one layer. */
#include "base/base.h"
#include "codec/codec_internal.h"

#include <string.h>

static size_t histogram_bytes(const gaac_histogram *h)
{
    return sizeof *h + (h->k_counters + h->v_counters) * sizeof(uint32_t);
}

gaac_status gaac_histogram_create(gaac_histogram **histogram, const gaac_shape *shape, const gaac_allocator *allocator,
                                  gaac_error *error)
{
    *histogram = NULL;
    const gaac_status status = gaac_shape_check(shape, error);
    if (status != GAAC_OK)
        return status;
    const gaac_allocator hook = gaac_allocator_or_default(allocator);
    const size_t k_counters = (size_t)shape->kv_heads * shape->head_dim_k * 256;
    const size_t v_counters = (size_t)2 * shape->kv_heads * shape->head_dim_v * 256;
    gaac_histogram *h = gaac_calloc(&hook, sizeof *h + (k_counters + v_counters) * sizeof(uint32_t));
    if (h == NULL)
        return gaac_fail(error, GAAC_ERROR_OUT_OF_MEMORY, "no memory for the exponent histogram of a layer");
    h->allocator = hook;
    h->shape = *shape;
    h->k_counters = k_counters;
    h->v_counters = v_counters;
    *histogram = h;
    return GAAC_OK;
}

void gaac_histogram_destroy(gaac_histogram *histogram)
{
    if (histogram != NULL) {
        const gaac_allocator hook = histogram->allocator;
        gaac_free(&hook, histogram, histogram_bytes(histogram));
    }
}

static unsigned exponent_of(uint16_t bits)
{
    return bits >> 7 & 0xff;
}

/* Counters are 32 bits wide: a channel counts at most one a token. */
static gaac_status check_room(const gaac_histogram *histogram, uint64_t tokens, gaac_error *error)
{
    if (tokens > UINT32_MAX - histogram->tokens)
        return gaac_fail(error, GAAC_ERROR_INVALID_ARGUMENT,
                         "a histogram counts at most %u tokens; use a shorter calibration text", UINT32_MAX);
    return GAAC_OK;
}

gaac_status gaac_histogram_add(gaac_histogram *histogram, const gaac_kv_rows *rows, size_t tokens, gaac_error *error)
{
    const gaac_status status = check_room(histogram, tokens, error);
    if (status != GAAC_OK)
        return status;
    const gaac_shape *shape = &histogram->shape;
    for (uint32_t head = 0; head < shape->kv_heads; head++)
        for (size_t token = 0; token < tokens; token++) {
            const uint16_t *k = rows->k + token * rows->k_token_stride + head * rows->k_head_stride;
            const uint16_t *v = rows->v + token * rows->v_token_stride + head * rows->v_head_stride;
            for (uint32_t channel = 0; channel < shape->head_dim_k; channel++)
                gaac_histogram_k(histogram, head, channel)[exponent_of(k[channel])]++;
            for (uint32_t channel = 0; channel < shape->head_dim_v; channel++)
                gaac_histogram_v(histogram, token & 1, head, channel)[exponent_of(v[channel])]++;
        }
    histogram->tokens += tokens;
    return GAAC_OK;
}

void gaac_histogram_add_raw_block(gaac_histogram *histogram, const gaac_layout *layout, const uint8_t *raw)
{
    for (uint32_t head = 0; head < layout->shape.kv_heads; head++, raw += layout->head_raw_bytes)
        for (uint32_t u = 0; u < layout->units; u++) {
            const gaac_unit *unit = &layout->unit[u];
            const uint16_t *k = (const uint16_t *)(const void *)(raw + unit->raw_k_offset);
            const uint16_t *v = (const uint16_t *)(const void *)(raw + unit->raw_v_offset);
            for (unsigned channel = 0; channel < unit->channels; channel++)
                for (unsigned token = 0; token < GAAC_BLOCK_TOKENS; token++) {
                    if (unit->has_k)
                        gaac_histogram_k(histogram, head,
                                         unit->channel +
                                             channel)[exponent_of(k[gaac_k_index(unit->fragments, token, channel)])]++;
                    if (unit->has_v)
                        gaac_histogram_v(histogram, token & 1, head,
                                         unit->channel +
                                             channel)[exponent_of(v[gaac_v_index(unit->fragments, token, channel)])]++;
                }
        }
    histogram->tokens += GAAC_BLOCK_TOKENS;
}

gaac_status gaac_histogram_merge(gaac_histogram *histogram, const gaac_histogram *other, gaac_error *error)
{
    if (memcmp(&histogram->shape, &other->shape, sizeof histogram->shape) != 0)
        return gaac_fail(error, GAAC_ERROR_MISMATCH, "the two histograms are of layers with different shapes");
    const gaac_status status = check_room(histogram, other->tokens, error);
    if (status != GAAC_OK)
        return status;
    for (size_t i = 0; i < histogram->k_counters + histogram->v_counters; i++)
        histogram->counts[i] += other->counts[i];
    histogram->tokens += other->tokens;
    return GAAC_OK;
}

uint64_t gaac_histogram_tokens(const gaac_histogram *histogram)
{
    return histogram->tokens;
}

gaac_status gaac_histogram_counts(const gaac_histogram *histogram, gaac_part part, uint32_t head, uint32_t channel,
                                  uint64_t counts[256], gaac_error *error)
{
    const gaac_shape *shape = &histogram->shape;
    const uint32_t head_dim = part == GAAC_K ? shape->head_dim_k : shape->head_dim_v;
    if (head >= shape->kv_heads || channel >= head_dim)
        return gaac_fail(error, GAAC_ERROR_INVALID_ARGUMENT, "head %u, channel %u: the layer has %u heads of %u", head,
                         channel, shape->kv_heads, head_dim);
    /* Reading needs no other access path than writing; the cast only adds const back. */
    gaac_histogram *h = (gaac_histogram *)(uintptr_t)histogram;
    const uint32_t *first = part == GAAC_K ? gaac_histogram_k(h, head, channel) : gaac_histogram_v(h, 0, head, channel);
    const uint32_t *second = part == GAAC_K ? NULL : gaac_histogram_v(h, 1, head, channel);
    for (unsigned i = 0; i < 256; i++)
        counts[i] = (uint64_t)first[i] + (second != NULL ? second[i] : 0);
    return GAAC_OK;
}
