/* ROPE in place on keys: how llama.cpp moves a context. The host's CPU backend has no such operation
 * for BF16 (a stock build stops there with a BF16 cache), but it has one for F32: rows are widened to
 * F32, rotated by the host with the host's own parameters, and rounded back to BF16. That serves the
 * compressed cache, and as well a BF16 cache that had to stay with the CPU. */
#include "bf16.h"
#include "host.h"
#include "ops.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    ROPE_ROWS = 512, /* rows a step: a few hundred KiB of F32 */
};

static bool in_place(const host_tensor *op)
{
    const host_tensor *source = op->src[0];
    return op->type == HOST_TYPE_BF16 && source && op->data == source->data && op->nb[1] == source->nb[1] &&
           op->nb[2] == source->nb[2];
}

/* [rotated channels, heads, rows], a position for each row. */
static bool plain_form(const host_tensor *op)
{
    const host_tensor *positions = op->src[1];
    return in_place(op) && op->nb[0] == sizeof(uint16_t) && op->ne[3] == 1 && positions &&
           positions->type == HOST_TYPE_I32 && positions->ne[0] == op->ne[2];
}

bool rope_fits(const host_tensor *op)
{
    kv_view view;
    if (!kv_view_of(op, &view) || !plain_form(op) || op->nb[2] != view.tensor->width * sizeof(uint16_t))
        return false;
    size_t last = ((size_t)op->ne[1] - 1) * (op->nb[1] / sizeof(uint16_t)) + (size_t)op->ne[0];
    return view.column + last <= view.tensor->width;
}

bool rope_fits_plain(const host_tensor *op)
{
    gaac_part part;
    int layer;
    return plain_form(op) && kv_is_cache_tensor(host_root(op), &part, &layer);
}

typedef struct rope_step {
    const host_tensor *op;
    kv_view view;
    int64_t first, count; /* rows of the view */
    uint16_t *rows;       /* the first of them, from the view's first channel on */
} rope_step;

static const int32_t *shift_of(const rope_step *step)
{
    return (const int32_t *)step->op->src[1]->data + step->first;
}

/* Element (channel 0, head, row) of the step. */
static uint16_t *rope_row(const rope_step *step, int64_t row, int64_t head)
{
    return step->rows + (size_t)row * (step->op->nb[2] / sizeof(uint16_t)) +
           (size_t)head * (step->op->nb[1] / sizeof(uint16_t));
}

static void to_f32(const rope_step *step, float *out)
{
    for (int64_t row = 0; row < step->count; row++) {
        for (int64_t head = 0; head < step->op->ne[1]; head++) {
            const uint16_t *in = rope_row(step, row, head);
            for (int64_t i = 0; i < step->op->ne[0]; i++)
                *out++ = f32_from_bf16(in[i]);
        }
    }
}

static void to_bf16(const rope_step *step, const float *in)
{
    size_t channels = (size_t)step->op->ne[0];
    for (int64_t row = 0; row < step->count; row++) {
        for (int64_t head = 0; head < step->op->ne[1]; head++, in += channels)
            bf16_row_from_f32(rope_row(step, row, head), in, channels);
    }
}

static gaac_status rotate(op_runner *runner, const rope_step *step, gaac_error *error)
{
    const host_tensor *op = step->op;
    size_t data_bytes = (size_t)(op->ne[0] * op->ne[1] * step->count) * sizeof(float);
    size_t index_bytes = (size_t)step->count * sizeof(int32_t);
    host_init_params params = {
        host.call.graph_overhead() + 4 * host.call.tensor_overhead() + data_bytes + index_bytes + 256, NULL, false};
    host_context *context = host.call.init(params);
    if (!context) {
        snprintf(error->message, sizeof error->message, "no memory to rotate %lld keys", (long long)step->count);
        return error->status = GAAC_ERROR_OUT_OF_MEMORY;
    }
    host_tensor *data = host.call.new_tensor_3d(context, HOST_TYPE_F32, op->ne[0], op->ne[1], step->count);
    host_tensor *positions = host.call.new_tensor_3d(context, HOST_TYPE_I32, step->count, 1, 1);
    host_tensor *node = host.call.view_tensor(context, data);
    node->op = op->op;
    memcpy(node->op_params, op->op_params, sizeof node->op_params);
    node->flags |= HOST_FLAG_COMPUTE;
    node->src[0] = data;
    node->src[1] = positions;
    node->src[2] = op->src[2]; /* frequency factors, a weight in host memory, or NULL */
    to_f32(step, data->data);
    memcpy(positions->data, shift_of(step), index_bytes);
    gaac_status status = delegate_in(runner, context, node, error);
    if (status == GAAC_OK)
        to_bf16(step, data->data);
    host.call.free(context);
    return status;
}

/* Finds the next run of keys that move, from `first` on. The host names all cells; those that stay or
 * are unused keep their bits. False when there is none. */
static bool next_run(rope_step *step, int64_t first)
{
    const int32_t *shift = (const int32_t *)step->op->src[1]->data;
    int64_t end = step->op->ne[2];
    while (first < end && shift[first] == 0)
        first++;
    step->first = first;
    step->count = 0;
    while (first + step->count < end && step->count < ROPE_ROWS && shift[first + step->count] != 0)
        step->count++;
    return step->count > 0;
}

static gaac_status rope_stored(op_runner *runner, rope_step *step, uint16_t *rows, gaac_error *error)
{
    size_t row_bytes = step->view.tensor->width * sizeof(uint16_t);
    size_t offset = (size_t)(step->view.row + (uint64_t)step->first) * row_bytes;
    size_t bytes = (size_t)step->count * row_bytes;
    gaac_status status = kv_store_read(step->view.store, step->view.tensor, offset, rows, bytes, error);
    step->rows = rows + step->view.column;
    if (status == GAAC_OK)
        status = rotate(runner, step, error);
    if (status == GAAC_OK)
        status = kv_store_write(step->view.store, step->view.tensor, offset, rows, bytes, error);
    return status;
}

gaac_status rope_compute(op_runner *runner, const host_tensor *op, gaac_error *error)
{
    rope_step step = {.op = op};
    if (!rope_fits(op) || !kv_view_of(op, &step.view)) {
        snprintf(error->message, sizeof error->message, "a rotation that was not planned came to be computed");
        return error->status = GAAC_ERROR_INVALID_ARGUMENT;
    }
    uint16_t *rows = malloc(ROPE_ROWS * step.view.tensor->width * sizeof *rows);
    if (!rows) {
        snprintf(error->message, sizeof error->message, "no memory to rotate %d keys", (int)ROPE_ROWS);
        return error->status = GAAC_ERROR_OUT_OF_MEMORY;
    }
    gaac_status status = GAAC_OK;
    for (int64_t at = 0; status == GAAC_OK && next_run(&step, at); at = step.first + step.count)
        status = rope_stored(runner, &step, rows, error);
    free(rows);
    return status == GAAC_OK && step.view.store->cache ? gaac_cache_settle(step.view.store->cache, error) : status;
}

gaac_status rope_compute_plain(op_runner *runner, const host_tensor *op, gaac_error *error)
{
    rope_step step = {.op = op};
    gaac_status status = GAAC_OK;
    for (int64_t at = 0; status == GAAC_OK && next_run(&step, at); at = step.first + step.count) {
        step.rows = (uint16_t *)(void *)((char *)op->data + (size_t)step.first * op->nb[2]);
        status = rotate(runner, &step, error);
    }
    return status;
}
