/* Attention kernels for NEON: BF16 is widened by shifts, multiplied with FMLA by element; all sums are F32.
 *
 * A 64-bit zip of two adjacent positions, which share t, gives four tokens of a channel pair (K) or four
 * channels of a token pair (V), so that a shift and a mask make two vectors of one channel (one token) each. Four
 * of those take four vectors of accumulators a row. With up to four rows they are used where they are made; with
 * more they are put into a panel first and every block of four rows reads that.
 *
 * A row's sums run over the channels (tokens) in the same order whatever its block is.
 *
 * Instructions a tile of 16 x 128 (gcc 12, counted under qemu), score and weigh: one row 2150 and 2420, two 3060 and
 * 3290, four 4470 and 4600, eight 9220 and 9780; 512 FMLA a row are among them in each. */
#include "cpu/attention_neon.h"
#include "cpu/cpu.h"

#include <math.h>

enum {
    MAX_ROWS = 4, /* x 4 vectors of sums, 4 of factors, 4 of values: fills the 32 registers */
    QUADS = 4,    /* vectors of sums a row has for a tile (16 tokens) or fragment (16 channels) */
    MAX_SPREAD = 4,
    MAX_CHANNELS = GAAC_UNIT_MAX_FRAGMENTS * GAAC_FRAGMENT_CHANNELS
};

/* Four vectors from one pair of positions: of K, channels 0..3 of four tokens; of V, tokens 2t, 2t + 1, 2t + 8,
 * 2t + 9 of four channels. */
INLINE void widen(const uint16_t *tile, unsigned place, unsigned t, unsigned n, float32x4_t out[4])
{
    const uint32x4_t upper = vdupq_n_u32(0xffff0000);
    uint32x4_t pair[2];
    load_pair(tile, place, t, n, pair);
    const uint64x2_t x = vreinterpretq_u64_u32(pair[0]), y = vreinterpretq_u64_u32(pair[1]);
    const uint32x4_t first = vreinterpretq_u32_u64(vzip1q_u64(x, y));
    const uint32x4_t second = vreinterpretq_u32_u64(vzip2q_u64(x, y));
    out[0] = vreinterpretq_f32_u32(vshlq_n_u32(first, 16));
    out[1] = vreinterpretq_f32_u32(vandq_u32(first, upper));
    out[2] = vreinterpretq_f32_u32(vshlq_n_u32(second, 16));
    out[3] = vreinterpretq_f32_u32(vandq_u32(second, upper));
}

/* The same from a panel, where a place has QUADS x 4 vectors. */
INLINE void read_panel(const float *panel, unsigned n, float32x4_t out[4])
{
    UNROLL
    for (unsigned i = 0; i < 4; i++)
        out[i] = vld1q_f32(panel + (size_t)(4 * n + i) * 4);
}

INLINE void write_panel(float *panel, const uint16_t *tile, unsigned place)
{
    UNROLL
    for (unsigned n = 0; n < QUADS; n++) {
        float32x4_t values[4];
        widen(tile, place, place % 4, n, values);
        UNROLL
        for (unsigned i = 0; i < 4; i++)
            vst1q_f32(panel + (size_t)(4 * n + i) * 4, values[i]);
    }
}

enum { PANEL_STEP = QUADS * 4 * 4 }; /* floats of a panel that one place of a tile fills */

/* Adds four values in turn, each times its own factor. */
INLINE float32x4_t add_four(float32x4_t sum, const float32x4_t values[4], float32x4_t factors)
{
    sum = vfmaq_laneq_f32(sum, values[0], factors, 0);
    sum = vfmaq_laneq_f32(sum, values[1], factors, 1);
    sum = vfmaq_laneq_f32(sum, values[2], factors, 2);
    return vfmaq_laneq_f32(sum, values[3], factors, 3);
}

/* ---- K ---------------------------------------------------------------------------------------- */

