/* The attention kernels in plain C: the definition that the others are checked against. */
#include "attention/kernels.h"

#include <math.h>
#include <string.h>

const uint8_t gaac_v_order_natural[GAAC_FRAGMENT_CHANNELS] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

float gaac_bf16_to_float(uint16_t bits)
{
    const uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

uint16_t gaac_float_to_bf16(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if ((bits & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

float gaac_f16_to_float(uint16_t bits)
{
    const unsigned exponent = bits >> 10 & 31, mantissa = bits & 0x3ff;
    float magnitude;
    if (exponent == 31)
        magnitude = mantissa ? NAN : INFINITY;
    else if (exponent == 0)
        magnitude = ldexpf((float)mantissa, -24);
    else
        magnitude = ldexpf((float)(mantissa | 0x400), (int)exponent - 25);
    return bits & 0x8000 ? -magnitude : magnitude;
}

void gaac_prepare_q(unsigned fragments, const float *q, float *prepared)
{
    for (unsigned f = 0; f < fragments; f++) {
        for (unsigned i = 0; i < GAAC_FRAGMENT_CHANNELS; i++)
            *prepared++ = gaac_bf16_to_float(gaac_float_to_bf16(q[(size_t)4 * fragments * (i / 4) + 4 * f + i % 4]));
    }
}

/* q . k of one token with one prepared query row. */
static float dot_token(unsigned fragments, const uint16_t *tile, unsigned token, const float *q)
{
    const unsigned g = token & 7, s = token >> 3;
    float sum = 0;
    for (unsigned f = 0; f < fragments; f++) {
        for (unsigned t = 0; t < 4; t++, q += 4) {
            for (unsigned i = 0; i < 4; i++)
                sum += q[i] * gaac_bf16_to_float(tile[gaac_fragment_index(f, g, t, s + 2 * (i >> 1), i & 1)]);
        }
    }
    return sum;
}

void gaac_score_c(unsigned fragments, const gaac_step_tiles *tiles, unsigned rows, const float *q, size_t q_stride,
                  float *scores, bool accumulate)
{
    for (unsigned row = 0; row < rows; row++, scores += GAAC_STEP_TOKENS) {
        for (unsigned i = 0; i < GAAC_STEP_TOKENS; i++) {
            const float s =
                dot_token(fragments, tiles->tile[i / GAAC_BLOCK_TOKENS], i % GAAC_BLOCK_TOKENS, q + row * q_stride);
            scores[i] = accumulate ? scores[i] + s : s;
        }
    }
}

/* Adds weight x V of one token to a row's accumulators. */
static void weigh_token(unsigned fragments, const uint16_t *tile, unsigned token, float weight, float *acc)
{
    const unsigned t = token >> 1 & 3, s = token >> 3, hi = token & 1;
    for (unsigned f = 0; f < fragments; f++) {
        for (unsigned i = 0; i < GAAC_FRAGMENT_CHANNELS; i++, acc++)
            *acc += weight * gaac_bf16_to_float(tile[gaac_fragment_index(f, i >> 1, t, 2 * s + (i & 1), hi)]);
    }
}

void gaac_weigh_c(unsigned fragments, const gaac_step_tiles *tiles, unsigned rows, const float *weights,
                  const float *factors, float *acc, size_t acc_stride)
{
    for (unsigned row = 0; row < rows; row++, weights += GAAC_STEP_TOKENS, acc += acc_stride) {
        for (unsigned i = 0; i < fragments * GAAC_FRAGMENT_CHANNELS; i++)
            acc[i] *= factors[row];
        for (unsigned i = 0; i < GAAC_STEP_TOKENS; i++)
            weigh_token(fragments, tiles->tile[i / GAAC_BLOCK_TOKENS], i % GAAC_BLOCK_TOKENS, weights[i], acc);
    }
}

static float logit(float score, const uint16_t *bias, const gaac_logit_params *params)
{
    float s = score * params->scale;
    if (params->softcap != 0)
        s = params->softcap * tanhf(s);
    return bias ? s + params->slope * gaac_f16_to_float(*bias) : s;
}

float gaac_softmax_c(float *scores, uint64_t visible, const uint16_t *bias, const gaac_logit_params *params,
                     gaac_softmax_state *state)
{
    float max = state->max;
    for (unsigned i = 0; i < GAAC_STEP_TOKENS; i++) {
        if (visible >> i & 1) {
            scores[i] = logit(scores[i], bias ? bias + i : NULL, params);
            max = scores[i] > max ? scores[i] : max;
        }
    }
    /* While all that is visible is -inf, its weights are 2^-inf = 0, not 2^(-inf + inf). */
    const float base = max == -INFINITY ? 0 : max;
    float sum = 0;
    for (unsigned i = 0; i < GAAC_STEP_TOKENS; i++) {
        scores[i] = visible >> i & 1 ? exp2f(scores[i] - base) : 0;
        sum += scores[i];
    }
    const float factor = max == state->max ? 1 : exp2f(state->max - base);
    state->sum = state->sum * factor + sum;
    state->max = max;
    return factor;
}

void gaac_attention_kernels_init_c(gaac_attention_kernels *kernels)
{
    *kernels = (gaac_attention_kernels){
        .v_order = gaac_v_order_natural,
        .score = gaac_score_c,
        .weigh = gaac_weigh_c,
        .softmax = gaac_softmax_c,
    };
}
