/* Encoding with AVX-512. The definition is in codec/unit_encode.c; vectors and column order are those of
 * codec_avx512.c.
 *
 * The exponents of four positions are handled as bytes: rotated left by one, the bytes of a word of exponents
 * are B.hi, A.lo, B.lo, A.hi, the order of the groups in an N word. */
#include "cpu/codec_avx512.h"
#include "cpu/encoding.h"

#include <string.h>

/* Position of lane 4g + t. */
#define P(g, t) (8 * (t) + ((g) ^ 2 * (t)))
#define P4(g) P(g, 0), P(g, 1), P(g, 2), P(g, 3)
/* The positions of the lanes in order, as u32, u16 and u8. */
static const _Alignas(64) uint32_t lane_positions[32] = {P4(0), P4(1), P4(2), P4(3), P4(4), P4(5), P4(6), P4(7)};
static const _Alignas(64) uint16_t lane_positions_u16[32] = {P4(0), P4(1), P4(2), P4(3), P4(4), P4(5), P4(6), P4(7)};
static const _Alignas(32) uint8_t lane_positions_u8[32] = {P4(0), P4(1), P4(2), P4(3), P4(4), P4(5), P4(6), P4(7)};

/* The same, with the lanes t = 0 of g = 0..3 first, then t = 1, and so on; then g = 4..7: what a transposition
 * turns into lane order. */
#define G4(g, t) P((g), t), P((g) + 1, t), P((g) + 2, t), P((g) + 3, t)
static const _Alignas(64) uint32_t column_positions[32] = {G4(0, 0), G4(0, 1), G4(0, 2), G4(0, 3),
                                                           G4(4, 0), G4(4, 1), G4(4, 2), G4(4, 3)};

/* Exponents of words 4 * pair .. 4 * pair + 3 of four positions against their windows, as bytes. */
typedef struct offsets {
    __m512i from_wide;   /* e - b4 */
    __m512i from_narrow; /* e - b4 - k */
    __mmask64 inside;    /* of the 4-bit window */
} offsets;

/* Stores the sign-and-mantissa words of fragments j and j + 1 of four positions; returns the exponents. */
static ALWAYS_INLINE __m512i split_words(gaac_part part, const uint16_t *fragment, uint8_t *words)
{
    const __m512i mantissas = _mm512_set1_epi32((int)0x807f807f);
    const __m512 first = _mm512_castsi512_ps(load(fragment));
    const __m512 second = _mm512_castsi512_ps(load(fragment + GAAC_FRAGMENT_ELEMENTS));
    __m512i a, b;
    if (part == GAAC_K) {
        a = _mm512_unpacklo_epi64(_mm512_castps_si512(first), _mm512_castps_si512(second));
        b = _mm512_unpackhi_epi64(_mm512_castps_si512(first), _mm512_castps_si512(second));
    } else {
        a = _mm512_castps_si512(_mm512_shuffle_ps(first, second, 0x88));
        b = _mm512_castps_si512(_mm512_shuffle_ps(first, second, 0xDD));
    }
    b = _mm512_rol_epi32(b, 8);
    store(words, select_bits(mantissas, a, b));
    return _mm512_rol_epi32(select_bits(mantissas, b, a), 1);
}

static ALWAYS_INLINE offsets find_offsets(__m512i exponents, __m512i base_words)
{
    const __m512i shifts = _mm512_set1_epi32(0x07070706); /* k of A.hi, B.lo, A.lo, B.hi */
    offsets o;
    o.from_wide = _mm512_sub_epi8(exponents, _mm512_rol_epi32(base_words, 1));
    o.from_narrow = _mm512_sub_epi8(o.from_wide, shifts);
    o.inside = _mm512_cmplt_epu8_mask(o.from_wide, _mm512_set1_epi8(16));
    return o;
}

/* U_j, U_j+1 of four positions, in the even dwords: the nibbles of s = 0 and 1 in the lower and upper half
 * of each byte. groups: the bytes whose group is 4-bit. */
static ALWAYS_INLINE __m512i pack_nibbles(const offsets *o, __mmask64 groups)
{
    const __m512i eight = _mm512_set1_epi8(8);
    __m512i nibbles = _mm512_mask_add_epi8(o->from_wide, ~groups, o->from_narrow, eight);
    nibbles = _mm512_mask_mov_epi8(eight, o->inside, nibbles);
    return _mm512_or_si512(nibbles, _mm512_srli_epi64(nibbles, 28));
}

