/* What a cache has to hold after a sequence of operations: a plain array of the cells. For tests that run the
 * same operations on both. */
#ifndef GAAC_TESTS_CACHE_MODEL_H
#define GAAC_TESTS_CACHE_MODEL_H

#include "cache/cache_internal.h"
#include "gaac/gaac.h"

#include <stdlib.h>
#include <string.h>

enum { MODEL_LAYERS = 4, MODEL_K_AND_V = 3 };

/* What was written matters too: what drop and copy do depends on that. */
typedef struct model {
    gaac_shape shape[MODEL_LAYERS];
    uint32_t layers, sequences, cells;
    uint16_t *data[MODEL_LAYERS][2]; /* [layer][part], rows [sequence][cell] */
    uint8_t *written[MODEL_LAYERS];  /* [layer], bits of the part, [sequence][cell] */
    uint8_t *used[MODEL_LAYERS];     /* [layer][sequence][block]: something was written since it was empty */
    uint8_t *complete[MODEL_LAYERS]; /* the same: all its cells were, at one time */
} model;

static inline size_t row_elements(const model *m, uint32_t layer, unsigned part)
{
    return (size_t)m->shape[layer].kv_heads * (part ? m->shape[layer].head_dim_v : m->shape[layer].head_dim_k);
}

static inline void make_model(model *m)
{
    for (uint32_t l = 0; l < m->layers; l++) {
        for (unsigned part = 0; part < 2; part++)
            m->data[l][part] = calloc((size_t)m->sequences * m->cells, row_elements(m, l, part) * 2);
        m->written[l] = calloc(m->sequences, m->cells);
        m->used[l] = calloc(m->sequences, m->cells / 16);
        m->complete[l] = calloc(m->sequences, m->cells / 16);
    }
}

static inline void free_model(model *m)
{
    for (uint32_t l = 0; l < m->layers; l++) {
        free(m->data[l][0]);
        free(m->data[l][1]);
        free(m->written[l]);
        free(m->used[l]);
        free(m->complete[l]);
    }
}

static inline uint16_t *model_row(model *m, uint32_t layer, unsigned part, uint32_t sequence, uint64_t cell)
{
    return m->data[layer][part] + ((size_t)sequence * m->cells + cell) * row_elements(m, layer, part);
}

static inline size_t model_block(const model *m, uint32_t sequence, uint64_t cell)
{
    return (size_t)sequence * (m->cells / 16) + cell / 16;
}

static inline void model_write(model *m, uint32_t layer, unsigned part, uint32_t sequence, uint64_t cell,
                               const uint16_t *row)
{
    memcpy(model_row(m, layer, part, sequence, cell), row, row_elements(m, layer, part) * 2);
    uint8_t *written = m->written[layer] + (size_t)sequence * m->cells;
    written[cell] |= (uint8_t)(1u << part);
    m->used[layer][model_block(m, sequence, cell)] = 1;
    for (uint64_t c = cell / 16 * 16; c < cell / 16 * 16 + 16; c++)
        if (written[c] != MODEL_K_AND_V)
            return;
    m->complete[layer][model_block(m, sequence, cell)] = 1;
}

/* Whole blocks go; of others only cells of blocks that were never complete. */
static inline void model_drop(model *m, uint32_t layer, uint32_t sequence, uint64_t first, uint64_t count)
{
    for (uint64_t block = first / 16; block * 16 < first + count; block++) {
        const uint64_t begin = block * 16 > first ? block * 16 : first;
        const uint64_t end = block * 16 + 16 < first + count ? block * 16 + 16 : first + count;
        uint8_t *complete = &m->complete[layer][model_block(m, sequence, block * 16)];
        if (*complete && end - begin < 16)
            continue;
        for (uint64_t cell = begin; cell < end; cell++) {
            for (unsigned part = 0; part < 2; part++)
                memset(model_row(m, layer, part, sequence, cell), 0, row_elements(m, layer, part) * 2);
            m->written[layer][(size_t)sequence * m->cells + cell] = 0;
        }
        if (end - begin == 16)
            *complete = m->used[layer][model_block(m, sequence, block * 16)] = 0;
    }
}

/* Where the source's block is empty, the cells are dropped. They are written where either block is not. */
static inline void model_copy(model *m, uint32_t layer, uint32_t from, uint32_t to, uint64_t first, uint64_t count)
{
    for (uint64_t cell = first; from != to && cell < first + count;) {
        const uint64_t block_end = cell / 16 * 16 + 16, end = block_end < first + count ? block_end : first + count;
        const bool empty = !m->used[layer][model_block(m, from, cell)];
        if (empty)
            model_drop(m, layer, to, cell, end - cell);
        if (!empty || m->used[layer][model_block(m, to, cell)])
            for (uint64_t c = cell; c < end; c++)
                for (unsigned part = 0; part < 2; part++)
                    model_write(m, layer, part, to, c, model_row(m, layer, part, from, c));
        cell = end;
    }
}

/* The sums that a cache keeps are those of its blocks. */
static inline bool cache_sums_agree(const gaac_cache *cache)
{
    uint64_t used = 0, blocks = 0;
    for (uint32_t l = 0; l < cache->layers; l++) {
        const gaac_layer *layer = &cache->layer[l];
        uint64_t count[GAAC_STATE_CODED + 1] = {0}, stored = 0, slots = 0, exceptions = 0;
        for (uint32_t s = 0; s < cache->sequences; s++)
            for (uint64_t b = 0; b < cache->blocks_per_sequence; b++) {
                const gaac_block *block = gaac_block_at(cache, layer, s, b);
                count[block->state]++;
                if (block->state == GAAC_STATE_CODED) {
                    stored += block->stored_n;
                    exceptions += block->exceptions;
                    slots += layer->epochs[block->epoch].codec->slot_bytes;
                }
            }
        if (memcmp(count, layer->count, sizeof count) != 0 || stored != layer->stored_n || slots != layer->slot_bytes ||
            exceptions != layer->exceptions)
            return false;
        blocks += cache->sequences * cache->blocks_per_sequence - count[GAAC_STATE_EMPTY];
    }
    for (uint32_t p = 0; p < cache->pool_count; p++)
        used += cache->pools[p]->used;
    return used == blocks;
}

#endif
