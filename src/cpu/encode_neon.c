/* Encoding with NEON. The definition is in codec/unit_encode.c; vectors are those of codec_neon.c.
 *
 * The exponents of a position are handled as bytes: rotated left by one, the bytes of a word of exponents are
 * B.hi, A.lo, B.lo, A.hi, the order of the groups in an N word.
 *
 * A unit of K and V of 128 channels takes 11,000 instructions (gcc 12, counted under qemu). */
#include "cpu/codec_neon.h"
#include "cpu/encoding.h"

#include <string.h>

/* A unit's codes before its variable part is written. */
typedef struct unit_codes {
    gaac_encoding *encoding; /* without its tags */
    /* Byte i is 0xff where N byte i is stored, else 0; [part][half][position]. 0 in what the unit lacks. */
    uint32_t stored[2][GAAC_MAX_HV][GAAC_LANES];
    uint8_t tags[GAAC_MAX_HV * GAAC_TAG_BYTES]; /* as the format has them */
} unit_codes;

static inline uint32x4_t rotate_left_1(uint32x4_t v)
{
    return vsriq_n_u32(vshlq_n_u32(v, 1), v, 31);
}

static inline uint8x16_t as_bytes(uint32x4_t v)
{
    return vreinterpretq_u8_u32(v);
}
static inline uint32x4_t as_words(uint8x16_t v)
{
    return vreinterpretq_u32_u8(v);
}

/* k of the groups: A.hi, B.lo, A.lo, B.hi from the top byte down. */
static inline uint8x16_t shifts(void)
{
    return as_bytes(vdupq_n_u32(0x07070706));
}

/* 0xff where the exponent lies in the 4-bit window; from_base: less b4, as bytes. */
static inline uint8x16_t inside(uint8x16_t from_base)
{
    return vcleq_u8(from_base, vdupq_n_u8(15));
}

/* 0xff where an exponent needs the 4-bit window. */
static inline uint8x16_t needs_wide(uint8x16_t from_base)
{
    return vandq_u8(inside(from_base), vcgtq_u8(vsubq_u8(from_base, shifts()), vdupq_n_u8(7)));
}

/* Stores the sign-and-mantissa words of fragments j and j + 1 of a position; returns the exponents as bytes. */
static ALWAYS_INLINE uint32x4_t split_words(gaac_part part, const uint16_t *fragment, uint8_t *words)
{
    static const uint8_t left_8_bytes[16] = {3, 0, 1, 2, 7, 4, 5, 6, 11, 8, 9, 10, 15, 12, 13, 14};
    const uint32x4_t mantissas = vdupq_n_u32(0x807f807f);
    const uint32x4_t first = load(fragment), second = load(fragment + GAAC_FRAGMENT_ELEMENTS);
    const uint32x4_t a = part == GAAC_K ? lower_halves(first, second) : vuzp1q_u32(first, second);
    uint32x4_t b = part == GAAC_K ? upper_halves(first, second) : vuzp2q_u32(first, second);
    b = as_words(vqtbl1q_u8(as_bytes(b), vld1q_u8(left_8_bytes)));
    store(words, vbslq_u32(mantissas, a, b));
    return rotate_left_1(vbslq_u32(mantissas, b, a));
}

/* A word for each of four positions: the OR of its vector's four words. */
static ALWAYS_INLINE uint32x4_t or_words(const uint8x16_t v[VECTOR_POSITIONS])
{
    const uint32x4_t a = as_words(v[0]), b = as_words(v[1]), c = as_words(v[2]), d = as_words(v[3]);
    const uint32x4_t first = vorrq_u32(vuzp1q_u32(a, b), vuzp2q_u32(a, b));
    const uint32x4_t second = vorrq_u32(vuzp1q_u32(c, d), vuzp2q_u32(c, d));
    return vorrq_u32(vuzp1q_u32(first, second), vuzp2q_u32(first, second));
}

static ALWAYS_INLINE uint8x16_t make_nibbles(uint8x16_t from_base, uint8x16_t stored)
{
    const uint8x16_t eight = vdupq_n_u8(8);
    const uint8x16_t narrow = vaddq_u8(from_base, vsubq_u8(eight, shifts()));
    return vbslq_u8(inside(from_base), vbslq_u8(stored, from_base, narrow), eight);
}

