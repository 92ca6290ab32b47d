/* Encoding with AVX2 and BMI2: the vectors of encode_template.h. Vectors and column order are those of codec_avx2.c.
 *
 * A unit of K and V of 128 channels, 12% of its groups 4-bit and no exception, takes 4,680 instructions (gcc 12; clang
 * 14: 4,640); about 2,950 of them are vector arithmetic, of which a core takes three a cycle: 980 cycles are the limit.
 * On a Xeon with AMX at 4.05 GHz it takes 1,220 (clang) to 1,310 (gcc) from the first-level cache: the 64 pext and
 * popcnt that gather the N bytes, and what else is not vectors, share the three ports. Against encode_avx512.c a vector
 * is half as long, a selection is three operations instead of one (two that swap are four), a rotation three. */
#include "cpu/codec_avx2.h"
#include "cpu/encoding.h"

#include <string.h>

typedef __m256i vec;
enum { VECTOR_POSITIONS = 2 };

#define ROTATE_LEFT(v, n) _mm256_or_si256(_mm256_slli_epi32(v, n), _mm256_srli_epi32(v, 32 - (n)))
#define SHIFT_LEFT(v, n) _mm256_slli_epi32(v, n)
#define SHIFT_RIGHT(v, n) _mm256_srli_epi32(v, n)

static inline vec dwords(uint32_t x)
{
    vec v = _mm256_set1_epi32((int)x);
#if !defined(__clang__)
    /* GCC would make constants anew wherever they are used, by a shuffle; what it can't see through it keeps. */
    __asm__("" : "+x"(v));
#endif
    return v;
}
static inline vec and_bits(vec a, vec b)
{
    return _mm256_and_si256(a, b);
}
static inline vec or_bits(vec a, vec b)
{
    return _mm256_or_si256(a, b);
}
static inline vec and_not(vec a, vec b)
{
    return _mm256_andnot_si256(a, b);
}
static inline vec or_both(vec a, vec b, vec c)
{
    return or_bits(a, or_bits(b, c));
}
static inline vec or_and(vec a, vec b, vec c)
{
    return or_bits(a, and_bits(b, c));
}
static inline vec add_dwords(vec a, vec b)
{
    return _mm256_add_epi32(a, b);
}
static inline vec subtract_dwords(vec a, vec b)
{
    return _mm256_sub_epi32(a, b);
}
static inline vec subtract_bytes(vec a, vec b)
{
    return _mm256_sub_epi8(a, b);
}

typedef struct exchanged {
    vec taken, left;
} exchanged;

/* Four operations, where two selections would be six. */
static ALWAYS_INLINE exchanged exchange(vec mask, vec a, vec b)
{
    const vec change = and_bits(_mm256_xor_si256(a, b), mask);
    return (exchanged){_mm256_xor_si256(b, change), _mm256_xor_si256(a, change)};
}

static ALWAYS_INLINE void load_registers(gaac_part part, const uint16_t *fragment, vec *a, vec *b)
{
    const vec left_8 = _mm256_setr_epi8(3, 0, 1, 2, 7, 4, 5, 6, 11, 8, 9, 10, 15, 12, 13, 14, 3, 0, 1, 2, 7, 4, 5, 6,
                                        11, 8, 9, 10, 15, 12, 13, 14);
    const vec first = load(fragment), second = load(fragment + GAAC_FRAGMENT_ELEMENTS);
    if (part == GAAC_K) {
        *a = _mm256_unpacklo_epi64(first, second);
        *b = _mm256_unpackhi_epi64(first, second);
    } else {
        const __m256 f = _mm256_castsi256_ps(first), s = _mm256_castsi256_ps(second);
        *a = _mm256_castps_si256(_mm256_shuffle_ps(f, s, 0x88));
        *b = _mm256_castps_si256(_mm256_shuffle_ps(f, s, 0xDD));
    }
    /* Clang would shuffle bytes of both sources, and then blend them. */
    __asm__("" : "+x"(*b));
    *b = _mm256_shuffle_epi8(*b, left_8);
}

static inline bool has_bits(vec v, uint32_t mask)
{
    return !_mm256_testz_si256(v, dwords(mask));
}

static inline vec outside_bytes(vec v)
{
    const vec inside = _mm256_cmpeq_epi8(_mm256_min_epu8(v, _mm256_set1_epi8(15)), v);
    return _mm256_xor_si256(inside, _mm256_set1_epi8(-1));
}

static inline void byte_mask(void *bits, vec bytes)
{
    const uint32_t mask = (uint32_t)_mm256_movemask_epi8(bytes);
    memcpy(bits, &mask, sizeof mask);
}

static ALWAYS_INLINE vec wide_bytes(const vec t[4], const vec narrow[4])
{
    const vec first = and_bits(_mm256_xor_si256(t[0], narrow[0]), _mm256_xor_si256(t[1], narrow[1]));
    const vec second = and_bits(_mm256_xor_si256(t[2], narrow[2]), _mm256_xor_si256(t[3], narrow[3]));
    const vec both = dwords(0x44444444); /* 0 to 0x44, so the comparison's signs don't matter */
    return _mm256_cmpgt_epi8(both, and_bits(and_bits(first, second), both));
}

static ALWAYS_INLINE vec tag_bits(unsigned hv, const vec wide[], unsigned shift)
{
    vec bits = and_bits(wide[0], dwords(0x01010101));
    if (hv == 2)
        bits = or_and(bits, wide[1], dwords(0x10101010));
    const vec sums = _mm256_maddubs_epi16(bits, dwords(0x08040201));
    return _mm256_madd_epi16(sums, _mm256_set1_epi16((short)(1 << shift)));
}

