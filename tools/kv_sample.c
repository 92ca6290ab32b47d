#include "kv_sample.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tool.h"

enum {
    SAMPLE_TOKENS = 4096, /* enough that windows calibrated on a quarter have met every channel's range */
    FILL_TOKENS = 256     /* a write: K, then V, so that few blocks are open at a time */
};

/* A 64-bit xorshift generator: plenty for test data. */
static double next_uniform(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return ((double)(*state >> 11) + 0.5) * 0x1p-53; /* above 0, below 1 */
}

/* Box and Muller: two uniform numbers make two normal ones. */
static void next_normals(uint64_t *state, float normals[2])
{
    const float radius = sqrtf(-2 * logf((float)next_uniform(state)));
    const float angle = 6.28318531f * (float)next_uniform(state);
    normals[0] = radius * cosf(angle);
    normals[1] = radius * sinf(angle);
}

void kv_sample_normal(float *numbers, size_t count, uint64_t seed)
{
    uint64_t state = seed * UINT64_C(0x9e3779b97f4a7c15) + 1;
    float pair[2];
    for (size_t i = 0; i < count; i++) {
        if (i % 2 == 0)
            next_normals(&state, pair);
        numbers[i] = pair[i % 2];
    }
}

/* Rounds to nearest, ties to even. The numbers here are finite. */
static uint16_t to_bf16(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

void kv_sample_draw(kv_dump *sample, const gaac_shape *shape)
{
    const size_t row = (size_t)shape->kv_heads * shape->head_dim_k;
    uint16_t *data = tool_alloc(2 * SAMPLE_TOKENS * row * sizeof *data);
    float *scales = tool_alloc(row * sizeof *scales), *values = tool_alloc(row * sizeof *values);
    for (unsigned part = 0; part < 2; part++) {
        /* Channels differ by factors of 2 and more, as those of real keys do: a window each. */
        kv_sample_normal(scales, row, 1 + part);
        for (unsigned token = 0; token < SAMPLE_TOKENS; token++) {
            uint16_t *out = data + ((size_t)part * SAMPLE_TOKENS + token) * row;
            kv_sample_normal(values, row, 3 + part + 2 * (uint64_t)token);
            for (size_t i = 0; i < row; i++)
                out[i] = to_bf16(values[i] * exp2f(scales[i]));
        }
    }
    free(values);
    free(scales);
    *sample = (kv_dump){.data = data, .shape = *shape, .layers = 1, .tokens = SAMPLE_TOKENS};
}

void kv_sample_release(kv_dump *sample)
{
    free((void *)(uintptr_t)sample->data); /* drawn: it is its own */
    *sample = (kv_dump){0};
}

static gaac_status fill_layer(const kv_dump *sample, gaac_cache *cache, uint32_t layer, uint64_t tokens,
                              gaac_error *error)
{
    const size_t stride = kv_dump_token_stride(sample);
    uint64_t count;
    for (uint64_t cell = 0; cell < tokens; cell += count) {
        const uint64_t token = cell % sample->tokens;
        count = tokens - cell < FILL_TOKENS ? tokens - cell : FILL_TOKENS;
        count = count < sample->tokens - token ? count : sample->tokens - token;
        const gaac_kv_rows rows = kv_dump_rows(sample, layer % sample->layers, token);
        gaac_status status = gaac_cache_write(cache, layer, GAAC_K, 0, cell, NULL, count, rows.k, stride, error);
        if (status == GAAC_OK)
            status = gaac_cache_write(cache, layer, GAAC_V, 0, cell, NULL, count, rows.v, stride, error);
        if (status != GAAC_OK)
            return status;
    }
    return GAAC_OK;
}

gaac_status kv_sample_fill(const kv_dump *sample, gaac_cache *cache, uint64_t tokens, gaac_error *error)
{
    gaac_status status = GAAC_OK;
    for (uint32_t layer = 0; layer < gaac_cache_layers(cache) && status == GAAC_OK; layer++)
        status = fill_layer(sample, cache, layer, tokens, error);
    return status == GAAC_OK ? gaac_cache_settle(cache, error) : status;
}
