/* ROPE in place on keys: how llama.cpp moves a context. The host's CPU backend has no such operation
 * for BF16 (a stock build stops there with a BF16 cache), but it has one for F32: rows are read as
 * F32, rotated by the host with the host's own parameters, and written back as BF16. */
#include "bf16.h"
#include "host.h"
#include "ops.h"

#include <stdio.h>
#include <stdlib.h>

enum {
    ROPE_ROWS = 512, /* rows a step: a few hundred KiB of F32 */
};

/* The view is [rotated channels, heads, rows], whole rows from the start of one, every position its row's. */
bool rope_fits(const host_tensor *op)
{
    kv_view view;
    if (!kv_view_of(op, &view) || op->type != HOST_TYPE_BF16 || !op->src[0] || !op->src[1])
        return false;
    kv_view source;
    size_t row_bytes = view.tensor->width * sizeof(uint16_t);
    const host_tensor *positions = op->src[1];
    bool in_place = kv_view_of(op->src[0], &source) && source.tensor == view.tensor && source.row == view.row &&
                    source.column == view.column;
    return in_place && op->nb[0] == sizeof(uint16_t) && op->nb[2] == row_bytes && op->ne[3] == 1 &&
           view.column + ((size_t)op->ne[1] - 1) * (op->nb[1] / sizeof(uint16_t)) + (size_t)op->ne[0] <=
               view.tensor->width &&
           positions->type == HOST_TYPE_I32 && positions->ne[0] == op->ne[2];
}

typedef struct rope_step {
    const host_tensor *op;
    kv_view view;
    int64_t first, count; /* rows of the view */
    uint16_t *rows;       /* whole rows, BF16 */
} rope_step;

static const int32_t *shift_of(const rope_step *step)
{
    return (const int32_t *)step->op->src[1]->data + step->first;
}

/* Element (channel 0, head, row) of the step in the BF16 rows. */
static uint16_t *rope_row(const rope_step *step, int64_t row, int64_t head)
{
    return step->rows + (size_t)row * step->view.tensor->width + step->view.column +
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

static gaac_status rope_one_step(op_runner *runner, const rope_step *step, gaac_error *error)
{
    size_t row_bytes = step->view.tensor->width * sizeof(uint16_t);
    size_t offset = (size_t)(step->view.row + (uint64_t)step->first) * row_bytes;
    size_t bytes = (size_t)step->count * row_bytes;
    gaac_status status = kv_store_read(step->view.store, step->view.tensor, offset, step->rows, bytes, error);
    if (status == GAAC_OK)
        status = rotate(runner, step, error);
    if (status == GAAC_OK)
        status = kv_store_write(step->view.store, step->view.tensor, offset, step->rows, bytes, error);
    return status;
}

gaac_status rope_compute(op_runner *runner, const host_tensor *op, gaac_error *error)
{
    rope_step step = {.op = op};
    if (!kv_view_of(op, &step.view))
        return error->status = GAAC_ERROR_INVALID_ARGUMENT;
    step.rows = malloc(ROPE_ROWS * step.view.tensor->width * sizeof *step.rows);
    if (!step.rows) {
        snprintf(error->message, sizeof error->message, "no memory to rotate %d keys", (int)ROPE_ROWS);
        return error->status = GAAC_ERROR_OUT_OF_MEMORY;
    }
    gaac_status status = GAAC_OK;
    for (; status == GAAC_OK && step.first < op->ne[2]; step.first += step.count) {
        /* Runs of keys that move. The host names all cells; those that stay or are unused keep their bits. */
        step.count = 1;
        bool moves = shift_of(&step)[0] != 0;
        while (step.count < ROPE_ROWS && step.first + step.count < op->ne[2] &&
               (shift_of(&step)[step.count] != 0) == moves)
            step.count++;
        if (moves)
            status = rope_one_step(runner, &step, error);
    }
    free(step.rows);
    return status == GAAC_OK && step.view.store->cache ? gaac_cache_settle(step.view.store->cache, error) : status;
}
