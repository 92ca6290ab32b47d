/* FLASH_ATTN_EXT: the host's description of an attention turned into gaac_attention calls, one for
 * each stream. */
#include "gaac/attention.h"
#include "host.h"
#include "ops.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FP16_MINUS_INFINITY = 0xFC00 };

static float op_float(const host_tensor *op, int i)
{
    float value;
    memcpy(&value, &op->op_params[i], sizeof value);
    return value;
}

/* Values may be read at any cell only if they lie as the cache's rows do: heads side by side in a row. */
const char *flash_objection(const host_tensor *op, gaac_shape *shape)
{
    const host_tensor *q = op->src[0], *k = op->src[1], *v = op->src[2], *mask = op->src[3], *sinks = op->src[4];
    if (k->type != HOST_TYPE_BF16 || v->type != HOST_TYPE_BF16)
        return "K and V are not both BF16";
    if (q->type != HOST_TYPE_F32 || op->type != HOST_TYPE_F32 || q->nb[0] != sizeof(float))
        return "the queries are not F32";
    if (k->ne[2] != v->ne[2] || k->ne[1] != v->ne[1] || k->ne[3] != v->ne[3])
        return "K and V differ in heads or cells";
    if (k->ne[2] < 1 || k->ne[2] > GAAC_MAX_KV_HEADS || k->ne[0] > GAAC_MAX_HEAD_DIM || v->ne[0] > GAAC_MAX_HEAD_DIM)
        return "too many heads or channels";
    *shape = (gaac_shape){(uint32_t)k->ne[2], (uint32_t)k->ne[0], (uint32_t)v->ne[0]};
    if (gaac_shape_check(shape, NULL) != GAAC_OK)
        return "head_dim is not a multiple of 16";
    if (q->ne[2] % k->ne[2] != 0 || q->ne[3] % k->ne[3] != 0 || q->ne[0] != k->ne[0])
        return "the query heads don't divide into the KV heads";
    if (mask && (mask->type != HOST_TYPE_F16 || mask->nb[0] != sizeof(uint16_t) || mask->ne[0] < k->ne[1] ||
                 mask->ne[1] < q->ne[1] || (mask->ne[2] != 1 && mask->ne[2] != q->ne[2])))
        return "the mask has a form that this device doesn't take";
    if (sinks && sinks->type != HOST_TYPE_F32)
        return "the sinks are not F32";
    return NULL;
}

bool flash_views_pair(const host_tensor *op)
{
    kv_view k, v;
    const host_tensor *kt = op->src[1], *vt = op->src[2];
    if (!kv_view_of(kt, &k) || !kv_view_of(vt, &v) || k.store != v.store || k.tensor->layer != v.tensor->layer)
        return false;
    bool parts = k.tensor->part == GAAC_K && v.tensor->part == GAAC_V && k.row == v.row && !k.column && !v.column;
    size_t k_row = k.tensor->width * sizeof(uint16_t), v_row = v.tensor->width * sizeof(uint16_t);
    bool whole =
        (size_t)(kt->ne[0] * kt->ne[2]) == k.tensor->width && (size_t)(vt->ne[0] * vt->ne[2]) == v.tensor->width;
    bool rows = kt->nb[0] == sizeof(uint16_t) && vt->nb[0] == sizeof(uint16_t) && kt->nb[1] == k_row &&
                vt->nb[1] == v_row && kt->nb[2] == (size_t)kt->ne[0] * sizeof(uint16_t) &&
                vt->nb[2] == (size_t)vt->ne[0] * sizeof(uint16_t);
    bool streams = kt->ne[3] == 1 || (kt->nb[3] == k.store->cells * k_row && vt->nb[3] == k.store->cells * v_row);
    return parts && whole && rows && streams && k.row % k.store->cells + (uint64_t)kt->ne[1] <= k.store->cells &&
           k.row / k.store->cells + (uint64_t)kt->ne[3] <= k.store->streams;
}

/* ALiBi: the slopes of ggml's attention, 2^(-max_bias * (h + 1) / n) for the first n = the largest
 * power of two of the heads, odd multiples of half that step for the rest. */