/* Rows against `width` tiles, the first of which has number i, or against one tile's panel. */
INLINE void score_block(const unsigned rows, const unsigned width, unsigned fragments, const gaac_step_tiles *tiles,
                        unsigned i, const float *panel, const float *q, size_t q_stride, float *scores, bool accumulate)
{
    float32x4_t sum[MAX_ROWS][MAX_SPREAD][QUADS];
    UNROLL
    for (unsigned r = 0; r < rows; r++) {
        UNROLL
        for (unsigned w = 0; w < width; w++) {
            UNROLL
            for (unsigned n = 0; n < QUADS; n++)
                sum[r][w][n] = vdupq_n_f32(0);
        }
    }
    for (unsigned at = 0; at < 4 * fragments; at += 4) {
        UNROLL
        for (unsigned t = 0; t < 4; t++) {
            const unsigned place = at + t;
            float32x4_t factors[MAX_ROWS];
            UNROLL
            for (unsigned r = 0; r < rows; r++)
                factors[r] = vld1q_f32(q + r * q_stride + (size_t)4 * place);
            UNROLL
            for (unsigned w = 0; w < width; w++) {
                if (panel == NULL)
                    fetch_ahead(tiles, i + w, place);
                UNROLL
                for (unsigned n = 0; n < QUADS; n++) {
                    float32x4_t values[4];
                    if (panel == NULL)
                        widen(tiles->tile[i + w], place, t, n, values);
                    else
                        read_panel(panel + (size_t)place * PANEL_STEP, n, values);
                    UNROLL
                    for (unsigned r = 0; r < rows; r++)
                        sum[r][w][n] = add_four(sum[r][w][n], values, factors[r]);
                }
            }
        }
    }
    UNROLL
    for (unsigned r = 0; r < rows; r++) {
        UNROLL
        for (unsigned w = 0; w < width; w++)
            put_scores(sum[r][w], scores + (size_t)r * GAAC_STEP_TOKENS + (size_t)(i + w) * GAAC_BLOCK_TOKENS,
                       accumulate);
    }
}

/* Fewer rows take more tiles at once: fewer than eight sums would wait for their own. */
static void score_few(unsigned fragments, const gaac_step_tiles *tiles, unsigned rows, const float *q, size_t q_stride,
                      float *scores, bool accumulate)
{
    if (rows == 1) {
        score_block(1, 4, fragments, tiles, 0, NULL, q, q_stride, scores, accumulate);
        return;
    }
    if (rows == 2) {
        for (unsigned i = 0; i < GAAC_STEP_TILES; i += 2)
            score_block(2, 2, fragments, tiles, i, NULL, q, q_stride, scores, accumulate);
        return;
    }
    for (unsigned i = 0; i < GAAC_STEP_TILES; i++) {
        if (rows == 3)
            score_block(3, 1, fragments, tiles, i, NULL, q, q_stride, scores, accumulate);
        else
            score_block(4, 1, fragments, tiles, i, NULL, q, q_stride, scores, accumulate);
    }
}

/* A tile's K, widened, against many rows. */
static void score_panel(unsigned fragments, const gaac_step_tiles *tiles, unsigned i, const float *panel, unsigned rows,
                        const float *q, size_t q_stride, float *scores, bool accumulate)
{
    for (; rows >= 4; rows -= 4, q += 4 * q_stride, scores += (size_t)4 * GAAC_STEP_TOKENS)
        score_block(4, 1, fragments, tiles, i, panel, q, q_stride, scores, accumulate);
    if (rows == 3)
        score_block(3, 1, fragments, tiles, i, panel, q, q_stride, scores, accumulate);
    else if (rows == 2)
        score_block(2, 1, fragments, tiles, i, panel, q, q_stride, scores, accumulate);
    else if (rows == 1)
        score_block(1, 1, fragments, tiles, i, panel, q, q_stride, scores, accumulate);
}

static void score_neon(unsigned fragments, const gaac_step_tiles *tiles, unsigned rows, const float *q, size_t q_stride,
                       float *scores, bool accumulate)
{
    float panel[MAX_CHANNELS * GAAC_BLOCK_TOKENS];
    if (rows <= MAX_ROWS) {
        score_few(fragments, tiles, rows, q, q_stride, scores, accumulate);
        return;
    }
    for (unsigned i = 0; i < GAAC_STEP_TILES; i++) {
        for (unsigned place = 0; place < 4 * fragments; place++) {
            fetch_ahead(tiles, i, place);
            write_panel(panel + (size_t)place * PANEL_STEP, tiles->tile[i], place);
        }
        score_panel(fragments, tiles, i, panel, rows, q, q_stride, scores, accumulate);
    }
}

/* ---- V ---------------------------------------------------------------------------------------- */

/* Weights of tokens 2t, 2t + 1, 2t + 8, 2t + 9 of a tile. */
INLINE float32x4_t load_weights(const float *weights, unsigned t)
{
    return vcombine_f32(vld1_f32(weights + (size_t)2 * t), vld1_f32(weights + (size_t)2 * t + 8));
}

