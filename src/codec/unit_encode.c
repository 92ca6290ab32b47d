/* Encoding of a coded unit: the definition. docs/format.md tells the same in prose. */
#include "codec/unit.h"

#include <string.h>

/* One element of a register pair: which of A.lo, A.hi, B.lo, B.hi. */
typedef struct field {
    unsigned b, hi;          /* of register pair A, B: which register, which half */
    unsigned nibble;         /* lowest bit of its code nibble in T_j, for s = 0 */
    unsigned group;          /* byte of the N word that its group has */
    unsigned sign, mantissa; /* bits in the word w */
} field;

static const field fields[4] = {
    {0, 0, 7, 1, 15, 0},
    {0, 1, 23, 3, 31, 16},
    {1, 0, 15, 2, 23, 8},
    {1, 1, 31, 0, 7, 24},
};

/* A lane of a half while it is encoded. */
typedef struct lane_code {
    uint32_t words[8];
    uint32_t codes[3];
    uint32_t n;
    unsigned stored;      /* bit per byte of N that is stored: the group is 4-bit */
    unsigned exceptions;  /* how many */
    uint32_t records[32]; /* of the exceptions, without the `more` bit */
} lane_code;

/* The b4 of a field, from the base word that carries all four. */
static int base_of(uint32_t base_word, const field *f)
{
    const uint32_t rotated = base_word >> 7 | base_word << 25; /* bytes A.lo, B.lo, A.hi, B.hi */
    return (int)(rotated >> 8 * (f->b + 2 * f->hi) & 0xff);
}

/* The window of 3 bits lies 7 above b4, 6 in the field that wraps. */
static int shift_of(const field *f)
{
    return (int)gaac_window_shift(f->b && f->hi);
}

static uint16_t element(gaac_part part, const uint16_t *fragments, unsigned h, unsigned position, unsigned k,
                        const field *f)
{
    const unsigned r = gaac_word_register(part, k & 1, f->b);
    return fragments[(4 * h + (k >> 1)) * GAAC_FRAGMENT_ELEMENTS + position * 8 + 2 * r + f->hi];
}

/* Puts the low three bits and the top bit of a nibble of T_j where the fixed part and N have them. */
static void put_nibble(lane_code *lane, unsigned j, unsigned bit, uint32_t nibble)
{
    static const unsigned home[3] = {31, 2, 1}; /* T_3's bits in C_0..C_2: one down, two up, one up (mod 32) */
    for (unsigned i = 0; i < 3; i++) {
        const uint32_t value = nibble >> i & 1;
        if (j < 3)
            lane->codes[j] |= value << ((bit + i) & 31);
        else
            lane->codes[i] |= value << ((bit + i + home[i]) & 31);
    }
    const unsigned top =
        j < 3 ? bit + 3 - j : bit + 3 + 1; /* N is shifted left by j for T_0..T_2, right by 1 for T_3 */
    lane->n |= (nibble >> 3 & 1) << (top & 31);
}

/* The lane's groups that need the 4-bit window. */
static unsigned find_wide_groups(gaac_part part, const uint16_t *fragments, unsigned h, unsigned position,
                                 gaac_base_words bases)
{
    unsigned wide = 0;
    for (unsigned k = 0; k < 8; k++) {
        const uint32_t base = bases[gaac_word_offset(h, k, position) / 4];
        for (unsigned i = 0; i < 4; i++) {
            const field *f = &fields[i];
            const int d = (element(part, fragments, h, position, k, f) >> 7 & 0xff) - base_of(base, f);
            if (d >= 0 && d < 16 && (d < shift_of(f) || d >= shift_of(f) + 8))
                wide |= 1u << f->group;
        }
    }
    return wide;
}

static void encode_lane(gaac_part part, const uint16_t *fragments, unsigned h, unsigned position, gaac_base_words bases,
                        lane_code *lane)
{
    memset(lane, 0, sizeof *lane);
    lane->stored = find_wide_groups(part, fragments, h, position, bases);
    for (unsigned k = 0; k < 8; k++) {
        const uint32_t base = bases[gaac_word_offset(h, k, position) / 4];
        for (unsigned i = 0; i < 4; i++) {
            const field *f = &fields[i];
            const uint32_t value = element(part, fragments, h, position, k, f);
            const uint32_t exponent = value >> 7 & 0xff;
            const int d = (int)exponent - base_of(base, f);
            lane->words[k] |= (value & 0x7f) << f->mantissa | (value >> 15) << f->sign;
            uint32_t nibble = lane->stored >> f->group & 1 ? (uint32_t)d : 8 + (uint32_t)(d - shift_of(f));
            if (d < 0 || d >= 16) {
                nibble = 8;
                const unsigned register_index = 4 * (k >> 1) + gaac_word_register(part, k & 1, f->b);
                lane->records[lane->exceptions++] =
                    exponent | f->hi << 8 | register_index << 9 | h << 13 | (uint32_t)part << 14 | position << 15;
            }
            put_nibble(lane, k >> 1, f->nibble + 4 * (k & 1), nibble);
        }
    }
}

