/* Tags and decoding with NEON. The definitions are in codec/unit_decode.c.
 *
 * Words: a vector holds four sign-and-mantissa words of one position, k & 3 = 0..3, so j and s run {j, j, j+1,
 * j+1} and {0, 1, 0, 1}. The nibbles are made for four positions at once, a vector for each k, and turned round
 * by a 4 x 4 transposition. LD4 and LD2 take the code words apart while loading.
 *
 * Tags: a table of 256 byte shuffles does what pdep does elsewhere (the idea of Stream VByte: Lemire, Kurz,
 * Rupp, 2017).
 *
 * Instructions a tile of 16 x 128 (gcc 12, counted under qemu): tags 800, decoding K 2530, V 2600, or 1.6 an element
 * in all. */
#include "cpu/codec_neon.h"
#include "cpu/cpu.h"
#include "cpu/decoder.h"

#include <string.h>

/* ---- tags --------------------------------------------------------------------------------------- */

/* Where each byte of two N words lies in the stream, 0xff if it isn't stored. */
#define SPREAD(tag, i) (TAG_HAS(tag, i) ? TAG_RANK(tag, i) : 0xff)
#define SPREAD_ROW(tag)                                                                                                \
    {                                                                                                                  \
        SPREAD(tag, 0), SPREAD(tag, 1), SPREAD(tag, 2), SPREAD(tag, 3), SPREAD(tag, 4), SPREAD(tag, 5),                \
            SPREAD(tag, 6), SPREAD(tag, 7)                                                                             \
    }
static const uint8_t spread[256][8] = {TAG_ROWS(SPREAD_ROW)};

/* The stored bytes of each tag byte; returns their sum. */
static uint32_t count_stored(unsigned hv, const uint8_t *variable, uint8_t *counts)
{
    uint8x16_t sum = vdupq_n_u8(0);
    for (unsigned i = 0; i < GAAC_TAG_BYTES * hv; i += 16) {
        const uint8x16_t count = vcntq_u8(vld1q_u8(variable + i));
        vst1q_u8(counts + i, count);
        sum = vaddq_u8(sum, count);
    }
    return vaddlvq_u8(sum);
}

/* The next bytes of a stream, 8 at least where as many are left. Reads backwards from the end there: the tags in
 * front of the stream are part of the variable part too. */
static inline uint8x16_t load_bounded(const uint8_t *next, const uint8_t *end)
{
    if (end - next >= 16)
        return vld1q_u8(next);
    uint64_t value = 0;
    const ptrdiff_t left = end - next;
    const unsigned over = left < 8 ? 8 - (unsigned)left : 0;
    memcpy(&value, next - over, sizeof value);
    return vcombine_u8(vcreate_u8(value >> (8 * over & 63)), vdup_n_u8(0));
}

static inline void expand_words(unsigned tag, const uint8_t *next, const uint8_t *end, uint32_t *n0, uint32_t *n1)
{
    const uint8x8_t n = vqtbx1_u8(vdup_n_u8(0xff), load_bounded(next, end), vld1_u8(spread[tag]));
    vst1_lane_u32(n0, vreinterpret_u32_u8(n), 0);
    vst1_lane_u32(n1, vreinterpret_u32_u8(n), 1);
}

/* Corrections of 16 positions from the tags of one half of one part. */
static inline void write_corrections(uint8x16_t nibbles, uint32_t *corrections)
{
    /* What a tag's clear bits put into bytes 0, 1, 2: bits 0 and 7 for N bytes 0 and 1, then bit 7 for N bytes 2
     * and 3. */
    static const uint8_t bytes[3][16] = {
        {0x81, 0x80, 0x01, 0, 0x81, 0x80, 0x01, 0, 0x81, 0x80, 0x01, 0, 0x81, 0x80, 0x01, 0},
        {0x80, 0x80, 0x80, 0x80, 0, 0, 0, 0, 0x80, 0x80, 0x80, 0x80, 0, 0, 0, 0},
        {0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0, 0, 0, 0, 0, 0, 0, 0},
    };
    uint8x16x4_t words;
    for (unsigned i = 0; i < 3; i++)
        words.val[i] = vqtbl1q_u8(vld1q_u8(bytes[i]), nibbles);
    words.val[3] = vdupq_n_u8(0);
    vst4q_u8((uint8_t *)corrections, words);
}

