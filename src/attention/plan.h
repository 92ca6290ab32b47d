/* How one attention call is cut into tasks, and where their results lie. */
#ifndef GAAC_ATTENTION_PLAN_H
#define GAAC_ATTENTION_PLAN_H

#include "attention/mask.h"

/* Rows: query tokens x query heads of one KV head, token by token. A task is one (batch of rows, run of KV
 * heads, split of the batch's live blocks). Few rows take many heads: what a block holds for them lies side by
 * side, and memory read in long runs is faster than in pieces. Only what the caller can see decides the cut, so
 * the same call with the same number of workers always sums in the same order. */
typedef struct gaac_attention_plan {
    uint32_t group; /* query heads a KV head */
    uint32_t kv_heads;
    uint32_t batch_tokens; /* query tokens of a batch; the last may have fewer */
    uint32_t batches;
    uint32_t task_heads; /* KV heads of a task; the last run may have fewer */
    uint32_t head_runs;
    uint32_t splits;
    uint32_t batch_rows; /* batch_tokens * group: of one KV head */
    uint64_t blocks;     /* that hold args->cells */
    uint64_t tasks;      /* batches * head_runs * splits */
} gaac_attention_plan;

void gaac_plan_init(gaac_attention_plan *plan, const gaac_attention_args *args, const gaac_shape *shape,
                    unsigned workers);

typedef struct gaac_attention_place {
    uint32_t batch, split;
    uint32_t first_head, heads;   /* KV heads */
    uint32_t first_token, tokens; /* query tokens of the batch */
    uint32_t rows;                /* of each KV head */
    uint64_t group_index;         /* of (batch, run of heads), below batches * head_runs */
} gaac_attention_place;

/* Which task number `task` is. Later batches come first: under a causal mask they are the longest. */
gaac_attention_place gaac_plan_place(const gaac_attention_plan *plan, uint32_t query_tokens, uint64_t task);

/* Steps of split `split` of a list of `blocks` live blocks: first block (in the list) and their number. */
void gaac_plan_split(const gaac_attention_plan *plan, uint64_t blocks, uint32_t split, uint64_t *first,
                     uint64_t *count);

#endif
