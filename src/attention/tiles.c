/* Tiles of a step: where they lie, how they are decoded, and what is fetched ahead. */
#include "attention/tiles.h"

#include <string.h>

enum {
    CACHE_LINE = 64,
    /* Percent of the lines that are fetched while decoding; the kernels behind it fetch the rest. Measured: with
     * more of them decoding waits for memory, with none memory waits for decoding. */
    DECODE_SHARE = 20
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

static const uint16_t *decode(const gaac_layout *layout, const gaac_codec_kernels *kernels, const gaac_block_view *view,
                              uint32_t head, const gaac_unit *unit, gaac_part part, uint16_t *out, gaac_unit_tags *tags,
                              gaac_ahead *ahead)
{
    const uint32_t entry = entry_of(layout, view, head, unit);
    const uint32_t bytes = gaac_entry_length(entry);
    const uint8_t *variable = view->data + layout->fixed_bytes + gaac_entry_offset(entry);
    if (gaac_entry_offset(entry) + bytes > view->codec->pool_bytes)
        return NULL;

    const unsigned parts = (unit->has_k ? GAAC_HAS_K : 0) | (unit->has_v ? GAAC_HAS_V : 0);
    const bool first_part = part == GAAC_K || !unit->has_k;
    if (first_part && !kernels->expand_tags(unit->hv, parts, variable, bytes, tags))
        return NULL;
    const gaac_ahead now = {ahead->at, ahead->lines * DECODE_SHARE / 100};
    kernels->decode_part[part](unit->hv, part_data(layout, view, head, unit, part), tags,
                               gaac_codec_bases(view->codec, head, unit, part), out, &now);
    *ahead = (gaac_ahead){now.at + (size_t)now.lines * CACHE_LINE, ahead->lines - now.lines};
    if (gaac_entry_exceptions(entry) >> (part == GAAC_K ? 0 : 2) & 3 &&
        !gaac_apply_exceptions(unit->hv, part, variable, bytes, out))
        return NULL;
    return out;
}

const uint16_t *gaac_tile_load(const gaac_layout *layout, const gaac_codec_kernels *kernels,
                               const gaac_block_view *view, uint32_t head, const gaac_unit *unit, gaac_part part,
                               unsigned i, gaac_tile_scratch *scratch, gaac_ahead *ahead)
{
    if (view->class_ == GAAC_BLOCK_CODED && unit->hv != 0)
        return decode(layout, kernels, view, head, unit, part, scratch->tile[i],
                      &scratch->tags[unit->entry * GAAC_STEP_TILES + i], ahead);
    return (const uint16_t *)(const void *)part_data(layout, view, head, unit, part);
}

gaac_ahead gaac_tile_ahead(const gaac_layout *layout, const gaac_block_view *view, uint32_t head, const gaac_unit *unit,
                           gaac_part part)
{
    const bool coded = view->class_ == GAAC_BLOCK_CODED && unit->hv != 0;
    if (coded && (part == GAAC_K || !unit->has_k)) {
        const uint32_t entry = entry_of(layout, view, head, unit);
        const uint8_t *variable = view->data + layout->fixed_bytes + gaac_entry_offset(entry);
        (void)gaac_fetch(variable, (gaac_entry_length(entry) + 2 * CACHE_LINE - 2) / CACHE_LINE);
    }
    const unsigned bytes = coded ? unit->hv * GAAC_PART_FIXED_BYTES : unit->fragments * GAAC_FRAGMENT_BYTES;
    return (gaac_ahead){part_data(layout, view, head, unit, part), bytes / CACHE_LINE};
}

void gaac_tile_clean_v(unsigned fragments, const uint16_t *tile, uint64_t visible, uint16_t *clean)
{
    memcpy(clean, tile, (size_t)fragments * GAAC_FRAGMENT_BYTES);
    for (unsigned token = 0; token < GAAC_BLOCK_TOKENS; token++) {
        if (visible >> token & 1)
            continue;
        for (unsigned channel = 0; channel < fragments * GAAC_FRAGMENT_CHANNELS; channel++)
            clean[gaac_v_index(fragments, token, channel)] = 0;
    }
}