/* Encodes four positions of a half: their words, tags, places of exceptions; returns U_0..U_3. */
static ALWAYS_INLINE __m512i encode_quad(gaac_part part, unsigned hv, unsigned h, unsigned position,
                                         const uint16_t *fragments, gaac_base_words bases, uint8_t *fixed,
                                         gaac_encoding *encoding, uint64_t *any_outside)
{
    offsets o[2];
    uint64_t wide = 0, tags;
    for (unsigned pair = 0; pair < 2; pair++) {
        const unsigned offset = gaac_word_offset(h, 4 * pair, position);
        const uint16_t *fragment = fragments + (4 * h + 2 * pair) * GAAC_FRAGMENT_ELEMENTS + position * 8;
        o[pair] = find_offsets(split_words(part, fragment, fixed + offset), load(bases + offset / 4));
        wide |= _mm512_mask_cmpge_epu8_mask(o[pair].inside, o[pair].from_narrow, _mm512_set1_epi8(8));
        const uint64_t outside = ~o[pair].inside;
        memcpy(&encoding->outside[part][h][pair][position], &outside, sizeof outside);
        *any_outside |= outside;
    }
    /* A group is one byte of all eight words: gather its bits in the lowest four of the position's 16. */
    wide |= wide >> 8;
    wide = (wide | wide >> 4) & UINT64_C(0x000f000f000f000f);
    memcpy(&tags, &encoding->tags[position], sizeof tags);
    tags |= wide << 4 * ((unsigned)part * hv + h);
    memcpy(&encoding->tags[position], &tags, sizeof tags);

    const __mmask64 groups = wide * 0x1111;
    const __m512 first = _mm512_castsi512_ps(pack_nibbles(&o[0], groups));
    const __m512 second = _mm512_castsi512_ps(pack_nibbles(&o[1], groups));
    return _mm512_castps_si512(_mm512_shuffle_ps(first, second, 0x88));
}

/* C_0..C_2 and N from U_0..U_3: the way back from nibble_words in codec_avx512.c. */
static ALWAYS_INLINE __m512i split_nibbles(const __m512i u[4], __m512i c[3])
{
    const __m512i top = _mm512_set1_epi32(0x44444444);
    __m512i t[4];
    for (unsigned j = 0; j < 4; j++)
        t[j] = _mm512_ror_epi32(u[j], 1);
    const __m512i up = _mm512_slli_epi32(t[3], 1);
    c[0] = select_bits(top, _mm512_srli_epi32(t[3], 1), t[0]);
    c[1] = select_bits(top, _mm512_slli_epi32(t[3], 2), t[1]);
    c[2] = select_bits(top, up, t[2]);
    const __m512i low =
        select_bits(_mm512_set1_epi32(0x22222222), _mm512_srli_epi32(t[1], 1), _mm512_srli_epi32(t[2], 2));
    return select_bits(_mm512_set1_epi32(0x33333333), low, select_bits(top, t[0], up));
}

/* The codes of each half of 16 positions, from column order. */
static ALWAYS_INLINE void store_codes(unsigned hv, uint8_t *fixed, unsigned position, __m512i c[][3])
{
    if (hv == 1) {
        store_pairs(fixed + gaac_code_offset(1, 0, 0, position), c[0][0], c[0][1]);
        store(fixed + gaac_code_offset(1, 0, 2, position), _mm512_permutexvar_epi32(column_order(), c[0][2]));
        return;
    }
    __m512i quads[4] = {c[0][0], c[0][1], c[0][2], c[1][0]};
    transpose(quads);
    for (unsigned q = 0; q < 4; q++)
        store(fixed + gaac_code_offset(2, 0, 0, position + 4 * q), quads[q]);
    store_pairs(fixed + gaac_code_offset(2, 1, 1, position), c[1][1], c[1][2]);
}

/* Encodes one part; returns whether it has exceptions. */
static ALWAYS_INLINE bool encode_part(gaac_part part, unsigned hv, const uint16_t *fragments, gaac_base_words bases,
                                      uint8_t *fixed, gaac_encoding *encoding)
{
    uint64_t any_outside = 0;
    for (unsigned block = 0; block < GAAC_LANES; block += 16) {
        __m512i c[GAAC_MAX_HV][3];
        for (unsigned h = 0; h < hv; h++) {
            __m512i u[4];
            for (unsigned q = 0; q < 4; q++)
                u[q] = encode_quad(part, hv, h, block + 4 * q, fragments, bases, fixed, encoding, &any_outside);
            transpose(u);
            const __m512i n = split_nibbles(u, c[h]);
            store(&encoding->n[part][h][block], _mm512_permutexvar_epi32(column_order(), n));
        }
        store_codes(hv, fixed, block, c);
    }
    return any_outside != 0;
}

