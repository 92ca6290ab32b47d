// The fast decoder of a coded unit (docs/format.md, sections 5 to 8), a warp a unit, straight into the registers that
// mma.m16n8k16 takes: what attention and gaac_cuda_decode share. unit_plain.cuh has the plain definition.
//
// Operations are spread over two pipes: selections and permutations on the ALU, additions and shifts to the left as
// multiplications by factors that the compiler does not know (`factors`), which run on the multiplier's pipe.
#ifndef GAAC_CUDA_UNIT_DECODE_CUH
#define GAAC_CUDA_UNIT_DECODE_CUH

#include "cuda/geometry.cuh"
#include "cuda/ptx.cuh"

namespace gaac
{

// Numbers that the compiler must not know, as kernel parameters: see multiply_add.
struct factors {
    uint32_t one, two, four, eight, minus_one, high_16, high_31; // high_n: 2^n
};
__host__ inline factors make_factors()
{
    return {1, 2, 4, 8, 0xffffffffu, 1u << 16, 1u << 31};
}

constexpr uint32_t sign_mantissa_mask = 0x807f807fu;
constexpr uint32_t code_mask = 0x87878787u;
constexpr uint32_t top_bits = 0x44444444u;

// Which of the half's 16 fragment registers word k's register A (b = 0) or B (b = 1) is.
template <gaac_part part> __device__ __forceinline__ constexpr int fragment_register(int k, int b)
{
    const int j = k >> 1, s = k & 1;
    return 4 * j + (part == GAAC_K ? s + 2 * b : 2 * s + b);
}

// What the eight tag bits of two halves (low nibble: the first, high nibble: the second) mean.
//   x: PRMT selector that puts the first half's stored bytes, as they follow each other, where the N word has them, and
//      0xff elsewhere
//   y: low 16 bits the same for the second half, out of eight bytes, of which those not stored come out as byte 0;
//      bits 16-19: how many bytes are stored in all
//   z: 0xff where the second half stores nothing
//   w: correction words: the first half's at the bits 7, 15, 23 and 0, the second half's one bit further up
constexpr unsigned tag_table_entries = 256;
__device__ __forceinline__ uint4 tag_table_entry(unsigned tags)
{
    uint32_t first = 0, second = 0, fill = 0, correction = 0, stored = 0;
#pragma unroll
    for (unsigned byte = 0; byte < 4; byte++) {
        const uint32_t bit = byte == 0 ? 1u : 1u << (8 * byte - 1); // byte 0 is B.hi, whose correction is bit 0
        if (tags >> byte & 1)
            first |= stored++ << 4 * byte;
        else {
            first |= 4u << 4 * byte; // a byte of the second operand, all ones
            correction |= bit;
        }
    }
#pragma unroll
    for (unsigned byte = 0; byte < 4; byte++) {
        const uint32_t bit = byte == 0 ? 2u : 1u << 8 * byte;
        if (tags >> (4 + byte) & 1)
            second |= stored++ << 4 * byte;
        else {
            fill |= 0xffu << 8 * byte;
            correction |= bit;
        }
    }
    return make_uint4(first, second | stored << 16, fill, correction);
}
// The correction word of half 0 or 1 from a table entry's w.
__device__ __forceinline__ uint32_t correction_of(uint32_t w, int half, const factors &f)
{
    return (half == 0 ? w : __umulhi(w, f.high_31)) & 0x00808081u; // half 1: >> 1
}

// A lane's N words of the unit: [0], [1] of the first table entry's two halves, [2], [3] of the second's.
struct stored_bytes {
    uint32_t n[4];
};

// Reads up to eight bytes from byte `offset` of shared memory on, which holds whole words there and two more.
__device__ __forceinline__ void read_window(const uint8_t *bytes, uint32_t offset, const factors &f, uint32_t &low,
                                            uint32_t &high)
{
    const uint32_t *word = reinterpret_cast<const uint32_t *>(bytes + (offset & 0x1fc));
    const uint32_t a = word[0], b = word[1], c = word[2], shift = multiply_add(offset, f.eight, 0);
    low = __funnelshift_r(a, b, shift); // the shift counts modulo 32
    high = __funnelshift_r(b, c, shift);
}

// The N words of a lane. variable: the unit's variable part in shared memory, 520 readable bytes behind the tags. k, v:
// table entries of the lane's tags (hv == 1: k's two halves are K's and V's, v is unused).
template <int hv>
__device__ __forceinline__ stored_bytes read_stored(const uint8_t *variable, const uint4 &k, const uint4 &v,
                                                    const factors &f)
{
    stored_bytes out;
    const uint32_t k_count = __umulhi(k.y, f.high_16); // >> 16
    const uint32_t count = hv == 2 ? multiply_high_add(v.y, f.high_16, k_count) : k_count;
    uint32_t offset = count;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2)
        offset = scan_step(offset, distance);
    offset -= count;
    const uint8_t *stored = variable + GAAC_TAG_BYTES * hv;
    uint32_t low, high;
    read_window(stored, offset, f, low, high);
    out.n[0] = permute_bytes(low, ~0u, k.x);
    out.n[1] = permute_bytes(low, high, k.y) | k.z;
    if (hv == 2) {
        read_window(stored, offset + k_count, f, low, high);
        out.n[2] = permute_bytes(low, ~0u, v.x);
        out.n[3] = permute_bytes(low, high, v.y) | v.z;
    }
    return out;
}

