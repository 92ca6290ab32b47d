/* Score and weigh kernels for Arm CPUs with FEAT_BF16: BFMMLA takes q, K and V as they are, in BF16.
 *
 * BFMMLA multiplies two rows of four values with two more: for K two query rows with two tokens, for V one row's
 * weights with two channels. That is four times the products of an FMLA, and nothing to widen. What it computes is
 * architecture: for each of the four results two steps, each of which adds two products to each other and that to
 * the sum, rounding to odd and taking subnormals for zeros. So a result depends on its own row and token alone, and
 * coded and raw blocks agree as ever. (FEAT_EBF16, where a program turns it on, rounds otherwise; we don't.)
 *
 * Queries are BF16 already. Weights are not: each is split into two BF16 values, the leading 8 bits and the next 8 (an
 * error below 2^-16 of it), which are the two rows of one operand.
 *
 * Instructions a tile of 16 x 128 (gcc 12, counted under qemu), score and weigh: one row 1810 and 1700, two 1820 and
 * 2240, four 2170 and 3700, eight 3990 and 7110. */
#include "cpu/attention_neon.h"
#include "cpu/cpu.h"

enum {
    MAX_PAIRS = 3,   /* of rows: x 8 vectors of sums, 4 of K, 3 of q: 31 registers */
    TOKEN_PAIRS = 8, /* of a tile */

    WEIGHT_ROWS = 6,  /* x 4 vectors of sums, 4 of V, 1 of weights: 29 registers */
    HALF_VECTORS = 4, /* of sums that a row has for half a fragment (8 channels) */
    MAX_HALVES = 4,
    STEPS = 4 * GAAC_STEP_TILES /* (tile, t) */
};

/* ---- K ---------------------------------------------------------------------------------------- */

/* q of two rows, four channels each; prepared rows are BF16 numbers already. */
INLINE bfloat16x8_t load_q(const float *q, const float *next)
{
    return vreinterpretq_bf16_u16(
        vuzp2q_u16(vreinterpretq_u16_f32(vld1q_f32(q)), vreinterpretq_u16_f32(vld1q_f32(next))));
}

/* The two rows of a pair: the second of the last pair is the first when the number of rows is odd. */
typedef struct row_pair {
    const float *q[2];
} row_pair;

/* Puts the sums of a tile and a row pair into one row. Vector n has [row][token] of tokens 2n, 2n + 1. */
INLINE void put_row(const float32x4_t sum[TOKEN_PAIRS], bool second, float *scores, bool accumulate)
{
    UNROLL
    for (unsigned n = 0; n < TOKEN_PAIRS; n += 2, scores += 4) {
        const float64x2_t a = vreinterpretq_f64_f32(sum[n]), b = vreinterpretq_f64_f32(sum[n + 1]);
        const float32x4_t row = vreinterpretq_f32_f64(second ? vzip2q_f64(a, b) : vzip1q_f64(a, b));
        vst1q_f32(scores, accumulate ? vaddq_f32(vld1q_f32(scores), row) : row);
    }
}

/* `pairs` row pairs, of which the last has one row if odd, against tile i. The first block of rows fetches. */
INLINE void score_pairs(const unsigned pairs, bool odd, bool fetch, unsigned fragments, const gaac_step_tiles *tiles,
                        unsigned i, const float *q, size_t q_stride, float *scores, bool accumulate)
{
    const uint16_t *tile = tiles->tile[i];
    float32x4_t sum[MAX_PAIRS][TOKEN_PAIRS];
    row_pair row[MAX_PAIRS];
    UNROLL
    for (unsigned r = 0; r < pairs; r++) {
        row[r].q[0] = q + 2 * r * q_stride;
        row[r].q[1] = odd && r + 1 == pairs ? row[r].q[0] : row[r].q[0] + q_stride;
        UNROLL
        for (unsigned n = 0; n < TOKEN_PAIRS; n++)
            sum[r][n] = vdupq_n_f32(0);
    }
    for (unsigned at = 0; at < 4 * fragments; at += 4) {
        UNROLL
        for (unsigned t = 0; t < 4; t++) {
            const unsigned place = at + t;
            bfloat16x8_t factors[MAX_PAIRS];
            if (fetch)
                fetch_ahead(tiles, i, place);
            UNROLL
            for (unsigned r = 0; r < pairs; r++)
                factors[r] = load_q(row[r].q[0] + (size_t)4 * place, row[r].q[1] + (size_t)4 * place);
            UNROLL
            for (unsigned n = 0; n < TOKEN_PAIRS / 2; n++) {
                /* Registers 0 and 2 of two positions are tokens 2n and 2n + 1, registers 1 and 3 eight more each. */
                uint32x4_t k[2];
                load_pair(tile, place, t, n, k);
                const bfloat16x8_t near = vreinterpretq_bf16_u32(vuzp1q_u32(k[0], k[1]));
                const bfloat16x8_t far = vreinterpretq_bf16_u32(vuzp2q_u32(k[0], k[1]));
                UNROLL
                for (unsigned r = 0; r < pairs; r++) {
                    sum[r][n] = vbfmmlaq_f32(sum[r][n], factors[r], near);
                    sum[r][n + TOKEN_PAIRS / 2] = vbfmmlaq_f32(sum[r][n + TOKEN_PAIRS / 2], factors[r], far);
                }
            }
        }
    }
    UNROLL
    for (unsigned r = 0; r < pairs; r++) {
        float *first = scores + (size_t)2 * r * GAAC_STEP_TOKENS;
        put_row(sum[r], false, first, accumulate);
        if (!odd || r + 1 < pairs)
            put_row(sum[r], true, first + GAAC_STEP_TOKENS, accumulate);
    }
}

