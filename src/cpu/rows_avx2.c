/* Rows to fragment order and back with AVX2. The definition is in codec/unit_rows.c.
 *
 * A position's 16 bytes in a fragment are its registers a0..a3, each two BF16 values:
 *   K: (token g, channels 0 1), (g + 8, 0 1), (g, 2 3), (g + 8, 2 3) of the lane's four channels;
 *   V: (channel 0, tokens 2t 2t+1), (1, same), (0, tokens 2t+8 2t+9), (1, same) of the lane's two channels.
 * The lane's channels of fragments f, f + 1, ... follow each other in a row. */
#include "cpu/codec_avx2.h"

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
static inline __m256i load32(const void *p)
{
    return _mm256_loadu_si256(p);
}

/* Stores the two 16-byte pieces of a vector, for fragments f and f + distance. */
static inline void store_two(uint16_t *out, unsigned distance, __m256i pieces)
{
    _mm_storeu_si128((__m128i *)out, _mm256_castsi256_si128(pieces));
    _mm_storeu_si128((__m128i *)(out + distance * GAAC_FRAGMENT_ELEMENTS), _mm256_extracti128_si256(pieces, 1));
}
static inline __m256i load_two(const uint16_t *in, unsigned distance)
{
    return _mm256_inserti128_si256(_mm256_castsi128_si256(load16(in)), load16(in + distance * GAAC_FRAGMENT_ELEMENTS),
                                   1);
}

void gaac_k_rows_to_fragments_avx2(unsigned fragments, const uint16_t *rows, size_t stride, uint16_t *out)
{
    for (unsigned lane = 0; lane < GAAC_LANES; lane++) {
        const unsigned g = lane >> 2, t = lane & 3;
        const uint16_t *near = rows + g * stride + (size_t)4 * fragments * t, *far = near + 8 * stride;
        uint16_t *piece = out + gaac_fragment_index(0, g, t, 0, 0);
        unsigned f = 0;
        for (; f + 4 <= fragments; f += 4, piece += 4 * GAAC_FRAGMENT_ELEMENTS) {
            const __m256i a = load32(near + 4 * f), b = load32(far + 4 * f);
            store_two(piece, 2, _mm256_unpacklo_epi32(a, b));
            store_two(piece + GAAC_FRAGMENT_ELEMENTS, 2, _mm256_unpackhi_epi32(a, b));
        }
        for (; f < fragments; f++, piece += GAAC_FRAGMENT_ELEMENTS)
            _mm_storeu_si128((__m128i *)piece, _mm_unpacklo_epi32(load8(near + 4 * f), load8(far + 4 * f)));
    }
}

void gaac_k_fragments_to_rows_avx2(unsigned fragments, const uint16_t *in, uint16_t *rows, size_t stride)
{
    for (unsigned lane = 0; lane < GAAC_LANES; lane++) {
        const unsigned g = lane >> 2, t = lane & 3;
        uint16_t *near = rows + g * stride + (size_t)4 * fragments * t, *far = near + 8 * stride;
        const uint16_t *piece = in + gaac_fragment_index(0, g, t, 0, 0);
        unsigned f = 0;
        for (; f + 4 <= fragments; f += 4, piece += 4 * GAAC_FRAGMENT_ELEMENTS) {
            const __m256 even = _mm256_castsi256_ps(load_two(piece, 2));
            const __m256 odd = _mm256_castsi256_ps(load_two(piece + GAAC_FRAGMENT_ELEMENTS, 2));
            _mm256_storeu_ps((float *)(void *)(near + 4 * f), _mm256_shuffle_ps(even, odd, 0x88));
            _mm256_storeu_ps((float *)(void *)(far + 4 * f), _mm256_shuffle_ps(even, odd, 0xDD));
        }
        for (; f < fragments; f++, piece += GAAC_FRAGMENT_ELEMENTS) {
            const __m128i sorted = _mm_shuffle_epi32(load16(piece), 0xD8);
            _mm_storel_epi64((__m128i *)(near + 4 * f), sorted);
            _mm_storel_epi64((__m128i *)(far + 4 * f), _mm_unpackhi_epi64(sorted, sorted));
        }
    }
}

