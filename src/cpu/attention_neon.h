/* What the attention kernels of both Arm sets share. Only *_neon.c and *_neonbf16.c include it. */
#ifndef GAAC_CPU_ATTENTION_NEON_H
#define GAAC_CPU_ATTENTION_NEON_H

#include "attention/kernels.h"

#include <arm_neon.h>

#define INLINE static inline __attribute__((always_inline))

/* Before loops over arrays of vectors: what isn't unrolled early keeps its sums in memory. */
#define UNROLL _Pragma("GCC unroll 16")

/* 16 bytes each of two adjacent positions: those with g = 2n and 2n + 1 of fragment f and t. place is 4 f + t; t comes
 * apart since addresses are simple where it is a constant. */
INLINE void load_pair(const uint16_t *tile, unsigned place, unsigned t, unsigned n, uint32x4_t pair[2])
{
    const uint16_t *at = tile + (size_t)place * 64 + (size_t)((n ^ t) * 16);
    pair[0] = vreinterpretq_u32_u16(vld1q_u16(at));
    pair[1] = vreinterpretq_u32_u16(vld1q_u16(at + 8));
}

/* Two of the lines that the next step will read, while this one works on this place of tile i. */
INLINE void fetch_ahead(const gaac_step_tiles *tiles, unsigned i, unsigned place)
{
    const uint8_t *line = tiles->ahead[i] + (size_t)place * 128;
    if (2 * place >= tiles->ahead_lines)
        return;
    __builtin_prefetch(line);
    __builtin_prefetch(line + 64);
}

/* Puts the scores of a tile and row in order and adds them to the row, or stores them. sums[n] has tokens 2n, 2n + 8,
 * 2n + 1, 2n + 9. */
INLINE void put_scores(const float32x4_t sums[4], float *scores, bool accumulate)
{
    const float32x4_t sorted[4] = {vuzp1q_f32(sums[0], sums[1]), vuzp1q_f32(sums[2], sums[3]),
                                   vuzp2q_f32(sums[0], sums[1]), vuzp2q_f32(sums[2], sums[3])};
    UNROLL
    for (unsigned i = 0; i < 4; i++, scores += 4)
        vst1q_f32(scores, accumulate ? vaddq_f32(vld1q_f32(scores), sorted[i]) : sorted[i]);
}

#endif
