/* The codec of one coded unit (K and V of 64 or 128 channels of one KV head, 16 tokens), on values in
 * fragment order. Plain C versions here are the definition; src/cpu holds faster ones with the same
 * types, checked byte for byte against these. */
#ifndef GAAC_CODEC_UNIT_H
#define GAAC_CODEC_UNIT_H

#include "format/layout.h"

/* Which parts a unit has, as bits. */
enum { GAAC_HAS_K = 1, GAAC_HAS_V = 2 };

/* Base words of one part of a unit, in the order of its sign-and-mantissa words (gaac_word_offset / 4):
 * A.lo << 7 | B.lo << 15 | A.hi << 23 | B.hi >> 1 of the channels' b4. hv * 256 words, 64-byte aligned. */
typedef const uint32_t *gaac_base_words;

/* Tags and stored N bytes of a unit, spread out: what decoding needs beside the fixed part.
 * [part][half][position]. n has 0xff in the bytes that are not stored (3-bit groups); correction is the
 * word I that is subtracted from the base word. Entries of halves that the unit lacks are undefined. */
typedef struct gaac_unit_tags {
    _Alignas(64) uint32_t n[2][GAAC_MAX_HV][GAAC_LANES];
    _Alignas(64) uint32_t correction[2][GAAC_MAX_HV][GAAC_LANES];
} gaac_unit_tags;

/* Spreads the tags of a unit's variable part of `bytes` bytes. Never reads outside it. Returns false
 * (tags undefined) when it can't hold what its tags say. parts: GAAC_HAS_*. */
typedef bool gaac_expand_tags_fn(unsigned hv, unsigned parts, const uint8_t *variable, uint32_t bytes,
                                 gaac_unit_tags *tags);

/* Memory that is wanted soon, to be fetched while a kernel computes: `lines` lines of 64 bytes. A core fetches about
 * 16 lines at a time and waits when asked for more, so a kernel asks for a few between its own steps. */
typedef struct gaac_ahead {
    const uint8_t *at;
    unsigned lines;
} gaac_ahead;

/* Starts to fetch `lines` lines; returns where the next are. Any address may be given. */
static inline const uint8_t *gaac_fetch(const uint8_t *at, unsigned lines)
{
    for (; lines > 0; lines--, at += 64)
        __builtin_prefetch(at);
    return at;
}

/* Starts to fetch the lines of turn number `turn` of `turns`: all are fetched once all had their turn. ahead may be
 * NULL. */
static inline void gaac_fetch_turn(const gaac_ahead *ahead, unsigned turn, unsigned turns)
{
    if (ahead == NULL || ahead->lines == 0)
        return;
    const unsigned from = turn * ahead->lines / turns, to = (turn + 1) * ahead->lines / turns;
    (void)gaac_fetch(ahead->at + (size_t)from * 64, to - from);
}

/* Decodes one part (K or V, as the function is named) into fragment order (hv * 2048 bytes, 64-byte
 * aligned), exceptions not yet applied. fixed: the part's hv * 1408 bytes, 64-byte aligned. tags: of the
 * whole unit; the function reads its own part. ahead: what to fetch meanwhile, or NULL. */
typedef void gaac_decode_part_fn(unsigned hv, const uint8_t *fixed, const gaac_unit_tags *tags, gaac_base_words bases,
                                 uint16_t *fragments, const gaac_ahead *ahead);

/* ---- line order ------------------------------------------------------------------------------ *
 * What some sets' attention takes instead of fragment order, since their decoder makes it at no extra cost: lines of
 * 16 words of 32 bits, two BF16 each (lo and hi).
 *   K: line 8f + 2t + b, word = token: its channels 4F t + 4f + 2b + lo, hi.
 *   V: line 16f + 4s + t, word 2g + b: channel 2F g + 2f + b of tokens 2t + 8s + lo, hi. Lines 16f + 8 .. 16f + 15
 *      are another block's: two blocks lie in each other's gaps. */
enum { GAAC_LINE_ELEMENTS = 32, GAAC_K_FRAGMENT_LINES = 8, GAAC_V_FRAGMENT_LINES = 16 };

/* Element index in line order of register r, half hi of fragment f at a position. */
static inline unsigned gaac_line_index(gaac_part part, unsigned f, unsigned position, unsigned r, unsigned hi)
{
    const unsigned t = position >> 3, g = (position & 7) ^ 2 * t;
    return part == GAAC_K
               ? (GAAC_K_FRAGMENT_LINES * f + 2 * t + (r >> 1)) * GAAC_LINE_ELEMENTS + 2 * (g + 8 * (r & 1)) + hi
               : (GAAC_V_FRAGMENT_LINES * f + 4 * (r >> 1) + t) * GAAC_LINE_ELEMENTS + 2 * (2 * g + (r & 1)) + hi;
}

