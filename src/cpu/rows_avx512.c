/* Rows to fragment order with AVX-512. The definition is in codec/unit_rows.c, the way back in rows_avx2.c, and so is
 * what a position's 16 bytes of a fragment are.
 *
 * A vector is four consecutive positions of one fragment: the same t, and the g of four lanes. Their 16 bytes come
 * from one place in each of four rows (K) or from four places of one row (V), so a vector is put together as it is
 * loaded: an insertion from memory takes either of the two vector ports, where a shuffle of lanes waits for one.
 * Whole lines are stored, 64 of 128 channels, where rows_avx2.c stores 256 quarters of lines.
 *
 * A vector that is stored takes 4 operations (K) or 5 (V), so 128 channels take 128 and 160 cycles where two operations
 * a cycle are the limit. On a Xeon with AMX they take about 270 and 300 from the second-level cache (rows_avx2.c: 325
 * and 440). */
#include "cpu/codec_avx512.h"

static inline __m128i load16(const void *p)
{
    return _mm_loadu_si128(p);
}
static inline __m128i load8(const void *p)
{
    return _mm_loadl_epi64(p);
}
static inline __m128i load4(const void *p)
{
    return _mm_loadu_si32(p);
}

/* 16 bytes of each of the lanes (g, t) of positions 8t + x .. 8t + x + 3, g = x ^ 2t, which lie `distance` elements
 * apart by g. */
static ALWAYS_INLINE __m512i load_lanes(const uint16_t *first, size_t distance, unsigned t, unsigned x)
{
    const __m512i one = _mm512_castsi128_si512(load16(first + (x ^ 2 * t) * distance));
    const __m512i two = _mm512_inserti32x4(one, load16(first + ((x + 1) ^ 2 * t) * distance), 1);
    const __m512i three = _mm512_inserti32x4(two, load16(first + ((x + 2) ^ 2 * t) * distance), 2);
    return _mm512_inserti32x4(three, load16(first + ((x + 3) ^ 2 * t) * distance), 3);
}

static ALWAYS_INLINE void k_quad(unsigned fragments, const uint16_t *rows, size_t stride, uint16_t *out, unsigned t,
                                 unsigned x)
{
    uint16_t *pieces = out + (8 * t + x) * 8;
    rows += (size_t)4 * fragments * t;
    unsigned f = 0;
    for (; f + 2 <= fragments; f += 2, pieces += 2 * GAAC_FRAGMENT_ELEMENTS) {
        const __m512i near = load_lanes(rows + 4 * f, stride, t, x);
        const __m512i far = load_lanes(rows + 8 * stride + 4 * f, stride, t, x);
        store(pieces, _mm512_unpacklo_epi32(near, far));
        store(pieces + GAAC_FRAGMENT_ELEMENTS, _mm512_unpackhi_epi32(near, far));
    }
    for (unsigned i = 0; f < fragments && i < 4; i++) {
        const uint16_t *near = rows + ((x + i) ^ 2 * t) * stride + 4 * f;
        _mm_store_si128((__m128i *)(pieces + 8 * i), _mm_unpacklo_epi32(load8(near), load8(near + 8 * stride)));
    }
}

void gaac_k_rows_to_fragments_avx512(unsigned fragments, const uint16_t *rows, size_t stride, uint16_t *out)
{
    for (unsigned t = 0; t < 4; t++) {
        k_quad(fragments, rows, stride, out, t, 0);
        k_quad(fragments, rows, stride, out, t, 4);
    }
}

/* The lane's two channels of one fragment. */
static inline __m128i v_piece(const uint16_t *near, size_t stride)
{
    const uint16_t *far = near + 8 * stride;
    const __m128i a = _mm_unpacklo_epi16(load4(near), load4(near + stride));
    const __m128i b = _mm_unpacklo_epi16(load4(far), load4(far + stride));
    return _mm_unpacklo_epi64(a, b);
}

static ALWAYS_INLINE void v_quad(unsigned fragments, const uint16_t *rows, size_t stride, uint16_t *out, unsigned t,
                                 unsigned x)
{
    const size_t lane = (size_t)2 * fragments; /* channels of a lane's row */
    uint16_t *pieces = out + (8 * t + x) * 8;
    unsigned f = 0;
    rows += 2 * t * stride;
    for (; f + 4 <= fragments; f += 4, pieces += 4 * GAAC_FRAGMENT_ELEMENTS) {
        const __m512i a0 = load_lanes(rows + 2 * f, lane, t, x);
        const __m512i a1 = load_lanes(rows + stride + 2 * f, lane, t, x);
        const __m512i b0 = load_lanes(rows + 8 * stride + 2 * f, lane, t, x);
        const __m512i b1 = load_lanes(rows + 9 * stride + 2 * f, lane, t, x);
        const __m512i a_low = _mm512_unpacklo_epi16(a0, a1), a_high = _mm512_unpackhi_epi16(a0, a1);
        const __m512i b_low = _mm512_unpacklo_epi16(b0, b1), b_high = _mm512_unpackhi_epi16(b0, b1);
        store(pieces, _mm512_unpacklo_epi64(a_low, b_low));
        store(pieces + GAAC_FRAGMENT_ELEMENTS, _mm512_unpackhi_epi64(a_low, b_low));
        store(pieces + 2 * GAAC_FRAGMENT_ELEMENTS, _mm512_unpacklo_epi64(a_high, b_high));
        store(pieces + 3 * GAAC_FRAGMENT_ELEMENTS, _mm512_unpackhi_epi64(a_high, b_high));
    }
    for (; f < fragments; f++, pieces += GAAC_FRAGMENT_ELEMENTS)
        for (unsigned i = 0; i < 4; i++)
            _mm_store_si128((__m128i *)(pieces + 8 * i), v_piece(rows + ((x + i) ^ 2 * t) * lane + 2 * f, stride));
}

void gaac_v_rows_to_fragments_avx512(unsigned fragments, const uint16_t *rows, size_t stride, uint16_t *out)
{
    for (unsigned t = 0; t < 4; t++) {
        v_quad(fragments, rows, stride, out, t, 0);
        v_quad(fragments, rows, stride, out, t, 4);
    }
}