/* A bit for each byte that is 0xff. */
static inline uint16_t byte_mask(uint8x16_t v)
{
    static const uint8_t bits[16] = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
    const uint8x16_t set = vandq_u8(v, vld1q_u8(bits));
    return (uint16_t)(vaddv_u8(vget_low_u8(set)) | vaddv_u8(vget_high_u8(set)) << 8);
}

/* Notes which elements of four positions lie outside both windows, if any does. */
static bool note_outside(uint8x16_t from_base[VECTOR_POSITIONS][2], uint16_t outside[2][GAAC_LANES], unsigned position)
{
    uint8x16_t largest = vdupq_n_u8(0);
    for (unsigned q = 0; q < VECTOR_POSITIONS; q++)
        largest = vmaxq_u8(largest, vmaxq_u8(from_base[q][0], from_base[q][1]));
    if (vmaxvq_u8(largest) <= 15)
        return false;
    for (unsigned q = 0; q < VECTOR_POSITIONS; q++)
        for (unsigned pair = 0; pair < 2; pair++)
            outside[pair][position + q] = byte_mask(vmvnq_u8(inside(from_base[q][pair])));
    return true;
}

/* C_0..C_2 and N from the nibbles U_0..U_3, s = 0 and 1 in the lower and upper half of each byte: the way back
 * from nibble_words in codec_neon.c. Returns N. */
static ALWAYS_INLINE uint32x4_t split_nibbles(const uint32x4_t u[4], uint32x4_t c[3])
{
    const uint32x4_t top = vdupq_n_u32(0x44444444);
    uint32x4_t t[4];
    for (unsigned j = 0; j < 4; j++)
        t[j] = vsliq_n_u32(vshrq_n_u32(u[j], 1), u[j], 31);
    const uint32x4_t up = vshlq_n_u32(t[3], 1);
    c[0] = vbslq_u32(top, vshrq_n_u32(t[3], 1), t[0]);
    c[1] = vbslq_u32(top, vshlq_n_u32(t[3], 2), t[1]);
    c[2] = vbslq_u32(top, up, t[2]);
    const uint32x4_t low = vbslq_u32(vdupq_n_u32(0x22222222), vshrq_n_u32(t[1], 1), vshrq_n_u32(t[2], 2));
    return vbslq_u32(vdupq_n_u32(0x33333333), low, vbslq_u32(top, t[0], up));
}

/* Encodes four positions of a half; returns whether an element is outside both windows. */
static ALWAYS_INLINE bool encode_four(gaac_part part, unsigned h, unsigned position, const uint16_t *fragments,
                                      gaac_base_words bases, uint8_t *fixed, unit_codes *codes, uint32x4_t c[3])
{
    uint8x16_t from_base[VECTOR_POSITIONS][2], wide[VECTOR_POSITIONS];
    for (unsigned q = 0; q < VECTOR_POSITIONS; q++) {
        for (unsigned pair = 0; pair < 2; pair++) {
            const unsigned offset = gaac_word_offset(h, 4 * pair, position + q);
            const uint16_t *fragment = fragments + (4 * h + 2 * pair) * GAAC_FRAGMENT_ELEMENTS + (position + q) * 8;
            const uint32x4_t exponents = split_words(part, fragment, fixed + offset);
            from_base[q][pair] = vsubq_u8(as_bytes(exponents), as_bytes(rotate_left_1(load_bases(bases, offset))));
        }
        wide[q] = vorrq_u8(needs_wide(from_base[q][0]), needs_wide(from_base[q][1]));
    }
    const uint32x4_t stored = or_words(wide); /* a group is one byte of all eight words */
    store(&codes->stored[part][h][position], stored);

    const uint32x4_t each[VECTOR_POSITIONS] = {vdupq_laneq_u32(stored, 0), vdupq_laneq_u32(stored, 1),
                                               vdupq_laneq_u32(stored, 2), vdupq_laneq_u32(stored, 3)};
    uint32x4_t u[VECTOR_POSITIONS];
    for (unsigned q = 0; q < VECTOR_POSITIONS; q++) {
        const uint32x4_t first = as_words(make_nibbles(from_base[q][0], as_bytes(each[q])));
        const uint32x4_t second = as_words(make_nibbles(from_base[q][1], as_bytes(each[q])));
        u[q] = as_words(vsliq_n_u8(as_bytes(vuzp1q_u32(first, second)), as_bytes(vuzp2q_u32(first, second)), 4));
    }
    transpose(u);
    store(&codes->encoding->n[part][h][position], split_nibbles(u, c));
    return note_outside(from_base, codes->encoding->outside[part][h], position);
}

