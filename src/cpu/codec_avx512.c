/* Tags and decoding with AVX-512 (F, BW, VL, DQ, VBMI, VBMI2). The definitions are in codec/unit_decode.c.
 *
 * A vector of sign-and-mantissa words holds four consecutive positions, one in each 128-bit lane, with
 * four words each: k & 3 = 0..3, so j and s run {j, j, j+1, j+1} and {0, 1, 0, 1}.
 *
 * The nibble words T_0..T_3 are made for 16 positions at once. Their vectors are in column order: a 4 x 4
 * transposition inside the 128-bit lanes of four such vectors leaves position 4q + l at dword 4l + q. */
#include "cpu/codec_avx512.h"
#include "cpu/cpu.h"
#include "cpu/decoder.h"
#include "cpu/lines_avx512.h"

/* Position of lane 4g + t. */
#define P(g, t) (8 * (t) + ((g) ^ 2 * (t)))
/* Of the lanes 4g .. 4g + 3. */
#define P4(g) P(g, 0), P(g, 1), P(g, 2), P(g, 3)

/* What a lane's four tag bits of one half take off the base words: bits 0, 7, 15, 23 where the N bytes 0..3
 * are not stored. */
#define I(tag) (((tag)&1 ? 0 : 1) | ((tag)&2 ? 0 : 1 << 7) | ((tag)&4 ? 0 : 1 << 15) | ((tag)&8 ? 0 : 1 << 23))
static const _Alignas(64) uint32_t corrections[16] = {I(0), I(1), I(2),  I(3),  I(4),  I(5),  I(6),  I(7),
                                                      I(8), I(9), I(10), I(11), I(12), I(13), I(14), I(15)};

static const _Alignas(64) uint16_t lane_positions[32] = {P4(0), P4(1), P4(2), P4(3), P4(4), P4(5), P4(6), P4(7)};
static const _Alignas(32) uint8_t lane_positions_u8[32] = {P4(0), P4(1), P4(2), P4(3), P4(4), P4(5), P4(6), P4(7)};

/* Lane of position 8t + x. */
#define L(x, t) (4 * ((x) ^ 2 * (t)) + (t))
#define L8(t) L(0, t), L(1, t), L(2, t), L(3, t), L(4, t), L(5, t), L(6, t), L(7, t)
static const _Alignas(64) uint32_t position_lanes[32] = {L8(0), L8(1), L8(2), L8(3)};

/* Where lane 4g + t stands after four vectors of g = 0..3 (then 4..7) were transposed: dword 4t + (g & 3). */
#define C(x, t) ((((x) ^ 2 * (t)) & 4) * 4 + 4 * (t) + (((x) ^ 2 * (t)) & 3))
#define C8(t) C(0, t), C(1, t), C(2, t), C(3, t), C(4, t), C(5, t), C(6, t), C(7, t)
static const _Alignas(64) uint32_t position_columns[32] = {C8(0), C8(1), C8(2), C8(3)};

/* The next N bytes of the stream, those of one mask, spread to their places. Reads only them. */
static inline __m512i next_n_bytes(uint64_t stored, const uint8_t **stream)
{
    const unsigned count = (unsigned)_mm_popcnt_u64(stored);
    const __m512i bytes = _mm512_maskz_loadu_epi8(_bzhi_u64(UINT64_MAX, count), *stream);
    *stream += count;
    return _mm512_mask_expand_epi8(_mm512_set1_epi32(-1), stored, bytes);
}

/* corrections[] of bits shift .. shift + 3 of the tags (zero-extended) of 16 positions. */
static inline __m512i corrections_of(__m512i tags, unsigned shift)
{
    /* the permutation looks at the four low bits of each index only */
    return _mm512_permutexvar_epi32(_mm512_srli_epi32(tags, shift), load(corrections));
}

static unsigned count_bits(const uint64_t *words, unsigned count)
{
    unsigned bits = 0;
    for (unsigned i = 0; i < count; i++)
        bits += (unsigned)_mm_popcnt_u64(words[i]);
    return bits;
}