static void expand_corrections(unsigned hv, const uint8_t *variable, gaac_unit_tags *tags)
{
    const uint8x16_t low = vdupq_n_u8(15);
    for (unsigned p = 0; p < GAAC_LANES; p += 16) {
        if (hv == 1) {
            const uint8x16_t both = vld1q_u8(variable + p);
            write_corrections(vandq_u8(both, low), &tags->correction[0][0][p]);
            write_corrections(vshrq_n_u8(both, 4), &tags->correction[1][0][p]);
            continue;
        }
        const uint8x16x2_t parts = vld2q_u8(variable + 2 * (size_t)p);
        for (unsigned part = 0; part < 2; part++) {
            write_corrections(vandq_u8(parts.val[part], low), &tags->correction[part][0][p]);
            write_corrections(vshrq_n_u8(parts.val[part], 4), &tags->correction[part][1][p]);
        }
    }
}

static bool expand_tags(unsigned hv, unsigned parts, const uint8_t *variable, uint32_t bytes, gaac_unit_tags *tags)
{
    (void)parts; /* the parts that a unit lacks have no tag bits set */
    const uint32_t tag_bytes = GAAC_TAG_BYTES * hv;
    uint8_t counts[GAAC_TAG_BYTES * GAAC_MAX_HV] = {0};
    if (bytes < tag_bytes || count_stored(hv, variable, counts) > bytes - tag_bytes)
        return false;
    expand_corrections(hv, variable, tags);
    const uint8_t *next = variable + tag_bytes, *const end = variable + bytes;
    for (unsigned lane = 0; lane < GAAC_LANES; lane++) {
        const unsigned p = gaac_position(lane >> 2, lane & 3);
        if (hv == 1) {
            expand_words(variable[p], next, end, &tags->n[0][0][p], &tags->n[1][0][p]);
            next += counts[p];
            continue;
        }
        for (unsigned part = 0; part < 2; part++) {
            expand_words(variable[2 * p + part], next, end, &tags->n[part][0][p], &tags->n[part][1][p]);
            next += counts[2 * p + part];
        }
    }
    return true;
}

/* ---- decoding ----------------------------------------------------------------------------------- */

/* C_0..C_2 of each half of four positions. */
static ALWAYS_INLINE void load_codes(unsigned hv, const uint8_t *fixed, unsigned position, uint32x4_t c[][3])
{
    if (hv == 1) {
        const uint32x4x2_t pairs = vld2q_u32((const void *)(fixed + gaac_code_offset(1, 0, 0, position)));
        c[0][0] = pairs.val[0];
        c[0][1] = pairs.val[1];
        c[0][2] = load(fixed + gaac_code_offset(1, 0, 2, position));
        return;
    }
    const uint32x4x4_t quads = vld4q_u32((const void *)(fixed + gaac_code_offset(2, 0, 0, position)));
    const uint32x4x2_t pairs = vld2q_u32((const void *)(fixed + gaac_code_offset(2, 1, 1, position)));
    c[0][0] = quads.val[0];
    c[0][1] = quads.val[1];
    c[0][2] = quads.val[2];
    c[1][0] = quads.val[3];
    c[1][1] = pairs.val[0];
    c[1][2] = pairs.val[1];
}

/* The nibbles of T_j in place for s = 0 and for s = 1, corrected. */
static ALWAYS_INLINE void turn_nibbles(uint32x4_t t, uint32x4_t correction, uint32x4_t nibbles[2])
{
    const uint32x4_t places = vdupq_n_u32(0x87878787);
    const uint32x4_t turned = vsliq_n_u32(vshrq_n_u32(t, 4), t, 28);
    nibbles[0] = vsubq_u32(vandq_u32(t, places), correction);
    nibbles[1] = vsubq_u32(vandq_u32(turned, places), correction);
}

