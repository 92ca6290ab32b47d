/* From fragment order to lines (codec/unit.h) with AVX-512: which of two vectors' words come where. */
#ifndef GAAC_CPU_LINES_AVX512_H
#define GAAC_CPU_LINES_AVX512_H

#include "codec/unit.h"

#include <immintrin.h>

/* [t][half][i]: where lane (g, t)'s register lies among the two vectors of one t, x = g ^ 2t being the place
 * of g. V: channel i is register 2 * half + (i & 1) of g = i >> 1; the halves are tokens 2t.. and 2t + 8... */
#define V4(t, r, g) ((((g) ^ 2 * (t)) * 4) + (r)), ((((g) ^ 2 * (t)) * 4) + (r) + 1)
#define V_ROW(t, r)                                                                                                    \
    {                                                                                                                  \
        V4(t, r, 0), V4(t, r, 1), V4(t, r, 2), V4(t, r, 3), V4(t, r, 4), V4(t, r, 5), V4(t, r, 6), V4(t, r, 7)         \
    }
_Alignas(64) static const int32_t v_places[4][2][16] = {
    {V_ROW(0, 0), V_ROW(0, 2)}, {V_ROW(1, 0), V_ROW(1, 2)}, {V_ROW(2, 0), V_ROW(2, 2)}, {V_ROW(3, 0), V_ROW(3, 2)}};

/* [t][pair][token]: K: token g + 8s is register s + 2 * pair. */
#define K8(t, r)                                                                                                       \
    (0 ^ 2 * (t)) * 4 + (r), (1 ^ 2 * (t)) * 4 + (r), (2 ^ 2 * (t)) * 4 + (r), (3 ^ 2 * (t)) * 4 + (r),                \
        (4 ^ 2 * (t)) * 4 + (r), (5 ^ 2 * (t)) * 4 + (r), (6 ^ 2 * (t)) * 4 + (r), (7 ^ 2 * (t)) * 4 + (r)
#define K_ROW(t, r)                                                                                                    \
    {                                                                                                                  \
        K8(t, r), K8(t, (r) + 1)                                                                                       \
    }
_Alignas(64) static const int32_t k_places[4][2][16] = {
    {K_ROW(0, 0), K_ROW(0, 2)}, {K_ROW(1, 0), K_ROW(1, 2)}, {K_ROW(2, 0), K_ROW(2, 2)}, {K_ROW(3, 0), K_ROW(3, 2)}};

/* 16 registers (pairs of BF16) of fragment f and t, in plain order. */
static inline __attribute__((always_inline)) __m512i gather(const uint16_t *tile, unsigned f, unsigned t,
                                                            __m512i places)
{
    const uint16_t *at = tile + f * GAAC_FRAGMENT_ELEMENTS + t * 64;
    return _mm512_permutex2var_epi32(_mm512_load_si512(at), places, _mm512_load_si512(at + 32));
}

#endif
