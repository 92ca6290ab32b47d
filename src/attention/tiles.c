/* Tiles of a step: where they lie, how they are decoded, and what is fetched ahead. */
#include "attention/tiles.h"

#include <string.h>

enum {
    CACHE_LINE = 64,
    V_GAP_LINES = GAAC_V_FRAGMENT_LINES / 2,
    /* Percent of the lines that are fetched while decoding; the kernels behind it fetch the rest. Measured: with
     * more of them decoding waits for memory, with none memory waits for decoding. */
    DECODE_SHARE = 35
};

_Alignas(64) const uint16_t gaac_zero_tile[GAAC_TILE_MAX_BYTES / 2] = {0};

/* Where a unit's part lies in its block: fragments of a raw block, fixed part (or fragments of a raw
 * remainder) of a slot. */
static const uint8_t *part_data(const gaac_layout *layout, const gaac_block_view *view, uint32_t head,
                                const gaac_unit *unit, gaac_part part)
{
    if (view->class_ == GAAC_BLOCK_CODED)
        return view->data + (size_t)head * layout->head_fixed_bytes +
               (part == GAAC_K ? unit->fixed_offset : unit->fixed_v_offset);
    return view->data + (size_t)head * layout->head_raw_bytes +
           (part == GAAC_K ? unit->raw_k_offset : unit->raw_v_offset);
}

static uint32_t entry_of(const gaac_layout *layout, const gaac_block_view *view, uint32_t head, const gaac_unit *unit)
{
    return view->entries[(size_t)head * layout->coded_units + unit->entry];
}

/* Where scratch has block i's tile. */
static uint16_t *tile_place(bool lines, gaac_part part, unsigned i, uint16_t *tiles)
{
    enum { TILE = GAAC_TILE_MAX_BYTES / 2 };
    if (lines && part == GAAC_V) /* two in each other's gaps */
        return tiles + (size_t)(i / 2) * 2 * TILE + (size_t)(i % 2) * V_GAP_LINES * GAAC_LINE_ELEMENTS;
    return tiles + (size_t)i * TILE;
}

static bool decode(const gaac_layout *layout, const gaac_codec_kernels *kernels, const gaac_block_view *view,
                   uint32_t head, const gaac_unit *unit, gaac_part part, bool lines, uint16_t *out,
                   gaac_unit_tags *tags, gaac_ahead *ahead)
{
    const uint32_t entry = entry_of(layout, view, head, unit);
    const uint32_t bytes = gaac_entry_length(entry);
    const uint8_t *variable = view->data + layout->fixed_bytes + gaac_entry_offset(entry);
    if (gaac_entry_offset(entry) + bytes > view->codec->pool_bytes)
        return false;

    const unsigned parts = (unit->has_k ? GAAC_HAS_K : 0) | (unit->has_v ? GAAC_HAS_V : 0);
    const bool first_part = part == GAAC_K || !unit->has_k;
    if (first_part && !kernels->expand_tags(unit->hv, parts, variable, bytes, tags))
        return false;
    const gaac_ahead now = {ahead->at, ahead->lines * DECODE_SHARE / 100};
    (lines ? kernels->decode_lines : kernels->decode_part)[part](unit->hv, part_data(layout, view, head, unit, part),
                                                                 tags, gaac_codec_bases(view->codec, head, unit, part),
                                                                 out, &now);
    *ahead = (gaac_ahead){now.at + (size_t)now.lines * CACHE_LINE, ahead->lines - now.lines};
    if ((gaac_entry_exceptions(entry) >> (part == GAAC_K ? 0 : 2) & 3) == 0)
        return true;
    return lines ? gaac_apply_exceptions_to_lines(unit->hv, part, variable, bytes, out)
                 : gaac_apply_exceptions(unit->hv, part, variable, bytes, out);
}

const uint16_t *gaac_tile_load(const gaac_layout *layout, const gaac_codec_kernels *kernels,
                               const gaac_block_view *view, uint32_t head, const gaac_unit *unit, gaac_part part,
                               bool lines, unsigned i, gaac_tile_scratch *scratch, gaac_ahead *ahead)
{
    uint16_t *out = tile_place(lines, part, i, scratch->tile);
    if (gaac_tile_is_coded(view, unit))
        return decode(layout, kernels, view, head, unit, part, lines, out,
                      &scratch->tags[unit->entry * GAAC_STEP_TILES + i], ahead)
                   ? out
                   : NULL;
    const uint16_t *raw = (const uint16_t *)(const void *)part_data(layout, view, head, unit, part);
    if (!lines)
        return raw;
    kernels->fragments_to_lines[part](unit->fragments, raw, out);
    return out;
}

const uint16_t *gaac_tile_zero_lines(const gaac_unit *unit, gaac_part part, unsigned i, gaac_tile_scratch *scratch)
{
    uint16_t *out = tile_place(true, part, i, scratch->tile);
    const unsigned step = part == GAAC_K ? GAAC_K_FRAGMENT_LINES : GAAC_V_FRAGMENT_LINES;
    for (unsigned f = 0; f < unit->fragments; f++)
        memset(out + (size_t)f * step * GAAC_LINE_ELEMENTS, 0, GAAC_FRAGMENT_BYTES);
    return out;
}

gaac_ahead gaac_tile_ahead(const gaac_layout *layout, const gaac_block_view *view, uint32_t head, const gaac_unit *unit,
                           gaac_part part)
{
    const bool coded = gaac_tile_is_coded(view, unit);
    if (coded && (part == GAAC_K || !unit->has_k)) {
        const uint32_t entry = entry_of(layout, view, head, unit);
        const uint8_t *variable = view->data + layout->fixed_bytes + gaac_entry_offset(entry);
        (void)gaac_fetch(variable, (gaac_entry_length(entry) + 2 * CACHE_LINE - 2) / CACHE_LINE);
    }
    const unsigned bytes = coded ? unit->hv * GAAC_PART_FIXED_BYTES : unit->fragments * GAAC_FRAGMENT_BYTES;
    return (gaac_ahead){part_data(layout, view, head, unit, part), bytes / CACHE_LINE};
}

void gaac_tiles_clean_v(unsigned fragments, gaac_step_tiles *tiles, uint64_t visible, uint16_t *clean)
{
    const bool lines = tiles->lines;
    const size_t step = (size_t)(lines ? GAAC_V_FRAGMENT_LINES * GAAC_LINE_ELEMENTS : GAAC_FRAGMENT_ELEMENTS);
    for (unsigned i = 0; i < GAAC_STEP_TILES; i++) {
        uint16_t *out = tile_place(lines, GAAC_V, i, clean);
        for (unsigned f = 0; f < fragments; f++)
            memcpy(out + f * step, tiles->tile[i] + f * step, GAAC_FRAGMENT_BYTES);
        tiles->tile[i] = out;
        for (unsigned token = 0; token < GAAC_BLOCK_TOKENS; token++) {
            if (visible >> (i * GAAC_BLOCK_TOKENS + token) & 1)
                continue;
            const unsigned t = token >> 1 & 3, s = token >> 3, hi = token & 1;
            for (unsigned f = 0; f < fragments; f++) {
                for (unsigned g = 0; g < 8; g++) {
                    for (unsigned b = 0; b < 2; b++)
                        out[lines ? gaac_line_index(GAAC_V, f, gaac_position(g, t), 2 * s + b, hi)
                                  : gaac_fragment_index(f, g, t, 2 * s + b, hi)] = 0;
                }
            }
        }
    }
}
