/* Attention kernels for AVX-512 without BF16 instructions: BF16 is widened by shifts, all sums are F32 FMA.
 *
 * The arithmetic takes lines: (channel pair, 16 tokens) of K, (token pair, 16 channels) of V. Decoded tiles come so;
 * fragments, as raw blocks have, are brought into lines with one two-source permutation for 16 registers. Many rows
 * share that through a panel on the stack; few rows use the registers at once, in passes. Both ways sum in the same
 * order. */
#include "cpu/attention_avx512.h"
#include "cpu/cpu.h"

#include <math.h>
#include <string.h>

enum {
    MAX_ROWS = 6, /* a block's accumulators: 6 x 4 of the 32 registers */
    MAX_VECTORS = 4,
    DIRECT_ROWS = 4, /* rows of a pass without a panel */
    PANEL_ROWS = 17  /* from here on a panel is faster than passes: even at 16 rows, 5% at 24, 20% at 96 */
};

/* ---- many rows: a panel and a block of a matrix product --------------------------------------- */

/* c[rows][vectors * 16] = c * factors[row] (1 without factors) + a[rows][depth] * b[depth][vectors * 16]. The products
 * are summed apart and added once: over a long context a running sum would lose low bits at every token, this way only
 * at every step. */
INLINE void multiply(const unsigned rows, const unsigned vectors, size_t depth, const float *a, size_t a_stride,
                     const float *b, size_t b_stride, const float *factors, float *c, size_t c_stride)
{
    __m512 sum[MAX_ROWS][MAX_VECTORS];
    for (unsigned r = 0; r < rows; r++) {
        for (unsigned v = 0; v < vectors; v++)
            sum[r][v] = _mm512_setzero_ps();
    }
    for (size_t d = 0; d < depth; d++, b += b_stride) {
        __m512 line[MAX_VECTORS];
        for (unsigned v = 0; v < vectors; v++)
            line[v] = _mm512_load_ps(b + v * VECTOR);
        for (unsigned r = 0; r < rows; r++) {
            const __m512 factor = _mm512_set1_ps(a[r * a_stride + d]);
            for (unsigned v = 0; v < vectors; v++)
                sum[r][v] = _mm512_fmadd_ps(factor, line[v], sum[r][v]);
        }
    }
    for (unsigned r = 0; r < rows; r++) {
        for (unsigned v = 0; v < vectors; v++)
            add_to(c + r * c_stride + v * VECTOR, factors != NULL ? factors + r : NULL, sum[r][v]);
    }
}

/* The same for a panel of any width, for up to MAX_ROWS rows. */
INLINE void multiply_wide(const unsigned rows, unsigned vectors, size_t depth, const float *a, size_t a_stride,
                          const float *b, size_t b_stride, const float *factors, float *c, size_t c_stride)
{
    for (; vectors >= 4; vectors -= 4, b += 4 * VECTOR, c += 4 * VECTOR)
        multiply(rows, 4, depth, a, a_stride, b, b_stride, factors, c, c_stride);
    if (vectors >= 2) {
        multiply(rows, 2, depth, a, a_stride, b, b_stride, factors, c, c_stride);
        b += 2 * VECTOR;
        c += 2 * VECTOR;
    }
    if (vectors & 1)
        multiply(rows, 1, depth, a, a_stride, b, b_stride, factors, c, c_stride);
}

/* At least PANEL_ROWS rows, in blocks of nearly equal size: a block of one row would wait for its own sums. */
static void multiply_rows(unsigned rows, unsigned vectors, size_t depth, const float *a, size_t a_stride,
                          const float *b, size_t b_stride, const float *factors, float *c, size_t c_stride)
{
    for (unsigned blocks = (rows + MAX_ROWS - 1) / MAX_ROWS; blocks > 0; blocks--) {
        const unsigned n = rows / blocks;
        switch (n) {
        case 6:
            multiply_wide(6, vectors, depth, a, a_stride, b, b_stride, factors, c, c_stride);
            break;
        case 5:
            multiply_wide(5, vectors, depth, a, a_stride, b, b_stride, factors, c, c_stride);
            break;
        case 4:
            multiply_wide(4, vectors, depth, a, a_stride, b, b_stride, factors, c, c_stride);
            break;
        default:
            multiply_wide(3, vectors, depth, a, a_stride, b, b_stride, factors, c, c_stride);
            break;
        }
        rows -= n;
        a += n * a_stride;
        c += n * c_stride;
        factors = factors != NULL ? factors + n : NULL;
    }
}

