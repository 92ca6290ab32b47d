/* Encoding with AVX-512: the vectors of encode_template.h. Vectors and column order are those of codec_avx512.c.
 *
 * A unit of K and V of 128 channels, 12% of its groups 4-bit and no exception, takes 1,680 instructions (gcc 12; clang
 * 14: 1,590), and in either about 1,010 of them are vector arithmetic. Of those a core with two ports for vectors of
 * 512 bits takes two a cycle: 505 cycles are the limit there. On a Xeon with AMX at 4.05 GHz it takes 600 to 640 from
 * the first-level cache. A part of the rest are the 200 instructions on addresses and masks: they may take the same
 * ports, and a loop of one of those beside each vector instruction ran a third slower than the vectors alone.
 *
 * By what they are for, of 16 positions of a half, 1 KiB of BF16:
 *   words and nibbles apart      48   (two shuffles, a rotation, two selections, a subtraction, each 128 bytes)
 *   whether all are in windows    6
 *   nibbles packed, transposed   24
 *   which groups are 4-bit       12
 *   codes chosen, C and N        16
 *   codes to position order       5
 *   tags                          2
 * and of the whole unit 100 for tags and N bytes in lane order.
 *
 * Compressing into a register and storing under a mask is one store; vpcompressb to memory is a slow loop on some
 * cores. */
#include "cpu/codec_avx512.h"
#include "cpu/encoding.h"

#include <string.h>

typedef __m512i vec;
enum { VECTOR_POSITIONS = 4 };

#define ROTATE_LEFT(v, n) _mm512_rol_epi32(v, n)
#define SHIFT_LEFT(v, n) _mm512_slli_epi32(v, n)
#define SHIFT_RIGHT(v, n) _mm512_srli_epi32(v, n)

static inline vec dwords(uint32_t x)
{
    vec v = _mm512_set1_epi32((int)x);
#if !defined(__clang__)
    /* GCC would make constants anew wherever they are used, by a shuffle; what it can't see through it keeps. */
    __asm__("" : "+v"(v));
#endif
    return v;
}
static inline vec and_bits(vec a, vec b)
{
    return _mm512_and_si512(a, b);
}
static inline vec or_bits(vec a, vec b)
{
    return _mm512_or_si512(a, b);
}
static inline vec and_not(vec a, vec b)
{
    return _mm512_andnot_si512(a, b);
}
static inline vec or_both(vec a, vec b, vec c)
{
    return _mm512_ternarylogic_epi32(a, b, c, 0xFE);
}
static inline vec or_and(vec a, vec b, vec c)
{
    return _mm512_ternarylogic_epi32(a, b, c, 0xF8);
}
static inline vec add_dwords(vec a, vec b)
{
    return _mm512_add_epi32(a, b);
}
static inline vec subtract_dwords(vec a, vec b)
{
    return _mm512_sub_epi32(a, b);
}
static inline vec subtract_bytes(vec a, vec b)
{
    return _mm512_sub_epi8(a, b);
}

typedef struct exchanged {
    vec taken, left;
} exchanged;

static ALWAYS_INLINE exchanged exchange(vec mask, vec a, vec b)
{
    return (exchanged){select_bits(mask, a, b), select_bits(mask, b, a)};
}

static ALWAYS_INLINE void load_registers(gaac_part part, const uint16_t *fragment, vec *a, vec *b)
{
    const vec first = load(fragment), second = load(fragment + GAAC_FRAGMENT_ELEMENTS);
    if (part == GAAC_K) {
        *a = _mm512_unpacklo_epi64(first, second);
        *b = _mm512_unpackhi_epi64(first, second);
    } else {
        const __m512 f = _mm512_castsi512_ps(first), s = _mm512_castsi512_ps(second);
        *a = _mm512_castps_si512(_mm512_shuffle_ps(f, s, 0x88));
        *b = _mm512_castps_si512(_mm512_shuffle_ps(f, s, 0xDD));
    }
    *b = ROTATE_LEFT(*b, 8);
}

static inline bool has_bits(vec v, uint32_t mask)
{
    return _mm512_test_epi32_mask(v, dwords(mask)) != 0;
}

static inline vec outside_bytes(vec v)
{
    return _mm512_movm_epi8(_mm512_cmpgt_epu8_mask(v, _mm512_set1_epi8(15)));
}

static inline void byte_mask(void *bits, vec bytes)
{
    const uint64_t mask = _mm512_movepi8_mask(bytes);
    memcpy(bits, &mask, sizeof mask);
}

