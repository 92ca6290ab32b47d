/* The operations that this device runs on its KV tensors. */
#ifndef GAAC_LLAMA_OPS_H
#define GAAC_LLAMA_OPS_H

#include "buffer.h"
#include "workers.h"

/* What a backend computes with. One thread at a time. */
typedef struct op_runner {
    worker_team team;
    host_backend *cpu; /* the host's CPU backend, for single operations; made at first use */
    uint16_t *rows;    /* scratch of set_rows */
    size_t rows_capacity;
} op_runner;

/* The K or V tensor under a view of our cache; the view's first row (over all streams) and the first
 * element in it. */
typedef struct kv_view {
    kv_store *store;
    kv_tensor *tensor;
    uint64_t row;
    size_t column;
} kv_view;

/* False when the view's memory is not a K or V tensor of ours. */
bool kv_view_of(const host_tensor *view, kv_view *out);

/* ---- attention (FLASH_ATTN_EXT) --------------------------------------------------------------- */

/* Why an attention can't run here, or NULL when it can. kv_heads and head_dims go to *shape. */
const char *flash_objection(const host_tensor *op, gaac_shape *shape);
/* K and V are views of one layer of our cache, at the same cells. */
bool flash_views_pair(const host_tensor *op);
gaac_status flash_compute(op_runner *runner, const host_tensor *op, gaac_error *error);
/* The same on K and V in plain memory, through a cache of its own: GAAC_TEST_UNALLOCATED only. */
gaac_status flash_compute_plain(op_runner *runner, const host_tensor *op, gaac_error *error);

/* ---- writing rows (SET_ROWS) ------------------------------------------------------------------ */

bool set_rows_fits(const host_tensor *op);
gaac_status set_rows_compute(op_runner *runner, const host_tensor *op, gaac_error *error);

/* ---- rotating keys in place (ROPE: the context shift) ------------------------------------------ */

bool rope_fits(const host_tensor *op);
gaac_status rope_compute(op_runner *runner, const host_tensor *op, gaac_error *error);
/* The same on a BF16 K tensor in plain memory, which the CPU backend can't rotate either. */
bool rope_fits_plain(const host_tensor *op);
gaac_status rope_compute_plain(op_runner *runner, const host_tensor *op, gaac_error *error);

/* ---- by the host ------------------------------------------------------------------------------ */

/* Runs one node, all of whose tensors are plain memory, on the host's CPU backend. */
gaac_status delegate_node(op_runner *runner, host_tensor *node, gaac_error *error);
/* The same with the graph's context given: for nodes made here. */
gaac_status delegate_in(op_runner *runner, host_context *context, host_tensor *node, gaac_error *error);

#endif