/* The nibbles of T_0..T_3, made from C_0..C_2 and N, less the correction, as words k = 2j + s. */
static ALWAYS_INLINE void nibble_words(const uint32x4_t c[3], uint32x4_t n, uint32x4_t correction,
                                       uint32x4_t nibbles[8])
{
    const uint32x4_t top = vdupq_n_u32(0x44444444);
    turn_nibbles(vbslq_u32(top, n, c[0]), correction, nibbles);
    turn_nibbles(vbslq_u32(top, vshlq_n_u32(n, 1), c[1]), correction, nibbles + 2);
    turn_nibbles(vbslq_u32(top, vshlq_n_u32(n, 2), c[2]), correction, nibbles + 4);
    const uint32x4_t low = vbslq_u32(vdupq_n_u32(0x11111111), vshrq_n_u32(c[1], 2), vshrq_n_u32(c[2], 1));
    const uint32x4_t high = vbslq_u32(top, vshrq_n_u32(n, 1), vshlq_n_u32(c[0], 1));
    turn_nibbles(vbslq_u32(vdupq_n_u32(0x33333333), low, high), correction, nibbles + 6);
}

/* Decodes words 2j .. 2j + 3 of a position: fragments j and j + 1. */
static ALWAYS_INLINE void decode_words(gaac_part part, uint32x4_t w, uint32x4_t exponents, uint16_t *fragment)
{
    static const uint8_t right_8_bytes[16] = {1, 2, 3, 0, 5, 6, 7, 4, 9, 10, 11, 8, 13, 14, 15, 12};
    const uint8x16_t right_8 = vld1q_u8(right_8_bytes);
    const uint32x4_t mantissas = vdupq_n_u32(0x807f807f);
    const uint32x4_t a = vbslq_u32(mantissas, w, exponents), turned = vbslq_u32(mantissas, exponents, w);
    const uint32x4_t b = vreinterpretq_u32_u8(vqtbl1q_u8(vreinterpretq_u8_u32(turned), right_8));
    if (part == GAAC_K) {
        store(fragment, lower_halves(a, b));
        store(fragment + GAAC_FRAGMENT_ELEMENTS, upper_halves(a, b));
    } else {
        store(fragment, vzip1q_u32(a, b));
        store(fragment + GAAC_FRAGMENT_ELEMENTS, vzip2q_u32(a, b));
    }
}

static ALWAYS_INLINE void decode_part(gaac_part part, unsigned hv, const uint8_t *fixed, const gaac_unit_tags *tags,
                                      gaac_base_words bases, uint16_t *fragments, const gaac_ahead *ahead)
{
    for (unsigned block = 0; block < GAAC_LANES; block += VECTOR_POSITIONS) {
        uint32x4_t c[GAAC_MAX_HV][3];
        load_codes(hv, fixed, block, c);
        UNROLL
        for (unsigned h = 0; h < hv; h++) {
            gaac_fetch_turn(ahead, block / VECTOR_POSITIONS * hv + h, GAAC_LANES / VECTOR_POSITIONS * hv);
            uint32x4_t nibbles[8];
            nibble_words(c[h], load(&tags->n[part][h][block]), load(&tags->correction[part][h][block]), nibbles);
            for (unsigned pair = 0; pair < 2; pair++) {
                transpose(nibbles + 4 * pair); /* now a vector a position */
                for (unsigned q = 0; q < VECTOR_POSITIONS; q++) {
                    const unsigned position = block + q, offset = gaac_word_offset(h, 4 * pair, position);
                    decode_words(part, load(fixed + offset),
                                 vaddq_u32(nibbles[4 * pair + q], load_bases(bases, offset)),
                                 fragments + (4 * h + 2 * pair) * GAAC_FRAGMENT_ELEMENTS + position * 8);
                }
            }
        }
    }
}

DECODER(decode_k, GAAC_K)
DECODER(decode_v, GAAC_V)

void gaac_codec_kernels_init_neon(gaac_codec_kernels *kernels)
{
    *kernels = (gaac_codec_kernels){
        .expand_tags = expand_tags,
        .decode_part = {decode_k, decode_v},
        .encode_unit = gaac_encode_unit_neon,
        .rows_to_fragments = {gaac_k_rows_to_fragments_neon, gaac_v_rows_to_fragments_neon},
        .fragments_to_rows = {gaac_k_fragments_to_rows_neon, gaac_v_fragments_to_rows_neon},
    };
}
