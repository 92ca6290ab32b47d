/* Attention kernels for AVX2 and FMA: BF16 is widened by shifts, all sums are F32.
 *
 * A vector of a fragment holds two lanes of one t. Vector w of t holds g = 2 (w ^ t) and the next, so a
 * vector's logical number is w ^ t, and a 64-bit unpack of two of them gives eight tokens of a channel pair
 * (K) or eight channels of a token pair (V), in an order that depends on nothing: scores are put right once
 * at the end, accumulators keep it (v_order).
 *
 * For four rows a vector of 16 values takes 8 multiply-adds, one unpack, one shift and one mask. Two multiply-adds
 * start in a cycle: the multiply-adds alone allow 8 bytes a cycle, 30 GB/s at 3.8 GHz; 21 to 23 are measured in the
 * second-level cache.
 *
 * Many rows share the widened values through a panel of floats on the stack, few rows use the registers at once, in
 * passes. Both ways sum in the same order. */
#include "attention/kernels.h"
#include "cpu/cpu.h"

#include <immintrin.h>
#include <math.h>

#define INLINE static inline __attribute__((always_inline))

enum {
    VECTOR = 8,
    MAX_ROWS = 6, /* 6 x 2 accumulators, two lines of the panel and a factor fill the 16 registers */
    MAX_VECTORS = 2,
    DIRECT_ROWS = 4, /* rows of a pass without a panel */
    PANEL_ROWS = 13, /* from here on a panel is faster than passes: even at 12 rows, a tenth at 13 */
    MAX_CHANNELS = GAAC_UNIT_MAX_FRAGMENTS * GAAC_FRAGMENT_CHANNELS,
    STEP_VECTORS = GAAC_STEP_TOKENS / VECTOR,
    TILE_VECTORS = GAAC_BLOCK_TOKENS / VECTOR /* also of a fragment's 16 channels */
};

static const uint8_t v_order_avx2[GAAC_FRAGMENT_CHANNELS] = {0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15};

INLINE __m256i load_logical(const uint16_t *tile, unsigned f, unsigned t, unsigned number)
{
    return _mm256_load_si256(
        (const __m256i *)(const void *)(tile + f * GAAC_FRAGMENT_ELEMENTS + t * 64 + (number ^ t) * 16));
}

/* Pairs of fragment f and t: of 8 tokens (K) or 8 channels (V), those of number v = 0 or 1. first: the channels
 * 0 and 1 of four (K), or the tokens 2t and 2t + 1 (V); second: the channels 2 and 3, or the tokens 2t + 8 and
 * 2t + 9. */
INLINE void gather(const uint16_t *tile, unsigned f, unsigned t, unsigned v, __m256i *first, __m256i *second)
{
    const __m256i x = load_logical(tile, f, t, 2 * v), y = load_logical(tile, f, t, 2 * v + 1);
    *first = _mm256_unpacklo_epi64(x, y);
    *second = _mm256_unpackhi_epi64(x, y);
}

INLINE __m256 widen_lo(__m256i pairs)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16));
}

INLINE __m256 widen_hi(__m256i pairs)
{
    return _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32((int32_t)0xffff0000)));
}

/* Line number `line` of what the next step reads in place of tile i. */
INLINE void fetch_tile(const gaac_step_tiles *tiles, unsigned i, unsigned line)
{
    if (line < tiles->ahead_lines)
        _mm_prefetch((const char *)tiles->ahead[i] + (size_t)line * 64, _MM_HINT_T0);
}

/* The same for all tiles. */
INLINE void fetch_ahead(const gaac_step_tiles *tiles, unsigned line)
{
    for (unsigned i = 0; i < GAAC_STEP_TILES; i++)
        fetch_tile(tiles, i, line);
}

/* ---- many rows: a panel and a block of a matrix product --------------------------------------- */

/* c[rows][vectors * 8] = c * factors[row] (0 without factors) + a[rows][depth] * b[depth][vectors * 8]. The products
 * are summed apart and added once: over a long context a running sum would lose low bits at every token, this way
 * only at every step. */
