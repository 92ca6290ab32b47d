/* The score kernel with vdpbf16ps: two products of BF16 at once, summed in F32. The rest is as in
 * attention_avx512.c, which also explains the order of things. */
#include "cpu/cpu.h"

#include <immintrin.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

enum { VECTOR = 16, MAX_ROWS = 6, DIRECT_ROWS = 4, MAX_PAIRS = GAAC_UNIT_MAX_FRAGMENTS * GAAC_FRAGMENT_CHANNELS / 2 };

#define K8(t, r)                                                                                                       \
    (0 ^ 2 * (t)) * 4 + (r), (1 ^ 2 * (t)) * 4 + (r), (2 ^ 2 * (t)) * 4 + (r), (3 ^ 2 * (t)) * 4 + (r),                \
        (4 ^ 2 * (t)) * 4 + (r), (5 ^ 2 * (t)) * 4 + (r), (6 ^ 2 * (t)) * 4 + (r), (7 ^ 2 * (t)) * 4 + (r)
#define K_ROW(t, r)                                                                                                    \
    {                                                                                                                  \
        K8(t, r), K8(t, (r) + 1)                                                                                       \
    }
_Alignas(64) static const int32_t k_places[4][2][VECTOR] = {
    {K_ROW(0, 0), K_ROW(0, 2)}, {K_ROW(1, 0), K_ROW(1, 2)}, {K_ROW(2, 0), K_ROW(2, 2)}, {K_ROW(3, 0), K_ROW(3, 2)}};

INLINE __m512i gather(const uint16_t *tile, unsigned f, unsigned t, __m512i places)
{
    const uint16_t *at = tile + f * GAAC_FRAGMENT_ELEMENTS + t * 64;
    return _mm512_permutex2var_epi32(_mm512_load_si512(at), places, _mm512_load_si512(at + 32));
}

/* Two BF16 values of a row, for all 16 tokens. */
INLINE __m512i spread(const uint16_t *q)
{
    int32_t pair;
    memcpy(&pair, q, sizeof pair);
    return _mm512_set1_epi32(pair);
}

INLINE __m512 dot(__m512 sum, __m512i q, __m512i k)
{
    return _mm512_dpbf16_ps(sum, (__m512bh)q, (__m512bh)k);
}

INLINE void start(const unsigned rows, __m512 sum[MAX_ROWS][GAAC_STEP_TILES], const float *scores, bool accumulate)
{
    for (unsigned r = 0; r < rows; r++) {
        for (unsigned i = 0; i < GAAC_STEP_TILES; i++)
            sum[r][i] = accumulate ? _mm512_load_ps(scores + r * GAAC_STEP_TOKENS + i * VECTOR) : _mm512_setzero_ps();
    }
}

INLINE void finish(const unsigned rows, __m512 sum[MAX_ROWS][GAAC_STEP_TILES], float *scores)
{
    for (unsigned r = 0; r < rows; r++) {
        for (unsigned i = 0; i < GAAC_STEP_TILES; i++)
            _mm512_store_ps(scores + r * GAAC_STEP_TOKENS + i * VECTOR, sum[r][i]);
    }
}

/* Scores of up to DIRECT_ROWS rows straight from the fragments. */
INLINE void score_direct(const unsigned rows, unsigned fragments, const gaac_step_tiles *tiles, const uint16_t *q,
                         size_t q_stride, float *scores, bool accumulate)
{
    __m512 sum[MAX_ROWS][GAAC_STEP_TILES];
    start(rows, sum, scores, accumulate);
    for (unsigned f = 0; f < fragments; f++) {
        for (unsigned t = 0; t < 4; t++, q += 4) {
            for (unsigned pair = 0; pair < 2; pair++) {
                const __m512i places = _mm512_load_si512(k_places[t][pair]);
                for (unsigned i = 0; i < GAAC_STEP_TILES; i++) {
                    const __m512i words = gather(tiles->tile[i], f, t, places);
                    for (unsigned r = 0; r < rows; r++)
                        sum[r][i] = dot(sum[r][i], spread(q + r * q_stride + 2 * pair), words);
                }
            }
        }
    }
    finish(rows, sum, scores);
}