static void score_tile(unsigned fragments, const gaac_step_tiles *tiles, unsigned i, unsigned rows, const float *q,
                       size_t q_stride, float *scores, bool accumulate)
{
    /* Row pairs in blocks of nearly equal size. */
    const unsigned pairs = (rows + 1) / 2;
    for (unsigned left = pairs, blocks = (pairs + MAX_PAIRS - 1) / MAX_PAIRS; blocks > 0; blocks--) {
        const unsigned n = left / blocks;
        const bool odd = n == left && rows % 2 != 0, first = left == pairs;
        if (n == 1)
            score_pairs(1, odd, first, fragments, tiles, i, q, q_stride, scores, accumulate);
        else if (n == 2)
            score_pairs(2, odd, first, fragments, tiles, i, q, q_stride, scores, accumulate);
        else
            score_pairs(3, odd, first, fragments, tiles, i, q, q_stride, scores, accumulate);
        left -= n;
        q += 2 * n * q_stride;
        scores += (size_t)2 * n * GAAC_STEP_TOKENS;
    }
}

static void score_neonbf16(unsigned fragments, const gaac_step_tiles *tiles, unsigned rows, const float *q,
                           size_t q_stride, float *scores, bool accumulate)
{
    for (unsigned i = 0; i < GAAC_STEP_TILES; i++)
        score_tile(fragments, tiles, i, rows, q, q_stride, scores + (size_t)i * GAAC_BLOCK_TOKENS, accumulate);
}

/* ---- V ---------------------------------------------------------------------------------------- */

/* A row's weights: of each (tile, t) four leading parts, of tokens 2t, 2t + 1, 2t + 8, 2t + 9, and the four rests. */
typedef uint16_t split_weights[STEPS][8];

/* The rests of eight weights. */
INLINE uint16x8_t find_rests(const float *weights, uint16x8_t leading)
{
    const uint32x4_t upper = vdupq_n_u32(0xffff0000);
    const float32x4_t low = vld1q_f32(weights), high = vld1q_f32(weights + 4);
    const float32x4_t low_cut = vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(low), upper));
    const float32x4_t high_cut = vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(high), upper));
    const bfloat16x8_t rests =
        vcvtq_high_bf16_f32(vcvtq_low_bf16_f32(vsubq_f32(low, low_cut)), vsubq_f32(high, high_cut));
    /* An infinite V must not meet a rest that is 0, or taken for 0, unless the weight is. */
    const uint16x8_t bits = vreinterpretq_u16_bf16(rests), smallest = vdupq_n_u16(0x0080);
    const uint16x8_t small = vcltq_u16(vandq_u16(bits, vdupq_n_u16(0x7fff)), smallest);
    const uint16x8_t counts = vtstq_u16(leading, vdupq_n_u16(0x7f80));
    const uint16x8_t signs = vandq_u16(leading, vdupq_n_u16(0x8000));
    return vbslq_u16(vandq_u16(small, counts), vorrq_u16(signs, smallest), bits);
}

static void split_row(const float *weights, split_weights out)
{
    for (unsigned i = 0; i < GAAC_STEP_TILES; i++, weights += GAAC_BLOCK_TOKENS) {
        /* Pairs of tokens are words; word t of each goes into the vector of t. */
        uint32x4x4_t words;
        for (unsigned half = 0; half < 2; half++) {
            const float *eight = weights + (size_t)8 * half;
            const uint16x8_t leading =
                vuzp2q_u16(vreinterpretq_u16_f32(vld1q_f32(eight)), vreinterpretq_u16_f32(vld1q_f32(eight + 4)));
            words.val[half] = vreinterpretq_u32_u16(leading);
            words.val[2 + half] = vreinterpretq_u32_u16(find_rests(eight, leading));
        }
        vst4q_u32((void *)out[4 * i], words);
    }
}

/* acc times factor, plus the sums of four channels: near has those of channels 0 and 2, far of 1 and 3, each of leading
 * parts, then of rests. */
INLINE void add_channels(float32x4_t near, float32x4_t far, float factor, float *acc)
{
    const float32x2_t even = vadd_f32(vget_low_f32(near), vget_high_f32(near));
    const float32x2_t odd = vadd_f32(vget_low_f32(far), vget_high_f32(far));
    const float32x4_t sum = vcombine_f32(vzip1_f32(even, odd), vzip2_f32(even, odd));
    vst1q_f32(acc, vfmaq_n_f32(sum, vld1q_f32(acc), factor));
}