/* Rows of weights against `width` fragments, the first of which is f, or against one fragment's panel. */
INLINE void weigh_block(const unsigned rows, const unsigned width, const gaac_step_tiles *tiles, unsigned f,
                        const float *panel, const float *weights, const float *factors, float *acc, size_t acc_stride)
{
    float32x4_t sum[MAX_ROWS][MAX_SPREAD][QUADS];
    acc += (size_t)f * GAAC_FRAGMENT_CHANNELS;
    UNROLL
    for (unsigned r = 0; r < rows; r++) {
        UNROLL
        for (unsigned w = 0; w < width; w++) {
            UNROLL
            for (unsigned n = 0; n < QUADS; n++)
                sum[r][w][n] = vmulq_n_f32(vld1q_f32(acc + r * acc_stride + (4 * w + n) * 4), factors[r]);
        }
    }
    for (unsigned i = 0; i < GAAC_STEP_TILES; i++) {
        UNROLL
        for (unsigned t = 0; t < 4; t++) {
            const unsigned step = 4 * i + t;
            float32x4_t factor[MAX_ROWS];
            UNROLL
            for (unsigned r = 0; r < rows; r++)
                factor[r] = load_weights(weights + (size_t)r * GAAC_STEP_TOKENS + (size_t)i * GAAC_BLOCK_TOKENS, t);
            UNROLL
            for (unsigned w = 0; w < width; w++) {
                if (panel == NULL)
                    fetch_ahead(tiles, i, 4 * (f + w) + t);
                UNROLL
                for (unsigned n = 0; n < QUADS; n++) {
                    float32x4_t values[4];
                    if (panel == NULL)
                        widen(tiles->tile[i], 4 * (f + w) + t, t, n, values);
                    else
                        read_panel(panel + (size_t)step * PANEL_STEP, n, values);
                    UNROLL
                    for (unsigned r = 0; r < rows; r++)
                        sum[r][w][n] = add_four(sum[r][w][n], values, factor[r]);
                }
            }
        }
    }
    UNROLL
    for (unsigned r = 0; r < rows; r++) {
        UNROLL
        for (unsigned w = 0; w < width; w++) {
            UNROLL
            for (unsigned n = 0; n < QUADS; n++)
                vst1q_f32(acc + r * acc_stride + (4 * w + n) * 4, sum[r][w][n]);
        }
    }
}

/* As score_few: fewer rows take more fragments at once. */
static void weigh_few(unsigned fragments, const gaac_step_tiles *tiles, unsigned rows, const float *weights,
                      const float *factors, float *acc, size_t acc_stride)
{
    unsigned f = 0;
    for (; rows == 1 && f + 4 <= fragments; f += 4)
        weigh_block(1, 4, tiles, f, NULL, weights, factors, acc, acc_stride);
    for (; rows == 2 && f + 2 <= fragments; f += 2)
        weigh_block(2, 2, tiles, f, NULL, weights, factors, acc, acc_stride);
    for (; f < fragments; f++) {
        if (rows == 1)
            weigh_block(1, 1, tiles, f, NULL, weights, factors, acc, acc_stride);
        else if (rows == 2)
            weigh_block(2, 1, tiles, f, NULL, weights, factors, acc, acc_stride);
        else if (rows == 3)
            weigh_block(3, 1, tiles, f, NULL, weights, factors, acc, acc_stride);
        else
            weigh_block(4, 1, tiles, f, NULL, weights, factors, acc, acc_stride);
    }
}

/* A fragment's V of all tiles, widened, against many rows. */
static void weigh_panel(const gaac_step_tiles *tiles, unsigned f, const float *panel, unsigned rows,
                        const float *weights, const float *factors, float *acc, size_t acc_stride)
{
    for (; rows >= 4; rows -= 4, weights += (size_t)4 * GAAC_STEP_TOKENS, factors += 4, acc += 4 * acc_stride)
        weigh_block(4, 1, tiles, f, panel, weights, factors, acc, acc_stride);
    if (rows == 3)
        weigh_block(3, 1, tiles, f, panel, weights, factors, acc, acc_stride);
    else if (rows == 2)
        weigh_block(2, 1, tiles, f, panel, weights, factors, acc, acc_stride);
    else if (rows == 1)
        weigh_block(1, 1, tiles, f, panel, weights, factors, acc, acc_stride);
}

static void weigh_neon(unsigned fragments, const gaac_step_tiles *tiles, unsigned rows, const float *weights,
                       const float *factors, float *acc, size_t acc_stride)
{
    float panel[GAAC_STEP_TOKENS * GAAC_FRAGMENT_CHANNELS];
    if (rows <= MAX_ROWS) {
        weigh_few(fragments, tiles, rows, weights, factors, acc, acc_stride);
        return;
    }
    for (unsigned f = 0; f < fragments; f++) {
        for (unsigned step = 0; step < 4 * GAAC_STEP_TILES; step++) {
            const unsigned place = 4 * f + step % 4;
            fetch_ahead(tiles, step / 4, place);
            write_panel(panel + (size_t)step * PANEL_STEP, tiles->tile[step / 4], place);
        }
        weigh_panel(tiles, f, panel, rows, weights, factors, acc, acc_stride);
    }
}

