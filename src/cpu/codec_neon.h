/* What the codec's NEON files share: small vector helpers, and the byte shuffles of tags. Only *_neon.c include
 * it. */
#ifndef GAAC_CPU_CODEC_NEON_H
#define GAAC_CPU_CODEC_NEON_H

#include "codec/unit.h"

#include <arm_neon.h>

gaac_encode_unit_fn gaac_encode_unit_neon;
gaac_rows_to_fragments_fn gaac_k_rows_to_fragments_neon, gaac_v_rows_to_fragments_neon;
gaac_fragments_to_rows_fn gaac_k_fragments_to_rows_neon, gaac_v_fragments_to_rows_neon;

/* Kernels written once for K and V, 64 and 128 channels, and compiled for each. */
#define ALWAYS_INLINE inline __attribute__((always_inline))
/* Before loops over halves: arrays of vectors stay in registers only where such loops are gone. */
#define UNROLL _Pragma("GCC unroll 2")

enum { VECTOR_POSITIONS = 4 }; /* that one vector of 32-bit words holds, one word of each */

static inline uint32x4_t load(const void *p)
{
    return vld1q_u32(p);
}
/* Base words of the words at this offset of a part. */
static inline uint32x4_t load_bases(gaac_base_words bases, unsigned offset)
{
    return vld1q_u32((const void *)((const uint8_t *)bases + offset));
}
static inline void store(void *p, uint32x4_t value)
{
    vst1q_u32(p, value);
}

/* The lower and the upper 64 bits of both. */
static inline uint32x4_t lower_halves(uint32x4_t a, uint32x4_t b)
{
    return vreinterpretq_u32_u64(vzip1q_u64(vreinterpretq_u64_u32(a), vreinterpretq_u64_u32(b)));
}
static inline uint32x4_t upper_halves(uint32x4_t a, uint32x4_t b)
{
    return vreinterpretq_u32_u64(vzip2q_u64(vreinterpretq_u64_u32(a), vreinterpretq_u64_u32(b)));
}

static ALWAYS_INLINE void transpose(uint32x4_t v[4])
{
    const uint32x4_t a = vzip1q_u32(v[0], v[1]), b = vzip2q_u32(v[0], v[1]);
    const uint32x4_t c = vzip1q_u32(v[2], v[3]), d = vzip2q_u32(v[2], v[3]);
    v[0] = lower_halves(a, c);
    v[1] = upper_halves(a, c);
    v[2] = lower_halves(b, d);
    v[3] = upper_halves(b, d);
}

/* Tables over the 8 tag bits of two N words, one byte of which each bit tells to be stored. Rows for tags 0..255
 * are made of ROW(tag), by the preprocessor. */
#define TAG_HAS(tag, i) (((tag) >> (i)&1) != 0)
#define TAG_RANK(tag, i) ((uint8_t)__builtin_popcount((tag) & ((1u << (i)) - 1))) /* bits below bit i */
#define TAG_ROWS_4(ROW, tag) ROW(tag), ROW((tag) + 1), ROW((tag) + 2), ROW((tag) + 3)
#define TAG_ROWS_16(ROW, tag)                                                                                          \
    TAG_ROWS_4(ROW, tag), TAG_ROWS_4(ROW, (tag) + 4), TAG_ROWS_4(ROW, (tag) + 8), TAG_ROWS_4(ROW, (tag) + 12)
#define TAG_ROWS_64(ROW, tag)                                                                                          \
    TAG_ROWS_16(ROW, tag), TAG_ROWS_16(ROW, (tag) + 16), TAG_ROWS_16(ROW, (tag) + 32), TAG_ROWS_16(ROW, (tag) + 48)
#define TAG_ROWS(ROW) TAG_ROWS_64(ROW, 0u), TAG_ROWS_64(ROW, 64u), TAG_ROWS_64(ROW, 128u), TAG_ROWS_64(ROW, 192u)

#endif