static bool expand_tags_hv2(const uint8_t *variable, uint32_t bytes, gaac_unit_tags *tags)
{
    _Alignas(64) uint64_t stored[8]; /* of the four lanes 4g .. 4g + 3: 16 bits each */
    const uint8_t *stream = variable + 2 * GAAC_TAG_BYTES;
    if (bytes < 2 * GAAC_TAG_BYTES)
        return false;
    store(stored, _mm512_permutexvar_epi16(load(lane_positions), _mm512_loadu_si512(variable)));
    if (count_bits(stored, 8) > bytes - 2 * GAAC_TAG_BYTES)
        return false;

    __m512i low[4], high[4]; /* g = 0..3 and 4..7; after transposition: word K0, K1, V0, V1 */
    for (unsigned i = 0; i < 4; i++)
        low[i] = next_n_bytes(stored[i], &stream);
    for (unsigned i = 0; i < 4; i++)
        high[i] = next_n_bytes(stored[4 + i], &stream);
    transpose(low);
    transpose(high);
    for (unsigned block = 0; block < 2; block++) {
        const __m512i order = load(position_columns + 16 * block);
        const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(variable + 32 * block)));
        for (unsigned word = 0; word < 4; word++) {
            store(&tags->n[word >> 1][word & 1][16 * block], _mm512_permutex2var_epi32(low[word], order, high[word]));
            store(&tags->correction[word >> 1][word & 1][16 * block], corrections_of(wide, 4 * word));
        }
    }
    return true;
}

static bool expand_tags_hv1(const uint8_t *variable, uint32_t bytes, gaac_unit_tags *tags)
{
    _Alignas(32) uint64_t stored[4]; /* of the eight lanes 8i .. 8i + 7: 8 bits each */
    const uint8_t *stream = variable + GAAC_TAG_BYTES;
    if (bytes < GAAC_TAG_BYTES)
        return false;
    const __m256i lane_tags = _mm256_permutexvar_epi8(_mm256_load_si256((const __m256i *)lane_positions_u8),
                                                      _mm256_loadu_si256((const __m256i *)variable));
    _mm256_store_si256((__m256i *)stored, lane_tags);
    if (count_bits(stored, 4) > bytes - GAAC_TAG_BYTES)
        return false;

    __m512i pairs[4];
    for (unsigned i = 0; i < 4; i++)
        pairs[i] = next_n_bytes(stored[i], &stream);
    for (unsigned part = 0; part < 2; part++) {
        const __m512i pick = _mm512_add_epi32(even_dwords(), _mm512_set1_epi32((int)part));
        const __m512i low = _mm512_permutex2var_epi32(pairs[0], pick, pairs[1]);
        const __m512i high = _mm512_permutex2var_epi32(pairs[2], pick, pairs[3]);
        for (unsigned block = 0; block < 2; block++) {
            const __m512i order = load(position_lanes + 16 * block);
            const __m512i wide = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(variable + 16 * block)));
            store(&tags->n[part][0][16 * block], _mm512_permutex2var_epi32(low, order, high));
            store(&tags->correction[part][0][16 * block], corrections_of(wide, 4 * part));
        }
    }
    return true;
}

static bool expand_tags(unsigned hv, unsigned parts, const uint8_t *variable, uint32_t bytes, gaac_unit_tags *tags)
{
    (void)parts; /* the parts that a unit lacks have no tag bits set */
    return hv == 2 ? expand_tags_hv2(variable, bytes, tags) : expand_tags_hv1(variable, bytes, tags);
}

/* C_0..C_2 of each half of 16 positions, in column order. */
static ALWAYS_INLINE void load_codes(unsigned hv, const uint8_t *fixed, unsigned position, __m512i c[][3])
{
    if (hv == 1) {
        load_pairs(fixed + gaac_code_offset(1, 0, 0, position), &c[0][0], &c[0][1]);
        c[0][2] = _mm512_permutexvar_epi32(column_order(), load(fixed + gaac_code_offset(1, 0, 2, position)));
        return;
    }
    __m512i quads[4];
    for (unsigned q = 0; q < 4; q++)
        quads[q] = load(fixed + gaac_code_offset(2, 0, 0, position + 4 * q));
    transpose(quads);
    c[0][0] = quads[0];
    c[0][1] = quads[1];
    c[0][2] = quads[2];
    c[1][0] = quads[3];
    load_pairs(fixed + gaac_code_offset(2, 1, 1, position), &c[1][1], &c[1][2]);
}

