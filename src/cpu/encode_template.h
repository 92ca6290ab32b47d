/* The encoder of a unit, written once for AVX-512 and AVX2. encode_avx512.c and encode_avx2.c define the vectors that
 * it is made of, and write the stored N bytes; see there for what it costs. The definition is codec/unit_encode.c.
 *
 * It never finds out single exponents. Fields and nibbles below are those of docs/format.md, sections 5 and 6: four
 * exponents in a word at bits 7-14, 15-22, 23-30 and 31, 0-6, each a byte of two nibbles.
 *
 * 1. A word of exponents less its base word is four nibbles e - b4, one in each field, if all four exponents are in
 *    their 4-bit windows, since no field borrows then. If one isn't, the lowest such field has a bit set above its
 *    nibble. So the bits above all nibbles of 16 (AVX2: 8) positions, ORed, tell whether a block has exceptions.
 *    Those that do are done again, a byte an exponent, out of line.
 * 2. Nibbles are packed, two in a field, and transposed to T_0..T_3 with a position in each dword.
 * 3. In T, (nibble without its top bit) + 1 has a top bit that differs from the nibble's exactly if the nibble is
 *    7..14, in the 3-bit window; its low bits are then the 3-bit code. (2 and 6..13 in the field B.hi.) A group is
 *    the same byte of all four words, so it's one AND over them, with no step across a vector.
 *
 * The file that includes this defines:
 *   vec, VECTOR_POSITIONS              a vector, and how many positions of four words it holds
 *   load, store, transpose, store_pairs, from_columns    as in codec_avx512.h and codec_avx2.h
 *   ROTATE_LEFT, SHIFT_LEFT, SHIFT_RIGHT    of dwords, by a constant
 *   dwords(x)                          x in each dword
 *   select_bits, and_bits, or_bits, and_not(a, b) = ~a & b, or_both(a, b, c) = a | b | c, or_and(a, b, c) = a | b & c
 *   add_dwords, subtract_dwords, subtract_bytes
 *   load_registers                     A, and B rotated left by 8, of two fragments
 *   exchange                           the bits of a where mask is set, else those of b, and the other way round
 *   has_bits                           whether a vector has any of the bits of a mask
 *   outside_bytes, byte_mask           0xff where a byte is above 15; a bit a byte, into memory
 *   wide_bytes                         0xff where a byte of any t[j] ^ narrow[j] lacks one of its bits 0x44
 *   tag_bits                           of positions in dwords, from the halves' wide bytes, shifted to their place
 *   store_n                            keeps a block's N and wide bytes where the next two look for them
 *   unit_order, order_n                what write_variable wants to know beside the encoding; returns how many N bytes
 *                                      are stored
 *   write_variable                     writes tags and stored N bytes */

#if defined(__clang__)
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 4")
#endif

enum {
    BLOCK_POSITIONS = 4 * VECTOR_POSITIONS,
    POSITION_ELEMENTS = GAAC_FRAGMENT_ELEMENTS / GAAC_LANES,
    ABOVE_NIBBLES = 0x78787878 /* of the fields of an exponent less its base */
};

/* The codes of a half's block of positions. */
typedef struct block_codes {
    vec t[4]; /* T_j; the top bits of 3-bit groups, which nobody keeps, are any */
    vec wide; /* 0xff in byte i of a dword where group i is 4-bit, else 0 */
} block_codes;

/* The nibbles' top bits; what is added to 4-bit codes to give 3-bit ones; the low nibbles of the fields. */
static inline vec top_bits(void)
{
    return dwords(0x44444444);
}
static inline vec narrow_steps(void)
{
    return dwords(0x08888891);
}
static inline vec low_nibbles(void)
{
    return dwords(0x87878787);
}

/* A block's fragments, base words and words: the part's, from the block's first position on. */
typedef struct block_place {
    const uint16_t *fragments;
    gaac_base_words bases;
    uint8_t *words;
} block_place;

/* Fragment j = 2 * pair of a half, from position q vectors into the block on. */
static ALWAYS_INLINE const uint16_t *fragment_at(const block_place *at, unsigned h, unsigned pair, unsigned q)
{
    return at->fragments + (4 * h + 2 * pair) * GAAC_FRAGMENT_ELEMENTS + POSITION_ELEMENTS * VECTOR_POSITIONS * q;
}

/* Words 4 * pair .. of a half, from the same position on: an offset in bytes. */
static ALWAYS_INLINE unsigned word_at(unsigned h, unsigned pair, unsigned q)
{
    return gaac_word_offset(h, 4 * pair, VECTOR_POSITIONS * q);
}

static ALWAYS_INLINE block_place place_of(const uint16_t *fragments, gaac_base_words bases, uint8_t *fixed,
                                          unsigned block)
{
    const unsigned word = gaac_word_offset(0, 0, block);
    return (block_place){fragments + POSITION_ELEMENTS * block, bases + word / 4, fixed + word};
}

/* T_0..T_3 from four vectors of neighbouring positions. Theirs are words (j, s) = (0, 0), (0, 1), (1, 0), (1, 1), with
 * j + 2 in the upper nibbles. */
