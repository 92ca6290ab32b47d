// The words that kernels decode and encode with, from a table of bases (docs/format.md, sections 6 and 7).
#ifndef GAAC_CUDA_WINDOW_WORDS_CUH
#define GAAC_CUDA_WINDOW_WORDS_CUH

#include "cuda/geometry.cuh"

namespace gaac
{

// A base that the format allows: at most 240, even where the field wraps round bit 31.
__host__ __device__ inline uint32_t valid_base(uint32_t base, bool wraps)
{
    base = base < GAAC_WINDOW_MAX_BASE ? base : uint32_t{GAAC_WINDOW_MAX_BASE};
    return wraps ? base & ~1u : base;
}

// Word number i of a head's windows, in the order of geometry.cuh. table: K [head][channel], then V
// [token parity][head][channel].
__host__ __device__ inline uint32_t window_word(const geometry &sizes, const uint8_t *table, uint32_t head, uint32_t i)
{
    const gaac_layout &layout = sizes.layout;
    const gaac_shape &shape = layout.shape;
    // The unit's part: the last one that begins at i or before. Remainders have no words.
    uint32_t u = 0;
    gaac_part part = GAAC_K;
    for (uint32_t next = 0; next < layout.units; next++) {
        if (layout.unit[next].hv > 0 && layout.unit[next].has_k && sizes.window_k[next] <= 4 * i) {
            u = next;
            part = GAAC_K;
        }
        if (layout.unit[next].hv > 0 && layout.unit[next].has_v && sizes.window_v[next] <= 4 * i) {
            u = next;
            part = GAAC_V;
        }
    }
    const uint32_t word = i - (part == GAAC_K ? sizes.window_k[u] : sizes.window_v[u]) / 4; // [t or g][half][j]
    const uint32_t fragments = layout.unit[u].fragments, f = word % fragments, row = word / fragments;
    uint32_t out = 0;
    for (unsigned field = 0; field < 4; field++) { // A.lo, B.lo, A.hi, B.hi: lowest bit 7 + 8 * field
        const unsigned b = field & 1, hi = field >> 1;
        uint32_t base;
        if (part == GAAC_K) {
            const uint32_t channel = 4 * fragments * row + 4 * f + 2 * b + hi;
            base = table[head * shape.head_dim_k + layout.unit[u].channel + channel];
        } else {
            const uint32_t channel = 2 * fragments * row + 2 * f + b;
            base = table[shape.kv_heads * shape.head_dim_k + (hi * shape.kv_heads + head) * shape.head_dim_v +
                         layout.unit[u].channel + channel];
        }
        base = valid_base(base, field == 3);
        out |= field == 3 ? base >> 1 : base << (7 + 8 * field);
    }
    return out;
}

} // namespace gaac

#endif
