/* Tags and decoding with AVX2 and BMI2. The definitions are in codec/unit_decode.c.
 *
 * A vector of sign-and-mantissa words holds two consecutive positions, one in each 128-bit lane, with four
 * words each: k & 3 = 0..3, so j and s run {j, j, j+1, j+1} and {0, 1, 0, 1}.
 *
 * The nibble words T_0..T_3 are made for 8 positions at once, in column order: a 4 x 4 transposition inside
 * the 128-bit lanes of four vectors of two positions leaves position 2q + l at dword 4l + q. */
#include "cpu/codec_avx2.h"
#include "cpu/cpu.h"

#include <string.h>

static uint32_t count_stored(unsigned hv, const uint8_t *variable)
{
    uint32_t stored = 0;
    for (unsigned i = 0; i < 4 * hv; i++) {
        uint64_t tags;
        memcpy(&tags, variable + 8 * i, sizeof tags);
        stored += (uint32_t)_mm_popcnt_u64(tags);
    }
    return stored;
}

/* The next 8 bytes of a stream, or, nearer to its end, those that are left (and whatever, when none is). Reads
 * backwards from the end there: the tags in front of the stream are part of the variable part too. */
static inline uint64_t load_bounded(const uint8_t *next, const uint8_t *end)
{
    uint64_t value;
    const ptrdiff_t left = end - next;
    const unsigned over = left < 8 ? 8 - (unsigned)left : 0;
    memcpy(&value, next - over, sizeof value);
    return value >> (8 * over & 63);
}

/* Two N words from the next stored bytes, and their corrections. bits: which of the 8 bytes are stored. */
static inline void expand_words(uint64_t bits, const uint8_t **next, const uint8_t *end, uint32_t *n0, uint32_t *n1,
                                uint32_t *correction0, uint32_t *correction1)
{
    const uint64_t stored = stored_bytes(bits), missing = ~stored;
    const uint64_t n = _pdep_u64(load_bounded(*next, end), stored) | missing;
    /* bit 0 of byte 0, and bit 0 of bytes 1, 2, 3 moved down to bits 7, 15, 23; of both words */
    const uint64_t lowered = (missing >> 1 & UINT64_C(0x0080808000808080)) | (missing & UINT64_C(0x0000000100000001));
    *next += _mm_popcnt_u64(bits);
    *n0 = (uint32_t)n;
    *n1 = (uint32_t)(n >> 32);
    *correction0 = (uint32_t)lowered;
    *correction1 = (uint32_t)(lowered >> 32);
}

static bool expand_tags(unsigned hv, unsigned parts, const uint8_t *variable, uint32_t bytes, gaac_unit_tags *tags)
{
    (void)parts; /* the parts that a unit lacks have no tag bits set */
    const uint32_t tag_bytes = GAAC_TAG_BYTES * hv;
    if (bytes < tag_bytes || count_stored(hv, variable) > bytes - tag_bytes)
        return false;
    const uint8_t *next = variable + tag_bytes, *const end = variable + bytes;
    for (unsigned lane = 0; lane < GAAC_LANES; lane++) {
        const unsigned p = gaac_position(lane >> 2, lane & 3);
        if (hv == 1) {
            expand_words(variable[p], &next, end, &tags->n[0][0][p], &tags->n[1][0][p], &tags->correction[0][0][p],
                         &tags->correction[1][0][p]);
            continue;
        }
        for (unsigned part = 0; part < 2; part++)
            expand_words(variable[2 * p + part], &next, end, &tags->n[part][0][p], &tags->n[part][1][p],
                         &tags->correction[part][0][p], &tags->correction[part][1][p]);
    }
    return true;
}

/* C_0..C_2 of each half of 8 positions, in column order. */
static ALWAYS_INLINE void load_codes(unsigned hv, const uint8_t *fixed, unsigned position, __m256i c[][3])
{
    if (hv == 1) {
        load_pairs(fixed + gaac_code_offset(1, 0, 0, position), &c[0][0], &c[0][1]);
        c[0][2] = to_columns(load(fixed + gaac_code_offset(1, 0, 2, position)));
        return;
    }
    __m256i quads[4];
    for (unsigned q = 0; q < 4; q++)
        quads[q] = load(fixed + gaac_code_offset(2, 0, 0, position + 2 * q));
    transpose(quads);
    c[0][0] = quads[0];
    c[0][1] = quads[1];
    c[0][2] = quads[2];
    c[1][0] = quads[3];
    load_pairs(fixed + gaac_code_offset(2, 1, 1, position), &c[1][1], &c[1][2]);
}

/* The nibbles of T_j in place for s = 0 and for s = 1. */
static ALWAYS_INLINE void turn_nibbles(__m256i t, __m256i nibbles[2])
{
    const __m256i places = _mm256_set1_epi32((int)0x87878787);
    nibbles[0] = _mm256_and_si256(t, places);
    nibbles[1] = _mm256_and_si256(_mm256_or_si256(_mm256_srli_epi32(t, 4), _mm256_slli_epi32(t, 28)), places);
}