static ALWAYS_INLINE void gather_nibbles(vec packed[4], vec t[4])
{
    transpose(packed);
    UNROLL
    for (unsigned j = 0; j < 2; j++) {
        const exchanged e = exchange(low_nibbles(), packed[2 * j], ROTATE_LEFT(packed[2 * j + 1], 4));
        t[j] = e.taken;
        t[j + 2] = ROTATE_LEFT(e.left, 28);
    }
}

/* Finds which groups are 4-bit, and gives the others their 3-bit codes. */
static ALWAYS_INLINE void choose_windows(block_codes *codes)
{
    vec narrow[4];
    UNROLL
    for (unsigned j = 0; j < 4; j++)
        narrow[j] = add_dwords(and_not(top_bits(), codes->t[j]), narrow_steps());
    codes->wide = wide_bytes(codes->t, narrow);
    const vec wide = ROTATE_LEFT(codes->wide, 31); /* bytes to fields */
    UNROLL
    for (unsigned j = 0; j < 4; j++)
        codes->t[j] = select_bits(wide, codes->t[j], narrow[j]);
}

/* Exponents less bases of two fragments, where some lie outside both windows: 0xff there, and nibbles that belong to
 * either window elsewhere. */
static inline vec find_outside(gaac_part part, const uint16_t *fragment, const uint32_t *bases, vec *outside)
{
    vec a, b;
    load_registers(part, fragment, &a, &b);
    const vec exponents = exchange(dwords(0x807f807f), a, b).left, base = load(bases);
    const vec offsets = subtract_bytes(ROTATE_LEFT(exponents, 1), ROTATE_LEFT(base, 1));
    *outside = outside_bytes(offsets);
    const vec nibbles = select_bits(*outside, dwords(0x08080808), offsets);
    return ROTATE_LEFT(nibbles, 31);
}

/* A block that has exceptions: as encode_block, but a byte an exponent, and noting where they are. */
static __attribute__((noinline)) void encode_outside(gaac_part part, unsigned h, unsigned block, const block_place *at,
                                                     gaac_encoding *encoding, block_codes *codes)
{
    vec nibbles[4], outside[4];
    if (!encoding->has_outside) {
        memset(encoding->outside, 0, sizeof encoding->outside);
        encoding->has_outside = true;
    }
    for (unsigned q = 0; q < 4; q++) {
        vec offsets[2], beyond[2];
        for (unsigned pair = 0; pair < 2; pair++) {
            offsets[pair] =
                find_outside(part, fragment_at(at, h, pair, q), at->bases + word_at(h, pair, q) / 4, &beyond[pair]);
            byte_mask(&encoding->outside[part][h][pair][block + VECTOR_POSITIONS * q], beyond[pair]);
            beyond[pair] = ROTATE_LEFT(and_bits(beyond[pair], dwords(0x0f0f0f0f)), 31);
        }
        nibbles[q] = or_bits(offsets[0], ROTATE_LEFT(offsets[1], 4));
        outside[q] = or_bits(beyond[0], ROTATE_LEFT(beyond[1], 4));
    }
    gather_nibbles(nibbles, codes->t);
    choose_windows(codes);
    vec excluded[4];
    gather_nibbles(outside, excluded);
    for (unsigned j = 0; j < 4; j++) /* the nibble is 8 in either window */
        codes->t[j] = select_bits(excluded[j], dwords(0x44444444), codes->t[j]);
}

/* Stores the words of a half of a block; packs its nibbles, as gather_nibbles wants them. Returns all bits of the
 * exponents less their bases, ORed. */
static ALWAYS_INLINE vec split_words(gaac_part part, unsigned h, const block_place *at, vec packed[4])
{
    vec seen = dwords(0);
    UNROLL
    for (unsigned q = 0; q < 4; q++) {
        vec offsets[2];
        UNROLL
        for (unsigned pair = 0; pair < 2; pair++) {
            const unsigned word = word_at(h, pair, q);
            vec a, b;
            load_registers(part, fragment_at(at, h, pair, q), &a, &b);
            const exchanged e = exchange(dwords(0x807f807f), a, b);
            store(at->words + word, e.taken);
            offsets[pair] = subtract_dwords(e.left, load(at->bases + word / 4));
        }
        seen = or_both(seen, offsets[0], offsets[1]);
        packed[q] = or_bits(offsets[0], ROTATE_LEFT(offsets[1], 4));
    }
    return seen;
}

/* C_0..C_2 and N of a block: the way back from section 6. Returns N. */
static ALWAYS_INLINE vec split_nibbles(const vec t[4], vec c[3])
{
    const vec last = SHIFT_LEFT(t[3], 1);
    c[0] = select_bits(top_bits(), SHIFT_RIGHT(t[3], 1), t[0]);
    c[1] = select_bits(top_bits(), SHIFT_LEFT(t[3], 2), t[1]);
    c[2] = select_bits(top_bits(), last, t[2]);
    const vec even = select_bits(top_bits(), t[0], last);
    const vec odd = select_bits(dwords(0x22222222), SHIFT_RIGHT(t[1], 1), SHIFT_RIGHT(t[2], 2));
    return select_bits(dwords(0x33333333), odd, even);
}