// Decodes a half into its 16 fragment registers, exceptions not applied. words, codes: the lane's. base: the lane's
// four base words of the half.
template <gaac_part part>
__device__ __forceinline__ void decode_half(uint32_t (&out)[16], const uint32_t (&words)[8], uint32_t c0, uint32_t c1,
                                            uint32_t c2, uint32_t n, uint32_t correction, const uint32_t *base,
                                            const factors &f)
{
    uint32_t t[4];
    t[0] = select_bits(n, c0, top_bits);
    t[1] = select_bits(multiply_add(n, f.two, 0), c1, top_bits);
    t[2] = select_bits(multiply_add(n, f.four, 0), c2, top_bits);
    t[3] = select_bits(n >> 1,
                       select_bits(c2 >> 1, select_bits(multiply_add(c0, f.two, 0), c1 >> 2, 0x88888888u), 0x22222222u),
                       top_bits);
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const uint32_t corrected = multiply_add(correction, f.minus_one, base[j]);
#pragma unroll
        for (int s = 0; s < 2; s++) {
            const uint32_t code = s == 0 ? t[j] : __funnelshift_r(t[j], t[j], 4);
            const uint32_t exponents = multiply_add(code & code_mask, f.one, corrected), word = words[2 * j + s];
            const uint32_t b = select_bits(exponents, word, sign_mantissa_mask);
            out[fragment_register<part>(2 * j + s, 0)] = select_bits(word, exponents, sign_mantissa_mask);
            out[fragment_register<part>(2 * j + s, 1)] = permute_bytes(b, b, 0x0321); // rotated right by 8
        }
    }
}

__device__ __forceinline__ void load_words(uint32_t (&words)[8], const uint8_t *part_fixed, int half, unsigned position)
{
    const uint4 *at = reinterpret_cast<const uint4 *>(part_fixed + half * GAAC_WORD_BYTES + position * 16);
    const uint4 low = at[0], high = at[GAAC_FRAGMENT_BYTES / 16];
    words[0] = low.x, words[1] = low.y, words[2] = low.z, words[3] = low.w;
    words[4] = high.x, words[5] = high.y, words[6] = high.z, words[7] = high.w;
}

// The code words of all halves of a part: codes[3 * half + i]. hv is known to the compiler.
__device__ __forceinline__ void load_codes(uint32_t (&codes)[3 * GAAC_MAX_HV], int hv, const uint8_t *part_fixed,
                                           unsigned position)
{
    const uint8_t *at = part_fixed + hv * GAAC_WORD_BYTES;
    if (hv == 2) {
        const uint4 a = *reinterpret_cast<const uint4 *>(at + position * 16);
        const uint2 b = *reinterpret_cast<const uint2 *>(at + 512 + position * 8);
        codes[0] = a.x, codes[1] = a.y, codes[2] = a.z, codes[3] = a.w, codes[4] = b.x, codes[5] = b.y;
    } else {
        const uint2 a = *reinterpret_cast<const uint2 *>(at + position * 8);
        codes[0] = a.x, codes[1] = a.y;
        codes[2] = *reinterpret_cast<const uint32_t *>(at + 256 + position * 4);
    }
}

// Puts the exponents of a half's exceptions into its decoded registers. end: the variable part's end; records lie below
// it, none below `begin`. The registers can't be indexed, hence the comparisons; exceptions are rare.
__device__ __forceinline__ void apply_exceptions(uint32_t (&out)[16], gaac_part part, int half, unsigned position,
                                                 const uint8_t *begin, const uint8_t *end)
{
    const uint32_t *record = reinterpret_cast<const uint32_t *>(end);
    const uint32_t wanted = half | static_cast<uint32_t>(part) << 1;
    uint32_t e;
#pragma unroll 1
    do {
        e = *--record;
        if ((e >> 13 & 3) != wanted)
            continue;
        const bool mine = (e >> 15 & 31) == position;
        const uint32_t shift = (e & 0x100) >> 4; // 16 for the high half
        const uint32_t keep = mine ? ~(0x7f80u << shift) : ~0u, value = mine ? (e & 0xff) << (7 + shift) : 0;
        switch (e >> 9 & 15) {
#define GAAC_PUT(r)                                                                                                    \
    case r:                                                                                                            \
        out[r] = (out[r] & keep) | value;                                                                              \
        break;
            GAAC_PUT(0)
            GAAC_PUT(1)
            GAAC_PUT(2)
            GAAC_PUT(3)
            GAAC_PUT(4)
            GAAC_PUT(5)
            GAAC_PUT(6)
            GAAC_PUT(7)
            GAAC_PUT(8) GAAC_PUT(9) GAAC_PUT(10) GAAC_PUT(11) GAAC_PUT(12) GAAC_PUT(13) GAAC_PUT(14) GAAC_PUT(15)
#undef GAAC_PUT
        }
    } while (e >> 31 && reinterpret_cast<const uint8_t *>(record) > begin);
    __syncwarp();
}

} // namespace gaac

#endif
