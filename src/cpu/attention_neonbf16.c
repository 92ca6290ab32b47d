/* The score kernel for Arm CPUs with FEAT_BF16: BFMMLA takes q and K as they are, in BF16.
 *
 * BFMMLA adds, for two rows and two tokens, the products of four channels: twice the arithmetic of FMLA on the CPUs
 * that have it, and nothing to widen. What it computes is architecture: for each of the four results two steps,
 * each of which adds two products to each other and that to the sum, rounding to odd and flushing subnormals. So
 * a result depends on its own row and token alone, and coded and raw blocks agree as ever; F32's last bit
 * is lost twice as often as with FMLA. (FEAT_EBF16, where a program turns it on, rounds otherwise; we don't.)
 *
 * Weights times V stay FMLA: rounding the weights to BF16 would cost more than the instruction gains. */
#include "cpu/attention_neon.h"
#include "cpu/cpu.h"

enum {
    MAX_PAIRS = 3,  /* of rows: x 8 vectors of sums, 4 of K, 3 of q: 31 registers */
    TOKEN_PAIRS = 8 /* of a tile */
};

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
    for (unsigned step = 0; step < 4 * fragments; step++) {
        const unsigned f = step / 4, t = step % 4;
        bfloat16x8_t factors[MAX_PAIRS];
        if (fetch)
            fetch_ahead(tiles, i, f, t);
        UNROLL
        for (unsigned r = 0; r < pairs; r++)
            factors[r] = load_q(row[r].q[0] + (size_t)4 * step, row[r].q[1] + (size_t)4 * step);
        UNROLL
        for (unsigned n = 0; n < TOKEN_PAIRS / 2; n++) {
            /* Registers 0 and 2 of two positions are tokens 2n and 2n + 1, registers 1 and 3 eight more each. */
            const uint32x4_t x = load_logical(tile, f, t, 2 * n), y = load_logical(tile, f, t, 2 * n + 1);
            const bfloat16x8_t near = vreinterpretq_bf16_u32(vuzp1q_u32(x, y));
            const bfloat16x8_t far = vreinterpretq_bf16_u32(vuzp2q_u32(x, y));
            UNROLL
            for (unsigned r = 0; r < pairs; r++) {
                sum[r][n] = vbfmmlaq_f32(sum[r][n], factors[r], near);
                sum[r][n + TOKEN_PAIRS / 2] = vbfmmlaq_f32(sum[r][n + TOKEN_PAIRS / 2], factors[r], far);
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

void gaac_attention_kernels_init_neonbf16(gaac_attention_kernels *kernels)
{
    kernels->score = score_neonbf16;
}