/* The codes of each half of a block of positions. */
static ALWAYS_INLINE void store_codes(unsigned hv, uint8_t *fixed, unsigned position, vec c[][3])
{
    if (hv == 1) {
        store_pairs(fixed + gaac_code_offset(1, 0, 0, position), c[0][0], c[0][1]);
        store(fixed + gaac_code_offset(1, 0, 2, position), from_columns(c[0][2]));
        return;
    }
    vec quads[4] = {c[0][0], c[0][1], c[0][2], c[1][0]};
    transpose(quads);
    UNROLL
    for (unsigned q = 0; q < 4; q++)
        store(fixed + gaac_code_offset(2, 0, 0, position + VECTOR_POSITIONS * q), quads[q]);
    store_pairs(fixed + gaac_code_offset(2, 1, 1, position), c[1][1], c[1][2]);
}

/* Encodes a block but for its codes' places. */
static ALWAYS_INLINE void encode_block(gaac_part part, unsigned hv, unsigned block, const block_place *at,
                                       gaac_encoding *encoding, block_codes codes[GAAC_MAX_HV])
{
    vec packed[GAAC_MAX_HV][4], seen = split_words(part, 0, at, packed[0]);
    if (hv == 2)
        seen = or_bits(seen, split_words(part, 1, at, packed[1]));
    if (__builtin_expect(has_bits(seen, ABOVE_NIBBLES), 0)) {
        block_codes rare; /* apart, so that the codes themselves need no memory */
        encode_outside(part, 0, block, at, encoding, &rare);
        codes[0] = rare;
        if (hv == 2) {
            encode_outside(part, 1, block, at, encoding, &rare);
            codes[1] = rare;
        }
        return;
    }
    UNROLL
    for (unsigned h = 0; h < hv; h++) {
        gather_nibbles(packed[h], codes[h].t);
        choose_windows(&codes[h]);
    }
}

static ALWAYS_INLINE void encode_part(gaac_part part, unsigned hv, const uint16_t *fragments, gaac_base_words bases,
                                      uint8_t *fixed, gaac_encoding *encoding)
{
    for (unsigned block = 0; block < GAAC_LANES; block += BLOCK_POSITIONS) {
        const block_place at = place_of(fragments, bases, fixed, block);
        block_codes codes[GAAC_MAX_HV];
        vec c[GAAC_MAX_HV][3], n[GAAC_MAX_HV], wide[GAAC_MAX_HV];
        encode_block(part, hv, block, &at, encoding, codes);
        UNROLL
        for (unsigned h = 0; h < hv; h++) {
            n[h] = split_nibbles(codes[h].t, c[h]);
            wide[h] = codes[h].wide;
        }
        store_codes(hv, fixed, block, c);
        store_n(encoding, part, hv, block, n, wide);
        store(&encoding->tags[part][block], tag_bits(hv, wide, part == GAAC_V ? 4 * hv : 0));
    }
}

/* A part that the unit lacks stores nothing. */
static ALWAYS_INLINE void clear_part(gaac_encoding *encoding, gaac_part part, unsigned hv)
{
    const vec zero = dwords(0);
    for (unsigned i = 0; i < GAAC_LANES; i += 4 * VECTOR_POSITIONS) {
        store(&encoding->tags[part][i], zero);
        for (unsigned h = 0; h < hv; h++) {
            store(&encoding->n[part][h][i], zero);
            store(&encoding->stored[part][h][i], zero);
        }
    }
}

/* gaac_encode_unit_fn for a constant hv. */
static ALWAYS_INLINE bool encode_unit(unsigned hv, unsigned parts, const uint16_t *const fragments[2],
                                      gaac_base_words k_bases, gaac_base_words v_bases, uint8_t *k_fixed,
                                      uint8_t *v_fixed, uint8_t *variable, uint32_t capacity, gaac_unit_info *info)
{
    gaac_encoding encoding;
    gaac_exceptions exceptions;
    unit_order order;

    exceptions.count = exceptions.flags = 0;
    encoding.has_outside = false;
    if (parts != (GAAC_HAS_K | GAAC_HAS_V))
        clear_part(&encoding, parts == GAAC_HAS_V ? GAAC_K : GAAC_V, hv);
    if (parts & GAAC_HAS_K)
        encode_part(GAAC_K, hv, fragments[GAAC_K], k_bases, k_fixed, &encoding);
    if (parts & GAAC_HAS_V)
        encode_part(GAAC_V, hv, fragments[GAAC_V], v_bases, v_fixed, &encoding);
    if (encoding.has_outside)
        gaac_exceptions_collect(&exceptions, hv, parts, &encoding, fragments);

    const uint32_t stored = order_n(hv, &encoding, &order);
    if (!gaac_encoding_measure(hv, stored, &exceptions, capacity, info))
        return false;
    gaac_padding_write(&exceptions, info, variable);
    write_variable(hv, &encoding, &order, stored, variable);
    if (exceptions.count > 0)
        gaac_exceptions_write(&exceptions, info, variable);
    return true;
}