/* T_0..T_3 from C_0..C_2 and N. */
static ALWAYS_INLINE void nibble_words(const __m512i c[3], __m512i n, __m512i t[4])
{
    const __m512i top = _mm512_set1_epi32(0x44444444);
    t[0] = select_bits(top, n, c[0]);
    t[1] = select_bits(top, _mm512_slli_epi32(n, 1), c[1]);
    t[2] = select_bits(top, _mm512_slli_epi32(n, 2), c[2]);
    const __m512i low =
        select_bits(_mm512_set1_epi32(0x11111111), _mm512_srli_epi32(c[1], 2), _mm512_srli_epi32(c[2], 1));
    const __m512i high = select_bits(top, _mm512_srli_epi32(n, 1), _mm512_slli_epi32(c[0], 1));
    t[3] = select_bits(_mm512_set1_epi32(0x33333333), low, high);
}

/* Where a decoder puts what it decoded. */
typedef enum tile_order { FRAGMENTS, LINES } tile_order;

/* Registers A and B of words 2j .. 2j + 3 of four positions, one position in each 128-bit lane: {j, j, j + 1, j + 1}
 * with s {0, 1, 0, 1}. */
typedef struct registers {
    __m512i a, b;
} registers;

/* t: T_j, T_j, T_j+1, T_j+1 of each position. */
static ALWAYS_INLINE registers decode_words(__m512i w, __m512i base, __m512i correction, __m512i t)
{
    const __m512i mantissas = _mm512_set1_epi32((int)0x807f807f);
    const __m512i turned = _mm512_rorv_epi32(t, _mm512_set1_epi64(INT64_C(4) << 32));
    const __m512i nibbles = _mm512_and_si512(turned, _mm512_set1_epi32((int)0x87878787));
    const __m512i exponents = _mm512_add_epi32(nibbles, _mm512_sub_epi32(base, correction));
    return (registers){select_bits(mantissas, w, exponents), _mm512_ror_epi32(select_bits(mantissas, exponents, w), 8)};
}

/* Fragments f and f + 1 of four positions. */
static ALWAYS_INLINE void store_fragments(gaac_part part, registers x, unsigned f, unsigned position, uint16_t *out)
{
    uint16_t *fragment = out + f * GAAC_FRAGMENT_ELEMENTS + position * 8;
    if (part == GAAC_K) {
        store(fragment, _mm512_unpacklo_epi64(x.a, x.b));
        store(fragment + GAAC_FRAGMENT_ELEMENTS, _mm512_unpackhi_epi64(x.a, x.b));
    } else {
        store(fragment, _mm512_unpacklo_epi32(x.a, x.b));
        store(fragment + GAAC_FRAGMENT_ELEMENTS, _mm512_unpackhi_epi32(x.a, x.b));
    }
}

/* The lines that fragments f and f + 1 have of one t. near and far: positions 8t .. 8t + 3, and 8t + 4 .. 8t + 7. The
 * places of k_places and v_places serve here too, a word (j or j + 1, s) lying where they look for (pair, s). */
static ALWAYS_INLINE void store_lines(gaac_part part, registers near, registers far, unsigned f, unsigned t,
                                      uint16_t *out)
{
    enum { LINE = GAAC_LINE_ELEMENTS };
    if (part == GAAC_K) {
        uint16_t *line = out + (GAAC_K_FRAGMENT_LINES * f + 2 * t) * LINE;
        for (unsigned j = 0; j < 2; j++, line += GAAC_K_FRAGMENT_LINES * LINE) {
            const __m512i places = load(k_places[t][j]);
            store(line, _mm512_permutex2var_epi32(near.a, places, far.a));
            store(line + LINE, _mm512_permutex2var_epi32(near.b, places, far.b));
        }
        return;
    }
    uint16_t *line = out + (GAAC_V_FRAGMENT_LINES * f + t) * LINE;
    const __m512i low_near = _mm512_unpacklo_epi32(near.a, near.b), low_far = _mm512_unpacklo_epi32(far.a, far.b);
    const __m512i high_near = _mm512_unpackhi_epi32(near.a, near.b), high_far = _mm512_unpackhi_epi32(far.a, far.b);
    for (unsigned s = 0; s < 2; s++, line += 4 * LINE) {
        const __m512i places = load(v_places[t][s]);
        store(line, _mm512_permutex2var_epi32(low_near, places, low_far));
        store(line + GAAC_V_FRAGMENT_LINES * LINE, _mm512_permutex2var_epi32(high_near, places, high_far));
    }
}