/* The nibbles of T_0..T_3, made from C_0..C_2 and N, as words k = 2j + s. */
static ALWAYS_INLINE void nibble_words(const __m256i c[3], __m256i n, __m256i nibbles[8])
{
    const __m256i top = _mm256_set1_epi32(0x44444444);
    turn_nibbles(select_bits(top, n, c[0]), nibbles);
    turn_nibbles(select_bits(top, _mm256_slli_epi32(n, 1), c[1]), nibbles + 2);
    turn_nibbles(select_bits(top, _mm256_slli_epi32(n, 2), c[2]), nibbles + 4);
    const __m256i low =
        select_bits(_mm256_set1_epi32(0x11111111), _mm256_srli_epi32(c[1], 2), _mm256_srli_epi32(c[2], 1));
    const __m256i high = select_bits(top, _mm256_srli_epi32(n, 1), _mm256_slli_epi32(c[0], 1));
    turn_nibbles(select_bits(_mm256_set1_epi32(0x33333333), low, high), nibbles + 6);
}

/* Decodes words 2j .. 2j + 3 of two positions: fragments j and j + 1. */
static ALWAYS_INLINE void decode_words(gaac_part part, __m256i w, __m256i base, __m256i nibbles, uint16_t *fragment)
{
    const __m256i mantissas = _mm256_set1_epi32((int)0x807f807f);
    const __m256i right_8 = _mm256_setr_epi8(1, 2, 3, 0, 5, 6, 7, 4, 9, 10, 11, 8, 13, 14, 15, 12, 1, 2, 3, 0, 5, 6, 7,
                                             4, 9, 10, 11, 8, 13, 14, 15, 12);
    const __m256i exponents = _mm256_add_epi32(nibbles, base);
    const __m256i change = _mm256_and_si256(_mm256_xor_si256(w, exponents), mantissas);
    const __m256i a = _mm256_xor_si256(exponents, change);
    const __m256i b = _mm256_shuffle_epi8(_mm256_xor_si256(w, change), right_8);
    if (part == GAAC_K) {
        store(fragment, _mm256_unpacklo_epi64(a, b));
        store(fragment + GAAC_FRAGMENT_ELEMENTS, _mm256_unpackhi_epi64(a, b));
    } else {
        store(fragment, _mm256_unpacklo_epi32(a, b));
        store(fragment + GAAC_FRAGMENT_ELEMENTS, _mm256_unpackhi_epi32(a, b));
    }
}

static ALWAYS_INLINE void decode_part(gaac_part part, unsigned hv, const uint8_t *fixed, const gaac_unit_tags *tags,
                                      gaac_base_words bases, uint16_t *fragments, const gaac_ahead *ahead)
{
    const unsigned share = gaac_ahead_share(ahead, 4 * 4 * hv);
    const uint8_t *next = ahead != NULL ? ahead->at : NULL;
    const __m256i both = _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1); /* positions of a vector of words */
    for (unsigned block = 0; block < GAAC_LANES; block += 8) {
        __m256i c[GAAC_MAX_HV][3];
        load_codes(hv, fixed, block, c);
        for (unsigned h = 0; h < hv; h++) {
            __m256i nibbles[8];
            nibble_words(c[h], to_columns(load(&tags->n[part][h][block])), nibbles);
            transpose(nibbles); /* now [pair][q] */
            transpose(nibbles + 4);
            const __m256i corrections = load(&tags->correction[part][h][block]);
            for (unsigned q = 0; q < 4; q++) {
                next = gaac_fetch(next, share);
                const unsigned position = block + 2 * q;
                const __m256i places = _mm256_add_epi32(both, _mm256_set1_epi32(2 * (int)q));
                const __m256i minus = _mm256_permutevar8x32_epi32(corrections, places);
                for (unsigned pair = 0; pair < 2; pair++) {
                    const unsigned offset = gaac_word_offset(h, 4 * pair, position);
                    decode_words(part, load(fixed + offset), _mm256_sub_epi32(load(bases + offset / 4), minus),
                                 nibbles[4 * pair + q],
                                 fragments + (4 * h + 2 * pair) * GAAC_FRAGMENT_ELEMENTS + position * 8);
                }
            }
        }
    }
}

static void decode_k(unsigned hv, const uint8_t *fixed, const gaac_unit_tags *tags, gaac_base_words bases,
                     uint16_t *fragments, const gaac_ahead *ahead)
{
    if (hv == 2)
        decode_part(GAAC_K, 2, fixed, tags, bases, fragments, ahead);
    else
        decode_part(GAAC_K, 1, fixed, tags, bases, fragments, ahead);
}

static void decode_v(unsigned hv, const uint8_t *fixed, const gaac_unit_tags *tags, gaac_base_words bases,
                     uint16_t *fragments, const gaac_ahead *ahead)
{
    if (hv == 2)
        decode_part(GAAC_V, 2, fixed, tags, bases, fragments, ahead);
    else
        decode_part(GAAC_V, 1, fixed, tags, bases, fragments, ahead);
}

void gaac_codec_kernels_init_avx2(gaac_codec_kernels *kernels)
{
    *kernels = (gaac_codec_kernels){
        .expand_tags = expand_tags,
        .decode_part = {decode_k, decode_v},
        .encode_unit = gaac_encode_unit_avx2,
        .rows_to_fragments = {gaac_k_rows_to_fragments_avx2, gaac_v_rows_to_fragments_avx2},
        .fragments_to_rows = {gaac_k_fragments_to_rows_avx2, gaac_v_fragments_to_rows_avx2},
    };
}
