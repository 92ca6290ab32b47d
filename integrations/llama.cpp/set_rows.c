/* SET_ROWS: the new tokens' K and V, F32 as a rule, go to the cells that an index tensor names. The
 * host merges all streams of a cache into one list of rows for it. */
#include "bf16.h"
#include "ops.h"

#include <stdio.h>
#include <stdlib.h>

bool set_rows_fits(const host_tensor *op)
{
    kv_view view;
    const host_tensor *source = op->src[0], *index = op->src[1];
    if (!kv_view_of(op, &view) || view.column != 0)
        return false;
    bool whole_rows = (size_t)op->ne[0] == view.tensor->width && op->nb[1] == view.tensor->width * sizeof(uint16_t);
    bool flat = op->ne[2] == 1 && op->ne[3] == 1 && source->ne[2] == 1 && source->ne[3] == 1;
    bool types = (source->type == HOST_TYPE_F32 || source->type == HOST_TYPE_F16 || source->type == HOST_TYPE_BF16) &&
                 (index->type == HOST_TYPE_I64 || index->type == HOST_TYPE_I32);
    return whole_rows && flat && types;
}

static void convert_row(uint16_t *out, const host_tensor *source, int64_t row)
{
    const char *in = (const char *)source->data + (size_t)row * source->nb[1];
    size_t count = (size_t)source->ne[0];
    if (source->type == HOST_TYPE_F32) {
        bf16_row_from_f32(out, (const float *)(const void *)in, count);
    } else if (source->type == HOST_TYPE_BF16) {
        memcpy(out, in, count * sizeof *out);
    } else {
        for (size_t i = 0; i < count; i++) {
            uint16_t half;
            memcpy(&half, in + i * sizeof half, sizeof half);
            out[i] = bf16_from_f32(f32_from_f16(half));
        }
    }
}

static int64_t index_at(const host_tensor *index, int64_t i)
{
    const char *at = (const char *)index->data + (size_t)i * index->nb[0];
    int64_t wide = 0;
    int32_t narrow = 0;
    if (index->type == HOST_TYPE_I64) {
        memcpy(&wide, at, sizeof wide);
        return wide;
    }
    memcpy(&narrow, at, sizeof narrow);
    return narrow;
}

static bool reserve_rows(op_runner *runner, size_t elements)
{
    if (elements <= runner->rows_capacity)
        return true;
    uint16_t *rows = realloc(runner->rows, elements * sizeof *rows);
    if (!rows)
        return false;
    runner->rows = rows;
    runner->rows_capacity = elements;
    return true;
}

gaac_status set_rows_compute(op_runner *runner, const host_tensor *op, gaac_error *error)
{
    enum { BATCH = 256 }; /* rows converted at once */
    kv_view view;
    const host_tensor *source = op->src[0], *index = op->src[1];
    if (!kv_view_of(op, &view) || !reserve_rows(runner, BATCH * view.tensor->width)) {
        snprintf(error->message, sizeof error->message, "no memory for %d rows of the cache", (int)BATCH);
        return error->status = GAAC_ERROR_OUT_OF_MEMORY;
    }
    int64_t targets[BATCH];
    for (int64_t done = 0; done < source->ne[1];) {
        size_t batch = 0;
        for (; batch < BATCH && done + (int64_t)batch < source->ne[1]; batch++) {
            int64_t row = done + (int64_t)batch;
            convert_row(runner->rows + batch * view.tensor->width, source, row);
            targets[batch] = index_at(index, row);
            if (targets[batch] < 0 || targets[batch] >= op->ne[1]) {
                snprintf(error->message, sizeof error->message, "the host writes row %lld of %lld",
                         (long long)targets[batch], (long long)op->ne[1]);
                return error->status = GAAC_ERROR_INVALID_ARGUMENT;
            }
            targets[batch] += (int64_t)view.row;
        }
        gaac_status status = kv_store_write_rows(view.store, view.tensor, targets, batch, runner->rows, error);
        if (status != GAAC_OK)
            return status;
        done += (int64_t)batch;
    }
    return GAAC_OK;
}
