/* Encoding with AVX2 and BMI2. The definition is in codec/unit_encode.c; vectors and column order are those of
 * codec_avx2.c.
 *
 * The exponents of two positions are handled as bytes: rotated left by one, the bytes of a word of exponents
 * are B.hi, A.lo, B.lo, A.hi, the order of the groups in an N word. */
#include "cpu/codec_avx2.h"
#include "cpu/encoding.h"

#include <string.h>

/* Exponents of words 4 * pair .. 4 * pair + 3 of two positions against their windows, as bytes. */
typedef struct offsets {
    __m256i from_wide;   /* e - b4 */
    __m256i from_narrow; /* e - b4 - k */
    __m256i inside;      /* 0xff where inside the 4-bit window */
} offsets;

static inline __m256i rotate_left_1(__m256i v)
{
    return _mm256_or_si256(_mm256_add_epi32(v, v), _mm256_srli_epi32(v, 31));
}

/* 0xff where the byte is at most `limit`, unsigned. */
static inline __m256i at_most(__m256i bytes, char limit)
{
    return _mm256_cmpeq_epi8(_mm256_min_epu8(bytes, _mm256_set1_epi8(limit)), bytes);
}

/* Stores the sign-and-mantissa words of fragments j and j + 1 of two positions; returns the exponents. */
static ALWAYS_INLINE __m256i split_words(gaac_part part, const uint16_t *fragment, uint8_t *words)
{
    const __m256i mantissas = _mm256_set1_epi32((int)0x807f807f);
    const __m256i left_8 = _mm256_setr_epi8(3, 0, 1, 2, 7, 4, 5, 6, 11, 8, 9, 10, 15, 12, 13, 14, 3, 0, 1, 2, 7, 4, 5,
                                            6, 11, 8, 9, 10, 15, 12, 13, 14);
    const __m256i first = load(fragment), second = load(fragment + GAAC_FRAGMENT_ELEMENTS);
    __m256i a, b;
    if (part == GAAC_K) {
        a = _mm256_unpacklo_epi64(first, second);
        b = _mm256_unpackhi_epi64(first, second);
    } else {
        const __m256 f = _mm256_castsi256_ps(first), s = _mm256_castsi256_ps(second);
        a = _mm256_castps_si256(_mm256_shuffle_ps(f, s, 0x88));
        b = _mm256_castps_si256(_mm256_shuffle_ps(f, s, 0xDD));
    }
    b = _mm256_shuffle_epi8(b, left_8);
    const __m256i change = _mm256_and_si256(_mm256_xor_si256(a, b), mantissas);
    store(words, _mm256_xor_si256(b, change)); /* a where mantissas, else b */
    return rotate_left_1(_mm256_xor_si256(a, change));
}

static ALWAYS_INLINE offsets find_offsets(__m256i exponents, __m256i base_words)
{
    const __m256i shifts = _mm256_set1_epi32(0x07070706); /* k of A.hi, B.lo, A.lo, B.hi */
    offsets o;
    o.from_wide = _mm256_sub_epi8(exponents, rotate_left_1(base_words));
    o.from_narrow = _mm256_sub_epi8(o.from_wide, shifts);
    o.inside = at_most(o.from_wide, 15);
    return o;
}

/* U_j, U_j+1 of two positions, in the even dwords: the nibbles of s = 0 and 1 in the lower and upper half of
 * each byte. groups: 0xff where the group is 4-bit. */
static ALWAYS_INLINE __m256i pack_nibbles(const offsets *o, __m256i groups)
{
    const __m256i eight = _mm256_set1_epi8(8);
    __m256i nibbles = _mm256_blendv_epi8(_mm256_add_epi8(o->from_narrow, eight), o->from_wide, groups);
    nibbles = _mm256_blendv_epi8(eight, nibbles, o->inside);
    return _mm256_or_si256(nibbles, _mm256_srli_epi64(nibbles, 28));
}