/* Writes the bytes of a vector that are stored; returns the end of them. */
static inline uint8_t *append_n_bytes(uint8_t *out, __m512i n, uint64_t stored)
{
    const unsigned count = (unsigned)_mm_popcnt_u64(stored);
    _mm512_mask_storeu_epi8(out, _bzhi_u64(UINT64_MAX, count), _mm512_maskz_compress_epi8(stored, n));
    return out + count;
}

/* Writes the stored N bytes. lane_tags: the tags in lane order, 64 bytes of stored bits each. */
static void write_n_hv2(const gaac_encoding *encoding, const uint64_t lane_tags[8], uint8_t *out)
{
    for (unsigned half = 0; half < 2; half++) { /* g = 0..3, then 4..7 */
        const __m512i order = load(column_positions + 16 * half);
        __m512i n[4];
        for (unsigned word = 0; word < 4; word++) {
            const uint32_t *words = encoding->n[word >> 1][word & 1];
            n[word] = _mm512_permutex2var_epi32(load(words), order, load(words + 16));
        }
        transpose(n);
        for (unsigned g = 0; g < 4; g++)
            out = append_n_bytes(out, n[g], lane_tags[4 * half + g]);
    }
}

static void write_n_hv1(const gaac_encoding *encoding, const uint64_t lane_tags[4], uint8_t *out)
{
    const uint32_t *k = encoding->n[GAAC_K][0], *v = encoding->n[GAAC_V][0];
    const __m512i interleave = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    for (unsigned half = 0; half < 2; half++) {
        const __m512i order = load(lane_positions + 16 * half);
        const __m512i lane_k = _mm512_permutex2var_epi32(load(k), order, load(k + 16));
        const __m512i lane_v = _mm512_permutex2var_epi32(load(v), order, load(v + 16));
        const __m512i second = _mm512_add_epi32(interleave, _mm512_set1_epi32(8));
        out = append_n_bytes(out, _mm512_permutex2var_epi32(lane_k, interleave, lane_v), lane_tags[2 * half]);
        out = append_n_bytes(out, _mm512_permutex2var_epi32(lane_k, second, lane_v), lane_tags[2 * half + 1]);
    }
}

/* Writes the tags in position order; gives them in lane order, and the number of stored N bytes. */
static uint32_t order_tags(unsigned hv, __m512i tags, uint64_t lane_tags[8])
{
    uint32_t stored = 0;
    if (hv == 2)
        store(lane_tags, _mm512_permutexvar_epi16(load(lane_positions_u16), tags));
    else
        _mm256_store_si256(
            (__m256i *)lane_tags,
            _mm256_permutexvar_epi8(_mm256_load_si256((const __m256i *)lane_positions_u8), _mm512_cvtepi16_epi8(tags)));
    for (unsigned i = 0; i < 4 * hv; i++)
        stored += (uint32_t)_mm_popcnt_u64(lane_tags[i]);
    return stored;
}

static void write_tags_and_n(unsigned hv, const gaac_encoding *encoding, const uint64_t lane_tags[8], uint8_t *variable)
{
    const __m512i tags = load(encoding->tags);
    if (hv == 2) {
        _mm512_storeu_si512(variable, tags);
        write_n_hv2(encoding, lane_tags, variable + 2 * GAAC_TAG_BYTES);
    } else {
        _mm256_storeu_si256((__m256i *)variable, _mm512_cvtepi16_epi8(tags));
        write_n_hv1(encoding, lane_tags, variable + GAAC_TAG_BYTES);
    }
}

bool gaac_encode_unit_avx512(unsigned hv, unsigned parts, const uint16_t *k_fragments, const uint16_t *v_fragments,
                             gaac_base_words k_bases, gaac_base_words v_bases, uint8_t *k_fixed, uint8_t *v_fixed,
                             uint8_t *variable, uint32_t capacity, gaac_unit_info *info)
{
    const uint16_t *const fragments[2] = {k_fragments, v_fragments};
    gaac_encoding encoding;
    gaac_exceptions exceptions;
    bool outside = false;

    exceptions.count = exceptions.flags = 0;
    store(encoding.tags, _mm512_setzero_si512());
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

    _Alignas(64) uint64_t lane_tags[8];
    const uint32_t stored = order_tags(hv, load(encoding.tags), lane_tags);
    if (!gaac_encoding_measure(hv, stored, &exceptions, capacity, info))
        return false;
    write_tags_and_n(hv, &encoding, lane_tags, variable);
    gaac_exceptions_write(&exceptions, hv, info, variable);
    return true;
}
