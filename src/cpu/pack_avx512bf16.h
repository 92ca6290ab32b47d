/* Query rows and weights as pairs of BF16, for instructions that multiply those. Only files compiled for AVX512-BF16
 * include it. */
#ifndef GAAC_CPU_PACK_AVX512BF16_H
#define GAAC_CPU_PACK_AVX512BF16_H

#include "cpu/attention_avx512.h"

/* A prepared row, whose floats are BF16 already: exact. An odd fragment's neighbour is zero. */
INLINE void pack_row(unsigned fragments, const float *q, uint32_t pairs[MAX_CHANNELS / 2])
{
    for (unsigned f = 0; f < fragments; f += 2) {
        const __m512 low = _mm512_loadu_ps(q + f * VECTOR);
        const __m512 high = f + 1 < fragments ? _mm512_loadu_ps(q + (f + 1) * VECTOR) : _mm512_setzero_ps();
        _mm512_store_si512(&pairs[f * VECTOR / 2], (__m512i)_mm512_cvtne2ps_pbh(high, low));
    }
}

/* 32 weights in two parts: their leading 8 bits, cut off, and the next 8, an error below 2^-16 of a weight. The rest
 * may be 0 only where the weight is, else an infinite value would meet it as 0 x infinity. */
INLINE void split_weights(const float *weights, __m512i *leading, __m512i *rest)
{
    const __m512i cut = _mm512_set1_epi32((int32_t)0xffff0000);
    const __m512 low = _mm512_load_ps(weights), high = _mm512_load_ps(weights + VECTOR);
    const __m512 low_cut = _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(low), cut));
    const __m512 high_cut = _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(high), cut));
    const __m512i r = (__m512i)_mm512_cvtne2ps_pbh(_mm512_sub_ps(high, high_cut), _mm512_sub_ps(low, low_cut));
    *leading = (__m512i)_mm512_cvtne2ps_pbh(high_cut, low_cut);
    const __mmask32 zero = _mm512_testn_epi16_mask(r, _mm512_set1_epi16(0x7fff)) &
                           _mm512_test_epi16_mask(*leading, _mm512_set1_epi16(0x7fff));
    const __m512i sign = _mm512_and_si512(*leading, _mm512_set1_epi16((int16_t)0x8000));
    *rest = _mm512_mask_mov_epi16(r, zero, _mm512_or_si512(sign, _mm512_set1_epi16(0x0080)));
}

#endif