/* K as pairs [channel pair in the order of prepared rows][64 tokens]. */
static void k_panel(unsigned fragments, const gaac_step_tiles *tiles, uint32_t *panel)
{
    for (unsigned f = 0; f < fragments; f++) {
        for (unsigned t = 0; t < 4; t++) {
            for (unsigned pair = 0; pair < 2; pair++) {
                const __m512i places = _mm512_load_si512(k_places[t][pair]);
                for (unsigned i = 0; i < GAAC_STEP_TILES; i++, panel += VECTOR)
                    _mm512_store_si512(panel, gather(tiles->tile[i], f, t, places));
            }
        }
    }
}

INLINE void score_panel(const unsigned rows, unsigned pairs, const uint32_t *panel, const uint16_t *q, size_t q_stride,
                        float *scores, bool accumulate)
{
    __m512 sum[MAX_ROWS][GAAC_STEP_TILES];
    start(rows, sum, scores, accumulate);
    for (unsigned p = 0; p < pairs; p++, panel += GAAC_STEP_TOKENS) {
        __m512i words[GAAC_STEP_TILES];
        for (unsigned i = 0; i < GAAC_STEP_TILES; i++)
            words[i] = _mm512_load_si512(panel + i * VECTOR);
        for (unsigned r = 0; r < rows; r++) {
            const __m512i both = spread(q + r * q_stride + 2 * (size_t)p);
            for (unsigned i = 0; i < GAAC_STEP_TILES; i++)
                sum[r][i] = dot(sum[r][i], both, words[i]);
        }
    }
    finish(rows, sum, scores);
}

static void score_many(unsigned fragments, const gaac_step_tiles *tiles, unsigned rows, const uint16_t *q,
                       size_t q_stride, float *scores, bool accumulate)
{
    _Alignas(64) uint32_t panel[MAX_PAIRS * GAAC_STEP_TOKENS];
    const unsigned pairs = fragments * GAAC_FRAGMENT_CHANNELS / 2;
    k_panel(fragments, tiles, panel);
    for (; rows >= MAX_ROWS; rows -= MAX_ROWS, q += MAX_ROWS * q_stride, scores += MAX_ROWS * GAAC_STEP_TOKENS)
        score_panel(MAX_ROWS, pairs, panel, q, q_stride, scores, accumulate);
    for (; rows >= 3; rows -= 3, q += 3 * q_stride, scores += 3 * GAAC_STEP_TOKENS)
        score_panel(3, pairs, panel, q, q_stride, scores, accumulate);
    for (; rows > 0; rows--, q += q_stride, scores += GAAC_STEP_TOKENS)
        score_panel(1, pairs, panel, q, q_stride, scores, accumulate);
}

static void score_avx512bf16(unsigned fragments, const gaac_step_tiles *tiles, unsigned rows, const void *q,
                             size_t q_stride, float *scores, bool accumulate)
{
    switch (rows) {
    case 1:
        score_direct(1, fragments, tiles, q, q_stride, scores, accumulate);
        break;
    case 2:
        score_direct(2, fragments, tiles, q, q_stride, scores, accumulate);
        break;
    case 3:
        score_direct(3, fragments, tiles, q, q_stride, scores, accumulate);
        break;
    case 4:
        score_direct(4, fragments, tiles, q, q_stride, scores, accumulate);
        break;
    default:
        score_many(fragments, tiles, rows, q, q_stride, scores, accumulate);
        break;
    }
}

void gaac_attention_kernels_init_avx512bf16(gaac_attention_kernels *kernels)
{
    kernels->q_bf16 = true;
    kernels->score = score_avx512bf16;
}
