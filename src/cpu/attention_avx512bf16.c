/* Score and weigh kernels with AVX512-BF16: vdpbf16ps adds two products of BF16 to a float. Softmax is AVX-512's
 * (attention_avx512.c), which also explains lines and the order of fragments.
 *
 * For a line of 16 pairs and n rows, scores take n instructions of arithmetic and weights 2n, being split into two BF16
 * parts (pack_avx512bf16.h); floats take 2n and two to widen the line. So weights gain little, and scores half, where a
 * vdpbf16ps costs what a fused multiply-add does, as on AMD's Zen 5 by what is known of it; that was not measured.
 * Intel's cores start one every two cycles and two multiply-adds a cycle: for four rows on a Granite Rapids scores are
 * 0.75 times as fast as with floats, weights 0.39 times, attention 0.73 times. There GAAC takes this set only when
 * asked to.
 *
 * The instruction takes subnormal operands and results as zeros. */
#include "cpu/cpu.h"
#include "cpu/pack_avx512bf16.h"

enum {
    MAX_ROWS = 6, /* a block's accumulators: 6 x 4 of the 32 registers */
    MAX_VECTORS = 4,
    DIRECT_ROWS = 4,  /* rows of a pass over fragments */
    COPIED_ROWS = 17, /* from here on fragments are brought into lines first, once for all: at 16 passes are faster */
    MAX_PAIRS = MAX_CHANNELS / 2,
    STEP_PAIRS = GAAC_STEP_TOKENS / 2,
    TILE_ELEMENTS = GAAC_TILE_MAX_BYTES / 2
};

INLINE __m512 add_products(__m512 sum, __m512i lines, uint32_t pair)
{
    return _mm512_dpbf16_ps(sum, (__m512bh)lines, (__m512bh)_mm512_set1_epi32((int32_t)pair));
}

/* Rows of the next of the blocks, of nearly equal size, that `rows` rows make. */
INLINE unsigned next_rows(unsigned rows, unsigned most)
{
    return rows / ((rows + most - 1) / most);
}

/* ---- K ---------------------------------------------------------------------------------------- */

/* Scores of up to MAX_ROWS rows. q: of each row, MAX_PAIRS apart. */
INLINE void score_rows(const bool lines, const unsigned rows, unsigned fragments, const gaac_step_tiles *tiles,
                       const uint32_t *q, float *scores, bool accumulate)
{
    __m512 sum[MAX_ROWS][GAAC_STEP_TILES];
    const unsigned pace = pace_of(tiles, fragments);
    for (unsigned r = 0; r < rows; r++) {
        for (unsigned i = 0; i < GAAC_STEP_TILES; i++)
            sum[r][i] = _mm512_setzero_ps();
    }
    for (unsigned pair = 0; pair < fragments * GAAC_FRAGMENT_CHANNELS / 2; pair++) {
        fetch_ahead(tiles, pace, pair);
        for (unsigned i = 0; i < GAAC_STEP_TILES; i++) {
            const __m512i line = load_k(lines, tiles->tile[i], pair / 8, pair >> 1 & 3, pair & 1);
            for (unsigned r = 0; r < rows; r++)
                sum[r][i] = add_products(sum[r][i], line, q[r * MAX_PAIRS + pair]);
        }
    }
    for (unsigned r = 0; r < rows; r++) {
        for (unsigned i = 0; i < GAAC_STEP_TILES; i++) {
            float *to = scores + r * GAAC_STEP_TOKENS + i * VECTOR;
            if (accumulate)
                sum[r][i] = _mm512_add_ps(sum[r][i], _mm512_load_ps(to));
            _mm512_store_ps(to, sum[r][i]);
        }
    }
}

/* All rows, in blocks of up to `most`. */
INLINE void score_blocks(const bool lines, const unsigned most, unsigned fragments, const gaac_step_tiles *tiles,
                         unsigned rows, const float *q, size_t q_stride, float *scores, bool accumulate)
{
    _Alignas(64) uint32_t packed[MAX_ROWS * MAX_PAIRS];
    gaac_step_tiles now = *tiles;
    for (unsigned n; rows > 0; rows -= n, scores += (size_t)n * GAAC_STEP_TOKENS) {
        n = next_rows(rows, most);
        for (unsigned r = 0; r < n; r++, q += q_stride)
            pack_row(fragments, q, packed + (size_t)r * MAX_PAIRS);
        switch (n) {
        case 1:
            score_rows(lines, 1, fragments, &now, packed, scores, accumulate);
            break;
        case 2:
            score_rows(lines, 2, fragments, &now, packed, scores, accumulate);
            break;
        case 3:
            score_rows(lines, 3, fragments, &now, packed, scores, accumulate);
            break;
        case 4:
            score_rows(lines, 4, fragments, &now, packed, scores, accumulate);
            break;
        case 5:
            score_rows(lines, 5, fragments, &now, packed, scores, accumulate);
            break;
        default:
            score_rows(lines, 6, fragments, &now, packed, scores, accumulate);
            break;
        }
        now.ahead_lines = 0; /* once is enough */
    }
}

