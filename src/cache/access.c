/* Writing, reading, copying and dropping cells. */
#include "base/base.h"
#include "cache/cache_internal.h"

#include <string.h>

static gaac_status check_place(const gaac_cache *cache, uint32_t layer, gaac_part part, uint32_t sequence,
                               gaac_error *error)
{
    if (layer >= cache->layers || sequence >= cache->sequences || (part != GAAC_K && part != GAAC_V))
        return gaac_fail(error, GAAC_ERROR_INVALID_ARGUMENT,
                         "layer %u, part %d, sequence %u: the cache has %u layers and %u sequences", layer, (int)part,
                         sequence, cache->layers, cache->sequences);
    return GAAC_OK;
}

static gaac_status check_cells(const gaac_cache *cache, uint64_t first, uint64_t count, gaac_error *error)
{
    const uint64_t cells = gaac_cache_cells(cache);
    if (first > cells || count > cells - first)
        return gaac_fail(error, GAAC_ERROR_INVALID_ARGUMENT, "cells %llu to %llu: a sequence has %llu",
                         (unsigned long long)first, (unsigned long long)first + count, (unsigned long long)cells);
    return GAAC_OK;
}

static uint32_t row_elements(const gaac_layer *layer, gaac_part part)
{
    const gaac_shape *shape = &layer->layout.shape;
    return shape->kv_heads * (part == GAAC_K ? shape->head_dim_k : shape->head_dim_v);
}

/* ---- writing -------------------------------------------------------------------------------- */

static bool rows_finite(const uint16_t *rows, size_t stride, unsigned count, uint32_t elements)
{
    unsigned worst = 0;
    for (unsigned row = 0; row < count; row++)
        for (uint32_t i = 0; i < elements; i++) {
            const unsigned exponent = rows[row * stride + i] & 0x7f80u;
            worst = exponent > worst ? exponent : worst;
        }
    return worst != 0x7f80;
}

/* Writes `count` consecutive cells that lie in one block. */
static gaac_status write_run(gaac_cache *cache, gaac_layer *layer, gaac_part part, uint32_t sequence, uint64_t cell,
                             unsigned count, const uint16_t *rows, size_t stride, gaac_error *error)
{
    const gaac_block_name name = {sequence, (uint32_t)(cell / GAAC_BLOCK_TOKENS)};
    const unsigned first = (unsigned)(cell % GAAC_BLOCK_TOKENS);
    const gaac_status status = gaac_block_open(cache, layer, name, first, count, error);
    if (status != GAAC_OK)
        return status;
    gaac_block *block = gaac_block_at(cache, layer, sequence, name.block);
    uint8_t *raw = gaac_pool_unit(layer->raw, block->unit);
    if (count == GAAC_BLOCK_TOKENS)
        gaac_raw_block_write_part(&layer->layout, part, rows, stride, raw);
    else
        for (unsigned i = 0; i < count; i++)
            gaac_raw_block_write_row(&layer->layout, part, first + i, rows + i * stride, raw);
    block->finite = block->finite && rows_finite(rows, stride, count, row_elements(layer, part));
    return gaac_block_written(cache, layer, name, part, first, count, error);
}

/* How many of the cells from i on follow each other inside one block. */
static unsigned run_length(uint64_t first, const int64_t *cells, size_t i, size_t count)
{
    const uint64_t start = cells != NULL ? (uint64_t)cells[i] : first + i;
    unsigned length = 1;
    while (i + length < count && (start + length) % GAAC_BLOCK_TOKENS != 0 &&
           (cells == NULL || (uint64_t)cells[i + length] == start + length))
        length++;
    return length;
}

