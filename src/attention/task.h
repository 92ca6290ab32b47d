/* One task of an attention call: rows of some KV heads over a list of blocks. */
#ifndef GAAC_ATTENTION_TASK_H
#define GAAC_ATTENTION_TASK_H

#include "attention/plan.h"
#include "attention/tiles.h"

/* What all tasks of a call share. */
typedef struct gaac_attention_call {
    const gaac_cache *cache;
    const gaac_layout *layout;
    const gaac_attention_args *args;
    const gaac_codec_kernels *codec_kernels;
    const gaac_attention_kernels *kernels;
    gaac_attention_plan plan;
} gaac_attention_call;

/* What one worker needs for a task of up to plan.task_heads heads of plan.batch_rows rows. */
typedef struct gaac_task_scratch {
    float *q;                   /* [heads][rows][head_dim_k], gaac_prepare_q's form, unit after unit */
    float *scores;              /* [rows][GAAC_STEP_TOKENS], 64-byte aligned */
    float *factors;             /* [rows] */
    gaac_mask_row *masks;       /* one a query token, or a row where the mask differs by head */
    float *acc;                 /* [heads][rows][head_dim_v], 64-byte aligned; used when the plan has no splits */
    gaac_softmax_state *states; /* [heads][rows]; likewise */
    gaac_tile_scratch *tiles;
} gaac_task_scratch;

/* Bytes that gaac_task_scratch_place hands out, a multiple of 64. */
size_t gaac_task_scratch_bytes(const gaac_attention_call *call);
void gaac_task_scratch_place(const gaac_attention_call *call, uint8_t *memory, gaac_task_scratch *scratch);

/* Sums of a task, to be merged with those of the other splits: acc in v_order, unit after unit. */
typedef struct gaac_partial {
    float *acc;                 /* [heads][rows][head_dim_v], 64-byte aligned */
    gaac_softmax_state *states; /* [heads][rows] */
} gaac_partial;

/* Runs the rows of `place` over the blocks first .. first + count - 1 of the list. Returns false if a slot
 * holds what no encoder writes. */
bool gaac_task_run(const gaac_attention_call *call, const gaac_attention_place *place, const gaac_live_blocks *live,
                   uint64_t first, uint64_t count, const gaac_task_scratch *scratch, const gaac_partial *partial);

/* Adds `from` to `into`. */
void gaac_partial_merge(uint32_t rows, uint32_t head_dim_v, const gaac_partial *into, const gaac_partial *from);

/* Sinks, division by the sum, and the rows' outputs in channel order. Changes the partial. */
void gaac_partial_finish(const gaac_attention_call *call, const gaac_attention_place *place,
                         const gaac_partial *partial);

#endif