/* Rows of weights against `width` halves of fragments, the first of which is number `half`. */
INLINE void weigh_halves(const unsigned rows, const unsigned width, bool fetch, const gaac_step_tiles *tiles,
                         unsigned half, split_weights *weights, const float *factors, float *acc, size_t acc_stride)
{
    float32x4_t sum[WEIGHT_ROWS][MAX_HALVES][HALF_VECTORS];
    UNROLL
    for (unsigned r = 0; r < rows; r++) {
        UNROLL
        for (unsigned w = 0; w < width; w++) {
            UNROLL
            for (unsigned k = 0; k < HALF_VECTORS; k++)
                sum[r][w][k] = vdupq_n_f32(0);
        }
    }
    for (unsigned i = 0; i < GAAC_STEP_TILES; i++) {
        UNROLL
        for (unsigned t = 0; t < 4; t++) {
            const unsigned step = 4 * i + t;
            UNROLL
            for (unsigned w = 0; w < width; w++) {
                const unsigned place = 4 * ((half + w) / 2) + t, n = 2 * ((half + w) % 2);
                bfloat16x8_t v[HALF_VECTORS];
                if (fetch && n == 0)
                    fetch_ahead(tiles, i, place);
                UNROLL
                for (unsigned k = 0; k < HALF_VECTORS; k += 2) {
                    uint32x4_t pair[2];
                    load_pair(tiles->tile[i], place, t, n + k / 2, pair);
                    v[k] = vreinterpretq_bf16_u32(vuzp1q_u32(pair[0], pair[1]));
                    v[k + 1] = vreinterpretq_bf16_u32(vuzp2q_u32(pair[0], pair[1]));
                }
                UNROLL
                for (unsigned r = 0; r < rows; r++) {
                    const bfloat16x8_t factor = vreinterpretq_bf16_u16(vld1q_u16(weights[r][step]));
                    UNROLL
                    for (unsigned k = 0; k < HALF_VECTORS; k++)
                        sum[r][w][k] = vbfmmlaq_f32(sum[r][w][k], factor, v[k]);
                }
            }
        }
    }
    acc += (size_t)half * (GAAC_FRAGMENT_CHANNELS / 2);
    UNROLL
    for (unsigned r = 0; r < rows; r++) {
        UNROLL
        for (unsigned w = 0; w < 2 * width; w++)
            add_channels(sum[r][w / 2][2 * (w % 2)], sum[r][w / 2][2 * (w % 2) + 1], factors[r],
                         acc + r * acc_stride + (size_t)4 * w);
    }
}

/* Fewer rows take more halves at once: few sums would wait for their own. */
static void weigh_rows(unsigned fragments, bool fetch, const gaac_step_tiles *tiles, unsigned rows,
                       split_weights *weights, const float *factors, float *acc, size_t acc_stride)
{
    unsigned half = 0;
    for (; rows == 1 && half + 4 <= 2 * fragments; half += 4)
        weigh_halves(1, 4, fetch, tiles, half, weights, factors, acc, acc_stride);
    for (; rows <= 3 && half < 2 * fragments; half += 2) {
        if (rows == 1)
            weigh_halves(1, 2, fetch, tiles, half, weights, factors, acc, acc_stride);
        else if (rows == 2)
            weigh_halves(2, 2, fetch, tiles, half, weights, factors, acc, acc_stride);
        else
            weigh_halves(3, 2, fetch, tiles, half, weights, factors, acc, acc_stride);
    }
    for (; half < 2 * fragments; half++) {
        if (rows == 4)
            weigh_halves(4, 1, fetch, tiles, half, weights, factors, acc, acc_stride);
        else if (rows == 5)
            weigh_halves(5, 1, fetch, tiles, half, weights, factors, acc, acc_stride);
        else
            weigh_halves(6, 1, fetch, tiles, half, weights, factors, acc, acc_stride);
    }
}

static void weigh_neonbf16(unsigned fragments, const gaac_step_tiles *tiles, unsigned rows, const float *weights,
                           const float *factors, float *acc, size_t acc_stride)
{
    split_weights split[WEIGHT_ROWS];
    /* Blocks of nearly equal size. */
    bool first = true;
    for (unsigned blocks = (rows + WEIGHT_ROWS - 1) / WEIGHT_ROWS; blocks > 0; blocks--) {
        const unsigned n = rows / blocks;
        for (unsigned r = 0; r < n; r++)
            split_row(weights + (size_t)r * GAAC_STEP_TOKENS, split[r]);
        weigh_rows(fragments, first, tiles, n, split, factors, acc, acc_stride);
        first = false;
        rows -= n;
        weights += (size_t)n * GAAC_STEP_TOKENS;
        factors += n;
        acc += n * acc_stride;
    }
}

void gaac_attention_kernels_init_neonbf16(gaac_attention_kernels *kernels)
{
    kernels->weight_error = 0x1p-16f;
    kernels->score = score_neonbf16;
    kernels->weigh = weigh_neonbf16;
}
