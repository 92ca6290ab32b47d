/* GAAC attention: softmax(scale * Q K^T + mask) V straight from a compressed cache.
 *
 * One call computes one layer of one sequence for any number of query tokens: decode (few query
 * tokens) splits the cells over the executor's workers and merges; prefill (many) works in blocks of
 * queries. Coded blocks, raw blocks and the tail meet in one softmax. Every tile is decoded once for
 * all the query heads of its group. On a cache in raw mode the same call runs the same arithmetic,
 * so that the outputs agree bit for bit.
 *
 * Arithmetic: Q is rounded to BF16, products are summed in F32 (the order depends on the kernel set,
 * gaac_cpu_isa()), the softmax is F32, and P x V is F32. For one kernel set and one number of
 * workers the result is always the same. */
#ifndef GAAC_ATTENTION_H
#define GAAC_ATTENTION_H

#include "gaac/cache.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum gaac_mask_kind {
    GAAC_MASK_NONE = 0,
    GAAC_MASK_CAUSAL = 1,      /* query token i sees cells 0 .. causal_first + i, and of those only the
                                  last `window` if window is not 0 */
    GAAC_MASK_ADDITIVE_F16 = 2 /* F16 bits added to the score; -inf hides a cell. ALiBi slopes multiply it */
} gaac_mask_kind;

typedef struct gaac_attention_args {
    uint32_t layer, sequence;
    uint64_t cells;        /* cells 0 .. cells - 1 take part; at most tokens_per_sequence */
    uint32_t query_tokens; /* 0 is fine: nothing is written */
    uint32_t query_heads;  /* a multiple of kv_heads; head h reads KV head h / (query_heads / kv_heads) */

    const float *q; /* [query_tokens][query_heads][head_dim_k], strides in elements */
    size_t q_token_stride, q_head_stride;
    float *out; /* [query_tokens][query_heads][head_dim_v]; a query that sees nothing gets zeros */
    size_t out_token_stride, out_head_stride;

    float scale;         /* of the scores, usually 1 / sqrt(head_dim_k) */
    float softcap;       /* 0 = none; else scores s become softcap * tanh(s * scale / softcap) */
    const float *slopes; /* [query_heads] ALiBi slopes, or NULL for 1 */
    const float *sinks;  /* [query_heads] attention sinks (a logit without a value), or NULL */

    gaac_mask_kind mask_kind;
    uint64_t causal_first, window; /* GAAC_MASK_CAUSAL */
    const uint16_t *mask;          /* GAAC_MASK_ADDITIVE_F16: mask[token * token_stride + head * head_stride + cell] */
    size_t mask_token_stride, mask_head_stride; /* elements; head stride 0 = the same for all */
} gaac_attention_args;

/* Scratch memory comes from the cache's allocator. executor NULL runs on the calling thread.
 * Beside a concurrent gaac_attention or read of the same cache: fine. Beside a change: not. */
GAAC_API gaac_status gaac_attention(const gaac_cache *cache, const gaac_attention_args *args,
                                    const gaac_executor *executor, gaac_error *error);

#ifdef __cplusplus
}
#endif
#endif
