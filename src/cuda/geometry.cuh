// Where things lie in device memory: the layout of src/format with what only the kernels need added, as a kernel
// parameter. docs/format.md has the bytes.
#ifndef GAAC_CUDA_GEOMETRY_CUH
#define GAAC_CUDA_GEOMETRY_CUH

extern "C" {
#include "format/layout.h"
}
#include "gaac/gaac_cuda.h"

#include <cstdint>

namespace gaac
{

// Bits of a table entry beside those of src/format/layout.h.
constexpr uint32_t entry_raw = 0x80000000u; // the block is raw; the other bits are the index of its raw block
constexpr unsigned entry_epoch_shift = 24;
constexpr uint32_t entry_epoch_mask = 0x7f;

// An entry of a coded unit names at least its tags. Without them, and without entry_raw, the block is empty.
__host__ __device__ inline bool entry_is_empty(uint32_t entry)
{
    return (entry & (entry_raw | 0xffu << GAAC_ENTRY_LENGTH_SHIFT)) == 0;
}
__host__ __device__ inline bool entry_is_raw(uint32_t entry)
{
    return (entry & entry_raw) != 0;
}

// Windows of one epoch, for each head its units in order: base words of K [t][half][j], then of V [g][half][j], as
// gaac_base_words of src/codec/unit.h without what repeats: K's depend on t alone, V's on g alone, and neither on s.
constexpr uint32_t window_k_bytes = 64;  // of a half
constexpr uint32_t window_v_bytes = 128; // of a half

struct geometry {
    gaac_layout layout;
    uint32_t window_k[GAAC_MAX_UNITS], window_v[GAAC_MAX_UNITS]; // inside the head's windows
    uint32_t head_window_bytes;
    uint32_t window_bytes; // one epoch: all heads, a multiple of 128
    uint32_t entries;      // of a block
    uint32_t slot_bytes;
};

// shape must have passed gaac_shape_check, pool_bytes the check of gaac_cuda_get_sizes.
void make_geometry(geometry *out, const gaac_shape *shape, uint32_t pool_bytes);

// A cache as kernels take it.
struct cache_view {
    uint8_t *slots;
    uint64_t slot_stride;
    uint32_t *entries;
    uint64_t entry_stride;
    uint8_t *raw;
    uint32_t *raw_used;
    uint32_t raw_blocks;
    uint32_t blocks;
    uint32_t pool_bytes;
    uint32_t epochs;
    const uint8_t *windows;
    gaac_cuda_counters *counters;
};

cache_view view_of(const gaac_cuda_cache *cache);

// Lane = 4g + t. Its position in every stream (gaac_position).
__host__ __device__ inline unsigned lane_position(unsigned lane)
{
    const unsigned g = lane >> 2, t = lane & 3;
    return 8 * t + (g ^ 2 * t);
}

} // namespace gaac

#endif
