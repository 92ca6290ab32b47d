/* Tags and decoding with AVX2. The definitions are in codec/unit_decode.c.
 *
 * Decoding goes in two steps, by way of the first-level cache. First the nibble words T_0..T_3 are made, for 8
 * positions at once, and stored by position, as T_0 T_2 T_1 T_3. From there a load that duplicates dwords gives
 * T_j T_j T_j+1 T_j+1 of two consecutive positions without an instruction of arithmetic: what a vector of
 * sign-and-mantissa words wants, which holds two positions, one in each 128-bit lane, with four words each:
 * k & 3 = 0..3, so j and s run {j, j, j+1, j+1} and {0, 1, 0, 1}.
 *
 * For 8 positions of 64 channels (512 bytes of BF16) that is about 132 instructions of vector arithmetic, 44 for the
 * nibbles and 88 for the words. Intel's cores start three a cycle, 44 cycles; 51 are measured, 38 bytes a nanosecond at
 * 3.8 GHz. Tags take another sixth: 8 instructions for two N words, whose places in the stream follow one another.
 *
 * The correction is taken off T_j: where a group has 3 bits, the top bit of its nibbles is set, so nothing borrows. */
#include "cpu/codec_avx2.h"
#include "cpu/cpu.h"
#include "cpu/decoder.h"

#include <string.h>

/* ---- tags ------------------------------------------------------------------------------------- */

/* [tag bits][i]: which of the next stored bytes is byte i of two N words, or STORED for none. */
enum { STORED = 8 };
#define BIT(m, i) ((m) >> (i)&1)
#define PLACE(m, i, before) (BIT(m, i) ? (before) : STORED)
#define PLACES(m)                                                                                                      \
    {                                                                                                                  \
        PLACE(m, 0, 0), PLACE(m, 1, BIT(m, 0)), PLACE(m, 2, BIT(m, 0) + BIT(m, 1)),                                    \
            PLACE(m, 3, BIT(m, 0) + BIT(m, 1) + BIT(m, 2)),                                                            \
            PLACE(m, 4, BIT(m, 0) + BIT(m, 1) + BIT(m, 2) + BIT(m, 3)),                                                \
            PLACE(m, 5, BIT(m, 0) + BIT(m, 1) + BIT(m, 2) + BIT(m, 3) + BIT(m, 4)),                                    \
            PLACE(m, 6, BIT(m, 0) + BIT(m, 1) + BIT(m, 2) + BIT(m, 3) + BIT(m, 4) + BIT(m, 5)),                        \
            PLACE(m, 7, BIT(m, 0) + BIT(m, 1) + BIT(m, 2) + BIT(m, 3) + BIT(m, 4) + BIT(m, 5) + BIT(m, 6))             \
    }
#define PLACES_4(m) PLACES(m), PLACES((m) + 1), PLACES((m) + 2), PLACES((m) + 3)
#define PLACES_16(m) PLACES_4(m), PLACES_4((m) + 4), PLACES_4((m) + 8), PLACES_4((m) + 12)
#define PLACES_64(m) PLACES_16(m), PLACES_16((m) + 16), PLACES_16((m) + 32), PLACES_16((m) + 48)
static const _Alignas(64) uint8_t stored_places[256][STORED] = {PLACES_64(0), PLACES_64(64), PLACES_64(128),
                                                                PLACES_64(192)};

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

/* Two N words from the next stored bytes, whose place it returns. bits: which of the 8 bytes are stored. Reads 8. */
static inline const uint8_t *expand_words(unsigned bits, const uint8_t *next, uint64_t *words)
{
    const __m128i bytes = _mm_loadl_epi64((const __m128i *)(const void *)next);
    const __m128i source = _mm_or_si128(bytes, _mm_set_epi64x(-1, 0)); /* byte STORED and those after it are 0xff */
    const __m128i places = _mm_loadl_epi64((const __m128i *)(const void *)stored_places[bits]);
    _mm_storel_epi64((__m128i *)(void *)words, _mm_shuffle_epi8(source, places));
    return next + _mm_popcnt_u32(bits);
}

