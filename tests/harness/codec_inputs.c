/* Inputs of the codec's kernels. */
#include "codec_inputs.h"

#include <string.h>

/* A field of a base word: which register of the pair and which half of it. */
typedef struct field {
    unsigned b, hi;
} field;

static const field fields[4] = {{0, 0}, {1, 0}, {0, 1}, {1, 1}}; /* A.lo, B.lo, A.hi, B.hi: lowest bit 8 i + 7 */

static unsigned draw_base(harness *h, unsigned style)
{
    switch (style) {
    case 0:
        return 112 + harness_below(h, 16);
    case 1:
        return harness_below(h, 2) != 0 ? 240 : 0;
    default:
        return harness_below(h, GAAC_WINDOW_MAX_BASE + 1);
    }
}

void inputs_bases(harness *h, unsigned hv, uint32_t *bases)
{
    const unsigned style = harness_below(h, 3);
    for (unsigned i = 0; i < hv * MAX_PART_WORDS / 2; i++) {
        bases[i] =
            draw_base(h, style) << 7 | draw_base(h, style) << 15 | draw_base(h, style) << 23 | draw_base(h, style) / 2;
    }
}

static unsigned base_of(uint32_t word, unsigned f)
{
    return f == 3 ? (word & 0x7f) * 2 : word >> (8 * f + 7) & 0xff;
}

/* An exponent at offset d from the base, or where that can't be, the nearest that can. */
static unsigned exponent_at(unsigned base, int d)
{
    const int exponent = (int)base + d;
    return (unsigned)(exponent < 0 ? 0 : exponent > 255 ? 255 : exponent);
}

static int draw_offset(harness *h, inputs_kind kind, int shift)
{
    static const int wide[9] = {0, 1, 2, 3, 4, 5, 15, 15, 15}; /* in the 4-bit window only, for both shifts */
    const int edges[8] = {-1, 0, shift - 1, shift, shift + 7, shift + 8, 15, 16};
    const uint32_t chance = harness_below(h, 16384);
    if (kind == INPUTS_EDGES)
        return edges[chance & 7];
    if (kind == INPUTS_WIDE || (kind == INPUTS_TYPICAL && chance < 262)) /* 1 - (1 - 262 / 16384)^8 = 12% */
        return wide[chance % 9];
    if (kind == INPUTS_TYPICAL && chance >= 16382)
        return harness_below(h, 2) != 0 ? -1 - (int)harness_below(h, 100) : 16 + (int)harness_below(h, 100);
    return shift + (int)harness_below(h, 8);
}

static uint16_t draw_element(harness *h, inputs_kind kind, unsigned base, int shift)
{
    static const uint16_t special[12] = {0x0000, 0x8000, 0x0001, 0x807f, 0x7f80, 0xff80,
                                         0x7fc0, 0xffff, 0x7f81, 0x3f80, 0x0080, 0x7f7f};
    const uint32_t bits = (uint32_t)harness_random(h);
    if (kind == INPUTS_RANDOM)
        return (uint16_t)bits;
    if (kind == INPUTS_SPECIAL)
        return special[bits % 12];
    return (uint16_t)((bits & 0x807f) | exponent_at(base, draw_offset(h, kind, shift)) << 7);
}

void inputs_elements(harness *h, gaac_part part, unsigned hv, inputs_kind kind, unsigned round, const uint32_t *bases,
                     uint16_t *fragments)
{
    if (kind == INPUTS_PATTERNS) {
        for (unsigned i = 0; i < hv * MAX_PART_ELEMENTS / 2; i++)
            fragments[i] = (uint16_t)(i + round * (hv * MAX_PART_ELEMENTS / 2));
        return;
    }
    for (unsigned half = 0; half < hv; half++) {
        for (unsigned i = 0; i < 8 * GAAC_LANES * 4; i++) {
            const unsigned f = i & 3, position = i >> 2 & 31, k = i >> 7;
            const unsigned s = k & 1, b = fields[f].b, r = part == GAAC_K ? s + 2 * b : 2 * s + b;
            const unsigned base = base_of(bases[gaac_word_offset(half, k, position) / 4], f);
            const int shift = (int)gaac_window_shift(f == 3);
            fragments[(4 * half + (k >> 1)) * GAAC_FRAGMENT_ELEMENTS + position * 8 + 2 * r + fields[f].hi] =
                draw_element(h, kind, base, shift);
        }
    }
}

void inputs_variable(harness *h, unsigned hv, unsigned parts, uint8_t *variable, uint32_t bytes)
{
    static const uint32_t densities[7] = {0, 1, 30, 128, 226, 255, 256}; /* of 256 */
    const uint32_t density = densities[harness_below(h, 7)];
    /* Tag bits of the parts that the unit lacks are clear in what an encoder writes; not so in any bytes. */
    const unsigned present = harness_below(h, 4) == 0 ? 3 : parts;
    harness_random_bytes(h, variable, bytes);
    for (uint32_t i = 0; i < GAAC_TAG_BYTES * hv && i < bytes; i++) {
        uint8_t tag = 0;
        for (unsigned bit = 0; bit < 8; bit++) {
            const unsigned part = hv == 2 ? i & 1 : bit >> 2;
            if ((present >> part & 1) != 0 && harness_below(h, 256) < density)
                tag |= (uint8_t)(1u << bit);
        }
        variable[i] = tag;
    }
}

uint32_t inputs_stored(unsigned hv, const uint8_t *variable)
{
    uint32_t stored = 0;
    for (uint32_t i = 0; i < GAAC_TAG_BYTES * hv; i++)
        for (unsigned bit = 0; bit < 8; bit++)
            stored += variable[i] >> bit & 1;
    return stored;
}
