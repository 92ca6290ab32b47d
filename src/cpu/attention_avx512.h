/* What the AVX-512 attention files share: fragments into plain order, widening, fetching ahead. Only
 * attention_avx512.c, attention_avx512bf16.c and attention_amx.c include it. */
#ifndef GAAC_CPU_ATTENTION_AVX512_H
#define GAAC_CPU_ATTENTION_AVX512_H

#include "attention/kernels.h"
#include "cpu/lines_avx512.h"

#define INLINE static inline __attribute__((always_inline))

enum {
    FETCH_RUN = 4, /* lines that are fetched one after the other: memory gives runs faster than single lines */
    VECTOR = 16,
    MAX_CHANNELS = GAAC_UNIT_MAX_FRAGMENTS * GAAC_FRAGMENT_CHANNELS
};

/* Channel pair `pair` of fragment f and t of 16 tokens. lines: the tile is in line order. */
INLINE __m512i load_k(const bool lines, const uint16_t *tile, unsigned f, unsigned t, unsigned pair)
{
    if (lines)
        return _mm512_load_si512(tile + (GAAC_K_FRAGMENT_LINES * f + 2 * t + pair) * GAAC_LINE_ELEMENTS);
    return gather(tile, f, t, _mm512_load_si512(k_places[t][pair]));
}

/* Token pair 4 half + t of 16 channels, those of fragment f. */
INLINE __m512i load_v(const bool lines, const uint16_t *tile, unsigned f, unsigned t, unsigned half)
{
    if (lines)
        return _mm512_load_si512(tile + (GAAC_V_FRAGMENT_LINES * f + 4 * half + t) * GAAC_LINE_ELEMENTS);
    return gather(tile, f, t, _mm512_load_si512(v_places[t][half]));
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

/* Runs of lines a turn, times 2^16, when a kernel has 8 turns a fragment. A little more, so that rounding leaves none
 * out. */
INLINE unsigned pace_of(const gaac_step_tiles *tiles, unsigned fragments)
{
    const unsigned runs = (tiles->ahead_lines + FETCH_RUN - 1) / FETCH_RUN * GAAC_STEP_TILES;
    return ((runs << 16) + 8 * fragments - 1) / (8 * fragments);
}

/* Fetches what turn number `turn` has to of what is read next. */
INLINE void fetch_ahead(const gaac_step_tiles *tiles, unsigned pace, unsigned turn)
{
    const unsigned from = turn * pace >> 16, to = (turn + 1) * pace >> 16;
    for (unsigned run = from; run < to; run++) {
        const char *at = (const char *)tiles->ahead[run % GAAC_STEP_TILES] + run / GAAC_STEP_TILES * FETCH_RUN * 64;
        for (unsigned i = 0; i < FETCH_RUN; i++)
            _mm_prefetch(at + 64 * i, _MM_HINT_T0);
    }
}

#endif