/* The N words of all lanes, two by two: of both halves, [part][position] (hv = 2), or of both parts (hv = 1). */
static ALWAYS_INLINE void expand_stream(unsigned hv, const uint8_t *variable, uint32_t bytes,
                                        uint64_t words[][GAAC_LANES])
{
    enum { TAIL = 8 * 4 * GAAC_MAX_HV }; /* what the words of four lanes may read */
    const unsigned most = 8 * 4 * hv;
    const uint8_t *next = variable + GAAC_TAG_BYTES * hv, *end = variable + bytes;
    uint8_t tail[2 * TAIL] = {0};
    for (unsigned g = 0; g < 8; g++) {
        if (end - next < (ptrdiff_t)most) {
            /* Near the end reading goes on in a copy with room behind it. The variable part is as long as the copy. */
            memcpy(tail, end - most, most);
            next = tail + (most - (unsigned)(end - next));
            end = tail + sizeof tail;
        }
        for (unsigned t = 0; t < 4; t++) {
            const unsigned p = gaac_position(g, t);
            for (unsigned i = 0; i < hv; i++)
                next = expand_words(variable[hv * p + i], next, &words[i][p]);
        }
    }
}

/* What the low four tag bits take off the base words: bits 0, 7, 15, 23 where the N bytes 0..3 are not stored. */
static inline __m256i corrections_of(__m256i tags)
{
    const int b0 = 1, b1 = 1 << 7, b2 = 1 << 15;
    const __m256i low = _mm256_setr_epi32(b0 | b1 | b2, b1 | b2, b0 | b2, b2, b0 | b1, b1, b0, 0);
    const __m256i top = _mm256_andnot_si256(tags, _mm256_set1_epi32(8));
    /* the permutation looks at the three low bits of each index only */
    return _mm256_or_si256(_mm256_permutevar8x32_epi32(low, tags), _mm256_slli_epi32(top, 20));
}

static ALWAYS_INLINE void expand_unit(unsigned hv, const uint8_t *variable, uint32_t bytes, gaac_unit_tags *tags)
{
    _Alignas(32) uint64_t words[GAAC_MAX_HV][GAAC_LANES];
    expand_stream(hv, variable, bytes, words);
    for (unsigned position = 0; position < GAAC_LANES; position += 8) {
        const __m128i *at = (const __m128i *)(const void *)(variable + hv * position);
        const __m256i lane_tags =
            hv == 2 ? _mm256_cvtepu16_epi32(_mm_loadu_si128(at)) : _mm256_cvtepu8_epi32(_mm_loadl_epi64(at));
        for (unsigned i = 0; i < hv; i++) {
            uint32_t *n[2], *correction[2];
            for (unsigned word = 0; word < 2; word++) {
                const unsigned part = hv == 2 ? i : word, half = hv == 2 ? word : 0;
                n[word] = &tags->n[part][half][position];
                correction[word] = &tags->correction[part][half][position];
                store(correction[word], corrections_of(_mm256_srli_epi32(lane_tags, (int)(4 * (2 * i + word)))));
            }
            __m256i first, second;
            load_pairs((const uint8_t *)&words[i][position], &first, &second);
            store(n[0], from_columns(first));
            store(n[1], from_columns(second));
        }
    }
}

static bool expand_tags(unsigned hv, unsigned parts, const uint8_t *variable, uint32_t bytes, gaac_unit_tags *tags)
{
    (void)parts; /* the parts that a unit lacks have no tag bits set */
    const uint32_t tag_bytes = GAAC_TAG_BYTES * hv;
    if (bytes < tag_bytes || count_stored(hv, variable) > bytes - tag_bytes)
        return false;
    if (hv == 2)
        expand_unit(2, variable, bytes, tags);
    else
        expand_unit(1, variable, bytes, tags);
    return true;
}

/* ---- decoding --------------------------------------------------------------------------------- */

/* Of each half: nibble words T_0 T_2 T_1 T_3 of every position. */
typedef struct nibble_rows {
    _Alignas(32) uint32_t t[GAAC_MAX_HV][GAAC_LANES][4];
} nibble_rows;

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

