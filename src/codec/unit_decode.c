/* Decoding of a coded unit: the definition. docs/format.md tells the same in prose. */
#include "codec/unit.h"

#include <string.h>

static uint32_t load_u32(const uint8_t *bytes)
{
    uint32_t value;
    memcpy(&value, bytes, sizeof value);
    return value;
}

static uint32_t rotate_right(uint32_t value, unsigned bits)
{
    return bits == 0 ? value : value >> bits | value << (32 - bits);
}

/* Takes the bits of a where mask is set, else those of b. */
static uint32_t select_bits(uint32_t mask, uint32_t a, uint32_t b)
{
    return (a & mask) | (b & ~mask);
}

/* A lane's tag: bit 4 * (part * hv + half) + byte says that this N byte is stored. */
static uint32_t load_tag(unsigned hv, const uint8_t *variable, unsigned position)
{
    return hv == 2 ? variable[2 * position] | (uint32_t)variable[2 * position + 1] << 8 : variable[position];
}

bool gaac_expand_tags_c(unsigned hv, unsigned parts, const uint8_t *variable, uint32_t bytes, gaac_unit_tags *tags)
{
    (void)parts; /* the parts that a unit lacks have no tag bits set */
    uint32_t next = GAAC_TAG_BYTES * hv;
    if (bytes < next)
        return false;
    for (unsigned lane = 0; lane < GAAC_LANES; lane++) {
        const unsigned position = gaac_position(lane >> 2, lane & 3);
        const uint32_t tag = load_tag(hv, variable, position);
        for (unsigned word = 0; word < 2 * hv; word++) {
            uint32_t n = 0, missing = 0;
            for (unsigned byte = 0; byte < 4; byte++) {
                uint32_t value = 0xff;
                if (tag >> (4 * word + byte) & 1) {
                    if (next >= bytes)
                        return false;
                    value = variable[next++];
                } else {
                    missing |= UINT32_C(0xff) << 8 * byte;
                }
                n |= value << 8 * byte;
            }
            const unsigned part = word / hv, half = word % hv;
            tags->n[part][half][position] = n;
            /* Bytes are the groups B.hi, A.lo, B.lo, A.hi; I has their bits 0, 7, 15 and 23. */
            tags->correction[part][half][position] = (missing >> 1 & 0x00808080) | (missing & 1);
        }
    }
    return true;
}

/* The nibble words T_0..T_3 of a half's lane: the codes' low three bits from C_0..C_2, the top bit of
 * every nibble from N. The fourth code is spread over the spare bits of the three words. */
static void nibble_words(const uint32_t c[3], uint32_t n, uint32_t t[4])
{
    t[0] = select_bits(0x44444444, n, c[0]);
    t[1] = select_bits(0x44444444, n << 1, c[1]);
    t[2] = select_bits(0x44444444, n << 2, c[2]);
    const uint32_t low = (c[0] << 1 & 0x88888888) | (c[1] >> 2 & 0x11111111) | (c[2] >> 1 & 0x22222222);
    t[3] = select_bits(0x44444444, n >> 1, low);
}

static void decode_part(gaac_part part, unsigned hv, const uint8_t *fixed, const gaac_unit_tags *tags,
                        gaac_base_words bases, uint16_t *fragments)
{
    const uint32_t mantissas = 0x807f807f;
    for (unsigned h = 0; h < hv; h++) {
        for (unsigned position = 0; position < GAAC_LANES; position++) {
            uint32_t c[3], t[4];
            for (unsigned i = 0; i < 3; i++)
                c[i] = load_u32(fixed + gaac_code_offset(hv, h, i, position));
            nibble_words(c, tags->n[part][h][position], t);
            for (unsigned k = 0; k < 8; k++) {
                const unsigned offset = gaac_word_offset(h, k, position);
                const unsigned j = k >> 1, s = k & 1;
                const uint32_t w = load_u32(fixed + offset);
                const uint32_t base = bases[offset / 4] - tags->correction[part][h][position];
                const uint32_t exponents = (rotate_right(t[j], 4 * s) & 0x87878787) + base;
                const uint32_t a = select_bits(mantissas, w, exponents);
                const uint32_t b = rotate_right(select_bits(mantissas, exponents, w), 8);
                uint16_t *lane = fragments + (4 * h + j) * GAAC_FRAGMENT_ELEMENTS + position * 8;
                lane[2 * gaac_word_register(part, s, 0)] = (uint16_t)a;
                lane[2 * gaac_word_register(part, s, 0) + 1] = (uint16_t)(a >> 16);
                lane[2 * gaac_word_register(part, s, 1)] = (uint16_t)b;
                lane[2 * gaac_word_register(part, s, 1) + 1] = (uint16_t)(b >> 16);
            }
        }
    }
}

