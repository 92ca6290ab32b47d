/* Rows to fragment order and back with NEON. The definition is in codec/unit_rows.c.
 *
 * A position's 16 bytes in a fragment are its registers a0..a3, each two BF16 values:
 *   K: (token g, channels 0 1), (g + 8, 0 1), (g, 2 3), (g + 8, 2 3) of the lane's four channels;
 *   V: (channel 0, tokens 2t 2t+1), (1, same), (0, tokens 2t+8 2t+9), (1, same) of the lane's two channels.
 * The lane's channels of fragments f, f + 1, ... follow each other in a row, so that a 16-byte piece of a row
 * serves two fragments of K or four of V. */
#include "cpu/codec_neon.h"

#include <string.h>

/* 8 or 4 bytes in the lowest words, the rest 0. Rows are aligned to their elements only. */
static inline uint32x4_t load8(const uint16_t *p)
{
    uint64_t value;
    memcpy(&value, p, sizeof value);
    return vreinterpretq_u32_u64(vsetq_lane_u64(value, vdupq_n_u64(0), 0));
}
static inline uint16x8_t load4(const uint16_t *p)
{
    uint32_t value;
    memcpy(&value, p, sizeof value);
    return vreinterpretq_u16_u32(vsetq_lane_u32(value, vdupq_n_u32(0), 0));
}

static inline uint32x4_t load16(const uint16_t *p)
{
    return vreinterpretq_u32_u16(vld1q_u16(p));
}
static inline void store16(uint16_t *p, uint32x4_t v)
{
    vst1q_u16(p, vreinterpretq_u16_u32(v));
}

static inline void store4(uint16_t *p, uint32_t value)
{
    memcpy(p, &value, sizeof value);
}

void gaac_k_rows_to_fragments_neon(unsigned fragments, const uint16_t *rows, size_t stride, uint16_t *out)
{
    for (unsigned lane = 0; lane < GAAC_LANES; lane++) {
        const unsigned g = lane >> 2, t = lane & 3;
        const uint16_t *near = rows + g * stride + (size_t)4 * fragments * t, *far = near + 8 * stride;
        uint16_t *piece = out + gaac_fragment_index(0, g, t, 0, 0);
        unsigned f = 0;
        for (; f + 2 <= fragments; f += 2, piece += 2 * GAAC_FRAGMENT_ELEMENTS) {
            const uint32x4_t a = load16(near + 4 * f), b = load16(far + 4 * f);
            store16(piece, vzip1q_u32(a, b));
            store16(piece + GAAC_FRAGMENT_ELEMENTS, vzip2q_u32(a, b));
        }
        if (f < fragments)
            store16(piece, vzip1q_u32(load8(near + 4 * f), load8(far + 4 * f)));
    }
}

void gaac_k_fragments_to_rows_neon(unsigned fragments, const uint16_t *in, uint16_t *rows, size_t stride)
{
    for (unsigned lane = 0; lane < GAAC_LANES; lane++) {
        const unsigned g = lane >> 2, t = lane & 3;
        uint16_t *near = rows + g * stride + (size_t)4 * fragments * t, *far = near + 8 * stride;
        const uint16_t *piece = in + gaac_fragment_index(0, g, t, 0, 0);
        unsigned f = 0;
        for (; f + 2 <= fragments; f += 2, piece += 2 * GAAC_FRAGMENT_ELEMENTS) {
            const uint32x4_t first = load16(piece), second = load16(piece + GAAC_FRAGMENT_ELEMENTS);
            store16(near + 4 * f, vuzp1q_u32(first, second));
            store16(far + 4 * f, vuzp2q_u32(first, second));
        }
        if (f < fragments) {
            const uint32x4_t last = load16(piece);
            vst1_u16(near + 4 * f, vreinterpret_u16_u32(vget_low_u32(vuzp1q_u32(last, last))));
            vst1_u16(far + 4 * f, vreinterpret_u16_u32(vget_low_u32(vuzp2q_u32(last, last))));
        }
    }
}

