/* From blocks of a cache to tiles in fragment order: in place where they lie so, decoded into scratch where
 * they are coded. */
#ifndef GAAC_ATTENTION_TILES_H
#define GAAC_ATTENTION_TILES_H

#include "attention/kernels.h"
#include "cache/view.h"

/* Scratch of one worker for the blocks of one step. */
typedef struct gaac_tile_scratch {
    _Alignas(64) uint16_t tile[GAAC_STEP_TILES * GAAC_TILE_MAX_BYTES / 2];
    _Alignas(64) uint16_t clean[GAAC_STEP_TILES * GAAC_TILE_MAX_BYTES / 2];
    gaac_unit_tags tags[]; /* [coded unit][GAAC_STEP_TILES] */
} gaac_tile_scratch;

static inline size_t gaac_tile_scratch_bytes(const gaac_layout *layout)
{
    return sizeof(gaac_tile_scratch) + (size_t)layout->coded_units * GAAC_STEP_TILES * sizeof(gaac_unit_tags);
}

/* Whether a block's part of a unit has to be decoded. */
static inline bool gaac_tile_is_coded(const gaac_block_view *view, const gaac_unit *unit)
{
    return view->class_ == GAAC_BLOCK_CODED && unit->hv != 0;
}

/* Tile of part of a unit of a head of the step's block number i: a pointer into the block or into
 * scratch, where it stays until the next call with the same i. NULL if the slot holds what no encoder
 * writes. Of a unit with K and V, K must be asked for first: it spreads the tags for both. lines: in line order
 * rather than fragment order, and then always in scratch. Where it has to decode, it fetches what `ahead` names
 * meanwhile and leaves there what is still to be fetched. */
const uint16_t *gaac_tile_load(const gaac_layout *layout, const gaac_codec_kernels *kernels,
                               const gaac_block_view *view, uint32_t head, const gaac_unit *unit, gaac_part part,
                               bool lines, unsigned i, gaac_tile_scratch *scratch, gaac_ahead *ahead);

/* A tile of zeros in scratch, in line order. */
const uint16_t *gaac_tile_zero_lines(const gaac_unit *unit, gaac_part part, unsigned i, gaac_tile_scratch *scratch);

/* Where the same tile's memory lies. Starts to fetch its tags at once. */
gaac_ahead gaac_tile_ahead(const gaac_layout *layout, const gaac_block_view *view, uint32_t head, const gaac_unit *unit,
                           gaac_part part);

/* All zero: stands for the blocks that the last step lacks. */
extern const uint16_t gaac_zero_tile[GAAC_TILE_MAX_BYTES / 2];

/* Copies a step's V tiles to `clean`, with the tokens outside `visible` (64 bits) as zeros, and makes *tiles point
 * there. */
void gaac_tiles_clean_v(unsigned fragments, gaac_step_tiles *tiles, uint64_t visible, uint16_t *clean);

#endif
