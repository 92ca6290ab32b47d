// The arithmetic of one lane of a half, on whole words: four exponents at once, as docs/format.md sections 5 to 8 place
// them. Encoding never finds out single exponents; src/cpu/encode_template.h tells why that is right. In short:
//  1. A word of exponents less its base word is four nibbles e - b4 if all four lie in their 4-bit windows, since no
//     field borrows then. If one doesn't, the lowest such field has a bit above its nibble: then, and only then, the
//     half is done again a byte an exponent (set_outside_apart).
//  2. The nibbles of words 2j and 2j + 1 interleave to T_j.
//  3. (nibble without its top bit) + 1 has a top bit that differs from the nibble's exactly if the nibble is 7..14, in
//     the 3-bit window; its low bits are then the 3-bit code. (2 and 6..13 in the field B.hi.)
#ifndef GAAC_CUDA_HALF_CODE_CUH
#define GAAC_CUDA_HALF_CODE_CUH

#include <cstdint>

namespace gaac
{
namespace half
{

constexpr uint32_t mantissas = 0x807f807fu;     // where a word of sign and mantissa has A's bits
constexpr uint32_t top_bits = 0x44444444u;      // of the nibbles in T
constexpr uint32_t low_nibbles = 0x87878787u;   // of the fields of an exponent less its base
constexpr uint32_t above_nibbles = 0x78787878u; // the other bits of the fields
constexpr uint32_t narrow_steps = 0x08888891u;  // added to 4-bit codes in T gives 3-bit ones

// a where mask is set, else b. ptxas makes two operations of the expression, so it is spelt out.
__host__ __device__ __forceinline__ uint32_t select_bits(uint32_t mask, uint32_t a, uint32_t b)
{
#ifdef __CUDA_ARCH__
    uint32_t taken;
    asm("lop3.b32 %0, %1, %2, %3, 0xE4;" : "=r"(taken) : "r"(a), "r"(b), "r"(mask));
    return taken;
#else
    return (a & mask) | (b & ~mask);
#endif
}

__host__ __device__ __forceinline__ uint32_t rotate_left(uint32_t x, unsigned bits)
{
#ifdef __CUDA_ARCH__
    return bits % 8 == 0 ? __byte_perm(x, 0,
                                       bits == 8    ? 0x2103
                                       : bits == 16 ? 0x1032
                                                    : 0x0321)
                         : __funnelshift_l(x, x, bits);
#else
    return x << bits | x >> (32 - bits);
#endif
}

// The lowest bits of the four bytes of x, which has no others, as bits 0 to 3.
__host__ __device__ __forceinline__ uint32_t bits_of_bytes(uint32_t x)
{
    return x * 0x10204080u >> 28;
}

// The 16 registers of a lane are named pairs[4j + 2s + b]: A (b = 0) and B of word k = 2j + s. That is fragment order
// for V; K has the middle two of each four exchanged.

// Sign-and-mantissa words, and exponents less their bases. Returns the latter ORed: no bit of above_nibbles in it means
// that all lie in their windows.
__host__ __device__ __forceinline__ uint32_t split_words(const uint32_t pairs[16], const uint32_t base[4],
                                                         uint32_t word[8], uint32_t offset[8])
{
    uint32_t seen = 0;
#pragma unroll
    for (unsigned k = 0; k < 8; k++) {
        const uint32_t a = pairs[2 * k], b = rotate_left(pairs[2 * k + 1], 8);
        word[k] = select_bits(mantissas, a, b);
        offset[k] = select_bits(mantissas, b, a) - base[k >> 1];
        seen |= offset[k];
    }
    return seen;
}

// Where some exponents lie outside both windows: offsets that have 8 there, which lies in either window, and in
// `excluded` the nibbles of T that this concerns. Returns a bit for each such element, 4k + (A.lo 0, A.hi 1, B.lo 2,
// B.hi 3): the order of the records.
__host__ __device__ __forceinline__ uint32_t set_outside_apart(const uint32_t base[4], uint32_t offset[8],
                                                               uint32_t excluded[4])
{
    constexpr uint32_t high = 0x80808080u;
    uint32_t outside = 0;
#pragma unroll
    for (unsigned k = 0; k < 8; k++) {
        // Bytes B.hi, A.lo, B.lo, A.hi, subtracted without borrows from one to the next.
        const uint32_t exponents = rotate_left(offset[k] + base[k >> 1], 1), bases = rotate_left(base[k >> 1], 1);
        const uint32_t difference = ((exponents | high) - (bases & ~high)) ^ ((exponents ^ ~bases) & high);
        const uint32_t hit = ((difference >> 4 & 0x0f0f0f0fu) + 0x0f0f0f0fu) >> 4 & 0x01010101u;
        const uint32_t bytes = hit * 0xff;
        offset[k] = rotate_left(select_bits(bytes, 0x08080808u, difference), 31);
        const uint32_t nibbles = rotate_left(bytes & 0x0f0f0f0fu, 31);
        excluded[k >> 1] = k & 1 ? excluded[k >> 1] | rotate_left(nibbles, 4) : nibbles;
        outside |= (hit * 0x80104020u >> 28) << 4 * k; // bytes 1, 3, 2, 0 to bits 0 to 3
    }
    return outside;
}

// Code words and N word from offsets that are nibbles. excluded: NULL, or from set_outside_apart. Returns a bit for
// each byte of N that is to be stored: the group is 4-bit.
__host__ __device__ __forceinline__ uint32_t pack_codes(const uint32_t offset[8], const uint32_t *excluded,
                                                        uint32_t code[3], uint32_t *n)
{
    uint32_t t[4], narrow[4], inside = ~0u;
#pragma unroll
    for (unsigned j = 0; j < 4; j++) {
        t[j] = offset[2 * j] | rotate_left(offset[2 * j + 1], 4);
        narrow[j] = (t[j] & ~top_bits) + narrow_steps;
        inside &= t[j] ^ narrow[j];
    }
    // Top bits of the two nibbles of a group in each word are bits 2 and 6 of a byte.
    const uint32_t wide = ~(inside & inside >> 4) >> 2 & 0x01010101u;
    const uint32_t wide_fields = rotate_left(wide * 0xff, 31);
#pragma unroll
    for (unsigned j = 0; j < 4; j++) {
        t[j] = select_bits(wide_fields, t[j], narrow[j]);
        if (excluded != nullptr)
            t[j] = select_bits(excluded[j], top_bits, t[j]); // 8 in either window
    }
    // Section 6 backwards.
    const uint32_t last = t[3] << 1;
    code[0] = select_bits(top_bits, t[3] >> 1, t[0]);
    code[1] = select_bits(top_bits, t[3] << 2, t[1]);
    code[2] = select_bits(top_bits, last, t[2]);
    *n = select_bits(0x33333333u, select_bits(0x22222222u, t[1] >> 1, t[2] >> 2), select_bits(top_bits, t[0], last));
    return bits_of_bytes(wide);
}

} // namespace half
} // namespace gaac

#endif