/* ---- softmax ---------------------------------------------------------------------------------- */

/* 2^x within 2 units in the last place, 0 below -126.5, 2^127 above 127, NaN for NaN (FMAX and FMIN keep it).
 * Polynomial as in attention_avx512.c. */
INLINE float32x4_t exp2_f32(float32x4_t x)
{
    x = vminq_f32(vmaxq_f32(x, vdupq_n_f32(-127)), vdupq_n_f32(127));
    const int32x4_t n = vcvtnq_s32_f32(x);
    const float32x4_t r = vsubq_f32(x, vcvtq_f32_s32(n));
    float32x4_t p = vdupq_n_f32(1.535336188319500e-4f);
    p = vfmaq_f32(vdupq_n_f32(1.339887440266574e-3f), p, r);
    p = vfmaq_f32(vdupq_n_f32(9.618437357674640e-3f), p, r);
    p = vfmaq_f32(vdupq_n_f32(5.550332471162809e-2f), p, r);
    p = vfmaq_f32(vdupq_n_f32(2.402264791363012e-1f), p, r);
    p = vfmaq_f32(vdupq_n_f32(6.931472028550421e-1f), p, r);
    p = vfmaq_f32(vdupq_n_f32(1.0f), p, r);
    /* n = -127 gives the bits of 0. */
    return vmulq_f32(p, vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(n, vdupq_n_s32(127)), 23)));
}

/* tanh(x) = 1 - 2 / (e^2x + 1): an absolute error of 2^-23, which a softcap of 50 makes 6e-6 of a logit. */
INLINE float32x4_t tanh_f32(float32x4_t x)
{
    const float32x4_t one = vdupq_n_f32(1);
    const float32x4_t e = exp2_f32(vmulq_n_f32(x, 2.88539008f)); /* 2 log2 e */
    return vsubq_f32(one, vdivq_f32(vdupq_n_f32(2), vaddq_f32(e, one)));
}

INLINE uint32x4_t lane_mask(uint64_t bits)
{
    static const uint32_t each[4] = {1, 2, 4, 8};
    return vtstq_u32(vdupq_n_u32((uint32_t)bits), vld1q_u32(each));
}

static float softmax_neon(float *scores, uint64_t visible, const uint16_t *bias, const gaac_logit_params *params,
                          gaac_softmax_state *state)
{
    enum { STEP_VECTORS = GAAC_STEP_TOKENS / 4 };
    const float32x4_t minus_inf = vdupq_n_f32(-INFINITY);
    float32x4_t s[STEP_VECTORS], max = minus_inf;
    for (unsigned i = 0; i < STEP_VECTORS; i++) {
        s[i] = vmulq_n_f32(vld1q_f32(scores + (size_t)4 * i), params->scale);
        if (params->softcap != 0)
            s[i] = vmulq_n_f32(tanh_f32(s[i]), params->softcap);
        if (bias != NULL) {
            const float32x4_t b = vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(bias + (size_t)4 * i)));
            s[i] = vfmaq_n_f32(s[i], b, params->slope);
        }
        s[i] = vbslq_f32(lane_mask(visible >> 4 * i), s[i], minus_inf);
        max = vmaxnmq_f32(max, s[i]); /* keeps max when s is NaN: arithmetic's NaNs are quiet */
    }
    const float step_max = vmaxvq_f32(max);
    const float new_max = step_max > state->max ? step_max : state->max;
    const float base = new_max == -INFINITY ? 0 : new_max;
    float32x4_t sum = vdupq_n_f32(0);
    for (unsigned i = 0; i < STEP_VECTORS; i++) {
        const float32x4_t w = exp2_f32(vsubq_f32(s[i], vdupq_n_f32(base))); /* of -inf, hidden: 0 exactly */
        vst1q_f32(scores + (size_t)4 * i, w);
        sum = vaddq_f32(sum, w);
    }
    const float factor = new_max == state->max ? 1 : exp2f(state->max - base);
    state->sum = state->sum * factor + vaddvq_f32(sum);
    state->max = new_max;
    return factor;
}

void gaac_attention_kernels_init_neon(gaac_attention_kernels *kernels)
{
    kernels->v_order = gaac_v_order_natural;
    kernels->score = score_neon;
    kernels->weigh = weigh_neon;
    kernels->softmax = softmax_neon;
}