static ALWAYS_INLINE void decode_part(gaac_part part, tile_order order, unsigned hv, const uint8_t *fixed,
                                      const gaac_unit_tags *tags, gaac_base_words bases, uint16_t *out,
                                      const gaac_ahead *ahead)
{
    for (unsigned block = 0; block < GAAC_LANES; block += 16) {
        __m512i c[GAAC_MAX_HV][3];
        gaac_fetch_turn(ahead, block / 16, GAAC_LANES / 16);
        load_codes(hv, fixed, block, c);
        for (unsigned h = 0; h < hv; h++) {
            __m512i t[4];
            nibble_words(c[h], _mm512_permutexvar_epi32(column_order(), load(&tags->n[part][h][block])), t);
            const __m512i lowered = _mm512_permutexvar_epi32(column_order(), load(&tags->correction[part][h][block]));
            for (unsigned eight = 0; eight < 2; eight++) { /* positions of one t */
                registers x[2][2];                         /* [pair of words][four] */
                for (unsigned four = 0; four < 2; four++) {
                    /* dwords 4l + q of the first vector, twice, and of the second, twice */
                    const __m512i spread =
                        _mm512_add_epi32(spread_columns(), _mm512_set1_epi32((int)(2 * eight + four)));
                    const __m512i minus = _mm512_permutex2var_epi32(lowered, spread, lowered);
                    const unsigned position = block + 8 * eight + 4 * four;
                    for (unsigned pair = 0; pair < 2; pair++) {
                        const unsigned offset = gaac_word_offset(h, 4 * pair, position);
                        x[pair][four] = decode_words(load(fixed + offset), load(bases + offset / 4), minus,
                                                     _mm512_permutex2var_epi32(t[2 * pair], spread, t[2 * pair + 1]));
                        if (order == FRAGMENTS)
                            store_fragments(part, x[pair][four], 4 * h + 2 * pair, position, out);
                    }
                }
                for (unsigned pair = 0; order == LINES && pair < 2; pair++)
                    store_lines(part, x[pair][0], x[pair][1], 4 * h + 2 * pair, block / 8 + eight, out);
            }
        }
    }
}

DECODER(decode_k, GAAC_K, FRAGMENTS)
DECODER(decode_v, GAAC_V, FRAGMENTS)
DECODER(decode_k_lines, GAAC_K, LINES)
DECODER(decode_v_lines, GAAC_V, LINES)

static void k_to_lines(unsigned fragments, const uint16_t *in, uint16_t *lines)
{
    for (unsigned f = 0; f < fragments; f++) {
        for (unsigned line = 0; line < GAAC_K_FRAGMENT_LINES; line++, lines += GAAC_LINE_ELEMENTS)
            store(lines, gather(in, f, line >> 1, load(k_places[line >> 1][line & 1])));
    }
}

static void v_to_lines(unsigned fragments, const uint16_t *in, uint16_t *lines)
{
    for (unsigned f = 0; f < fragments; f++, lines += GAAC_V_FRAGMENT_LINES * GAAC_LINE_ELEMENTS) {
        for (unsigned line = 0; line < GAAC_V_FRAGMENT_LINES / 2; line++)
            store(lines + line * GAAC_LINE_ELEMENTS, gather(in, f, line & 3, load(v_places[line & 3][line >> 2])));
    }
}

void gaac_codec_kernels_init_avx512(gaac_codec_kernels *kernels)
{
    kernels->expand_tags = expand_tags;
    kernels->decode_part[GAAC_K] = decode_k;
    kernels->decode_part[GAAC_V] = decode_v;
    kernels->decode_lines[GAAC_K] = decode_k_lines;
    kernels->decode_lines[GAAC_V] = decode_v_lines;
    kernels->fragments_to_lines[GAAC_K] = k_to_lines;
    kernels->fragments_to_lines[GAAC_V] = v_to_lines;
    kernels->encode_unit = gaac_encode_unit_avx512;
    kernels->rows_to_fragments[GAAC_K] = gaac_k_rows_to_fragments_avx512;
    kernels->rows_to_fragments[GAAC_V] = gaac_v_rows_to_fragments_avx512;
}
