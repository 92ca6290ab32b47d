/* What the codec's AVX2 files share: small vector helpers and column order (codec_avx2.c). Only *_avx2.c
 * include it. */
#ifndef GAAC_CPU_CODEC_AVX2_H
#define GAAC_CPU_CODEC_AVX2_H

#include "codec/unit.h"

#include <immintrin.h>

gaac_encode_unit_fn gaac_encode_unit_avx2;
gaac_rows_to_fragments_fn gaac_k_rows_to_fragments_avx2, gaac_v_rows_to_fragments_avx2;
gaac_fragments_to_rows_fn gaac_k_fragments_to_rows_avx2, gaac_v_fragments_to_rows_avx2;

/* Kernels written once for K and V, 64 and 128 channels, and compiled for each. */
#define ALWAYS_INLINE inline __attribute__((always_inline))

static inline __m256i load(const void *aligned)
{
    return _mm256_load_si256(aligned);
}
static inline void store(void *aligned, __m256i value)
{
    _mm256_store_si256(aligned, value);
}

/* Takes the bits of a where mask is set, else those of b. */
static inline __m256i select_bits(__m256i mask, __m256i a, __m256i b)
{
    return _mm256_or_si256(_mm256_and_si256(mask, a), _mm256_andnot_si256(mask, b));
}

/* Transposes the 4 x 4 dwords that the four vectors have in each 128-bit lane. */
static ALWAYS_INLINE void transpose(__m256i v[4])
{
    const __m256i a = _mm256_unpacklo_epi32(v[0], v[1]), b = _mm256_unpackhi_epi32(v[0], v[1]);
    const __m256i c = _mm256_unpacklo_epi32(v[2], v[3]), d = _mm256_unpackhi_epi32(v[2], v[3]);
    v[0] = _mm256_unpacklo_epi64(a, c);
    v[1] = _mm256_unpackhi_epi64(a, c);
    v[2] = _mm256_unpacklo_epi64(b, d);
    v[3] = _mm256_unpackhi_epi64(b, d);
}

/* Dword 4l + q holds position 2q + l: from position order to column order, and back. */
static inline __m256i to_columns(__m256i v)
{
    return _mm256_permutevar8x32_epi32(v, _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7));
}
static inline __m256i from_columns(__m256i v)
{
    return _mm256_permutevar8x32_epi32(v, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

/* Between column order and the order 0 1 4 5, 2 3 6 7, in which pairs of words are (un)packed. */
static inline __m256i swap_pair_order(__m256i v)
{
    return _mm256_permutevar8x32_epi32(v, _mm256_setr_epi32(0, 4, 2, 6, 1, 5, 3, 7));
}

/* Pairs of words of 8 positions (64 bytes, in position order) from and to two vectors in column order. */
static ALWAYS_INLINE void load_pairs(const uint8_t *pairs, __m256i *first, __m256i *second)
{
    const __m256 low = _mm256_castsi256_ps(load(pairs)), high = _mm256_castsi256_ps(load(pairs + 32));
    *first = swap_pair_order(_mm256_castps_si256(_mm256_shuffle_ps(low, high, 0x88)));
    *second = swap_pair_order(_mm256_castps_si256(_mm256_shuffle_ps(low, high, 0xDD)));
}
static ALWAYS_INLINE void store_pairs(uint8_t *pairs, __m256i first, __m256i second)
{
    const __m256i a = swap_pair_order(first), b = swap_pair_order(second);
    store(pairs, _mm256_unpacklo_epi32(a, b));
    store(pairs + 32, _mm256_unpackhi_epi32(a, b));
}

#endif