static void alibi_slopes(float *slopes, uint32_t heads, float max_bias)
{
    uint32_t n = 1;
    while (2 * n <= heads)
        n *= 2;
    float first = powf(2.0f, -max_bias / (float)n), second = powf(2.0f, -(max_bias / 2.0f) / (float)n);
    for (uint32_t h = 0; h < heads; h++)
        slopes[h] = h < n ? powf(first, (float)(h + 1)) : powf(second, (float)(2 * (h - n) + 1));
}

/* The cells of a view that starts at cell `first` are seen by gaac_attention from cell 0 on: a mask
 * hides those before. Returns the mask [tokens][heads or 1][cells], or NULL when there is no memory. */
static uint16_t *shifted_mask(const host_tensor *op, int64_t stream, uint64_t first)
{
    const host_tensor *q = op->src[0], *mask = op->src[3];
    size_t own = (size_t)op->src[1]->ne[1], cells = (size_t)first + own;
    int64_t heads = mask ? mask->ne[2] : 1;
    uint16_t *out = malloc((size_t)(q->ne[1] * heads) * cells * sizeof *out);
    for (int64_t row = 0; out && row < q->ne[1] * heads; row++) {
        uint16_t *to = out + (size_t)row * cells;
        for (size_t cell = 0; cell < first; cell++)
            to[cell] = FP16_MINUS_INFINITY;
        memset(to + first, 0, own * sizeof *to);
        if (mask)
            memcpy(to + first,
                   (const char *)mask->data + (size_t)(row / heads) * mask->nb[1] +
                       (size_t)(row % heads) * mask->nb[2] + (size_t)(stream % mask->ne[3]) * mask->nb[3],
                   own * sizeof *to);
    }
    return out;
}

/* What is the same for all streams. */
typedef struct flash_call {
    const host_tensor *op;
    const gaac_cache *cache;
    uint32_t layer, first_sequence;
    uint64_t first_cell;
    const float *slopes;
    gaac_executor executor;
} flash_call;

static void fill_mask(gaac_attention_args *args, const host_tensor *mask, int64_t stream)
{
    if (!mask)
        return;
    args->mask_kind = GAAC_MASK_ADDITIVE_F16;
    args->mask =
        (const uint16_t *)(const void *)((const char *)mask->data + (size_t)(stream % mask->ne[3]) * mask->nb[3]);
    args->mask_token_stride = mask->nb[1] / sizeof(uint16_t);
    args->mask_head_stride = mask->ne[2] > 1 ? mask->nb[2] / sizeof(uint16_t) : 0;
}

static gaac_status one_stream(const flash_call *call, int64_t stream, gaac_error *error)
{
    const host_tensor *op = call->op, *q = op->src[0], *k = op->src[1], *mask = op->src[3], *sinks = op->src[4];
    int64_t kv_stream = stream / (q->ne[3] / k->ne[3]);
    gaac_attention_args args = {
        .layer = call->layer,
        .sequence = call->first_sequence + (uint32_t)kv_stream,
        .cells = call->first_cell + (uint64_t)k->ne[1],
        .query_tokens = (uint32_t)q->ne[1],
        .query_heads = (uint32_t)q->ne[2],
        .q = (const float *)(const void *)((const char *)q->data + (size_t)stream * q->nb[3]),
        .q_token_stride = q->nb[1] / sizeof(float),
        .q_head_stride = q->nb[2] / sizeof(float),
        .out = (float *)(void *)((char *)op->data + (size_t)stream * op->nb[3]),
        .out_token_stride = op->nb[2] / sizeof(float),
        .out_head_stride = op->nb[1] / sizeof(float),
        .scale = op_float(op, 0),
        .softcap = op_float(op, 2),
        .slopes = call->slopes,
        .sinks = sinks ? sinks->data : NULL,
    };
    uint16_t *own_mask = NULL;
    if (call->first_cell > 0) {
        own_mask = shifted_mask(op, stream, call->first_cell);
        if (!own_mask) {
            snprintf(error->message, sizeof error->message, "no memory for the mask of a part of the cache");
            return error->status = GAAC_ERROR_OUT_OF_MEMORY;
        }
        size_t heads = mask ? (size_t)mask->ne[2] : 1;
        args.mask_kind = GAAC_MASK_ADDITIVE_F16;
        args.mask = own_mask;
        args.mask_token_stride = heads * args.cells;
        args.mask_head_stride = heads > 1 ? args.cells : 0;
    } else {
        fill_mask(&args, mask, stream);
    }
    gaac_status status = gaac_attention(call->cache, &args, &call->executor, error);
    free(own_mask);
    return status;
}