void gaac_decode_k_c(unsigned hv, const uint8_t *fixed, const gaac_unit_tags *tags, gaac_base_words bases,
                     uint16_t *fragments, const gaac_ahead *ahead)
{
    (void)ahead;
    decode_part(GAAC_K, hv, fixed, tags, bases, fragments);
}

void gaac_decode_v_c(unsigned hv, const uint8_t *fixed, const gaac_unit_tags *tags, gaac_base_words bases,
                     uint16_t *fragments, const gaac_ahead *ahead)
{
    (void)ahead;
    decode_part(GAAC_V, hv, fixed, tags, bases, fragments);
}

/* Where an element lies: gaac_line_index, or the same for fragment order. */
typedef unsigned element_index(gaac_part part, unsigned f, unsigned position, unsigned r, unsigned hi);

static unsigned fragment_order(gaac_part part, unsigned f, unsigned position, unsigned r, unsigned hi)
{
    (void)part;
    return f * GAAC_FRAGMENT_ELEMENTS + position * 8 + r * 2 + hi;
}

static bool apply_exceptions(unsigned hv, gaac_part part, const uint8_t *variable, uint32_t bytes, element_index *index,
                             uint16_t *elements)
{
    /* Records of four bytes, from the end down; the last one has bit 31 clear. */
    for (uint32_t end = bytes; end >= GAAC_TAG_BYTES * hv + 4; end -= 4) {
        const uint32_t record = load_u32(variable + end - 4);
        const unsigned half = record >> 13 & 1;
        if (half >= hv)
            return false;
        if ((gaac_part)(record >> 14 & 1) == part) {
            const unsigned register_index = record >> 9 & 15, hi = record >> 8 & 1, position = record >> 15 & 31;
            uint16_t *value =
                elements + index(part, 4 * half + (register_index >> 2), position, register_index & 3, hi);
            *value = (uint16_t)((*value & 0x807f) | (record & 0xff) << 7);
        }
        if ((record & UINT32_C(0x80000000)) == 0)
            return true;
    }
    return false;
}

bool gaac_apply_exceptions(unsigned hv, gaac_part part, const uint8_t *variable, uint32_t bytes, uint16_t *fragments)
{
    return apply_exceptions(hv, part, variable, bytes, fragment_order, fragments);
}

bool gaac_apply_exceptions_to_lines(unsigned hv, gaac_part part, const uint8_t *variable, uint32_t bytes,
                                    uint16_t *lines)
{
    return apply_exceptions(hv, part, variable, bytes, gaac_line_index, lines);
}

/* Tag bits that a part has in byte i of the tags: a byte of two, or half of one. */
static unsigned tag_mask(unsigned hv, gaac_part part, unsigned i)
{
    if (hv == 2)
        return (gaac_part)(i & 1) == part ? 0xff : 0;
    return part == GAAC_K ? 0x0f : 0xf0;
}

bool gaac_is_of_one_part(unsigned hv, gaac_part part, const uint8_t *variable, uint32_t bytes, bool has_exceptions)
{
    for (unsigned i = 0; i < GAAC_TAG_BYTES * hv; i++)
        if ((variable[i] & ~tag_mask(hv, part, i)) != 0)
            return false;
    bool more = has_exceptions;
    for (uint32_t end = bytes; more; end -= 4) {
        if (end < GAAC_TAG_BYTES * hv + 4)
            return false;
        const uint32_t record = load_u32(variable + end - 4);
        if ((record >> 13 & 1) >= hv || (gaac_part)(record >> 14 & 1) != part)
            return false;
        more = record >> 31 != 0;
    }
    return true;
}