INLINE void multiply(const unsigned rows, const unsigned vectors, size_t depth, const float *a, size_t a_stride,
                     const float *b, size_t b_stride, const float *factors, float *c, size_t c_stride)
{
    __m256 sum[MAX_ROWS][MAX_VECTORS];
    for (unsigned r = 0; r < rows; r++) {
        for (unsigned v = 0; v < vectors; v++)
            sum[r][v] = _mm256_setzero_ps();
    }
    for (size_t d = 0; d < depth; d++, b += b_stride) {
        __m256 line[MAX_VECTORS];
        for (unsigned v = 0; v < vectors; v++)
            line[v] = _mm256_load_ps(b + v * VECTOR);
        for (unsigned r = 0; r < rows; r++) {
            const __m256 factor = _mm256_broadcast_ss(&a[r * a_stride + d]);
            for (unsigned v = 0; v < vectors; v++)
                sum[r][v] = _mm256_fmadd_ps(factor, line[v], sum[r][v]);
        }
    }
    for (unsigned r = 0; r < rows; r++) {
        for (unsigned v = 0; v < vectors; v++) {
            float *to = c + r * c_stride + v * VECTOR;
            if (factors != NULL)
                sum[r][v] = _mm256_fmadd_ps(_mm256_load_ps(to), _mm256_broadcast_ss(factors + r), sum[r][v]);
            _mm256_store_ps(to, sum[r][v]);
        }
    }
}

/* A block of rows with all vectors of the panel; their number is even, as tiles are 16 tokens and fragments
 * 16 channels. */
INLINE void multiply_wide(const unsigned rows, unsigned vectors, size_t depth, const float *a, size_t a_stride,
                          const float *b, size_t b_stride, const float *factors, float *c, size_t c_stride)
{
    for (; vectors > 0; vectors -= 2, b += 2 * VECTOR, c += 2 * VECTOR)
        multiply(rows, 2, depth, a, a_stride, b, b_stride, factors, c, c_stride);
}

/* A block of 4 to MAX_ROWS rows: what PANEL_ROWS and more are cut into. */
static void multiply_rows(unsigned rows, unsigned vectors, size_t depth, const float *a, size_t a_stride,
                          const float *b, size_t b_stride, const float *factors, float *c, size_t c_stride)
{
    switch (rows) {
    case 6:
        multiply_wide(6, vectors, depth, a, a_stride, b, b_stride, factors, c, c_stride);
        break;
    case 5:
        multiply_wide(5, vectors, depth, a, a_stride, b, b_stride, factors, c, c_stride);
        break;
    default:
        multiply_wide(4, vectors, depth, a, a_stride, b, b_stride, factors, c, c_stride);
        break;
    }
}

/* Rows of the next of the blocks, of nearly equal size, that `rows` rows make. */
INLINE unsigned next_rows(unsigned rows, unsigned most)
{
    return rows / ((rows + most - 1) / most);
}

/* Stores a pair's low and high halves, one line of the panel apart. */
INLINE void store_pair(__m256i pairs, float *line, size_t stride)
{
    _mm256_store_ps(line, widen_lo(pairs));
    _mm256_store_ps(line + stride, widen_hi(pairs));
}

/* ---- K ---------------------------------------------------------------------------------------- */

/* K as float [channel in the order of prepared rows][64 tokens, unsorted inside a tile]. */
static void k_panel(unsigned fragments, const gaac_step_tiles *tiles, float *panel)
{
    for (unsigned f = 0; f < fragments; f++) {
        for (unsigned t = 0; t < 4; t++, panel += 4 * GAAC_STEP_TOKENS) {
            fetch_ahead(tiles, (f * 4 + t) * 2);
            fetch_ahead(tiles, (f * 4 + t) * 2 + 1);
            for (unsigned i = 0; i < GAAC_STEP_TILES; i++) {
                for (unsigned v = 0; v < TILE_VECTORS; v++) {
                    float *line = panel + (i * TILE_VECTORS + v) * VECTOR;
                    __m256i first, second;
                    gather(tiles->tile[i], f, t, v, &first, &second);
                    store_pair(first, line, GAAC_STEP_TOKENS);
                    store_pair(second, line + 2 * GAAC_STEP_TOKENS, GAAC_STEP_TOKENS);
                }
            }
        }
    }
}

/* Adds a tile's unsorted scores of a row to the row. Vector 0 holds tokens 0 8 2 10 1 9 3 11, vector 1 four
 * more each. */
