// One element of a block, read by docs/format.md's word: its place, sign and mantissa, nibble, base, exception. Slow
// and simple, and it shares nothing with the decoders that it tests.
#ifndef GAAC_CUDA_ELEMENT_CUH
#define GAAC_CUDA_ELEMENT_CUH

#include "cuda/geometry.cuh"

namespace gaac
{

// Where an element of a part lies: fragment f = 4 * half + j, lane (g, t), register of pair (A b = 0, B b = 1) in row
// s, half hi of the register (sections 4 and 5).
struct element_place {
    unsigned fragment, g, t, s, b, hi;
};

// fragments: of the part, channel: inside the unit.
__host__ __device__ inline element_place element_at(gaac_part part, unsigned fragments, unsigned token,
                                                    unsigned channel)
{
    if (part == GAAC_K)
        return {channel / 4 % fragments, token % 8, channel / (4 * fragments), token / 8, channel / 2 % 2, channel % 2};
    return {channel / 2 % fragments, channel / (2 * fragments), token / 2 % 4, token / 8, channel % 2, token % 2};
}

__host__ __device__ inline uint32_t element_word(const uint8_t *bytes)
{
    return bytes[0] | static_cast<uint32_t>(bytes[1]) << 8 | static_cast<uint32_t>(bytes[2]) << 16 |
           static_cast<uint32_t>(bytes[3]) << 24;
}

// In fragment order: raw blocks, and the remainder that is not coded.
__host__ __device__ inline uint16_t element_of_fragments(gaac_part part, const element_place &at,
                                                         const uint8_t *fragments)
{
    const unsigned r = part == GAAC_K ? at.s + 2 * at.b : 2 * at.s + at.b;
    const uint8_t *bytes = fragments + at.fragment * 512 + (8 * at.t + (at.g ^ 2 * at.t)) * 16 + r * 4 + at.hi * 2;
    return static_cast<uint16_t>(bytes[0] | bytes[1] << 8);
}

// A lane's tag (section 8).
__host__ __device__ inline uint32_t element_tag(unsigned hv, const uint8_t *variable, unsigned g, unsigned t)
{
    const unsigned position = 8 * t + (g ^ 2 * t);
    return hv == 1 ? variable[position]
                   : variable[2 * position] | static_cast<uint32_t>(variable[2 * position + 1]) << 8;
}

__host__ __device__ inline unsigned element_bits(uint32_t word)
{
    unsigned count = 0;
    for (; word != 0; word &= word - 1)
        count++;
    return count;
}

// Where a lane's stored N bytes start in the variable part: behind the tags and the lanes before it.
__host__ __device__ inline uint32_t element_lane_start(unsigned hv, const uint8_t *variable, unsigned lane)
{
    uint32_t start = 32 * hv;
    for (unsigned before = 0; before < lane; before++)
        start += element_bits(element_tag(hv, variable, before / 4, before % 4));
    return start;
}

// A coded unit of a head, as its entry and the layout place it.
struct coded_unit {
    unsigned hv;
    const uint8_t *fixed[2]; // K and V part
    const uint8_t *variable;
    uint32_t variable_bytes;
    uint32_t exceptions;        // bits of the entry: K half 0, K half 1, V half 0, V half 1
    const uint32_t *windows[2]; // base words of the parts, in the order of geometry.cuh
};

// lane_start: element_lane_start of lane 4 g + t.
__host__ __device__ inline uint16_t element_of_unit(gaac_part part, const element_place &at, const coded_unit &unit,
                                                    uint32_t lane_start)
{
    const unsigned hv = unit.hv, half = at.fragment / 4, j = at.fragment % 4, k = 2 * j + at.s;
    const unsigned position = 8 * at.t + (at.g ^ 2 * at.t);
    const unsigned field = 2 * at.hi + at.b; // A.lo, B.lo, A.hi, B.hi
    const uint8_t *fixed = unit.fixed[part];

    // Sign and mantissa (section 5).
    const uint32_t word = element_word(fixed + half * 1024 + k / 4 * 512 + position * 16 + k % 4 * 4);
    const uint32_t mantissa = word >> 8 * field & 0x7f, sign = word >> (8 * field + 15) % 32 & 1;

    // The three low bits of the nibble (section 6).
    uint32_t code[3];
    for (unsigned i = 0; i < 3; i++) {
        const unsigned n = 3 * half + i;
        code[i] = element_word(fixed + 1024 * hv +
                               (hv == 1 ? (i < 2 ? position * 8 + i * 4 : 256 + position * 4)
                                        : (n < 4 ? position * 16 + n * 4 : 512 + position * 8 + (n - 4) * 4)));
    }
    const uint32_t spread = (code[0] << 1 & 0x88888888) | (code[1] >> 2 & 0x11111111) | (code[2] >> 1 & 0x22222222);
    const uint32_t nibbles = j == 0 ? code[0] : j == 1 ? code[1] : j == 2 ? code[2] : spread;
    const unsigned lowest = 8 * field + 7 + 4 * at.s;
    uint32_t nibble = 0;
    for (unsigned i = 0; i < 3; i++)
        nibble |= (nibbles >> (lowest + i) % 32 & 1) << i;

    // Its top bit, from the group's N byte: B.hi, A.lo, B.lo, A.hi (section 8).
    const unsigned group = (field + 1) % 4, tag_bit = 4 * (hv * part + half) + group;
    const uint32_t tag = element_tag(hv, unit.variable, at.g, at.t);
    const bool stored = (tag >> tag_bit & 1) != 0;
    uint32_t n_byte = 0xff;
    if (stored)
        n_byte = unit.variable[lane_start + element_bits(tag & ((1u << tag_bit) - 1))];
    // Word T_j has the top bit at lowest + 3; N is shifted left by 0, 1, 2 and right by 1 for it.
    const unsigned top = (j < 3 ? lowest + 3 - j : lowest + 4) % 8;
    nibble |= (n_byte >> top & 1) << 3;

    // The base of its channel, and of its token's parity (section 7).
    const uint32_t bases = unit.windows[part][((part == GAAC_K ? at.t : at.g) * hv + half) * 4 + j];
    const uint32_t base = field == 3 ? (bases & 0x7f) << 1 : bases >> (8 * field + 7) & 0xff;
    uint32_t exponent = base + nibble;
    if (!stored)
        exponent -= field == 3 ? 2 : 1; // base + k + (nibble - 8), with k = 7, or 6 in B.hi

    // Exceptions (section 8).
    if ((unit.exceptions >> (2 * part + half) & 1) != 0) {
        const unsigned r = part == GAAC_K ? at.s + 2 * at.b : 2 * at.s + at.b;
        const uint32_t name =
            at.hi << 8 | (4 * j + r) << 9 | half << 13 | static_cast<uint32_t>(part) << 14 | position << 15;
        bool more = true;
        for (uint32_t end = unit.variable_bytes; more && end >= 4; end -= 4) {
            const uint32_t record = element_word(unit.variable + end - 4);
            if ((record & 0x000fff00) == name)
                exponent = record & 0xff;
            more = record >> 31 != 0;
        }
    }
    return static_cast<uint16_t>(sign << 15 | exponent << 7 | mantissa);
}

} // namespace gaac

#endif