/* K as float [channel in the order of prepared rows][64 tokens]. */
INLINE void k_panel(const bool lines, unsigned fragments, const gaac_step_tiles *tiles, float *panel)
{
    const unsigned pace = pace_of(tiles, fragments);
    for (unsigned f = 0; f < fragments; f++) {
        for (unsigned t = 0; t < 4; t++) {
            for (unsigned pair = 0; pair < 2; pair++, panel += 2 * GAAC_STEP_TOKENS) {
                fetch_ahead(tiles, pace, (f * 4 + t) * 2 + pair);
                for (unsigned i = 0; i < GAAC_STEP_TILES; i++) {
                    const __m512i words = load_k(lines, tiles->tile[i], f, t, pair);
                    _mm512_store_ps(panel + i * VECTOR, widen_lo(words));
                    _mm512_store_ps(panel + GAAC_STEP_TOKENS + i * VECTOR, widen_hi(words));
                }
            }
        }
    }
}

/* V as float [64 tokens][channels]. */
INLINE void v_panel(const bool lines, unsigned fragments, const gaac_step_tiles *tiles, float *panel)
{
    const unsigned pace = pace_of(tiles, fragments);
    const size_t width = (size_t)fragments * VECTOR;
    for (unsigned t = 0; t < 4; t++) {
        for (unsigned half = 0; half < 2; half++) {
            for (unsigned f = 0; f < fragments; f++)
                fetch_ahead(tiles, pace, (t * 2 + half) * fragments + f);
            for (unsigned i = 0; i < GAAC_STEP_TILES; i++) {
                float *line = panel + (i * GAAC_BLOCK_TOKENS + 2 * t + 8 * half) * width;
                for (unsigned f = 0; f < fragments; f++, line += VECTOR) {
                    const __m512i words = load_v(lines, tiles->tile[i], f, t, half);
                    _mm512_store_ps(line, widen_lo(words));
                    _mm512_store_ps(line + width, widen_hi(words));
                }
            }
        }
    }
}

/* ---- few rows --------------------------------------------------------------------------------- */

/* Weighs `n` fragments from f on for `rows` rows without a panel. */
INLINE void weigh_direct(const bool lines, const unsigned rows, const unsigned n, unsigned f, unsigned pace,
                         const gaac_step_tiles *tiles, const float *weights, const float *factors, float *acc,
                         size_t acc_stride)
{
    __m512 sum[DIRECT_ROWS][MAX_VECTORS];
    for (unsigned r = 0; r < rows; r++) {
        for (unsigned v = 0; v < n; v++)
            sum[r][v] = _mm512_setzero_ps();
    }
    /* One loop over the step's token pairs, so that it stays rolled and its body in registers. */
    for (unsigned pair = 0; pair < GAAC_STEP_TOKENS / 2; pair++, weights += 2) {
        const unsigned t = pair & 3, half = pair >> 2 & 1;
        if (pair * n % 4 == 0) /* 8 lines a fragment in 32 turns */
            fetch_ahead(tiles, pace, 8 * f + pair * n / 4);
        for (unsigned v = 0; v < n; v++) {
            const __m512i words = load_v(lines, tiles->tile[pair / 8], f + v, t, half);
            const __m512 even = widen_lo(words), odd = widen_hi(words);
            for (unsigned r = 0; r < rows; r++) {
                const float *w = weights + r * GAAC_STEP_TOKENS;
                sum[r][v] = _mm512_fmadd_ps(_mm512_set1_ps(w[0]), even, sum[r][v]);
                sum[r][v] = _mm512_fmadd_ps(_mm512_set1_ps(w[1]), odd, sum[r][v]);
            }
        }
    }
    for (unsigned r = 0; r < rows; r++) {
        for (unsigned v = 0; v < n; v++)
            add_to(acc + r * acc_stride + v * VECTOR, factors + r, sum[r][v]);
    }
}

INLINE void weigh_pass(const bool lines, const unsigned rows, unsigned fragments, const gaac_step_tiles *tiles,
                       const float *weights, const float *factors, float *acc, size_t acc_stride)
{
    const unsigned pace = pace_of(tiles, fragments);
    unsigned f = 0;
    for (; f + 4 <= fragments; f += 4)
        weigh_direct(lines, rows, 4, f, pace, tiles, weights, factors, acc + f * VECTOR, acc_stride);
    for (; f < fragments; f++)
        weigh_direct(lines, rows, 1, f, pace, tiles, weights, factors, acc + f * VECTOR, acc_stride);
}

