/* Tile format: constants, element maps, slot arithmetic. Nothing outside src/format and the kernels
 * checked against it knows a byte offset. docs/format.md is the same thing in prose. */
#ifndef GAAC_FORMAT_LAYOUT_H
#define GAAC_FORMAT_LAYOUT_H

#include "gaac/common.h"

/* CUDA kernels use the functions below too. */
#ifdef __CUDACC__
#define GAAC_FORMAT_INLINE static inline __host__ __device__
#else
#define GAAC_FORMAT_INLINE static inline
#endif

enum {
    GAAC_LANES = 32,             /* positions of every stream: a warp's lanes, permuted */
    GAAC_HALF_CHANNELS = 64,     /* channels of a half */
    GAAC_FRAGMENT_CHANNELS = 16, /* channels that one fragment of 16 tokens holds */
    GAAC_FRAGMENT_BYTES = 512,   /* 32 lanes x 4 registers x 2 BF16 */
    GAAC_FRAGMENT_ELEMENTS = 256,
    GAAC_PART_FIXED_BYTES = 1408,    /* fixed bytes a half of K or of V: words 1024, codes 384 */
    GAAC_WORD_BYTES = 1024,          /* of those, sign and mantissa words */
    GAAC_TAG_BYTES = 32,             /* tag bytes a half (K and V together) */
    GAAC_POOL_ALIGN = 16,            /* a unit's variable part: offset and length */
    GAAC_MAX_UNIT_POOL = 255 * 16,   /* a unit's variable part: what the entry's length can say */
    GAAC_MAX_POOL_BYTES = 4096 * 16, /* a slot's pool: what the entry's offset can say */
    GAAC_SLOT_ALIGN = 64,            /* pool capacities and slot sizes */
    GAAC_HALF_EXCEPTIONS = 8,        /* exceptions an encoder allows a half of K or V (1024 elements), averaged
                                        over the block: 16 a 16 x 128 tile. With more the block stays raw,
                                        which bounds the slow path of every decoder. Real KV has 0.2 to 0.4 a
                                        tile under its own windows and a few while keys drift away from early
                                        ones, where a raw block would cost far more than the records do. */
    GAAC_MAX_HV = 2,                 /* halves of a unit */
    GAAC_MAX_UNITS = 2 * (GAAC_MAX_HEAD_DIM / 128) + 4, /* units of one head, K and V apart */
    GAAC_WINDOW_MAX_BASE = 240,                         /* largest b4 */
};

/* A run of channels of one head that is coded or stored as one piece. hv 1 or 2: a coded unit of 64 or
 * 128 channels; hv 0: a raw remainder of 16-48 channels. When head_dim_k == head_dim_v every unit
 * holds K and V; otherwise K units and V units stand apart (K's first). */
typedef struct gaac_unit {
    uint8_t hv;
    uint8_t fragments; /* of each part: channels / 16 */
    bool has_k, has_v;
    uint16_t channel; /* first channel, inside the head */
    uint16_t channels;
    uint32_t fixed_offset;   /* of its K part (or V, without K), inside the head's fixed area */
    uint32_t fixed_v_offset; /* of its V part, inside the head's fixed area */
    uint32_t raw_k_offset;   /* of its K fragments, inside the head's part of a raw block */
    uint32_t raw_v_offset;
    uint32_t entry; /* index among the head's coded units (entries); unused for hv 0 */
} gaac_unit;

typedef struct gaac_layout {
    gaac_shape shape;
    uint32_t units;       /* of one head */
    uint32_t coded_units; /* those with hv > 0: table entries a head */
    gaac_unit unit[GAAC_MAX_UNITS];
    uint32_t head_fixed_bytes; /* multiple of 128 */
    uint32_t fixed_bytes;      /* all heads: where the pool starts */
    uint32_t head_raw_bytes;
    uint32_t raw_bytes;      /* of a raw block: all heads */
    uint32_t max_pool_bytes; /* pool that the largest codable block can need */
    uint32_t max_exceptions; /* of a block: more stay raw */
} gaac_layout;

/* shape must have passed gaac_shape_check. */
void gaac_layout_init(gaac_layout *layout, const gaac_shape *shape);

