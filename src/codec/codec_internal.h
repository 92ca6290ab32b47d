/* What the codec's own files and the rooms above it (cache, attention) see of a gaac_codec. */
#ifndef GAAC_CODEC_INTERNAL_H
#define GAAC_CODEC_INTERNAL_H

#include "codec/unit.h"
#include "gaac/codec.h"

struct gaac_windows {
    gaac_allocator allocator;
    gaac_shape shape;
    gaac_scheme scheme;
    size_t bytes;
    uint8_t table[]; /* order: gaac_windows_table */
};

struct gaac_histogram {
    gaac_allocator allocator;
    gaac_shape shape;
    uint64_t tokens;
    size_t k_counters, v_counters;
    uint32_t counts[]; /* K [head][channel][256], then V [parity][head][channel][256] */
};

/* Block-level operations of a scheme. The production scheme's are in block.c, the paper's in paper.c. */
typedef struct gaac_scheme_ops {
    gaac_status (*encode)(const gaac_codec *codec, const gaac_kv_rows *rows, void *slot, uint32_t *entries,
                          gaac_block_info *info, gaac_error *error);
    gaac_status (*decode)(const gaac_codec *codec, const void *slot, const uint32_t *entries,
                          const gaac_kv_rows_out *rows, gaac_error *error);
} gaac_scheme_ops;

struct gaac_codec {
    gaac_allocator allocator;
    const gaac_scheme_ops *ops;
    gaac_scheme scheme;
    gaac_layout layout; /* of the shape; production only: the slot's arithmetic */
    uint32_t pool_bytes;
    uint32_t slot_bytes;
    uint32_t entry_count;
    gaac_windows *windows; /* own copy */
    /* Production: base words [head][coded unit]: K part then V part, hv * 256 words each (whichever the
     * unit has), 64-byte aligned. unit_bases[u] is where coded unit u starts inside a head's words. */
    uint32_t *bases;
    size_t bases_bytes;
    uint32_t head_base_words;
    uint32_t unit_bases[GAAC_MAX_UNITS];
};

extern const gaac_scheme_ops gaac_paper_ops;      /* paper.c: the three paper schemes */
extern const gaac_scheme_ops gaac_production_ops; /* block.c */

/* paper.c: fills slot_bytes and entry_count of a codec with a paper scheme; pool_bytes is its escape
 * capacity a tile here (0 = the largest). */
void gaac_paper_codec_sizes(gaac_codec *codec);
/* paper.c: windows of the paper's schemes from a histogram into windows->table. */
void gaac_paper_choose_windows(const gaac_histogram *histogram, gaac_windows *windows);

/* Base words of part of a coded unit of a head; NULL if the unit has no such part. */
gaac_base_words gaac_codec_bases(const gaac_codec *codec, uint32_t head, const gaac_unit *unit, gaac_part part);

/* Encodes a block that lies as a raw block in fragment order (layout->raw_bytes, 64-byte aligned), and
 * the other way round: how the cache finalizes and reopens blocks. Same results as the calls on rows. */
gaac_status gaac_encode_raw_block(const gaac_codec *codec, const uint8_t *raw, void *slot, uint32_t *entries,
                                  gaac_block_info *info, gaac_error *error);
gaac_status gaac_decode_raw_block(const gaac_codec *codec, const void *slot, const uint32_t *entries, uint8_t *raw,
                                  gaac_error *error);

/* Raw blocks (raw_block.c): layout->raw_bytes, 64-byte aligned. A row has kv_heads * head_dim elements. */
void gaac_rows_to_raw_block(const gaac_layout *layout, const gaac_kv_rows *rows, uint8_t *raw);
void gaac_raw_block_write_row(const gaac_layout *layout, gaac_part part, unsigned token, const uint16_t *row,
                              uint8_t *raw);
void gaac_raw_block_read_row(const gaac_layout *layout, gaac_part part, unsigned token, const uint8_t *raw,
                             uint16_t *row);
void gaac_raw_block_zero_rows(const gaac_layout *layout, gaac_part part, unsigned first, unsigned count, uint8_t *raw);
/* All 16 rows of a part at once, `stride` elements from row to row. */
void gaac_raw_block_write_part(const gaac_layout *layout, gaac_part part, const uint16_t *rows, size_t stride,
                               uint8_t *raw);
void gaac_raw_block_read_part(const gaac_layout *layout, gaac_part part, const uint8_t *raw, uint16_t *rows,
                              size_t stride);
/* No NaN and no infinity anywhere. */
bool gaac_raw_block_finite(const gaac_layout *layout, const uint8_t *raw);

/* Blocks to calibrate on, oldest first: raw blocks in fragment order, 64-byte aligned. get may write the
 * block to `scratch` (layout->raw_bytes) and return that. */
typedef struct gaac_block_source {
    const uint8_t *(*get)(void *context, size_t block, uint8_t *scratch);
    void *context;
    size_t blocks;
} gaac_block_source;

/* gaac_calibrate over any source: at least 4 blocks. */
gaac_status gaac_calibrate_blocks(const gaac_layout *layout, const gaac_block_source *source, gaac_scheme scheme,
                                  const gaac_allocator *allocator, gaac_windows **windows, uint32_t *pool_bytes,
                                  gaac_error *error);

/* Counts a raw block in fragment order. */
void gaac_histogram_add_raw_block(gaac_histogram *histogram, const gaac_layout *layout, const uint8_t *raw);

static inline uint32_t *gaac_histogram_k(gaac_histogram *h, uint32_t head, uint32_t channel)
{
    return h->counts + ((size_t)head * h->shape.head_dim_k + channel) * 256;
}
static inline uint32_t *gaac_histogram_v(gaac_histogram *h, uint32_t parity, uint32_t head, uint32_t channel)
{
    return h->counts + h->k_counters +
           (((size_t)parity * h->shape.kv_heads + head) * h->shape.head_dim_v + channel) * 256;
}

#endif