INLINE void add_sorted(__m256 a, __m256 b, float *scores, bool accumulate)
{
    const __m256i order = _mm256_setr_epi32(0, 4, 2, 6, 1, 5, 3, 7);
    a = _mm256_permutevar8x32_ps(a, order);
    b = _mm256_permutevar8x32_ps(b, order);
    __m256 low = _mm256_permute2f128_ps(a, b, 0x20), high = _mm256_permute2f128_ps(a, b, 0x31);
    if (accumulate) {
        low = _mm256_add_ps(_mm256_load_ps(scores), low);
        high = _mm256_add_ps(_mm256_load_ps(scores + VECTOR), high);
    }
    _mm256_store_ps(scores, low);
    _mm256_store_ps(scores + VECTOR, high);
}

static void score_many(unsigned fragments, const gaac_step_tiles *tiles, unsigned rows, const float *q, size_t q_stride,
                       float *scores, bool accumulate)
{
    _Alignas(32) float panel[MAX_CHANNELS * GAAC_STEP_TOKENS];
    _Alignas(32) float unsorted[MAX_ROWS * GAAC_STEP_TOKENS];
    k_panel(fragments, tiles, panel);
    for (unsigned n; rows > 0; rows -= n, q += n * q_stride) {
        n = next_rows(rows, MAX_ROWS);
        multiply_rows(n, STEP_VECTORS, (size_t)fragments * GAAC_FRAGMENT_CHANNELS, q, q_stride, panel, GAAC_STEP_TOKENS,
                      NULL, unsorted, GAAC_STEP_TOKENS);
        for (unsigned i = 0; i < n * GAAC_STEP_TOKENS; i += GAAC_BLOCK_TOKENS, scores += GAAC_BLOCK_TOKENS)
            add_sorted(_mm256_load_ps(unsorted + i), _mm256_load_ps(unsorted + i + VECTOR), scores, accumulate);
    }
}

/* sum[r][v] += a[r] of the low halves + a[r] of the high halves of `vectors` vectors of pairs. */
INLINE void add_pairs(const unsigned rows, const unsigned vectors, const float *a, size_t a_stride,
                      const __m256i *pairs, __m256 sum[DIRECT_ROWS][STEP_VECTORS])
{
    for (unsigned r = 0; r < rows; r++) {
        const __m256 factor = _mm256_broadcast_ss(a + r * a_stride);
        for (unsigned v = 0; v < vectors; v++)
            sum[r][v] = _mm256_fmadd_ps(factor, widen_lo(pairs[v]), sum[r][v]);
    }
    for (unsigned r = 0; r < rows; r++) {
        const __m256 factor = _mm256_broadcast_ss(a + r * a_stride + 1);
        for (unsigned v = 0; v < vectors; v++)
            sum[r][v] = _mm256_fmadd_ps(factor, widen_hi(pairs[v]), sum[r][v]);
    }
}

/* Scores of n tiles from number `tile` on for `rows` rows without a panel. */
INLINE void score_direct(const unsigned rows, const unsigned n, unsigned tile, unsigned fragments,
                         const gaac_step_tiles *tiles, const float *q, size_t q_stride, float *scores, bool accumulate)
{
    __m256 sum[DIRECT_ROWS][STEP_VECTORS];
    for (unsigned r = 0; r < rows; r++) {
        for (unsigned v = 0; v < n * TILE_VECTORS; v++)
            sum[r][v] = _mm256_setzero_ps();
    }
    for (unsigned quad = 0; quad < fragments * 4; quad++, q += 4) {
        __m256i first[STEP_VECTORS], second[STEP_VECTORS];
        for (unsigned i = 0; i < n; i++) {
            fetch_tile(tiles, tile + i, 2 * quad);
            fetch_tile(tiles, tile + i, 2 * quad + 1);
            for (unsigned v = 0; v < TILE_VECTORS; v++)
                gather(tiles->tile[tile + i], quad / 4, quad & 3, v, &first[i * TILE_VECTORS + v],
                       &second[i * TILE_VECTORS + v]);
        }
        add_pairs(rows, n * TILE_VECTORS, q, q_stride, first, sum);
        add_pairs(rows, n * TILE_VECTORS, q + 2, q_stride, second, sum);
    }
    for (unsigned r = 0; r < rows; r++) {
        for (unsigned i = 0; i < n; i++)
            add_sorted(sum[r][i * TILE_VECTORS], sum[r][i * TILE_VECTORS + 1],
                       scores + r * GAAC_STEP_TOKENS + (tile + i) * GAAC_BLOCK_TOKENS, accumulate);
    }
}