/* T_0..T_3, less the corrections, from C_0..C_2 and N. */
static ALWAYS_INLINE void nibble_words(const __m256i c[3], __m256i n, __m256i correction, __m256i t[4])
{
    const __m256i top = _mm256_set1_epi32(0x44444444);
    /* for both of T_j's nibbles of a group: those of s = 1 are the upper ones */
    const __m256i minus = _mm256_or_si256(correction, _mm256_slli_epi32(correction, 4));
    const __m256i tops[4] = {n, _mm256_slli_epi32(n, 1), _mm256_slli_epi32(n, 2), _mm256_srli_epi32(n, 1)};
    __m256i spare[3], codes[4];
    for (unsigned j = 0; j < 3; j++) {
        spare[j] = _mm256_and_si256(c[j], top);
        codes[j] = _mm256_xor_si256(c[j], spare[j]);
    }
    codes[3] = _mm256_or_si256(_mm256_or_si256(_mm256_slli_epi32(spare[0], 1), _mm256_srli_epi32(spare[1], 2)),
                               _mm256_srli_epi32(spare[2], 1));
    for (unsigned j = 0; j < 4; j++)
        t[j] = _mm256_sub_epi32(_mm256_or_si256(codes[j], _mm256_and_si256(tops[j], top)), minus);
}

static ALWAYS_INLINE void make_nibbles(gaac_part part, unsigned hv, const uint8_t *fixed, const gaac_unit_tags *tags,
                                       const gaac_ahead *ahead, nibble_rows *rows)
{
    for (unsigned position = 0; position < GAAC_LANES; position += 8) {
        __m256i c[GAAC_MAX_HV][3];
        gaac_fetch_turn(ahead, position / 8, GAAC_LANES / 8);
        load_codes(hv, fixed, position, c);
        for (unsigned h = 0; h < hv; h++) {
            __m256i t[4];
            nibble_words(c[h], to_columns(load(&tags->n[part][h][position])),
                         to_columns(load(&tags->correction[part][h][position])), t);
            __m256i row[4] = {t[0], t[2], t[1], t[3]};
            transpose(row);
            for (unsigned q = 0; q < 4; q++)
                store(rows->t[h][position + 2 * q], row[q]);
        }
    }
}

/* Has the compiler load what a pointer points to once more, since a load duplicates dwords for nothing and a
 * register's take an instruction. */
#define LOAD_AGAIN(pointer) __asm__("" : "+r"(pointer))

/* Decodes words 2j .. 2j + 3 of two positions: fragments j and j + 1. t: T_j, T_j, T_j+1, T_j+1 of each. */
static ALWAYS_INLINE void decode_words(gaac_part part, const uint8_t *words, const uint32_t *bases, __m256 t,
                                       uint16_t *fragment)
{
    const __m256i mantissas = _mm256_set1_epi32((int)0x807f807f);
    const __m256i right_8 = _mm256_setr_epi8(1, 2, 3, 0, 5, 6, 7, 4, 9, 10, 11, 8, 13, 14, 15, 12, 1, 2, 3, 0, 5, 6, 7,
                                             4, 9, 10, 11, 8, 13, 14, 15, 12);
    const __m256i both = _mm256_castps_si256(t), w = load(words);
    /* A shift of two T_j by 28 has a T_j that is turned right by 4 in its upper dword. */
    const __m256i turned = _mm256_blend_epi32(both, _mm256_slli_epi64(both, 28), 0xAA);
    const __m256i nibbles = _mm256_and_si256(turned, _mm256_set1_epi32((int)0x87878787));
    const __m256i exponents = _mm256_add_epi32(nibbles, load(bases));
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
    nibble_rows rows;
    make_nibbles(part, hv, fixed, tags, ahead, &rows);
    for (unsigned h = 0; h < hv; h++) {
        for (unsigned position = 0; position < GAAC_LANES; position += 2) {
            const float *row = (const float *)(const void *)rows.t[h][position];
            const unsigned first = gaac_word_offset(h, 0, position), second = gaac_word_offset(h, 4, position);
            uint16_t *fragment = fragments + 4 * h * GAAC_FRAGMENT_ELEMENTS + position * 8;
            decode_words(part, fixed + first, bases + first / 4, _mm256_moveldup_ps(_mm256_load_ps(row)), fragment);
            LOAD_AGAIN(row);
            decode_words(part, fixed + second, bases + second / 4, _mm256_movehdup_ps(_mm256_load_ps(row)),
                         fragment + 2 * GAAC_FRAGMENT_ELEMENTS);
        }
    }
}

DECODER(decode_k, GAAC_K)
DECODER(decode_v, GAAC_V)

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