/* Encodes two positions of a half: their words, tags, places of exceptions; returns U_0..U_3. */
static ALWAYS_INLINE __m256i encode_two(gaac_part part, unsigned hv, unsigned h, unsigned position,
                                        const uint16_t *fragments, gaac_base_words bases, uint8_t *fixed,
                                        gaac_encoding *encoding, uint32_t *any_outside)
{
    offsets o[2];
    __m256i groups = _mm256_setzero_si256();
    uint32_t tags;
    for (unsigned pair = 0; pair < 2; pair++) {
        const unsigned offset = gaac_word_offset(h, 4 * pair, position);
        const uint16_t *fragment = fragments + (4 * h + 2 * pair) * GAAC_FRAGMENT_ELEMENTS + position * 8;
        o[pair] = find_offsets(split_words(part, fragment, fixed + offset), load(bases + offset / 4));
        groups = _mm256_or_si256(groups, _mm256_andnot_si256(at_most(o[pair].from_narrow, 7), o[pair].inside));
        const uint32_t outside = ~(uint32_t)_mm256_movemask_epi8(o[pair].inside);
        memcpy(&encoding->outside[part][h][pair][position], &outside, sizeof outside);
        *any_outside |= outside;
    }
    /* A group is one byte of all eight words. */
    groups = _mm256_or_si256(groups, _mm256_shuffle_epi32(groups, 0x4E));
    groups = _mm256_or_si256(groups, _mm256_shuffle_epi32(groups, 0xB1));
    memcpy(&tags, &encoding->tags[position], sizeof tags);
    tags |= ((uint32_t)_mm256_movemask_epi8(groups) & 0x000f000f) << 4 * ((unsigned)part * hv + h);
    memcpy(&encoding->tags[position], &tags, sizeof tags);

    const __m256 first = _mm256_castsi256_ps(pack_nibbles(&o[0], groups));
    const __m256 second = _mm256_castsi256_ps(pack_nibbles(&o[1], groups));
    return _mm256_castps_si256(_mm256_shuffle_ps(first, second, 0x88));
}

/* C_0..C_2 and N from U_0..U_3: the way back from nibble_words in codec_avx2.c. */
static ALWAYS_INLINE __m256i split_nibbles(const __m256i u[4], __m256i c[3])
{
    const __m256i top = _mm256_set1_epi32(0x44444444);
    __m256i t[4];
    for (unsigned j = 0; j < 4; j++)
        t[j] = _mm256_or_si256(_mm256_srli_epi32(u[j], 1), _mm256_slli_epi32(u[j], 31));
    const __m256i up = _mm256_slli_epi32(t[3], 1);
    c[0] = select_bits(top, _mm256_srli_epi32(t[3], 1), t[0]);
    c[1] = select_bits(top, _mm256_slli_epi32(t[3], 2), t[1]);
    c[2] = select_bits(top, up, t[2]);
    const __m256i low =
        select_bits(_mm256_set1_epi32(0x22222222), _mm256_srli_epi32(t[1], 1), _mm256_srli_epi32(t[2], 2));
    return select_bits(_mm256_set1_epi32(0x33333333), low, select_bits(top, t[0], up));
}

/* The codes of each half of 8 positions, from column order. */
static ALWAYS_INLINE void store_codes(unsigned hv, uint8_t *fixed, unsigned position, __m256i c[][3])
{
    if (hv == 1) {
        store_pairs(fixed + gaac_code_offset(1, 0, 0, position), c[0][0], c[0][1]);
        store(fixed + gaac_code_offset(1, 0, 2, position), from_columns(c[0][2]));
        return;
    }
    __m256i quads[4] = {c[0][0], c[0][1], c[0][2], c[1][0]};
    transpose(quads);
    for (unsigned q = 0; q < 4; q++)
        store(fixed + gaac_code_offset(2, 0, 0, position + 2 * q), quads[q]);
    store_pairs(fixed + gaac_code_offset(2, 1, 1, position), c[1][1], c[1][2]);
}