/* Fewer than PANEL_ROWS rows, in passes of nearly equal size. */
INLINE void weigh_few(const bool lines, unsigned fragments, const gaac_step_tiles *tiles, unsigned rows,
                      const float *weights, const float *factors, float *acc, size_t acc_stride)
{
    gaac_step_tiles now = *tiles;
    for (unsigned passes = (rows + DIRECT_ROWS - 1) / DIRECT_ROWS; passes > 0; passes--) {
        const unsigned n = rows / passes;
        switch (n) {
        case 1:
            weigh_pass(lines, 1, fragments, &now, weights, factors, acc, acc_stride);
            break;
        case 2:
            weigh_pass(lines, 2, fragments, &now, weights, factors, acc, acc_stride);
            break;
        case 3:
            weigh_pass(lines, 3, fragments, &now, weights, factors, acc, acc_stride);
            break;
        default:
            weigh_pass(lines, 4, fragments, &now, weights, factors, acc, acc_stride);
            break;
        }
        now.ahead_lines = 0; /* once is enough */
        rows -= n;
        weights += (size_t)n * GAAC_STEP_TOKENS;
        factors += n;
        acc += n * acc_stride;
    }
}

static void weigh_many(unsigned fragments, const gaac_step_tiles *tiles, unsigned rows, const float *weights,
                       const float *factors, float *acc, size_t acc_stride)
{
    _Alignas(64) float panel[MAX_CHANNELS * GAAC_STEP_TOKENS];
    if (tiles->lines)
        v_panel(true, fragments, tiles, panel);
    else
        v_panel(false, fragments, tiles, panel);
    multiply_rows(rows, fragments, GAAC_STEP_TOKENS, weights, GAAC_STEP_TOKENS, panel, (size_t)fragments * VECTOR,
                  factors, acc, acc_stride);
}

static void weigh_avx512(unsigned fragments, const gaac_step_tiles *tiles, unsigned rows, const float *weights,
                         const float *factors, float *acc, size_t acc_stride)
{
    if (rows < PANEL_ROWS && tiles->lines)
        weigh_few(true, fragments, tiles, rows, weights, factors, acc, acc_stride);
    else if (rows < PANEL_ROWS)
        weigh_few(false, fragments, tiles, rows, weights, factors, acc, acc_stride);
    else
        weigh_many(fragments, tiles, rows, weights, factors, acc, acc_stride);
}

/* Scores of up to DIRECT_ROWS rows without a panel. */
INLINE void score_direct(const bool lines, const unsigned rows, unsigned fragments, const gaac_step_tiles *tiles,
                         const float *q, size_t q_stride, float *scores)
{
    __m512 sum[DIRECT_ROWS][GAAC_STEP_TILES];
    const unsigned pace = pace_of(tiles, fragments);
    for (unsigned r = 0; r < rows; r++) {
        for (unsigned i = 0; i < GAAC_STEP_TILES; i++)
            sum[r][i] = _mm512_setzero_ps();
    }
    for (unsigned pair = 0; pair < fragments * GAAC_FRAGMENT_CHANNELS / 2; pair++, q += 2) {
        const unsigned f = pair / 8, t = pair >> 1 & 3;
        fetch_ahead(tiles, pace, pair);
        for (unsigned i = 0; i < GAAC_STEP_TILES; i++) {
            const __m512i words = load_k(lines, tiles->tile[i], f, t, pair & 1);
            const __m512 low = widen_lo(words), high = widen_hi(words);
            for (unsigned r = 0; r < rows; r++) {
                sum[r][i] = _mm512_fmadd_ps(_mm512_set1_ps(q[r * q_stride]), low, sum[r][i]);
                sum[r][i] = _mm512_fmadd_ps(_mm512_set1_ps(q[r * q_stride + 1]), high, sum[r][i]);
            }
        }
    }
    for (unsigned r = 0; r < rows; r++) {
        for (unsigned i = 0; i < GAAC_STEP_TILES; i++)
            add_to(scores + r * GAAC_STEP_TOKENS + i * VECTOR, NULL, sum[r][i]);
    }
}

static void score_many(unsigned fragments, const gaac_step_tiles *tiles, unsigned rows, const float *q, size_t q_stride,
                       float *scores)
{
    _Alignas(64) float panel[MAX_CHANNELS * GAAC_STEP_TOKENS];
    if (tiles->lines)
        k_panel(true, fragments, tiles, panel);
    else
        k_panel(false, fragments, tiles, panel);
    multiply_rows(rows, GAAC_STEP_TILES, (size_t)fragments * GAAC_FRAGMENT_CHANNELS, q, q_stride, panel,
                  GAAC_STEP_TOKENS, NULL, scores, GAAC_STEP_TOKENS);
}

/* Fewer than PANEL_ROWS rows, in passes of nearly equal size. */
INLINE void score_few(const bool lines, unsigned fragments, const gaac_step_tiles *tiles, unsigned rows, const float *q,
                      size_t q_stride, float *scores)
{
    gaac_step_tiles now = *tiles;
    for (unsigned passes = (rows + DIRECT_ROWS - 1) / DIRECT_ROWS; passes > 0; passes--) {
        const unsigned n = rows / passes;
        switch (n) {
        case 1:
            score_direct(lines, 1, fragments, &now, q, q_stride, scores);
            break;
        case 2:
            score_direct(lines, 2, fragments, &now, q, q_stride, scores);
            break;
        case 3:
            score_direct(lines, 3, fragments, &now, q, q_stride, scores);
            break;
        default:
            score_direct(lines, 4, fragments, &now, q, q_stride, scores);
            break;
        }
        now.ahead_lines = 0; /* once is enough */
        rows -= n;
        q += n * q_stride;
        scores += (size_t)n * GAAC_STEP_TOKENS;
    }
}