/* Registers of the pieces of two or four fragments: two channels each, of two tokens. */
static inline uint32x4_t pair_low(uint16x8_t even, uint16x8_t odd)
{
    return vreinterpretq_u32_u16(vzip1q_u16(even, odd));
}
static inline uint32x4_t pair_high(uint16x8_t even, uint16x8_t odd)
{
    return vreinterpretq_u32_u16(vzip2q_u16(even, odd));
}

void gaac_v_rows_to_fragments_neon(unsigned fragments, const uint16_t *rows, size_t stride, uint16_t *out)
{
    for (unsigned lane = 0; lane < GAAC_LANES; lane++) {
        const unsigned g = lane >> 2, t = lane & 3;
        const uint16_t *near = rows + 2 * t * stride + (size_t)2 * fragments * g, *far = near + 8 * stride;
        uint16_t *piece = out + gaac_fragment_index(0, g, t, 0, 0);
        unsigned f = 0;
        for (; f + 4 <= fragments; f += 4, piece += 4 * GAAC_FRAGMENT_ELEMENTS) {
            const uint16x8_t a0 = vld1q_u16(near + 2 * f), a1 = vld1q_u16(near + stride + 2 * f);
            const uint16x8_t b0 = vld1q_u16(far + 2 * f), b1 = vld1q_u16(far + stride + 2 * f);
            store16(piece, lower_halves(pair_low(a0, a1), pair_low(b0, b1)));
            store16(piece + GAAC_FRAGMENT_ELEMENTS, upper_halves(pair_low(a0, a1), pair_low(b0, b1)));
            store16(piece + 2 * GAAC_FRAGMENT_ELEMENTS, lower_halves(pair_high(a0, a1), pair_high(b0, b1)));
            store16(piece + 3 * GAAC_FRAGMENT_ELEMENTS, upper_halves(pair_high(a0, a1), pair_high(b0, b1)));
        }
        for (; f < fragments; f++, piece += GAAC_FRAGMENT_ELEMENTS)
            store16(piece, lower_halves(pair_low(load4(near + 2 * f), load4(near + stride + 2 * f)),
                                        pair_low(load4(far + 2 * f), load4(far + stride + 2 * f))));
    }
}

/* Tokens 2t, 2t + 1, 2t + 8, 2t + 9 of a piece, two channels each. */
static inline uint32x4_t part_tokens(const uint16_t *piece)
{
    static const uint8_t order[16] = {0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15};
    return vreinterpretq_u32_u8(vqtbl1q_u8(vreinterpretq_u8_u16(vld1q_u16(piece)), vld1q_u8(order)));
}

void gaac_v_fragments_to_rows_neon(unsigned fragments, const uint16_t *in, uint16_t *rows, size_t stride)
{
    for (unsigned lane = 0; lane < GAAC_LANES; lane++) {
        const unsigned g = lane >> 2, t = lane & 3;
        uint16_t *near = rows + 2 * t * stride + (size_t)2 * fragments * g, *far = near + 8 * stride;
        const uint16_t *piece = in + gaac_fragment_index(0, g, t, 0, 0);
        unsigned f = 0;
        for (; f + 4 <= fragments; f += 4, piece += 4 * GAAC_FRAGMENT_ELEMENTS) {
            uint32x4_t v[4];
            for (unsigned i = 0; i < 4; i++)
                v[i] = part_tokens(piece + i * GAAC_FRAGMENT_ELEMENTS);
            transpose(v);
            store16(near + 2 * f, v[0]);
            store16(near + stride + 2 * f, v[1]);
            store16(far + 2 * f, v[2]);
            store16(far + stride + 2 * f, v[3]);
        }
        for (; f < fragments; f++, piece += GAAC_FRAGMENT_ELEMENTS) {
            const uint32x4_t v = part_tokens(piece);
            store4(near + 2 * f, vgetq_lane_u32(v, 0));
            store4(near + stride + 2 * f, vgetq_lane_u32(v, 1));
            store4(far + 2 * f, vgetq_lane_u32(v, 2));
            store4(far + stride + 2 * f, vgetq_lane_u32(v, 3));
        }
    }
}
