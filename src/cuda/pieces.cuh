// The parts of units that a block's values come from, and where each lies in device memory: a piece is what one warp
// reads. Shared by the kernels that go through whole blocks.
#ifndef GAAC_CUDA_PIECES_CUH
#define GAAC_CUDA_PIECES_CUH

#include "cuda/geometry.cuh"

namespace gaac
{

// K or V of a unit.
struct piece {
    uint32_t fixed;   // inside the head's fixed area
    uint32_t raw;     // inside the head's part of a raw block
    uint32_t windows; // inside the head's windows; coded units only
    uint16_t channel; // first one, inside the head
    uint16_t entry;   // inside the head's entries. A remainder has none: there the head's first one says what it is
    uint8_t part;     // gaac_part
    uint8_t hv;       // 0: a remainder
    uint8_t fragments;
};

struct piece_list {
    uint32_t count; // of a head
    uint32_t heads;
    uint32_t head_entries;
    uint32_t head_fixed_bytes, fixed_bytes;
    uint32_t head_raw_bytes, raw_bytes;
    uint32_t head_window_bytes, epoch_bytes;
    piece at[GAAC_MAX_UNITS]; // K and V of a unit that has both are no more than K's and V's units apart
};

// The pieces of the wanted parts, in the order in which a head has them.
inline void make_pieces(piece_list *out, const geometry *sizes, bool k, bool v)
{
    const gaac_layout *layout = &sizes->layout;
    out->count = 0;
    out->heads = layout->shape.kv_heads;
    out->head_entries = layout->coded_units;
    out->head_fixed_bytes = layout->head_fixed_bytes;
    out->fixed_bytes = layout->fixed_bytes;
    out->head_raw_bytes = layout->head_raw_bytes;
    out->raw_bytes = layout->raw_bytes;
    out->head_window_bytes = sizes->head_window_bytes;
    out->epoch_bytes = sizes->window_bytes;
    for (uint32_t u = 0; u < layout->units; u++) {
        const gaac_unit *unit = &layout->unit[u];
        const uint16_t entry = static_cast<uint16_t>(unit->hv > 0 ? unit->entry : 0);
        if (k && unit->has_k)
            out->at[out->count++] = {
                unit->fixed_offset, unit->raw_k_offset, sizes->window_k[u], unit->channel, entry, GAAC_K,
                unit->hv,           unit->fragments};
        if (v && unit->has_v)
            out->at[out->count++] = {
                unit->fixed_v_offset, unit->raw_v_offset, sizes->window_v[u], unit->channel, entry, GAAC_V, unit->hv,
                unit->fragments};
    }
}

// Says that a pointer is to device memory, which the compiler does not see by itself: loads from there need not wait
// for stores to shared memory.
__device__ inline void assume_global(const void *pointer)
{
#ifdef __CUDA_ARCH__
    __builtin_assume(__isGlobal(pointer));
#else
    (void)pointer;
#endif
}

// Where a piece's values are.
struct piece_bytes {
    const uint8_t *values;   // coded: the fixed part; otherwise its fragments. NULL: the block is empty
    const uint8_t *variable; // coded: the unit's variable part, else NULL
    uint32_t variable_bytes; // multiple of 16
    bool exceptions;         // the part has some
    const uint32_t *windows; // coded: the part's, in the order of geometry.cuh
};

__host__ __device__ inline piece_bytes find_piece(const cache_view &cache, const piece_list &pieces, const piece &what,
                                                  uint32_t block, uint32_t head)
{
    piece_bytes found = {nullptr, nullptr, 0, false, nullptr};
    const uint32_t entry = cache.entries[block * cache.entry_stride + head * pieces.head_entries + what.entry];
    if (entry_is_raw(entry)) {
        const uint32_t index = entry & ~entry_raw;
        if (index < cache.raw_blocks)
            found.values =
                cache.raw + static_cast<uint64_t>(index) * pieces.raw_bytes + head * pieces.head_raw_bytes + what.raw;
        return found;
    }
    const uint32_t bytes = gaac_entry_length(entry);
    if (bytes == 0)
        return found;
    const uint8_t *slot = cache.slots + block * cache.slot_stride;
    found.values = slot + head * pieces.head_fixed_bytes + what.fixed;
    if (what.hv == 0)
        return found;
    const uint32_t epoch = entry >> entry_epoch_shift & entry_epoch_mask;
    found.variable = slot + pieces.fixed_bytes + gaac_entry_offset(entry);
    found.variable_bytes = bytes;
    found.exceptions = (gaac_entry_exceptions(entry) >> 2 * what.part & 3) != 0;
    found.windows =
        reinterpret_cast<const uint32_t *>(cache.windows + static_cast<uint64_t>(epoch) * pieces.epoch_bytes +
                                           head * pieces.head_window_bytes + what.windows);
    return found;
}

} // namespace gaac

#endif