/* Table entry of (coded unit, block). A raw block has no entries: the block table says so. */
enum {
    GAAC_ENTRY_OFFSET_BITS = 12,    /* pool offset / 16 */
    GAAC_ENTRY_LENGTH_SHIFT = 12,   /* 8 bits: length / 16 */
    GAAC_ENTRY_EXCEPTION_SHIFT = 20 /* 4 bits: K half 0, K half 1, V half 0, V half 1 */
};
GAAC_FORMAT_INLINE uint32_t gaac_entry_make(uint32_t offset, uint32_t length, uint32_t exceptions)
{
    return offset / 16 | (length / 16) << GAAC_ENTRY_LENGTH_SHIFT | exceptions << GAAC_ENTRY_EXCEPTION_SHIFT;
}
GAAC_FORMAT_INLINE uint32_t gaac_entry_offset(uint32_t entry)
{
    return (entry & 0xfff) * 16;
}
GAAC_FORMAT_INLINE uint32_t gaac_entry_length(uint32_t entry)
{
    return (entry >> GAAC_ENTRY_LENGTH_SHIFT & 0xff) * 16;
}
GAAC_FORMAT_INLINE uint32_t gaac_entry_exceptions(uint32_t entry)
{
    return entry >> GAAC_ENTRY_EXCEPTION_SHIFT & 0xf;
}

/* ---- element maps --------------------------------------------------------------------------- *
 * Lane = 4g + t, g = 0..7, t = 0..3. A 32-bit register holds two BF16 values, lo and hi. Fragment f
 * of a unit holds four registers a lane, a0..a3, as mma.m16n8k16 wants its A operand. */

/* Position of lane (g, t) in every stream: four consecutive positions share t. */
GAAC_FORMAT_INLINE unsigned gaac_position(unsigned g, unsigned t)
{
    return 8 * t + (g ^ 2 * t);
}

/* Element index (BF16) of register r, half hi of fragment f at lane (g, t), in fragment order. */
GAAC_FORMAT_INLINE unsigned gaac_fragment_index(unsigned f, unsigned g, unsigned t, unsigned r, unsigned hi)
{
    return f * GAAC_FRAGMENT_ELEMENTS + gaac_position(g, t) * 8 + r * 2 + hi;
}

/* Register of a fragment that holds register pair member b (A 0, B 1) of word (j, s). */
GAAC_FORMAT_INLINE unsigned gaac_word_register(gaac_part part, unsigned s, unsigned b)
{
    return part == GAAC_K ? s + 2 * b : 2 * s + b;
}

/* Where element (token, channel of the unit) of a unit with `fragments` fragments lies. */
GAAC_FORMAT_INLINE unsigned gaac_k_index(unsigned fragments, unsigned token, unsigned channel)
{
    /* K: token g + 8s, channel 4F t + 4f + (A.lo 0, A.hi 1, B.lo 2, B.hi 3); register s + 2B */
    unsigned t = channel / (4 * fragments), f = channel / 4 % fragments, b = channel >> 1 & 1, hi = channel & 1;
    return gaac_fragment_index(f, token & 7, t, (token >> 3) + 2 * b, hi);
}
GAAC_FORMAT_INLINE unsigned gaac_v_index(unsigned fragments, unsigned token, unsigned channel)
{
    /* V: channel 2F g + 2f + (A 0, B 1), token 2t + 8s + (lo 0, hi 1); register 2s + B */
    unsigned g = channel / (2 * fragments), f = channel / 2 % fragments, b = channel & 1;
    return gaac_fragment_index(f, g, token >> 1 & 3, 2 * (token >> 3) + b, token & 1);
}

/* ---- coded unit ----------------------------------------------------------------------------- */

/* Of half h, register pair (word) k = 2j + s: fragment 4h + j. */
GAAC_FORMAT_INLINE unsigned gaac_word_offset(unsigned h, unsigned k, unsigned position)
{
    return h * GAAC_WORD_BYTES + (k >> 2) * 512 + position * 16 + (k & 3) * 4;
}
/* Code word C_i (i = 0..2) of half h, from the start of the part. */
GAAC_FORMAT_INLINE unsigned gaac_code_offset(unsigned hv, unsigned h, unsigned i, unsigned position)
{
    const unsigned codes = GAAC_WORD_BYTES * hv;
    if (hv == 1)
        return i < 2 ? codes + position * 8 + i * 4 : codes + 256 + position * 4;
    const unsigned n = 3 * h + i; /* h0.C0 h0.C1 h0.C2 h1.C0 | h1.C1 h1.C2 */
    return n < 4 ? codes + position * 16 + n * 4 : codes + 512 + position * 8 + (n - 4) * 4;
}

/* Nested windows: the 4-bit window is [b4, b4 + 15]; the 3-bit one [b4 + k, b4 + k + 7] with k = 7,
 * or 6 in the field that wraps round bit 31 (B.hi), whose b4 must be even. */
GAAC_FORMAT_INLINE bool gaac_k_wraps(unsigned channel)
{
    return (channel & 3) == 3;
}
GAAC_FORMAT_INLINE bool gaac_v_wraps(unsigned token, unsigned channel)
{
    return (token & 1) && (channel & 1);
}
GAAC_FORMAT_INLINE unsigned gaac_window_shift(bool wraps)
{
    return wraps ? 6 : 7;
}

#endif
