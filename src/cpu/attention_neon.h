/* What the attention kernels of both Arm sets share. Only *_neon.c and *_neonbf16.c include it. */
#ifndef GAAC_CPU_ATTENTION_NEON_H
#define GAAC_CPU_ATTENTION_NEON_H

#include "attention/kernels.h"

#include <arm_neon.h>

#define INLINE static inline __attribute__((always_inline))

/* Before loops over arrays of vectors: what isn't unrolled early keeps its sums in memory. */
#define UNROLL _Pragma("GCC unroll 16")

/* 16 bytes of a fragment: one position of t, the one with g = number (of 8). Two consecutive positions of an even
 * number are adjacent, so numbers 2n and 2n + 1 are a vector pair whatever t is. */
INLINE uint32x4_t load_logical(const uint16_t *tile, unsigned f, unsigned t, unsigned number)
{
    return vreinterpretq_u32_u16(vld1q_u16(tile + f * GAAC_FRAGMENT_ELEMENTS + t * 64 + (size_t)(number ^ 2 * t) * 8));
}

/* The lines that the next step will read while this one works on fragment f, t of tile i: two of eight. */
INLINE void fetch_ahead(const gaac_step_tiles *tiles, unsigned i, unsigned f, unsigned t)
{
    const unsigned line = 8 * f + 2 * t;
    if (line < tiles->ahead_lines)
        __builtin_prefetch(tiles->ahead[i] + (size_t)line * 64);
    if (line + 1 < tiles->ahead_lines)
        __builtin_prefetch(tiles->ahead[i] + (size_t)line * 64 + 64);
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