/* n tiles at once: as many accumulators as there are registers for. */
INLINE void score_pass(const unsigned rows, const unsigned n, unsigned fragments, const gaac_step_tiles *tiles,
                       const float *q, size_t q_stride, float *scores, bool accumulate)
{
    for (unsigned tile = 0; tile < GAAC_STEP_TILES; tile += n)
        score_direct(rows, n, tile, fragments, tiles, q, q_stride, scores, accumulate);
}

/* Fewer than PANEL_ROWS rows, in passes of nearly equal size. */
static void score_few(unsigned fragments, const gaac_step_tiles *tiles, unsigned rows, const float *q, size_t q_stride,
                      float *scores, bool accumulate)
{
    gaac_step_tiles now = *tiles;
    for (unsigned n; rows > 0; rows -= n, q += n * q_stride, scores += (size_t)n * GAAC_STEP_TOKENS) {
        n = next_rows(rows, DIRECT_ROWS);
        switch (n) {
        case 1:
            score_pass(1, 4, fragments, &now, q, q_stride, scores, accumulate);
            break;
        case 2:
            score_pass(2, 2, fragments, &now, q, q_stride, scores, accumulate);
            break;
        case 3:
            score_pass(3, 1, fragments, &now, q, q_stride, scores, accumulate);
            break;
        default:
            score_pass(4, 1, fragments, &now, q, q_stride, scores, accumulate);
            break;
        }
        now.ahead_lines = 0; /* once is enough */
    }
}

static void score_avx2(unsigned fragments, const gaac_step_tiles *tiles, unsigned rows, const float *q, size_t q_stride,
                       float *scores, bool accumulate)
{
    if (rows < PANEL_ROWS)
        score_few(fragments, tiles, rows, q, q_stride, scores, accumulate);
    else
        score_many(fragments, tiles, rows, q, q_stride, scores, accumulate);
}

/* ---- V ---------------------------------------------------------------------------------------- */

/* V as float [64 tokens][channels in v_order]. Tokens of a tile come as fragments hold them: 2t, 2t + 1, 2t + 8 and
 * 2t + 9 for t = 0..3. */
static void v_panel(unsigned fragments, const gaac_step_tiles *tiles, float *panel)
{
    const size_t width = (size_t)fragments * GAAC_FRAGMENT_CHANNELS;
    for (unsigned i = 0; i < GAAC_STEP_TILES; i++) {
        for (unsigned t = 0; t < 4; t++) {
            float *line = panel + (i * GAAC_BLOCK_TOKENS + 4 * t) * width;
            for (unsigned f = 0; f < fragments; f++) {
                if (i < 2)
                    fetch_ahead(tiles, (i * 4 + t) * fragments + f);
                for (unsigned v = 0; v < TILE_VECTORS; v++, line += VECTOR) {
                    __m256i first, second;
                    gather(tiles->tile[i], f, t, v, &first, &second);
                    store_pair(first, line, width);
                    store_pair(second, line + 2 * width, width);
                }
            }
        }
    }
}

/* A row's weights in the panel's order of tokens. */
INLINE void order_weights(const float *weights, float *ordered)
{
    for (unsigned i = 0; i < GAAC_STEP_TOKENS; i += GAAC_BLOCK_TOKENS) {
        const __m256d a = _mm256_castps_pd(_mm256_load_ps(weights + i));
        const __m256d b = _mm256_castps_pd(_mm256_load_ps(weights + i + VECTOR));
        const __m256 even = _mm256_castpd_ps(_mm256_unpacklo_pd(a, b)); /* t = 0, 2 */
        const __m256 odd = _mm256_castpd_ps(_mm256_unpackhi_pd(a, b));  /* t = 1, 3 */
        _mm256_store_ps(ordered + i, _mm256_permute2f128_ps(even, odd, 0x20));
        _mm256_store_ps(ordered + i + VECTOR, _mm256_permute2f128_ps(even, odd, 0x31));
    }
}