static void store_u32(uint8_t *bytes, uint32_t value)
{
    memcpy(bytes, &value, sizeof value);
}

static void store_lane(unsigned hv, unsigned h, unsigned position, const lane_code *lane, uint8_t *fixed)
{
    for (unsigned k = 0; k < 8; k++)
        store_u32(fixed + gaac_word_offset(h, k, position), lane->words[k]);
    for (unsigned i = 0; i < 3; i++)
        store_u32(fixed + gaac_code_offset(hv, h, i, position), lane->codes[i]);
}

/* The variable part as it grows: tags and N bytes from the start, exceptions kept until the end is known. */
typedef struct variable_part {
    uint8_t tags[GAAC_MAX_HV * GAAC_TAG_BYTES];
    uint8_t n[2 * GAAC_MAX_HV * 128];
    uint32_t n_count;
    uint32_t exceptions[GAAC_MAX_UNIT_POOL / 4];
    uint32_t exception_count; /* may pass the array's size: then nothing fits */
    uint32_t flags;
} variable_part;

static void append_lane(variable_part *out, gaac_part part, unsigned hv, unsigned h, unsigned position,
                        const lane_code *lane)
{
    const unsigned first_bit = 4 * ((unsigned)part * hv + h);
    if (hv == 2)
        out->tags[2 * position + first_bit / 8] |= (uint8_t)(lane->stored << first_bit % 8);
    else
        out->tags[position] |= (uint8_t)(lane->stored << first_bit);
    for (unsigned byte = 0; byte < 4; byte++)
        if (lane->stored >> byte & 1)
            out->n[out->n_count++] = (uint8_t)(lane->n >> 8 * byte);
    for (unsigned i = 0; i < lane->exceptions; i++) {
        if (out->exception_count < sizeof out->exceptions / sizeof out->exceptions[0])
            out->exceptions[out->exception_count] = lane->records[i];
        out->exception_count++;
    }
    if (lane->exceptions > 0)
        out->flags |= 1u << (2 * (unsigned)part + h);
}

static void write_variable(const variable_part *in, unsigned hv, uint8_t *variable, uint32_t bytes)
{
    const uint32_t tag_bytes = GAAC_TAG_BYTES * hv;
    memcpy(variable, in->tags, tag_bytes);
    memcpy(variable + tag_bytes, in->n, in->n_count);
    const uint32_t used = tag_bytes + in->n_count + 4 * in->exception_count;
    memset(variable + tag_bytes + in->n_count, 0, bytes - used);
    for (uint32_t i = 0; i < in->exception_count; i++) {
        const uint32_t more = i + 1 < in->exception_count ? UINT32_C(0x80000000) : 0;
        store_u32(variable + bytes - 4 * (i + 1), in->exceptions[i] | more);
    }
}

bool gaac_encode_unit_c(unsigned hv, unsigned parts, const uint16_t *k_fragments, const uint16_t *v_fragments,
                        gaac_base_words k_bases, gaac_base_words v_bases, uint8_t *k_fixed, uint8_t *v_fixed,
                        uint8_t *variable, uint32_t capacity, gaac_unit_info *info)
{
    const uint16_t *fragments[2] = {k_fragments, v_fragments};
    const gaac_base_words bases[2] = {k_bases, v_bases};
    uint8_t *const fixed[2] = {k_fixed, v_fixed};
    variable_part out;
    memset(&out, 0, sizeof out);
    /* Stored N bytes keep lane order, so that a GPU's warp finds them by a prefix sum over its lanes. */
    for (unsigned number = 0; number < GAAC_LANES; number++) {
        const unsigned position = gaac_position(number >> 2, number & 3);
        for (unsigned part = 0; part < 2; part++) {
            if ((parts >> part & 1) == 0)
                continue;
            for (unsigned h = 0; h < hv; h++) {
                lane_code lane;
                encode_lane((gaac_part)part, fragments[part], h, position, bases[part], &lane);
                store_lane(hv, h, position, &lane, fixed[part]);
                append_lane(&out, (gaac_part)part, hv, h, position, &lane);
            }
        }
    }
    const uint32_t used = GAAC_TAG_BYTES * hv + out.n_count + 4 * out.exception_count;
    info->bytes = (used + GAAC_POOL_ALIGN - 1) / GAAC_POOL_ALIGN * GAAC_POOL_ALIGN;
    info->stored_n = out.n_count;
    info->exceptions = out.exception_count;
    info->exception_flags = out.flags;
    if (info->bytes > capacity || info->bytes > GAAC_MAX_UNIT_POOL)
        return false;
    write_variable(&out, hv, variable, info->bytes);
    return true;
}