static ALWAYS_INLINE vec wide_bytes(const vec t[4], const vec narrow[4])
{
    vec outside = _mm512_ternarylogic_epi32(t[0], t[0], narrow[0], 0x99); /* ~(t ^ narrow) */
    outside = _mm512_ternarylogic_epi32(outside, t[1], narrow[1], 0xF9);  /* a | ~(b ^ c) */
    outside = _mm512_ternarylogic_epi32(outside, t[2], narrow[2], 0xF9);
    outside = _mm512_ternarylogic_epi32(outside, t[3], narrow[3], 0xF9);
    return _mm512_maskz_mov_epi8(_mm512_test_epi8_mask(outside, dwords(0x44444444)), dwords(UINT32_MAX));
}

static ALWAYS_INLINE vec tag_bits(unsigned hv, const vec wide[], unsigned shift)
{
    vec bits = and_bits(wide[0], dwords(0x01010101));
    if (hv == 2)
        bits = or_and(bits, wide[1], dwords(0x10101010));
    const vec sums = _mm512_maddubs_epi16(bits, dwords(0x08040201));
    return _mm512_madd_epi16(sums, _mm512_set1_epi16((short)(1 << shift)));
}

static inline vec from_columns(vec v)
{
    return _mm512_permutexvar_epi32(column_order(), v);
}

/* N stays in column order. */
static ALWAYS_INLINE void store_n(gaac_encoding *encoding, gaac_part part, unsigned hv, unsigned block, const vec n[],
                                  const vec wide[])
{
    (void)wide; /* the tags tell */
    for (unsigned h = 0; h < hv; h++)
        store(&encoding->n[part][h][block], n[h]);
}

/* Position of lane 4g + t, and its place in column order: block, then dword 4l + q for position 4q + l. */
#define P(g, t) (8 * (t) + ((g) ^ 2 * (t)))
#define COLUMN(p) (((p)&16) + 4 * ((p)&3) + ((p) >> 2 & 3))
#define C(g, t) COLUMN(P(g, t))

/* The lanes in order. */
#define C4(g) C(g, 0), C(g, 1), C(g, 2), C(g, 3)
static const _Alignas(64) uint32_t lane_columns[32] = {C4(0), C4(1), C4(2), C4(3), C4(4), C4(5), C4(6), C4(7)};

/* The same, with the lanes t = 0 of g = 0..3 first, then t = 1, and so on; then g = 4..7: what a transposition turns
 * into lane order. */
#define G4(g, t) C((g), t), C((g) + 1, t), C((g) + 2, t), C((g) + 3, t)
static const _Alignas(64) uint32_t group_columns[32] = {G4(0, 0), G4(0, 1), G4(0, 2), G4(0, 3),
                                                        G4(4, 0), G4(4, 1), G4(4, 2), G4(4, 3)};

/* Where the tags of positions in order, and of lanes in order, are among the dwords of both blocks, interleaved. */
#define TAG16(c) (2 * ((c)&15) + ((c) >> 4))
#define TAG8(c) (4 * ((c)&15) + ((c) >> 4))
#define ROW4(tag, p) tag(COLUMN(p)), tag(COLUMN((p) + 1)), tag(COLUMN((p) + 2)), tag(COLUMN((p) + 3))
#define ROW(tag, p) ROW4(tag, p), ROW4(tag, (p) + 4)
#define LANE(tag, g) tag(C(g, 0)), tag(C(g, 1)), tag(C(g, 2)), tag(C(g, 3))
#define LANES(tag)                                                                                                     \
    LANE(tag, 0), LANE(tag, 1), LANE(tag, 2), LANE(tag, 3), LANE(tag, 4), LANE(tag, 5), LANE(tag, 6), LANE(tag, 7)
static const _Alignas(64) uint16_t position_tags_hv2[32] = {ROW(TAG16, 0), ROW(TAG16, 8), ROW(TAG16, 16),
                                                            ROW(TAG16, 24)};
static const _Alignas(64) uint16_t lane_tags_hv2[32] = {LANES(TAG16)};
/* Positions in the first 32 bytes, lanes in the others. */
static const _Alignas(64) uint8_t tags_hv1[64] = {ROW(TAG8, 0), ROW(TAG8, 8), ROW(TAG8, 16), ROW(TAG8, 24),
                                                  LANES(TAG8)};

typedef struct unit_order {
    vec tags;                        /* as the format has them; of hv 1, the first 32 bytes */
    _Alignas(64) uint64_t stored[8]; /* of 64 N bytes each: which are stored */
} unit_order;