/* Encodes one part; returns whether it has exceptions. */
static ALWAYS_INLINE bool encode_part(gaac_part part, unsigned hv, const uint16_t *fragments, gaac_base_words bases,
                                      uint8_t *fixed, gaac_encoding *encoding)
{
    uint32_t any_outside = 0;
    for (unsigned block = 0; block < GAAC_LANES; block += 8) {
        __m256i c[GAAC_MAX_HV][3];
        for (unsigned h = 0; h < hv; h++) {
            __m256i u[4];
            for (unsigned q = 0; q < 4; q++)
                u[q] = encode_two(part, hv, h, block + 2 * q, fragments, bases, fixed, encoding, &any_outside);
            transpose(u);
            store(&encoding->n[part][h][block], from_columns(split_nibbles(u, c[h])));
        }
        store_codes(hv, fixed, block, c);
    }
    return any_outside != 0;
}

/* Appends the stored bytes of two N words; writes 8 bytes whatever their number. */
static inline uint8_t *append_n_bytes(uint8_t *out, uint32_t n0, uint32_t n1, uint64_t bits)
{
    const uint64_t bytes = _pext_u64(n0 | (uint64_t)n1 << 32, stored_bytes(bits));
    memcpy(out, &bytes, sizeof bytes);
    return out + _mm_popcnt_u64(bits);
}

/* Gathers the stored N bytes in lane order into `out`, which has room for all and 8 more; their number. */
static uint32_t gather_n(unsigned hv, const gaac_encoding *encoding, uint8_t *out)
{
    uint8_t *next = out;
    for (unsigned lane = 0; lane < GAAC_LANES; lane++) {
        const unsigned p = gaac_position(lane >> 2, lane & 3);
        const unsigned tag = encoding->tags[p];
        if (hv == 1) {
            next = append_n_bytes(next, encoding->n[0][0][p], encoding->n[1][0][p], tag);
            continue;
        }
        for (unsigned part = 0; part < 2; part++)
            next = append_n_bytes(next, encoding->n[part][0][p], encoding->n[part][1][p], tag >> 8 * part & 0xff);
    }
    return (uint32_t)(next - out);
}

static void write_tags(unsigned hv, const gaac_encoding *encoding, uint8_t *variable)
{
    if (hv == 2) {
        memcpy(variable, encoding->tags, sizeof encoding->tags);
        return;
    }
    for (unsigned position = 0; position < GAAC_LANES; position++)
        variable[position] = (uint8_t)encoding->tags[position];
}

bool gaac_encode_unit_avx2(unsigned hv, unsigned parts, const uint16_t *k_fragments, const uint16_t *v_fragments,
                           gaac_base_words k_bases, gaac_base_words v_bases, uint8_t *k_fixed, uint8_t *v_fixed,
                           uint8_t *variable, uint32_t capacity, gaac_unit_info *info)
{
    const uint16_t *const fragments[2] = {k_fragments, v_fragments};
    gaac_encoding encoding;
    gaac_exceptions exceptions;
    bool outside = false;

    exceptions.count = exceptions.flags = 0;
    memset(encoding.tags, 0, sizeof encoding.tags);
    if (parts != (GAAC_HAS_K | GAAC_HAS_V))
        memset(encoding.n, 0, sizeof encoding.n);
    if (parts & GAAC_HAS_K)
        outside |= hv == 2 ? encode_part(GAAC_K, 2, k_fragments, k_bases, k_fixed, &encoding)
                           : encode_part(GAAC_K, 1, k_fragments, k_bases, k_fixed, &encoding);
    if (parts & GAAC_HAS_V)
        outside |= hv == 2 ? encode_part(GAAC_V, 2, v_fragments, v_bases, v_fixed, &encoding)
                           : encode_part(GAAC_V, 1, v_fragments, v_bases, v_fixed, &encoding);
    if (outside)
        gaac_exceptions_collect(&exceptions, hv, parts, &encoding, fragments);

    uint8_t n[2 * GAAC_MAX_HV * 128 + 8];
    const uint32_t stored = gather_n(hv, &encoding, n);
    if (!gaac_encoding_measure(hv, stored, &exceptions, capacity, info))
        return false;
    write_tags(hv, &encoding, variable);
    memcpy(variable + GAAC_TAG_BYTES * hv, n, stored);
    gaac_exceptions_write(&exceptions, hv, info, variable);
    return true;
}