gaac_status gaac_cache_write(gaac_cache *cache, uint32_t layer, gaac_part part, uint32_t sequence, uint64_t first,
                             const int64_t *cells, size_t count, const uint16_t *rows, size_t row_stride,
                             gaac_error *error)
{
    gaac_status status = check_place(cache, layer, part, sequence, error);
    if (status == GAAC_OK && cells == NULL)
        status = check_cells(cache, first, count, error);
    for (size_t i = 0; status == GAAC_OK && cells != NULL && i < count; i++)
        status = cells[i] >= 0
                     ? check_cells(cache, (uint64_t)cells[i], 1, error)
                     : gaac_fail(error, GAAC_ERROR_INVALID_ARGUMENT, "cell %lld is negative", (long long)cells[i]);
    for (size_t i = 0; status == GAAC_OK && i < count;) {
        const unsigned length = run_length(first, cells, i, count);
        const uint64_t cell = cells != NULL ? (uint64_t)cells[i] : first + i;
        status = write_run(cache, &cache->layer[layer], part, sequence, cell, length, rows + i * row_stride, row_stride,
                           error);
        i += length;
    }
    return status;
}

gaac_status gaac_cache_settle(gaac_cache *cache, gaac_error *error)
{
    gaac_status status = GAAC_OK;
    for (uint32_t i = 0; status == GAAC_OK && i < cache->layers; i++) {
        gaac_layer *layer = &cache->layer[i];
        while (status == GAAC_OK && layer->reopened_count > 0) {
            const gaac_block_name name = layer->reopened[layer->reopened_first];
            const gaac_block *block = gaac_block_at(cache, layer, name.sequence, name.block);
            layer->reopened_first = (layer->reopened_first + 1) % GAAC_REOPENED_BLOCKS;
            layer->reopened_count--;
            if (block->state == GAAC_STATE_OPEN && block->valid)
                status = gaac_block_finalize(cache, layer, name, error);
        }
    }
    return status;
}

/* ---- reading -------------------------------------------------------------------------------- */

static void read_run(const gaac_cache *cache, const gaac_layer *layer, gaac_part part, uint32_t sequence, uint64_t cell,
                     unsigned count, uint16_t *rows, size_t stride, uint8_t *scratch)
{
    const gaac_block_name name = {sequence, (uint32_t)(cell / GAAC_BLOCK_TOKENS)};
    const uint8_t *raw = gaac_block_raw(cache, layer, name, scratch);
    const unsigned first = (unsigned)(cell % GAAC_BLOCK_TOKENS);
    if (count == GAAC_BLOCK_TOKENS)
        gaac_raw_block_read_part(&layer->layout, part, raw, rows, stride);
    else
        for (unsigned i = 0; i < count; i++)
            gaac_raw_block_read_row(&layer->layout, part, first + i, raw, rows + i * stride);
}

gaac_status gaac_cache_read(const gaac_cache *cache, uint32_t layer, gaac_part part, uint32_t sequence, uint64_t first,
                            size_t count, uint16_t *rows, size_t row_stride, gaac_error *error)
{
    gaac_status status = check_place(cache, layer, part, sequence, error);
    if (status == GAAC_OK)
        status = check_cells(cache, first, count, error);
    if (status != GAAC_OK || count == 0)
        return status;
    const gaac_layer *l = &cache->layer[layer];
    uint8_t *scratch = gaac_calloc(&cache->allocator, l->layout.raw_bytes);
    if (scratch == NULL)
        return gaac_fail(error, GAAC_ERROR_OUT_OF_MEMORY, "no memory to decode a block");
    for (size_t i = 0; i < count;) {
        const unsigned length = run_length(first, NULL, i, count);
        read_run(cache, l, part, sequence, first + i, length, rows + i * row_stride, row_stride, scratch);
        i += length;
    }
    gaac_free(&cache->allocator, scratch, l->layout.raw_bytes);
    return GAAC_OK;
}

/* ---- copying and dropping ------------------------------------------------------------------- */

/* Copies `count` cells of one block of a layer through rows. */
static gaac_status copy_run(gaac_cache *cache, uint32_t layer, uint32_t from, uint32_t to, uint64_t cell,
                            unsigned count, uint16_t *rows, gaac_error *error)
{
    gaac_status status = GAAC_OK;
    for (unsigned part = 0; status == GAAC_OK && part < 2; part++) {
        const size_t stride = row_elements(&cache->layer[layer], (gaac_part)part);
        status = gaac_cache_read(cache, layer, (gaac_part)part, from, cell, count, rows, stride, error);
        if (status == GAAC_OK)
            status = gaac_cache_write(cache, layer, (gaac_part)part, to, cell, NULL, count, rows, stride, error);
    }
    return status;
}