static ALWAYS_INLINE uint32_t order_n(unsigned hv, const gaac_encoding *encoding, unit_order *order)
{
    const vec low = or_bits(load(&encoding->tags[0][0]), load(&encoding->tags[1][0]));
    const vec high = or_bits(load(&encoding->tags[0][16]), load(&encoding->tags[1][16]));
    uint32_t stored = 0;
    if (hv == 2) {
        const vec tags = or_bits(low, SHIFT_LEFT(high, 16));
        order->tags = _mm512_permutexvar_epi16(load(position_tags_hv2), tags);
        store(order->stored, _mm512_permutexvar_epi16(load(lane_tags_hv2), tags));
    } else {
        order->tags = _mm512_permutexvar_epi8(load(tags_hv1), or_bits(low, SHIFT_LEFT(high, 8)));
        _mm256_store_si256((__m256i *)order->stored, _mm512_extracti64x4_epi64(order->tags, 1));
    }
    for (unsigned i = 0; i < 4 * hv; i++)
        stored += (uint32_t)_mm_popcnt_u64(order->stored[i]);
    return stored;
}

/* Writes the bytes of a vector that are stored, and nothing beyond them; returns the end of them. */
static ALWAYS_INLINE uint8_t *append_n_bytes(uint8_t *out, vec n, uint64_t stored)
{
    const unsigned count = (unsigned)_mm_popcnt_u64(stored);
    _mm512_mask_storeu_epi8(out, _bzhi_u64(UINT64_MAX, count), _mm512_maskz_compress_epi8(stored, n));
    return out + count;
}

static ALWAYS_INLINE void write_n_hv2(const gaac_encoding *encoding, const unit_order *order, uint8_t *out)
{
    for (unsigned half = 0; half < 2; half++) { /* g = 0..3, then 4..7 */
        const vec columns = load(group_columns + 16 * half);
        vec n[4];
        for (unsigned word = 0; word < 4; word++) {
            const uint32_t *words = encoding->n[word >> 1][word & 1];
            n[word] = _mm512_permutex2var_epi32(load(words), columns, load(words + 16));
        }
        transpose(n);
        for (unsigned g = 0; g < 4; g++)
            out = append_n_bytes(out, n[g], order->stored[4 * half + g]);
    }
}

static ALWAYS_INLINE void write_n_hv1(const gaac_encoding *encoding, const unit_order *order, uint8_t *out)
{
    const uint32_t *k = encoding->n[GAAC_K][0], *v = encoding->n[GAAC_V][0];
    const vec interleave = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const vec second = _mm512_add_epi32(interleave, _mm512_set1_epi32(8));
    for (unsigned half = 0; half < 2; half++) {
        const vec columns = load(lane_columns + 16 * half);
        const vec lane_k = _mm512_permutex2var_epi32(load(k), columns, load(k + 16));
        const vec lane_v = _mm512_permutex2var_epi32(load(v), columns, load(v + 16));
        out = append_n_bytes(out, _mm512_permutex2var_epi32(lane_k, interleave, lane_v), order->stored[2 * half]);
        out = append_n_bytes(out, _mm512_permutex2var_epi32(lane_k, second, lane_v), order->stored[2 * half + 1]);
    }
}

static ALWAYS_INLINE void write_variable(unsigned hv, const gaac_encoding *encoding, const unit_order *order,
                                         uint32_t stored, uint8_t *variable)
{
    (void)stored;
    if (hv == 2) {
        _mm512_storeu_si512(variable, order->tags);
        write_n_hv2(encoding, order, variable + 2 * GAAC_TAG_BYTES);
    } else {
        _mm256_storeu_si256((__m256i *)variable, _mm512_castsi512_si256(order->tags));
        write_n_hv1(encoding, order, variable + GAAC_TAG_BYTES);
    }
}

#include "cpu/encode_template.h"

bool gaac_encode_unit_avx512(unsigned hv, unsigned parts, const uint16_t *k_fragments, const uint16_t *v_fragments,
                             gaac_base_words k_bases, gaac_base_words v_bases, uint8_t *k_fixed, uint8_t *v_fixed,
                             uint8_t *variable, uint32_t capacity, gaac_unit_info *info)
{
    const uint16_t *const fragments[2] = {k_fragments, v_fragments};
    return hv == 2 ? encode_unit(2, parts, fragments, k_bases, v_bases, k_fixed, v_fixed, variable, capacity, info)
                   : encode_unit(1, parts, fragments, k_bases, v_bases, k_fixed, v_fixed, variable, capacity, info);
}