void gaac_v_rows_to_fragments_avx2(unsigned fragments, const uint16_t *rows, size_t stride, uint16_t *out)
{
    for (unsigned lane = 0; lane < GAAC_LANES; lane++) {
        const unsigned g = lane >> 2, t = lane & 3;
        const uint16_t *near = rows + 2 * t * stride + (size_t)2 * fragments * g, *far = near + 8 * stride;
        uint16_t *piece = out + gaac_fragment_index(0, g, t, 0, 0);
        unsigned f = 0;
        for (; f + 4 <= fragments; f += 4, piece += 4 * GAAC_FRAGMENT_ELEMENTS) {
            const __m128i a0 = load16(near + 2 * f), a1 = load16(near + stride + 2 * f);
            const __m128i b0 = load16(far + 2 * f), b1 = load16(far + stride + 2 * f);
            const __m128i a_low = _mm_unpacklo_epi16(a0, a1), a_high = _mm_unpackhi_epi16(a0, a1);
            const __m128i b_low = _mm_unpacklo_epi16(b0, b1), b_high = _mm_unpackhi_epi16(b0, b1);
            __m128i *const at[4] = {(__m128i *)piece, (__m128i *)(piece + GAAC_FRAGMENT_ELEMENTS),
                                    (__m128i *)(piece + 2 * GAAC_FRAGMENT_ELEMENTS),
                                    (__m128i *)(piece + 3 * GAAC_FRAGMENT_ELEMENTS)};
            _mm_storeu_si128(at[0], _mm_unpacklo_epi64(a_low, b_low));
            _mm_storeu_si128(at[1], _mm_unpackhi_epi64(a_low, b_low));
            _mm_storeu_si128(at[2], _mm_unpacklo_epi64(a_high, b_high));
            _mm_storeu_si128(at[3], _mm_unpackhi_epi64(a_high, b_high));
        }
        for (; f < fragments; f++, piece += GAAC_FRAGMENT_ELEMENTS) {
            const __m128i a = _mm_unpacklo_epi16(load4(near + 2 * f), load4(near + stride + 2 * f));
            const __m128i b = _mm_unpacklo_epi16(load4(far + 2 * f), load4(far + stride + 2 * f));
            _mm_storeu_si128((__m128i *)piece, _mm_unpacklo_epi64(a, b));
        }
    }
}

/* Puts the values of even tokens (channel 0, channel 1 of each half of the registers) in the even dwords,
 * those of odd tokens in the odd ones: tokens 2t, 2t + 1, 2t + 8, 2t + 9. */
static inline __m128i part_tokens(__m128i registers)
{
    return _mm_shuffle_epi8(registers, _mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15));
}

void gaac_v_fragments_to_rows_avx2(unsigned fragments, const uint16_t *in, uint16_t *rows, size_t stride)
{
    for (unsigned lane = 0; lane < GAAC_LANES; lane++) {
        const unsigned g = lane >> 2, t = lane & 3;
        uint16_t *near = rows + 2 * t * stride + (size_t)2 * fragments * g, *far = near + 8 * stride;
        const uint16_t *piece = in + gaac_fragment_index(0, g, t, 0, 0);
        unsigned f = 0;
        for (; f + 4 <= fragments; f += 4, piece += 4 * GAAC_FRAGMENT_ELEMENTS) {
            const __m128i p0 = part_tokens(load16(piece)), p1 = part_tokens(load16(piece + GAAC_FRAGMENT_ELEMENTS));
            const __m128i p2 = part_tokens(load16(piece + 2 * GAAC_FRAGMENT_ELEMENTS));
            const __m128i p3 = part_tokens(load16(piece + 3 * GAAC_FRAGMENT_ELEMENTS));
            const __m128i a = _mm_unpacklo_epi32(p0, p1), b = _mm_unpackhi_epi32(p0, p1);
            const __m128i c = _mm_unpacklo_epi32(p2, p3), d = _mm_unpackhi_epi32(p2, p3);
            _mm_storeu_si128((__m128i *)(near + 2 * f), _mm_unpacklo_epi64(a, c));
            _mm_storeu_si128((__m128i *)(near + stride + 2 * f), _mm_unpackhi_epi64(a, c));
            _mm_storeu_si128((__m128i *)(far + 2 * f), _mm_unpacklo_epi64(b, d));
            _mm_storeu_si128((__m128i *)(far + stride + 2 * f), _mm_unpackhi_epi64(b, d));
        }
        for (; f < fragments; f++, piece += GAAC_FRAGMENT_ELEMENTS) {
            const __m128i p = part_tokens(load16(piece));
            _mm_storeu_si32(near + 2 * f, p);
            _mm_storeu_si32(near + stride + 2 * f, _mm_shuffle_epi32(p, 1));
            _mm_storeu_si32(far + 2 * f, _mm_shuffle_epi32(p, 2));
            _mm_storeu_si32(far + stride + 2 * f, _mm_shuffle_epi32(p, 3));
        }
    }
}