static void weigh_many(unsigned fragments, const gaac_step_tiles *tiles, unsigned rows, const float *weights,
                       const float *factors, float *acc, size_t acc_stride)
{
    _Alignas(32) float panel[MAX_CHANNELS * GAAC_STEP_TOKENS];
    _Alignas(32) float ordered[MAX_ROWS * GAAC_STEP_TOKENS] = {0};
    v_panel(fragments, tiles, panel);
    for (unsigned n; rows > 0; rows -= n, factors += n, acc += n * acc_stride) {
        n = next_rows(rows, MAX_ROWS);
        for (unsigned r = 0; r < n; r++, weights += GAAC_STEP_TOKENS)
            order_weights(weights, ordered + (size_t)r * GAAC_STEP_TOKENS);
        multiply_rows(n, TILE_VECTORS * fragments, GAAC_STEP_TOKENS, ordered, GAAC_STEP_TOKENS, panel,
                      (size_t)fragments * GAAC_FRAGMENT_CHANNELS, factors, acc, acc_stride);
    }
}

/* Weighs n fragments from f on for `rows` rows without a panel. */
INLINE void weigh_direct(const unsigned rows, const unsigned n, unsigned f, const gaac_step_tiles *tiles,
                         const float *weights, const float *factors, float *acc, size_t acc_stride)
{
    __m256 sum[DIRECT_ROWS][STEP_VECTORS];
    for (unsigned r = 0; r < rows; r++) {
        for (unsigned v = 0; v < n * TILE_VECTORS; v++)
            sum[r][v] = _mm256_setzero_ps();
    }
    for (unsigned quad = 0; quad < GAAC_STEP_TOKENS / 4; quad++) {
        const unsigned t = quad & 3, i = quad / 4;
        const float *w = weights + i * GAAC_BLOCK_TOKENS + 2 * t;
        __m256i first[STEP_VECTORS], second[STEP_VECTORS];
        for (unsigned v = 0; v < n * TILE_VECTORS; v++)
            gather(tiles->tile[i], f + v / TILE_VECTORS, t, v % TILE_VECTORS, &first[v], &second[v]);
        for (unsigned line = 0; line < 2 * n; line++) /* 8 n lines of each tile in 16 turns: of each pair in turn */
            fetch_tile(tiles, i, 8 * f + t * 2 * n + line);
        add_pairs(rows, n * TILE_VECTORS, w, GAAC_STEP_TOKENS, first, sum);
        add_pairs(rows, n * TILE_VECTORS, w + 8, GAAC_STEP_TOKENS, second, sum);
    }
    for (unsigned r = 0; r < rows; r++) {
        const __m256 factor = _mm256_broadcast_ss(factors + r);
        for (unsigned v = 0; v < n * TILE_VECTORS; v++) {
            float *to = acc + r * acc_stride + (f * TILE_VECTORS + v) * VECTOR;
            _mm256_store_ps(to, _mm256_fmadd_ps(_mm256_load_ps(to), factor, sum[r][v]));
        }
    }
}

/* n fragments at once: as many accumulators as there are registers for. */
INLINE void weigh_pass(const unsigned rows, const unsigned n, unsigned fragments, const gaac_step_tiles *tiles,
                       const float *weights, const float *factors, float *acc, size_t acc_stride)
{
    unsigned f = 0;
    for (; f + n <= fragments; f += n)
        weigh_direct(rows, n, f, tiles, weights, factors, acc, acc_stride);
    for (; n > 1 && f < fragments; f++)
        weigh_direct(rows, 1, f, tiles, weights, factors, acc, acc_stride);
}

/* Fewer than PANEL_ROWS rows, in passes of nearly equal size. */
static void weigh_few(unsigned fragments, const gaac_step_tiles *tiles, unsigned rows, const float *weights,
                      const float *factors, float *acc, size_t acc_stride)
{
    gaac_step_tiles now = *tiles;
    for (unsigned n; rows > 0;
         rows -= n, weights += (size_t)n * GAAC_STEP_TOKENS, factors += n, acc += n * acc_stride) {
        n = next_rows(rows, DIRECT_ROWS);
        switch (n) {
        case 1:
            weigh_pass(1, 4, fragments, &now, weights, factors, acc, acc_stride);
            break;
        case 2:
            weigh_pass(2, 2, fragments, &now, weights, factors, acc, acc_stride);
            break;
        case 3:
            weigh_pass(3, 1, fragments, &now, weights, factors, acc, acc_stride);
            break;
        default:
            weigh_pass(4, 1, fragments, &now, weights, factors, acc, acc_stride);
            break;
        }
        now.ahead_lines = 0; /* once is enough */
    }
}