static void score_lines(unsigned fragments, const gaac_step_tiles *tiles, unsigned rows, const float *q,
                        size_t q_stride, float *scores, bool accumulate)
{
    score_blocks(true, MAX_ROWS, fragments, tiles, rows, q, q_stride, scores, accumulate);
}

static void k_to_lines(unsigned fragments, const gaac_step_tiles *tiles, uint16_t *copy)
{
    const unsigned pace = pace_of(tiles, fragments);
    for (unsigned pair = 0; pair < fragments * GAAC_FRAGMENT_CHANNELS / 2; pair++) {
        fetch_ahead(tiles, pace, pair);
        for (unsigned i = 0; i < GAAC_STEP_TILES; i++)
            _mm512_store_si512(copy + (size_t)i * TILE_ELEMENTS + (size_t)pair * GAAC_LINE_ELEMENTS,
                               load_k(false, tiles->tile[i], pair / 8, pair >> 1 & 3, pair & 1));
    }
}

static void score_avx512bf16(unsigned fragments, const gaac_step_tiles *tiles, unsigned rows, const float *q,
                             size_t q_stride, float *scores, bool accumulate)
{
    if (tiles->lines) {
        score_lines(fragments, tiles, rows, q, q_stride, scores, accumulate);
    } else if (rows < COPIED_ROWS) {
        score_blocks(false, DIRECT_ROWS, fragments, tiles, rows, q, q_stride, scores, accumulate);
    } else {
        _Alignas(64) uint16_t copy[GAAC_STEP_TILES * TILE_ELEMENTS];
        gaac_step_tiles lines = {.lines = true};
        k_to_lines(fragments, tiles, copy);
        for (unsigned i = 0; i < GAAC_STEP_TILES; i++)
            lines.tile[i] = copy + (size_t)i * TILE_ELEMENTS;
        score_lines(fragments, &lines, rows, q, q_stride, scores, accumulate);
    }
}

/* ---- V ---------------------------------------------------------------------------------------- */

/* A block's weights: the two parts of each pair side by side. */
typedef struct weight_pairs {
    _Alignas(64) uint32_t leading[MAX_ROWS][STEP_PAIRS], rest[MAX_ROWS][STEP_PAIRS];
} weight_pairs;

/* Weighs n fragments from f on for up to MAX_ROWS rows. */
INLINE void weigh_fragments(const bool lines, const unsigned rows, const unsigned n, unsigned f, unsigned pace,
                            const gaac_step_tiles *tiles, const weight_pairs *weights, const float *factors, float *acc,
                            size_t acc_stride)
{
    __m512 sum[MAX_ROWS][MAX_VECTORS];
    for (unsigned r = 0; r < rows; r++) {
        for (unsigned v = 0; v < n; v++)
            sum[r][v] = _mm512_setzero_ps();
    }
    for (unsigned pair = 0; pair < STEP_PAIRS; pair++) {
        if (pair * n % 4 == 0) /* 8 n turns in 32 */
            fetch_ahead(tiles, pace, 8 * f + pair * n / 4);
        for (unsigned v = 0; v < n; v++) {
            const __m512i line = load_v(lines, tiles->tile[pair / 8], f + v, pair & 3, pair >> 2 & 1);
            for (unsigned r = 0; r < rows; r++) {
                sum[r][v] = add_products(sum[r][v], line, weights->leading[r][pair]);
                sum[r][v] = add_products(sum[r][v], line, weights->rest[r][pair]);
            }
        }
    }
    for (unsigned r = 0; r < rows; r++) {
        for (unsigned v = 0; v < n; v++)
            add_to(acc + r * acc_stride + (f + v) * VECTOR, factors + r, sum[r][v]);
    }
}