static bool block_empty(const gaac_cache *cache, const gaac_layer *layer, uint32_t sequence, uint64_t cell)
{
    return gaac_block_at(cache, layer, sequence, cell / GAAC_BLOCK_TOKENS)->state == GAAC_STATE_EMPTY;
}

static gaac_status copy_layer(gaac_cache *cache, uint32_t number, uint32_t from, uint32_t to, uint64_t first,
                              uint64_t count, gaac_error *error)
{
    const gaac_layer *layer = &cache->layer[number];
    uint16_t *rows = gaac_calloc(&cache->allocator, layer->layout.raw_bytes);
    if (rows == NULL)
        return gaac_fail(error, GAAC_ERROR_OUT_OF_MEMORY, "no memory to copy a block");
    gaac_status status = GAAC_OK;
    for (uint64_t cell = first; status == GAAC_OK && cell < first + count;) {
        const unsigned length = run_length(cell, NULL, 0, first + count - cell);
        if (block_empty(cache, layer, from, cell))
            gaac_cache_drop_layer(cache, number, to, cell, length);
        if (!block_empty(cache, layer, from, cell) || !block_empty(cache, layer, to, cell))
            status = copy_run(cache, number, from, to, cell, length, rows, error);
        cell += length;
    }
    gaac_free(&cache->allocator, rows, layer->layout.raw_bytes);
    return status;
}

gaac_status gaac_cache_copy(gaac_cache *cache, uint32_t from_sequence, uint32_t to_sequence, uint64_t first,
                            uint64_t count, gaac_error *error)
{
    gaac_status status = check_place(cache, 0, GAAC_K, from_sequence, error);
    if (status == GAAC_OK)
        status = check_place(cache, 0, GAAC_K, to_sequence, error);
    if (status == GAAC_OK)
        status = check_cells(cache, first, count, error);
    if (from_sequence == to_sequence)
        return status;
    for (uint32_t layer = 0; status == GAAC_OK && layer < cache->layers; layer++)
        status = copy_layer(cache, layer, from_sequence, to_sequence, first, count, error);
    return status;
}

/* Cells of a block that go while others stay: a raw one's become zero and unwritten. */
static void drop_run(gaac_cache *cache, gaac_layer *layer, gaac_block_name name, unsigned first, unsigned count)
{
    gaac_block *block = gaac_block_at(cache, layer, name.sequence, name.block);
    if (count == GAAC_BLOCK_TOKENS) {
        gaac_block_drop(cache, layer, name);
        return;
    }
    if (block->state != GAAC_STATE_OPEN || block->valid)
        return;
    for (unsigned part = 0; part < 2; part++) {
        gaac_raw_block_zero_rows(&layer->layout, (gaac_part)part, first, count,
                                 gaac_pool_unit(layer->raw, block->unit));
        block->written[part] &= (uint16_t) ~(((1u << count) - 1) << first);
    }
}

void gaac_cache_drop_layer(gaac_cache *cache, uint32_t layer, uint32_t sequence, uint64_t first, uint64_t count)
{
    const uint64_t cells = gaac_cache_cells(cache);
    const uint64_t end = first > cells ? first : count > cells - first ? cells : first + count;
    for (uint64_t cell = first; cell < end;) {
        const unsigned length = run_length(cell, NULL, 0, end - cell);
        const gaac_block_name name = {sequence, (uint32_t)(cell / GAAC_BLOCK_TOKENS)};
        drop_run(cache, &cache->layer[layer], name, (unsigned)(cell % GAAC_BLOCK_TOKENS), length);
        cell += length;
    }
}

void gaac_cache_drop(gaac_cache *cache, uint32_t sequence, uint64_t first, uint64_t count)
{
    for (uint32_t layer = 0; layer < cache->layers; layer++)
        for (uint32_t s = 0; s < cache->sequences; s++)
            if (s == sequence || sequence == GAAC_ALL_SEQUENCES)
                gaac_cache_drop_layer(cache, layer, s, first, count);
}
