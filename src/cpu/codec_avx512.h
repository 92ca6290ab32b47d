/* What the codec's AVX-512 files share: small vector helpers and column order (codec_avx512.c). Only
 * *_avx512.c include it. */
#ifndef GAAC_CPU_CODEC_AVX512_H
#define GAAC_CPU_CODEC_AVX512_H

#include "codec/unit.h"

#include <immintrin.h>

gaac_encode_unit_fn gaac_encode_unit_avx512;
gaac_rows_to_fragments_fn gaac_k_rows_to_fragments_avx512, gaac_v_rows_to_fragments_avx512;

/* Kernels written once for K and V, 64 and 128 channels, and compiled for each. */
#define ALWAYS_INLINE inline __attribute__((always_inline))

static inline __m512i load(const void *aligned)
{
    return _mm512_load_si512(aligned);
}
static inline void store(void *aligned, __m512i value)
{
    _mm512_store_si512(aligned, value);
}

/* Takes the bits of a where mask is set, else those of b. */
static inline __m512i select_bits(__m512i mask, __m512i a, __m512i b)
{
    return _mm512_ternarylogic_epi32(mask, a, b, 0xCA);
}

/* Transposes the 4 x 4 dwords that the four vectors have in each 128-bit lane. */
static ALWAYS_INLINE void transpose(__m512i v[4])
{
    const __m512i a = _mm512_unpacklo_epi32(v[0], v[1]), b = _mm512_unpackhi_epi32(v[0], v[1]);
    const __m512i c = _mm512_unpacklo_epi32(v[2], v[3]), d = _mm512_unpackhi_epi32(v[2], v[3]);
    v[0] = _mm512_unpacklo_epi64(a, c);
    v[1] = _mm512_unpackhi_epi64(a, c);
    v[2] = _mm512_unpacklo_epi64(b, d);
    v[3] = _mm512_unpackhi_epi64(b, d);
}

/* Dword 4l + q holds 4q + l: from position order to column order, and back. */
static inline __m512i column_order(void)
{
    return _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
}
/* Dwords 4l, 4l, 16 + 4l, 16 + 4l in 128-bit lane l. */
static inline __m512i spread_columns(void)
{
    return _mm512_setr_epi32(0, 0, 16, 16, 4, 4, 20, 20, 8, 8, 24, 24, 12, 12, 28, 28);
}
static inline __m512i even_dwords(void)
{
    return _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
}

/* Pairs of words of 16 positions (128 bytes, in position order) from and to two vectors in column order. */
static ALWAYS_INLINE void load_pairs(const uint8_t *pairs, __m512i *first, __m512i *second)
{
    const __m512i low = load(pairs), high = load(pairs + 64);
    const __m512i order = _mm512_slli_epi32(column_order(), 1);
    *first = _mm512_permutex2var_epi32(low, order, high);
    *second = _mm512_permutex2var_epi32(low, _mm512_add_epi32(order, _mm512_set1_epi32(1)), high);
}
static ALWAYS_INLINE void store_pairs(uint8_t *pairs, __m512i first, __m512i second)
{
    const __m512i low = _mm512_setr_epi32(0, 16, 4, 20, 8, 24, 12, 28, 1, 17, 5, 21, 9, 25, 13, 29);
    store(pairs, _mm512_permutex2var_epi32(first, low, second));
    store(pairs + 64, _mm512_permutex2var_epi32(first, _mm512_add_epi32(low, _mm512_set1_epi32(2)), second));
}

#endif
