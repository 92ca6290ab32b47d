// Decoding one part (K or V) of a coded unit: docs/format.md, section by section, as the device sees it. Nothing here
// is tuned. It serves what is rare or must be simple; src/codec/unit_decode.c is the same in C.
#ifndef GAAC_CUDA_UNIT_PLAIN_CUH
#define GAAC_CUDA_UNIT_PLAIN_CUH

#include "cuda/geometry.cuh"

namespace gaac
{

__host__ __device__ inline unsigned plain_count(uint32_t word)
{
#ifdef __CUDA_ARCH__
    return static_cast<unsigned>(__popc(word));
#else
    return static_cast<unsigned>(__builtin_popcount(word));
#endif
}

__host__ __device__ inline uint32_t plain_rotate(uint32_t word, unsigned bits)
{
    return word >> (bits & 31) | word << ((32 - bits) & 31);
}

// Takes the bits of a where mask is set, else those of b.
__host__ __device__ inline uint32_t plain_select(uint32_t mask, uint32_t a, uint32_t b)
{
    return (a & mask) | (b & ~mask);
}

// Tag of the lane at a position: bit 4 * (hv * part + half) + byte says that this N byte is stored.
__host__ __device__ inline uint32_t plain_tag(unsigned hv, const uint8_t *variable, uint32_t bytes, unsigned position)
{
    const uint32_t at = hv * position;
    if (at + hv > bytes)
        return 0;
    return hv == 2 ? variable[at] | static_cast<uint32_t>(variable[at + 1]) << 8 : variable[at];
}

// N word of a half, and the word I that is subtracted from base words because of its 3-bit groups.
struct plain_n {
    uint32_t n, correction;
};

// `first`: where the lane's stored N bytes begin in the variable part.
__host__ __device__ inline plain_n plain_n_word(unsigned hv, gaac_part part, unsigned half, const uint8_t *variable,
                                                uint32_t bytes, uint32_t tag, uint32_t first)
{
    const unsigned bit = 4 * (hv * static_cast<unsigned>(part) + half);
    uint32_t next = first + plain_count(tag & ((1u << bit) - 1)), n = 0, missing = 0;
    for (unsigned byte = 0; byte < 4; byte++) {
        uint32_t value = 0xff;
        if (tag >> (bit + byte) & 1) {
            value = next < bytes ? variable[next] : 0;
            next++;
        } else {
            missing |= 0xffu << 8 * byte;
        }
        n |= value << 8 * byte;
    }
    return {n, (missing >> 1 & 0x00808080) | (missing & 1)};
}

__host__ __device__ inline uint32_t plain_load(const uint8_t *bytes, uint32_t offset)
{
    return *reinterpret_cast<const uint32_t *>(bytes + offset);
}

// The four registers that a position has in fragment 4 * half + j. windows: the part's, as geometry.cuh orders them.
__host__ __device__ inline uint4 plain_fragment(unsigned hv, gaac_part part, unsigned half, unsigned j,
                                                unsigned position, const uint8_t *fixed, plain_n n,
                                                const uint32_t *windows)
{
    const uint32_t c0 = plain_load(fixed, gaac_code_offset(hv, half, 0, position));
    const uint32_t c1 = plain_load(fixed, gaac_code_offset(hv, half, 1, position));
    const uint32_t c2 = plain_load(fixed, gaac_code_offset(hv, half, 2, position));
    uint32_t nibbles;
    if (j < 3)
        nibbles = plain_select(0x44444444, n.n << j, j == 0 ? c0 : j == 1 ? c1 : c2);
    else
        nibbles = (c0 << 1 & 0x88888888) | (c1 >> 2 & 0x11111111) | (c2 >> 1 & 0x22222222) | (n.n >> 1 & 0x44444444);
    const unsigned t = position >> 3, g = (position & 7) ^ 2 * t;
    const uint32_t base = windows[((part == GAAC_K ? t : g) * hv + half) * 4 + j] - n.correction;
    const uint32_t mantissas = 0x807f807f;
    uint32_t a[2], b[2];
    for (unsigned s = 0; s < 2; s++) {
        const uint32_t word = plain_load(fixed, gaac_word_offset(half, 2 * j + s, position));
        const uint32_t exponents = (plain_rotate(nibbles, 4 * s) & 0x87878787) + base;
        a[s] = plain_select(mantissas, word, exponents);
        b[s] = plain_rotate(plain_select(mantissas, exponents, word), 8);
    }
    return part == GAAC_K ? make_uint4(a[0], a[1], b[0], b[1]) : make_uint4(a[0], b[0], a[1], b[1]);
}

// Applies the part's exceptions that fall on one position. fragments: the part's, 16-byte aligned.
__host__ __device__ inline void plain_exceptions(unsigned hv, gaac_part part, unsigned position,
                                                 const uint8_t *variable, uint32_t bytes, uint32_t *fragments)
{
    for (uint32_t end = bytes; end >= GAAC_TAG_BYTES * hv + 4; end -= 4) {
        const uint32_t record = plain_load(variable, end - 4);
        const unsigned half = record >> 13 & 1;
        if (half < hv && (record >> 14 & 1) == static_cast<unsigned>(part) && (record >> 15 & 31) == position) {
            const unsigned fragment = 4 * half + (record >> 11 & 3), shift = 16 * (record >> 8 & 1);
            uint32_t *word = fragments + fragment * (GAAC_FRAGMENT_BYTES / 4) + position * 4 + (record >> 9 & 3);
            *word = (*word & ~(0x7f80u << shift)) | (record & 0xff) << (7 + shift);
        }
        if ((record & 0x80000000u) == 0)
            return;
    }
}

#ifdef __CUDACC__
// Decodes one part of a unit into fragment order, by a whole warp; each lane writes the values of its own position, so
// a __syncwarp must stand before other lanes' are read. Pointers to global or shared memory.
//   fixed      the part's hv * 1408 bytes, on a 4-byte boundary
//   variable   the unit's, `bytes` bytes, on a 4-byte boundary; nothing outside is read
//   exceptions whether the entry says that the part has any
//   windows    the part's, as geometry.cuh orders them
//   fragments  hv * 2048 bytes on a 16-byte boundary; may not overlap what is read
[[maybe_unused]] static __device__ __noinline__ void decode_part_plain(unsigned hv, gaac_part part,
                                                                       const uint8_t *fixed, const uint8_t *variable,
                                                                       uint32_t bytes, bool exceptions,
                                                                       const uint32_t *windows, uint8_t *fragments)
{
    const unsigned lane = threadIdx.x & 31, position = lane_position(lane);
    const uint32_t tag = plain_tag(hv, variable, bytes, position);
    const uint32_t stored = plain_count(tag);
    uint32_t sum = stored; // of the lanes up to this one
    for (unsigned step = 1; step < 32; step *= 2) {
        const uint32_t below = __shfl_up_sync(0xffffffffu, sum, step);
        sum += lane >= step ? below : 0;
    }
    const uint32_t first = GAAC_TAG_BYTES * hv + sum - stored;
    for (unsigned half = 0; half < hv; half++) {
        const plain_n n = plain_n_word(hv, part, half, variable, bytes, tag, first);
        for (unsigned j = 0; j < 4; j++)
            *reinterpret_cast<uint4 *>(fragments + (4 * half + j) * GAAC_FRAGMENT_BYTES + position * 16) =
                plain_fragment(hv, part, half, j, position, fixed, n, windows);
    }
    if (exceptions)
        plain_exceptions(hv, part, position, variable, bytes, reinterpret_cast<uint32_t *>(fragments));
}
#endif

} // namespace gaac

#endif