/* The codes of each half of four positions. */
static ALWAYS_INLINE void store_codes(unsigned hv, uint8_t *fixed, unsigned position, uint32x4_t c[][3])
{
    if (hv == 1) {
        const uint32x4x2_t pairs = {{c[0][0], c[0][1]}};
        vst2q_u32((void *)(fixed + gaac_code_offset(1, 0, 0, position)), pairs);
        store(fixed + gaac_code_offset(1, 0, 2, position), c[0][2]);
        return;
    }
    const uint32x4x4_t quads = {{c[0][0], c[0][1], c[0][2], c[1][0]}};
    const uint32x4x2_t pairs = {{c[1][1], c[1][2]}};
    vst4q_u32((void *)(fixed + gaac_code_offset(2, 0, 0, position)), quads);
    vst2q_u32((void *)(fixed + gaac_code_offset(2, 1, 1, position)), pairs);
}

/* Encodes one part; returns whether it has exceptions. */
static ALWAYS_INLINE bool encode_part(gaac_part part, unsigned hv, const uint16_t *fragments, gaac_base_words bases,
                                      uint8_t *fixed, unit_codes *codes)
{
    bool outside = false;
    for (unsigned block = 0; block < GAAC_LANES; block += VECTOR_POSITIONS) {
        uint32x4_t c[GAAC_MAX_HV][3];
        UNROLL
        for (unsigned h = 0; h < hv; h++)
            outside |= encode_four(part, h, block, fragments, bases, fixed, codes, c[h]);
        store_codes(hv, fixed, block, c);
    }
    return outside;
}

/* ---- the variable part ---------------------------------------------------------------------------- */

/* The tag nibbles of 16 positions of a half. */
static inline uint8x16_t tag_nibbles(const uint32_t *stored)
{
    const uint8x16x4_t bytes = vld4q_u8((const uint8_t *)stored);
    uint8x16_t nibbles = vandq_u8(bytes.val[0], vdupq_n_u8(1));
    for (unsigned i = 1; i < 4; i++)
        nibbles = vorrq_u8(nibbles, vandq_u8(bytes.val[i], vdupq_n_u8((uint8_t)(1 << i))));
    return nibbles;
}

static void make_tags(unsigned hv, unit_codes *codes)
{
    for (unsigned p = 0; p < GAAC_LANES; p += 16) {
        if (hv == 1) {
            vst1q_u8(codes->tags + p,
                     vsliq_n_u8(tag_nibbles(&codes->stored[0][0][p]), tag_nibbles(&codes->stored[1][0][p]), 4));
            continue;
        }
        uint8x16x2_t parts;
        for (unsigned part = 0; part < 2; part++)
            parts.val[part] =
                vsliq_n_u8(tag_nibbles(&codes->stored[part][0][p]), tag_nibbles(&codes->stored[part][1][p]), 4);
        vst2q_u8(codes->tags + 2 * (size_t)p, parts);
    }
}

/* Byte of two N words that is the i-th stored one; anything where there are fewer. */
#define IS_STORED(tag, byte, i) (TAG_HAS(tag, byte) && TAG_RANK(tag, byte) == (i))
#define GATHER(tag, i)                                                                                                 \
    (IS_STORED(tag, 1, i)   ? 1                                                                                        \
     : IS_STORED(tag, 2, i) ? 2                                                                                        \
     : IS_STORED(tag, 3, i) ? 3                                                                                        \
     : IS_STORED(tag, 4, i) ? 4                                                                                        \
     : IS_STORED(tag, 5, i) ? 5                                                                                        \
     : IS_STORED(tag, 6, i) ? 6                                                                                        \
     : IS_STORED(tag, 7, i) ? 7                                                                                        \
                            : 0)