static void score_avx512(unsigned fragments, const gaac_step_tiles *tiles, unsigned rows, const float *q,
                         size_t q_stride, float *scores, bool accumulate)
{
    if (!accumulate)
        memset(scores, 0, (size_t)rows * GAAC_STEP_TOKENS * sizeof *scores);
    if (rows < PANEL_ROWS && tiles->lines)
        score_few(true, fragments, tiles, rows, q, q_stride, scores);
    else if (rows < PANEL_ROWS)
        score_few(false, fragments, tiles, rows, q, q_stride, scores);
    else
        score_many(fragments, tiles, rows, q, q_stride, scores);
}

/* ---- softmax ---------------------------------------------------------------------------------- */

/* 2^x within 2 units in the last place; 0 below -150, NaN for NaN, inf above 128. 2^r on [-1/2, 1/2] by a
 * polynomial of degree 6 (minimax of the relative error, below 2^-26). */
INLINE __m512 exp2_ps(__m512 x)
{
    /* The constant first: vmaxps returns its second operand when one is NaN. */
    x = _mm512_max_ps(_mm512_set1_ps(-151), x);
    const __m512 n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const __m512 r = _mm512_sub_ps(x, n);
    __m512 p = _mm512_set1_ps(1.535336188319500e-4f);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.339887440266574e-3f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(9.618437357674640e-3f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.550332471162809e-2f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(2.402264791363012e-1f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(6.931472028550421e-1f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
    return _mm512_scalef_ps(p, n);
}

/* tanh(x) = 1 - 2 / (e^2x + 1): an absolute error of 2^-23, which a softcap of 50 makes 6e-6 of a logit. */
INLINE __m512 tanh_ps(__m512 x)
{
    const __m512 one = _mm512_set1_ps(1);
    const __m512 e = exp2_ps(_mm512_mul_ps(x, _mm512_set1_ps(2.88539008f))); /* 2 log2 e */
    return _mm512_sub_ps(one, _mm512_div_ps(_mm512_set1_ps(2), _mm512_add_ps(e, one)));
}

static float softmax_avx512(float *scores, uint64_t visible, const uint16_t *bias, const gaac_logit_params *params,
                            gaac_softmax_state *state)
{
    const __m512 minus_inf = _mm512_set1_ps(-INFINITY);
    __m512 s[GAAC_STEP_TILES], max = minus_inf;
    for (unsigned i = 0; i < GAAC_STEP_TILES; i++) {
        s[i] = _mm512_mul_ps(_mm512_load_ps(scores + i * VECTOR), _mm512_set1_ps(params->scale));
        if (params->softcap != 0)
            s[i] = _mm512_mul_ps(tanh_ps(s[i]), _mm512_set1_ps(params->softcap));
        if (bias != NULL) {
            const __m512 b = _mm512_cvtph_ps(_mm256_load_si256((const __m256i *)(const void *)(bias + i * VECTOR)));
            s[i] = _mm512_fmadd_ps(b, _mm512_set1_ps(params->slope), s[i]);
        }
        s[i] = _mm512_mask_mov_ps(minus_inf, (__mmask16)(visible >> i * VECTOR), s[i]);
        max = _mm512_max_ps(s[i], max); /* keeps max when s is NaN */
    }
    const float step_max = _mm512_reduce_max_ps(max);
    const float new_max = step_max > state->max ? step_max : state->max;
    const float base = new_max == -INFINITY ? 0 : new_max;
    __m512 sum = _mm512_setzero_ps();
    for (unsigned i = 0; i < GAAC_STEP_TILES; i++) {
        const __m512 w = exp2_ps(_mm512_sub_ps(s[i], _mm512_set1_ps(base))); /* of -inf, hidden: 0 exactly */
        _mm512_store_ps(scores + i * VECTOR, w);
        sum = _mm512_add_ps(sum, w);
    }
    const float factor = new_max == state->max ? 1 : exp2f(state->max - base);
    state->sum = state->sum * factor + _mm512_reduce_add_ps(sum);
    state->max = new_max;
    return factor;
}

void gaac_attention_kernels_init_avx512(gaac_attention_kernels *kernels)
{
    kernels->v_order = gaac_v_order_natural;
    kernels->score = score_avx512;
    kernels->weigh = weigh_avx512;
    kernels->softmax = softmax_avx512;
    kernels->takes_lines = true;
}
