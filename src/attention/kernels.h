/* Attention's inner kernels, over one step: four tiles (64 tokens) of one unit in fragment order
 * (format/layout.h). src/cpu fills the table for the machine; kernels_c.c is the definition. Coded blocks
 * are decoded into fragment order first, so that coded and raw blocks run through the same instructions.
 *
 * What every set obeys, so that results don't depend on how rows are batched: the operations that make
 * one row's numbers, and their order, are the same whatever the other rows are. */
#ifndef GAAC_ATTENTION_KERNELS_H
#define GAAC_ATTENTION_KERNELS_H

#include "codec/unit.h"

enum {
    GAAC_STEP_TILES = 4,
    GAAC_STEP_TOKENS = GAAC_STEP_TILES * GAAC_BLOCK_TOKENS,
    GAAC_UNIT_MAX_FRAGMENTS = GAAC_MAX_HV * GAAC_HALF_CHANNELS / GAAC_FRAGMENT_CHANNELS,
    GAAC_TILE_MAX_BYTES = GAAC_UNIT_MAX_FRAGMENTS * GAAC_FRAGMENT_BYTES
};

/* The K (or V) fragments of one unit of each block of a step, 64-byte aligned, and what lies where the
 * next step will read: `ahead_lines` lines of 64 bytes from each of `ahead`. Fetching them along with the
 * arithmetic is part of a kernel's job: sixteen line fill buffers stall a core that asks for a tile at once,
 * and without fetching ahead memory's latency is the limit. */
typedef struct gaac_step_tiles {
    const uint16_t *tile[GAAC_STEP_TILES];
    bool lines; /* all are in line order (codec/unit.h); tiles 2i and 2i + 1 of V lie in each other's gaps */
    const uint8_t *ahead[GAAC_STEP_TILES];
    unsigned ahead_lines; /* at most 8 a fragment */
} gaac_step_tiles;

/* A query row of a unit as the score kernel wants it: `fragments` * 16 floats, rounded to BF16 (to nearest, ties
 * to even), in the order fragment, t = 0..3, four channels (4F t + 4f + 0..3, as in gaac_k_index). */
void gaac_prepare_q(unsigned fragments, const float *q, float *prepared);

/* scores[row * 64 + token of the step] = (accumulate ? that : 0) + q . k over the unit's channels. scores is
 * 64-byte aligned; q is q_stride elements from row to row. */
typedef void gaac_score_fn(unsigned fragments, const gaac_step_tiles *tiles, unsigned rows, const float *q,
                           size_t q_stride, float *scores, bool accumulate);

/* acc[row * acc_stride + fragment * 16 + i] = that * factors[row] + sum over tokens of
 * weights[row * 64 + token] * v, in F32. i is the channel order of a fragment,
 * gaac_attention_kernels.v_order. weights and acc rows are 64-byte aligned. */
typedef void gaac_weigh_fn(unsigned fragments, const gaac_step_tiles *tiles, unsigned rows, const float *weights,
                           const float *factors, float *acc, size_t acc_stride);

/* One row's softmax state. Logits live in base 2 (times log2 e): p = 2^(logit - max). */
typedef struct gaac_softmax_state {
    float max; /* largest visible logit so far, -inf at first */
    float sum; /* of 2^(logit - max) */
} gaac_softmax_state;

/* How a row's dot products become logits: scale * s, or softcap * tanh(scale * s) when softcap is not 0,
 * plus slope * bias. log2 e is already in scale (softcap when there is one) and in slope. */
typedef struct gaac_logit_params {
    float scale, softcap, slope;
} gaac_logit_params;

/* Turns a row's 64 scores into weights in place, 0 where bit `token` of visible is clear (whatever the
 * score is, NaN too), updates the state, and returns the factor for what was summed before (1 if the
 * maximum stands). bias: 64 F16 values, or NULL for none. A visible NaN makes the sum NaN. */
typedef float gaac_softmax_fn(float *scores, uint64_t visible, const uint16_t *bias, const gaac_logit_params *params,
                              gaac_softmax_state *state);

/* What a set's kernels need of a thread beforehand (registers set up, say), and what was there before. */
typedef struct gaac_kernel_context {
    _Alignas(64) uint8_t bytes[64];
} gaac_kernel_context;

typedef struct gaac_attention_kernels {
    /* Called in a thread before and after its calls of the kernels below, in pairs; NULL: not needed. Costs as
     * much as a few tiles. */
    void (*enter)(gaac_kernel_context *before);
    void (*leave)(const gaac_kernel_context *before);
    float weight_error;     /* what weigh takes a weight for, relative to it: 0 for all of its bits */
    const uint8_t *v_order; /* [16]: accumulator i of a fragment is channel 2F (v_order[i] >> 1) +
                               2f + (v_order[i] & 1) of the unit, f of F fragments */
    gaac_score_fn *score;
    gaac_weigh_fn *weigh;
    /* Where another way is faster for few rows: calls of up to few_rows rows a KV head (0: none) take these,
     * without enter and leave. They share the accumulators' order. */
    gaac_score_fn *score_few;
    gaac_weigh_fn *weigh_few;
    unsigned few_rows;
    bool takes_lines; /* all four, beside fragment order; the sums are the same, bit for bit */
    gaac_softmax_fn *softmax;
} gaac_attention_kernels;

/* The definitions. */
gaac_score_fn gaac_score_c;
gaac_weigh_fn gaac_weigh_c;
gaac_softmax_fn gaac_softmax_c;

void gaac_attention_kernels_init_c(gaac_attention_kernels *kernels);

/* v_order 0, 1, ... 15, which a set may name as its own. */
extern const uint8_t gaac_v_order_natural[GAAC_FRAGMENT_CHANNELS];

/* Small conversions shared by the room. */
float gaac_f16_to_float(uint16_t bits);
uint16_t gaac_float_to_bf16(float value); /* to nearest, ties to even; a NaN stays one */
float gaac_bf16_to_float(uint16_t bits);

#endif