#define GATHER_ROW(tag)                                                                                                \
    {                                                                                                                  \
        GATHER(tag, 0), GATHER(tag, 1), GATHER(tag, 2), GATHER(tag, 3), GATHER(tag, 4), GATHER(tag, 5),                \
            GATHER(tag, 6), GATHER(tag, 7)                                                                             \
    }
static const uint8_t gather[256][8] = {TAG_ROWS(GATHER_ROW)};

/* Puts the stored bytes of two N words at `out`; writes 8 bytes whatever their number. */
static inline void put_n_bytes(unsigned tag, const uint32_t *n0, const uint32_t *n1, uint8_t *out)
{
    const uint32x4_t n = vld1q_lane_u32(n1, vld1q_lane_u32(n0, vdupq_n_u32(0), 0), 1);
    vst1_u8(out, vqtbl1_u8(as_bytes(n), vld1_u8(gather[tag])));
}

/* Gathers the stored N bytes in lane order into `out`, which has room for all and 8 more; their number. */
static uint32_t gather_n(unsigned hv, const unit_codes *codes, uint8_t *out)
{
    const gaac_encoding *e = codes->encoding;
    uint8_t counts[GAAC_MAX_HV * GAAC_TAG_BYTES], *next = out;
    for (unsigned i = 0; i < GAAC_TAG_BYTES * hv; i += 16)
        vst1q_u8(counts + i, vcntq_u8(vld1q_u8(codes->tags + i)));
    for (unsigned lane = 0; lane < GAAC_LANES; lane++) {
        const unsigned p = gaac_position(lane >> 2, lane & 3);
        if (hv == 1) {
            put_n_bytes(codes->tags[p], &e->n[0][0][p], &e->n[1][0][p], next);
            next += counts[p];
            continue;
        }
        for (unsigned part = 0; part < 2; part++) {
            put_n_bytes(codes->tags[2 * p + part], &e->n[part][0][p], &e->n[part][1][p], next);
            next += counts[2 * p + part];
        }
    }
    return (uint32_t)(next - out);
}

bool gaac_encode_unit_neon(unsigned hv, unsigned parts, const uint16_t *k_fragments, const uint16_t *v_fragments,
                           gaac_base_words k_bases, gaac_base_words v_bases, uint8_t *k_fixed, uint8_t *v_fixed,
                           uint8_t *variable, uint32_t capacity, gaac_unit_info *info)
{
    const uint16_t *const fragments[2] = {k_fragments, v_fragments};
    gaac_encoding encoding;
    unit_codes codes;
    gaac_exceptions exceptions;
    bool outside = false;

    exceptions.count = exceptions.flags = 0;
    codes.encoding = &encoding;
    memset(encoding.outside, 0, sizeof encoding.outside);
    if (parts != (GAAC_HAS_K | GAAC_HAS_V)) {
        memset(encoding.n, 0, sizeof encoding.n);
        memset(codes.stored, 0, sizeof codes.stored);
    }
    if (parts & GAAC_HAS_K)
        outside |= hv == 2 ? encode_part(GAAC_K, 2, k_fragments, k_bases, k_fixed, &codes)
                           : encode_part(GAAC_K, 1, k_fragments, k_bases, k_fixed, &codes);
    if (parts & GAAC_HAS_V)
        outside |= hv == 2 ? encode_part(GAAC_V, 2, v_fragments, v_bases, v_fixed, &codes)
                           : encode_part(GAAC_V, 1, v_fragments, v_bases, v_fixed, &codes);
    if (outside)
        gaac_exceptions_collect(&exceptions, hv, parts, &encoding, fragments);

    uint8_t n[2 * GAAC_MAX_HV * 128 + 8];
    make_tags(hv, &codes);
    const uint32_t stored = gather_n(hv, &codes, n);
    if (!gaac_encoding_measure(hv, stored, &exceptions, capacity, info))
        return false;
    gaac_padding_write(&exceptions, info, variable);
    memcpy(variable, codes.tags, (size_t)GAAC_TAG_BYTES * hv);
    memcpy(variable + (size_t)GAAC_TAG_BYTES * hv, n, stored);
    gaac_exceptions_write(&exceptions, info, variable);
    return true;
}