static void weigh_avx2(unsigned fragments, const gaac_step_tiles *tiles, unsigned rows, const float *weights,
                       const float *factors, float *acc, size_t acc_stride)
{
    if (rows < PANEL_ROWS)
        weigh_few(fragments, tiles, rows, weights, factors, acc, acc_stride);
    else
        weigh_many(fragments, tiles, rows, weights, factors, acc, acc_stride);
}

/* ---- softmax ---------------------------------------------------------------------------------- */

/* 2^x within 2 units in the last place, 0 below -126.5, 2^127 above 127, NaN for NaN. Polynomial as in
 * attention_avx512.c; the clamped constant comes first since vmaxps returns its second operand for a NaN. */
INLINE __m256 exp2_ps(__m256 x)
{
    x = _mm256_min_ps(_mm256_set1_ps(127), _mm256_max_ps(_mm256_set1_ps(-127), x));
    const __m256 n = _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const __m256 r = _mm256_sub_ps(x, n);
    __m256 p = _mm256_set1_ps(1.535336188319500e-4f);
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.339887440266574e-3f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(9.618437357674640e-3f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(5.550332471162809e-2f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(2.402264791363012e-1f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(6.931472028550421e-1f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
    /* n = -127 gives the bits of 0. */
    const __m256i power = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
    return _mm256_mul_ps(p, _mm256_castsi256_ps(power));
}

/* tanh(x) = 1 - 2 / (e^2x + 1): an absolute error of 2^-23, which a softcap of 50 makes 6e-6 of a logit. */
INLINE __m256 tanh_ps(__m256 x)
{
    const __m256 one = _mm256_set1_ps(1);
    const __m256 e = exp2_ps(_mm256_mul_ps(x, _mm256_set1_ps(2.88539008f))); /* 2 log2 e */
    return _mm256_sub_ps(one, _mm256_div_ps(_mm256_set1_ps(2), _mm256_add_ps(e, one)));
}

INLINE __m256 lane_mask(uint64_t bits)
{
    const __m256i each = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    const __m256i all = _mm256_set1_epi32((int32_t)(bits & 0xff));
    return _mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_and_si256(all, each), each));
}

INLINE float reduce_max(__m256 x)
{
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}

INLINE float reduce_add(__m256 x)
{
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

static float softmax_avx2(float *scores, uint64_t visible, const uint16_t *bias, const gaac_logit_params *params,
                          gaac_softmax_state *state)
{
    const __m256 minus_inf = _mm256_set1_ps(-INFINITY);
    __m256 s[STEP_VECTORS], max = minus_inf;
    for (unsigned i = 0; i < STEP_VECTORS; i++) {
        s[i] = _mm256_mul_ps(_mm256_load_ps(scores + i * VECTOR), _mm256_set1_ps(params->scale));
        if (params->softcap != 0)
            s[i] = _mm256_mul_ps(tanh_ps(s[i]), _mm256_set1_ps(params->softcap));
        if (bias != NULL) {
            const __m256 b = _mm256_cvtph_ps(_mm_load_si128((const __m128i *)(const void *)(bias + i * VECTOR)));
            s[i] = _mm256_fmadd_ps(b, _mm256_set1_ps(params->slope), s[i]);
        }
        s[i] = _mm256_blendv_ps(minus_inf, s[i], lane_mask(visible >> i * VECTOR));
        max = _mm256_max_ps(s[i], max); /* keeps max when s is NaN */
    }
    const float step_max = reduce_max(max);
    const float new_max = step_max > state->max ? step_max : state->max;
    const float base = new_max == -INFINITY ? 0 : new_max;
    __m256 sum = _mm256_setzero_ps();
    for (unsigned i = 0; i < STEP_VECTORS; i++) {
        const __m256 w = exp2_ps(_mm256_sub_ps(s[i], _mm256_set1_ps(base))); /* of -inf, hidden: 0 exactly */
        _mm256_store_ps(scores + i * VECTOR, w);
        sum = _mm256_add_ps(sum, w);
    }
    const float factor = new_max == state->max ? 1 : exp2f(state->max - base);
    state->sum = state->sum * factor + reduce_add(sum);
    state->max = new_max;
    return factor;
}

void gaac_attention_kernels_init_avx2(gaac_attention_kernels *kernels)
{
    kernels->v_order = v_order_avx2;
    kernels->score = score_avx2;
    kernels->weigh = weigh_avx2;
    kernels->softmax = softmax_avx2;
}
