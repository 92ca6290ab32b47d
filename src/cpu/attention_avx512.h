/* What the AVX-512 attention files share: fragments into plain order, widening, fetching ahead. Only
 * attention_avx512.c, attention_avx512bf16.c and attention_amx.c include it. */
#ifndef GAAC_CPU_ATTENTION_AVX512_H
#define GAAC_CPU_ATTENTION_AVX512_H

#include "attention/kernels.h"

#include <immintrin.h>

#define INLINE static inline __attribute__((always_inline))

enum { VECTOR = 16, MAX_CHANNELS = GAAC_UNIT_MAX_FRAGMENTS * GAAC_FRAGMENT_CHANNELS };

/* [t][half][i]: where lane (g, t)'s register lies among the two vectors of one t, x = g ^ 2t being the place
 * of g. V: channel i is register 2 * half + (i & 1) of g = i >> 1; the halves are tokens 2t.. and 2t + 8... */
#define V4(t, r, g) ((((g) ^ 2 * (t)) * 4) + (r)), ((((g) ^ 2 * (t)) * 4) + (r) + 1)
#define V_ROW(t, r)                                                                                                    \
    {                                                                                                                  \
        V4(t, r, 0), V4(t, r, 1), V4(t, r, 2), V4(t, r, 3), V4(t, r, 4), V4(t, r, 5), V4(t, r, 6), V4(t, r, 7)         \
    }
_Alignas(64) static const int32_t v_places[4][2][VECTOR] = {
    {V_ROW(0, 0), V_ROW(0, 2)}, {V_ROW(1, 0), V_ROW(1, 2)}, {V_ROW(2, 0), V_ROW(2, 2)}, {V_ROW(3, 0), V_ROW(3, 2)}};

/* [t][pair][token]: K: token g + 8s is register s + 2 * pair. */
#define K8(t, r)                                                                                                       \
    (0 ^ 2 * (t)) * 4 + (r), (1 ^ 2 * (t)) * 4 + (r), (2 ^ 2 * (t)) * 4 + (r), (3 ^ 2 * (t)) * 4 + (r),                \
        (4 ^ 2 * (t)) * 4 + (r), (5 ^ 2 * (t)) * 4 + (r), (6 ^ 2 * (t)) * 4 + (r), (7 ^ 2 * (t)) * 4 + (r)
#define K_ROW(t, r)                                                                                                    \
    {                                                                                                                  \
        K8(t, r), K8(t, (r) + 1)                                                                                       \
    }
_Alignas(64) static const int32_t k_places[4][2][VECTOR] = {
    {K_ROW(0, 0), K_ROW(0, 2)}, {K_ROW(1, 0), K_ROW(1, 2)}, {K_ROW(2, 0), K_ROW(2, 2)}, {K_ROW(3, 0), K_ROW(3, 2)}};

/* 16 registers (pairs of BF16) of fragment f and t, in plain order. */
INLINE __m512i gather(const uint16_t *tile, unsigned f, unsigned t, __m512i places)
{
    const uint16_t *at = tile + f * GAAC_FRAGMENT_ELEMENTS + t * 64;
    return _mm512_permutex2var_epi32(_mm512_load_si512(at), places, _mm512_load_si512(at + 32));
}

INLINE __m512 widen_lo(__m512i pairs)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
}

INLINE __m512 widen_hi(__m512i pairs)
{
    return _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32((int32_t)0xffff0000)));
}

/* A vector of a row's results: what is there times the row's factor (1 for scores), plus a step's sum. */
INLINE void add_to(float *to, const float *factor, __m512 sum)
{
    const __m512 before = _mm512_load_ps(to);
    _mm512_store_ps(to, factor != NULL ? _mm512_fmadd_ps(before, _mm512_set1_ps(*factor), sum)
                                       : _mm512_add_ps(before, sum));
}

/* Line number `line` of what the next step reads. */
INLINE void fetch_ahead(const gaac_step_tiles *tiles, unsigned line)
{
    if (line < tiles->ahead_lines) {
        for (unsigned i = 0; i < GAAC_STEP_TILES; i++)
            _mm_prefetch((const char *)tiles->ahead[i] + (size_t)line * 64, _MM_HINT_T0);
    }
}

#endif