static gaac_status all_streams(flash_call *call, gaac_error *error)
{
    const host_tensor *q = call->op->src[0];
    float max_bias = op_float(call->op, 1);
    float *slopes = NULL;
    gaac_status status = GAAC_OK;
    if (max_bias > 0.0f) {
        slopes = malloc((size_t)q->ne[2] * sizeof *slopes);
        if (!slopes) {
            snprintf(error->message, sizeof error->message, "no memory for %lld slopes", (long long)q->ne[2]);
            return error->status = GAAC_ERROR_OUT_OF_MEMORY;
        }
        alibi_slopes(slopes, (uint32_t)q->ne[2], max_bias);
    }
    call->slopes = slopes;
    for (int64_t stream = 0; status == GAAC_OK && stream < q->ne[3]; stream++)
        status = one_stream(call, stream, error);
    free(slopes);
    return status;
}

gaac_status flash_compute(op_runner *runner, const host_tensor *op, gaac_error *error)
{
    kv_view k;
    gaac_shape shape;
    if (!flash_views_pair(op) || flash_objection(op, &shape) || !kv_view_of(op->src[1], &k)) {
        snprintf(error->message, sizeof error->message, "an attention that was not planned came to be computed");
        return error->status = GAAC_ERROR_INVALID_ARGUMENT;
    }
    gaac_status status = kv_store_learn(k.store, k.tensor->layer, &shape, error);
    if (status == GAAC_OK)
        status = kv_store_open(k.store, error);
    flash_call call = {.op = op,
                       .cache = k.store->cache,
                       .layer = k.tensor->layer,
                       .first_sequence = (uint32_t)(k.row / k.store->cells),
                       .first_cell = k.row % k.store->cells,
                       .executor = workers_executor(&runner->team)};
    return status == GAAC_OK ? all_streams(&call, error) : status;
}

/* ---- plain memory: for test-backend-ops -------------------------------------------------------- */

static gaac_status write_plain(gaac_cache *cache, const host_tensor *tensor, gaac_part part, gaac_error *error)
{
    size_t width = (size_t)(tensor->ne[0] * tensor->ne[2]);
    uint16_t *row = malloc(width * sizeof *row);
    gaac_status status = row ? GAAC_OK : GAAC_ERROR_OUT_OF_MEMORY;
    for (int64_t stream = 0; status == GAAC_OK && stream < tensor->ne[3]; stream++) {
        for (int64_t cell = 0; status == GAAC_OK && cell < tensor->ne[1]; cell++) {
            for (int64_t head = 0; head < tensor->ne[2]; head++)
                memcpy(row + head * tensor->ne[0],
                       (const char *)tensor->data + (size_t)stream * tensor->nb[3] + (size_t)cell * tensor->nb[1] +
                           (size_t)head * tensor->nb[2],
                       (size_t)tensor->ne[0] * sizeof *row);
            status = gaac_cache_write(cache, 0, part, (uint32_t)stream, (uint64_t)cell, NULL, 1, row, width, error);
        }
    }
    free(row);
    return status;
}

gaac_status flash_compute_plain(op_runner *runner, const host_tensor *op, gaac_error *error)
{
    gaac_shape shape;
    const host_tensor *k = op->src[1];
    const char *objection = flash_objection(op, &shape);
    if (objection) {
        snprintf(error->message, sizeof error->message, "%s", objection);
        return error->status = GAAC_ERROR_UNSUPPORTED;
    }
    gaac_cache_config wanted = {.shapes = &shape,
                                .layers = 1,
                                .sequences = (uint32_t)k->ne[3],
                                .tokens_per_sequence = (uint64_t)k->ne[1],
                                .calibration_tokens = 64}; /* short: coded blocks are to be seen in a test */
    gaac_cache *cache = NULL;
    gaac_status status = gaac_cache_create(&cache, &wanted, error);
    if (status == GAAC_OK)
        status = write_plain(cache, k, GAAC_K, error);
    if (status == GAAC_OK)
        status = write_plain(cache, op->src[2], GAAC_V, error);
    flash_call call = {.op = op, .cache = cache, .executor = workers_executor(&runner->team)};
    if (status == GAAC_OK)
        status = all_streams(&call, error);
    gaac_cache_destroy(cache);
    return status;
}