/* gaac_decode_part_fn into line order. */
typedef void gaac_decode_lines_fn(unsigned hv, const uint8_t *fixed, const gaac_unit_tags *tags, gaac_base_words bases,
                                  uint16_t *lines, const gaac_ahead *ahead);
/* From fragment order (in, 64-byte aligned) to line order. */
typedef void gaac_fragments_to_lines_fn(unsigned fragments, const uint16_t *in, uint16_t *lines);

/* What encoding a unit took. */
typedef struct gaac_unit_info {
    uint32_t bytes;           /* of the variable part, padding included; valid even if it didn't fit */
    uint32_t stored_n;        /* stored N bytes = 4-bit groups */
    uint32_t exceptions;      /* elements */
    uint32_t exception_flags; /* entry bits 20-23, shifted down */
} gaac_unit_info;

/* Encodes a unit from fragment order (64-byte aligned) into its fixed parts (hv * 1408 bytes each) and
 * its variable part. Returns false, with info filled and the outputs undefined, when the variable part
 * needs more than `capacity` bytes. Never writes outside the fixed parts and capacity. The part that
 * the unit lacks has NULL pointers. */
typedef bool gaac_encode_unit_fn(unsigned hv, unsigned parts, const uint16_t *k_fragments, const uint16_t *v_fragments,
                                 gaac_base_words k_bases, gaac_base_words v_bases, uint8_t *k_fixed, uint8_t *v_fixed,
                                 uint8_t *variable, uint32_t capacity, gaac_unit_info *info);

/* Moves one part of a unit between rows (element (token, channel) at rows[token * stride + channel])
 * and fragment order. fragments: number of fragments of the part (channels / 16). */
typedef void gaac_rows_to_fragments_fn(unsigned fragments, const uint16_t *rows, size_t stride, uint16_t *out);
typedef void gaac_fragments_to_rows_fn(unsigned fragments, const uint16_t *in, uint16_t *rows, size_t stride);

/* The definitions. */
gaac_expand_tags_fn gaac_expand_tags_c;
gaac_decode_part_fn gaac_decode_k_c, gaac_decode_v_c;
gaac_encode_unit_fn gaac_encode_unit_c;
gaac_rows_to_fragments_fn gaac_k_rows_to_fragments_c, gaac_v_rows_to_fragments_c;
gaac_fragments_to_rows_fn gaac_k_fragments_to_rows_c, gaac_v_fragments_to_rows_c;
gaac_decode_lines_fn gaac_decode_k_lines_c, gaac_decode_v_lines_c;
gaac_fragments_to_lines_fn gaac_k_fragments_to_lines_c, gaac_v_fragments_to_lines_c;

/* Applies the exceptions of one part to decoded fragments: rare, so plain C serves every kernel set.
 * Bounded by `bytes`; returns false on what no encoder writes (fragments then hold some values). */
bool gaac_apply_exceptions(unsigned hv, gaac_part part, const uint8_t *variable, uint32_t bytes, uint16_t *fragments);
/* The same in line order. */
bool gaac_apply_exceptions_to_lines(unsigned hv, gaac_part part, const uint8_t *variable, uint32_t bytes,
                                    uint16_t *lines);

/* Whether a unit that has this part alone has tags and exceptions of no other. For bytes of which expand_tags
 * thought well; has_exceptions: what the entry says. */
bool gaac_is_of_one_part(unsigned hv, gaac_part part, const uint8_t *variable, uint32_t bytes, bool has_exceptions);

/* The codec's function table; src/cpu fills it for the machine. */
typedef struct gaac_codec_kernels {
    gaac_expand_tags_fn *expand_tags;
    gaac_decode_part_fn *decode_part[2]; /* [gaac_part] */
    gaac_encode_unit_fn *encode_unit;
    gaac_rows_to_fragments_fn *rows_to_fragments[2];
    gaac_fragments_to_rows_fn *fragments_to_rows[2];
    gaac_decode_lines_fn *decode_lines[2];             /* these two: only where the set's attention takes lines, */
    gaac_fragments_to_lines_fn *fragments_to_lines[2]; /* else NULL or the definitions */
} gaac_codec_kernels;

/* Fills the table with the definitions. */
void gaac_codec_kernels_init_c(gaac_codec_kernels *kernels);

#endif