/* The words of both halves as pairs, in the order 0 2 1 3, 4 6 5 7 of positions; of one half, in column order. */
static ALWAYS_INLINE void store_n(gaac_encoding *encoding, gaac_part part, unsigned hv, unsigned block, const vec n[],
                                  const vec wide[])
{
    const unsigned row = hv * block / GAAC_LANES, column = hv * block % GAAC_LANES;
    uint32_t *words = &encoding->n[part][row][column], *stored = &encoding->stored[part][row][column];
    if (hv == 1) {
        store(words, n[0]);
        store(stored, wide[0]);
        return;
    }
    store(words, _mm256_unpacklo_epi32(n[0], n[1]));
    store(words + 8, _mm256_unpackhi_epi32(n[0], n[1]));
    store(stored, _mm256_unpacklo_epi32(wide[0], wide[1]));
    store(stored + 8, _mm256_unpackhi_epi32(wide[0], wide[1]));
}

/* Where store_n has lane 4g + t. */
#define P(g, t) (8 * (t) + ((g) ^ 2 * (t)))
#define PAIR(p) (((p)&28) + 2 * ((p)&1) + ((p) >> 1 & 1))
#define COLUMN(p) (((p)&24) + 4 * ((p)&1) + ((p) >> 1 & 3))
#define LANES4(place, g) place(P(g, 0)), place(P(g, 1)), place(P(g, 2)), place(P(g, 3))
#define LANES(place)                                                                                                   \
    LANES4(place, 0), LANES4(place, 1), LANES4(place, 2), LANES4(place, 3), LANES4(place, 4), LANES4(place, 5),        \
        LANES4(place, 6), LANES4(place, 7)
static const uint8_t lane_pairs[GAAC_LANES] = {LANES(PAIR)};
static const uint8_t lane_columns[GAAC_LANES] = {LANES(COLUMN)};

typedef struct unit_order {
    uint8_t n[2 * GAAC_MAX_HV * 128 + 8]; /* the stored N bytes */
} unit_order;

/* Appends the stored bytes of two N words; writes 8 bytes whatever their number. */
static inline uint8_t *append_n_bytes(uint8_t *out, uint64_t n, uint64_t stored)
{
    const uint64_t bytes = _pext_u64(n, stored);
    memcpy(out, &bytes, sizeof bytes);
    return out + _mm_popcnt_u64(stored) / 8;
}

static inline uint64_t pair_at(const uint32_t words[GAAC_MAX_HV][GAAC_LANES], unsigned pair)
{
    uint64_t both;
    memcpy(&both, (const uint8_t *)words + sizeof both * pair, sizeof both);
    return both;
}

static ALWAYS_INLINE uint32_t order_n(unsigned hv, const gaac_encoding *encoding, unit_order *order)
{
    uint8_t *next = order->n;
    for (unsigned lane = 0; lane < GAAC_LANES; lane++) {
        if (hv == 1) {
            const unsigned i = lane_columns[lane];
            next = append_n_bytes(next, encoding->n[0][0][i] | (uint64_t)encoding->n[1][0][i] << 32,
                                  encoding->stored[0][0][i] | (uint64_t)encoding->stored[1][0][i] << 32);
            continue;
        }
        for (unsigned part = 0; part < 2; part++)
            next = append_n_bytes(next, pair_at(encoding->n[part], lane_pairs[lane]),
                                  pair_at(encoding->stored[part], lane_pairs[lane]));
    }
    return (uint32_t)(next - order->n);
}

/* The tags of 16 positions, 16 bits each. */
static inline vec join_tags(const gaac_encoding *encoding, unsigned position)
{
    const vec low = or_bits(load(&encoding->tags[0][position]), load(&encoding->tags[1][position]));
    const vec high = or_bits(load(&encoding->tags[0][position + 8]), load(&encoding->tags[1][position + 8]));
    return _mm256_permute4x64_epi64(_mm256_packus_epi32(from_columns(low), from_columns(high)), 0xD8);
}

static ALWAYS_INLINE void write_variable(unsigned hv, const gaac_encoding *encoding, const unit_order *order,
                                         uint32_t stored, uint8_t *variable)
{
    const vec low = join_tags(encoding, 0), high = join_tags(encoding, 16);
    if (hv == 2) {
        _mm256_storeu_si256((vec *)variable, low);
        _mm256_storeu_si256((vec *)(variable + GAAC_TAG_BYTES), high);
    } else {
        _mm256_storeu_si256((vec *)variable, _mm256_permute4x64_epi64(_mm256_packus_epi16(low, high), 0xD8));
    }
    memcpy(variable + GAAC_TAG_BYTES * hv, order->n, stored);
}

#include "cpu/encode_template.h"

bool gaac_encode_unit_avx2(unsigned hv, unsigned parts, const uint16_t *k_fragments, const uint16_t *v_fragments,
                           gaac_base_words k_bases, gaac_base_words v_bases, uint8_t *k_fixed, uint8_t *v_fixed,
                           uint8_t *variable, uint32_t capacity, gaac_unit_info *info)
{
    const uint16_t *const fragments[2] = {k_fragments, v_fragments};
    return hv == 2 ? encode_unit(2, parts, fragments, k_bases, v_bases, k_fixed, v_fixed, variable, capacity, info)
                   : encode_unit(1, parts, fragments, k_bases, v_bases, k_fixed, v_fixed, variable, capacity, info);
}