INLINE void weigh_rows(const bool lines, const unsigned rows, unsigned fragments, const gaac_step_tiles *tiles,
                       const weight_pairs *weights, const float *factors, float *acc, size_t acc_stride)
{
    const unsigned pace = pace_of(tiles, fragments);
    unsigned f = 0;
    for (; f + 4 <= fragments; f += 4)
        weigh_fragments(lines, rows, 4, f, pace, tiles, weights, factors, acc, acc_stride);
    for (; f < fragments; f++)
        weigh_fragments(lines, rows, 1, f, pace, tiles, weights, factors, acc, acc_stride);
}

/* All rows, in blocks of up to `most`. */
INLINE void weigh_blocks(const bool lines, const unsigned most, unsigned fragments, const gaac_step_tiles *tiles,
                         unsigned rows, const float *weights, const float *factors, float *acc, size_t acc_stride)
{
    weight_pairs parts;
    gaac_step_tiles now = *tiles;
    for (unsigned n; rows > 0; rows -= n, factors += n, acc += n * acc_stride) {
        n = next_rows(rows, most);
        for (unsigned r = 0; r < n; r++) {
            for (unsigned i = 0; i < STEP_PAIRS; i += VECTOR, weights += 2 * VECTOR) {
                __m512i leading, rest;
                split_weights(weights, &leading, &rest);
                _mm512_store_si512(&parts.leading[r][i], leading);
                _mm512_store_si512(&parts.rest[r][i], rest);
            }
        }
        switch (n) {
        case 1:
            weigh_rows(lines, 1, fragments, &now, &parts, factors, acc, acc_stride);
            break;
        case 2:
            weigh_rows(lines, 2, fragments, &now, &parts, factors, acc, acc_stride);
            break;
        case 3:
            weigh_rows(lines, 3, fragments, &now, &parts, factors, acc, acc_stride);
            break;
        case 4:
            weigh_rows(lines, 4, fragments, &now, &parts, factors, acc, acc_stride);
            break;
        case 5:
            weigh_rows(lines, 5, fragments, &now, &parts, factors, acc, acc_stride);
            break;
        default:
            weigh_rows(lines, 6, fragments, &now, &parts, factors, acc, acc_stride);
            break;
        }
        now.ahead_lines = 0; /* once is enough */
    }
}

static void weigh_lines(unsigned fragments, const gaac_step_tiles *tiles, unsigned rows, const float *weights,
                        const float *factors, float *acc, size_t acc_stride)
{
    weigh_blocks(true, MAX_ROWS, fragments, tiles, rows, weights, factors, acc, acc_stride);
}

/* Where a copy has tile i: V's tiles lie in each other's gaps, two by two. */
static size_t v_place(unsigned i)
{
    return (size_t)(i & ~1u) * TILE_ELEMENTS + (size_t)(i & 1) * GAAC_V_FRAGMENT_LINES / 2 * GAAC_LINE_ELEMENTS;
}

static void v_to_lines(unsigned fragments, const gaac_step_tiles *tiles, uint16_t *copy)
{
    const unsigned pace = pace_of(tiles, fragments);
    for (unsigned turn = 0; turn < 8 * fragments; turn++) {
        const unsigned f = turn / 8, t = turn & 3, half = turn >> 2 & 1;
        fetch_ahead(tiles, pace, turn);
        for (unsigned i = 0; i < GAAC_STEP_TILES; i++)
            _mm512_store_si512(copy + v_place(i) + (size_t)(GAAC_V_FRAGMENT_LINES * f + turn % 8) * GAAC_LINE_ELEMENTS,
                               load_v(false, tiles->tile[i], f, t, half));
    }
}

static void weigh_avx512bf16(unsigned fragments, const gaac_step_tiles *tiles, unsigned rows, const float *weights,
                             const float *factors, float *acc, size_t acc_stride)
{
    if (tiles->lines) {
        weigh_lines(fragments, tiles, rows, weights, factors, acc, acc_stride);
    } else if (rows < COPIED_ROWS) {
        weigh_blocks(false, DIRECT_ROWS, fragments, tiles, rows, weights, factors, acc, acc_stride);
    } else {
        _Alignas(64) uint16_t copy[GAAC_STEP_TILES * TILE_ELEMENTS];
        gaac_step_tiles lines = {.lines = true};
        v_to_lines(fragments, tiles, copy);
        for (unsigned i = 0; i < GAAC_STEP_TILES; i++)
            lines.tile[i] = copy + v_place(i);
        weigh_lines(fragments, &lines, rows, weights, factors, acc, acc_stride);
    }
}

void gaac_attention_kernels_init_avx512bf16(gaac_attention_kernels *kernels)
{
    kernels->weight_error = 0x1p-16f;
    kernels->score = score_avx512bf16;
    kernels->weigh = weigh_avx512bf16;
}
