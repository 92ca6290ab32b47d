/* The arithmetic of slots and raw blocks for a shape. */
#include "format/layout.h"

#include <string.h>

/* Splits head_dim channels into units of 128, then 64, then a raw remainder. */
static uint32_t split_channels(gaac_unit *units, uint32_t head_dim)
{
    uint32_t count = 0, channel = 0;
    while (channel < head_dim) {
        const uint32_t left = head_dim - channel;
        const uint32_t channels = left >= 128 ? 128 : left >= 64 ? 64 : left;
        units[count++] = (gaac_unit){
            .hv = (uint8_t)(channels / GAAC_HALF_CHANNELS),
            .fragments = (uint8_t)(channels / GAAC_FRAGMENT_CHANNELS),
            .channel = (uint16_t)channel,
            .channels = (uint16_t)channels,
        };
        channel += channels;
    }
    return count;
}

static void list_units(gaac_layout *layout)
{
    const gaac_shape *shape = &layout->shape;
    layout->units = split_channels(layout->unit, shape->head_dim_k);
    for (uint32_t u = 0; u < layout->units; u++)
        layout->unit[u].has_k = true;
    if (shape->head_dim_k == shape->head_dim_v) {
        for (uint32_t u = 0; u < layout->units; u++)
            layout->unit[u].has_v = true;
        return;
    }
    const uint32_t first_v = layout->units;
    layout->units += split_channels(layout->unit + first_v, shape->head_dim_v);
    for (uint32_t u = first_v; u < layout->units; u++)
        layout->unit[u].has_v = true;
}

/* Bytes of one part in a slot's fixed area. */
static uint32_t part_fixed_bytes(const gaac_unit *unit)
{
    return unit->hv > 0 ? unit->hv * (uint32_t)GAAC_PART_FIXED_BYTES : unit->fragments * (uint32_t)GAAC_FRAGMENT_BYTES;
}

static void place_parts(gaac_layout *layout)
{
    uint32_t fixed = 0, raw = 0;
    for (uint32_t u = 0; u < layout->units; u++) {
        gaac_unit *unit = &layout->unit[u];
        const uint32_t fixed_part = part_fixed_bytes(unit);
        const uint32_t raw_part = unit->fragments * (uint32_t)GAAC_FRAGMENT_BYTES;
        unit->fixed_offset = fixed;
        unit->raw_k_offset = raw;
        if (unit->has_k) {
            fixed += fixed_part;
            raw += raw_part;
        }
        unit->fixed_v_offset = fixed;
        unit->raw_v_offset = raw;
        if (unit->has_v) {
            fixed += fixed_part;
            raw += raw_part;
        }
        if (unit->hv > 0)
            unit->entry = layout->coded_units++;
    }
    layout->head_fixed_bytes = fixed;
    layout->head_raw_bytes = raw;
}

/* The most that a block's variable parts can take: tags, every N byte stored, the exceptions allowed. */
static void bound_pool(gaac_layout *layout)
{
    uint32_t head_pool = 0, halves = 0;
    for (uint32_t u = 0; u < layout->units; u++) {
        const gaac_unit *unit = &layout->unit[u];
        const uint32_t parts = (uint32_t)unit->has_k + unit->has_v;
        if (unit->hv == 0)
            continue;
        halves += unit->hv * parts;
        /* 128 groups of eight in a half of K or of V. Exceptions are bounded by the block, not the unit,
         * but each unit may lose up to 15 bytes to alignment. */
        head_pool += unit->hv * (GAAC_TAG_BYTES + 128 * parts) + GAAC_POOL_ALIGN;
    }
    const uint32_t heads = layout->shape.kv_heads;
    layout->max_exceptions = GAAC_HALF_EXCEPTIONS * halves * heads;
    uint32_t bytes = head_pool * heads + 4 * layout->max_exceptions;
    if (bytes > GAAC_MAX_POOL_BYTES)
        bytes = GAAC_MAX_POOL_BYTES;
    layout->max_pool_bytes = (bytes + GAAC_SLOT_ALIGN - 1) / GAAC_SLOT_ALIGN * GAAC_SLOT_ALIGN;
}

void gaac_layout_init(gaac_layout *layout, const gaac_shape *shape)
{
    memset(layout, 0, sizeof *layout);
    layout->shape = *shape;
    list_units(layout);
    place_parts(layout);
    layout->fixed_bytes = layout->head_fixed_bytes * shape->kv_heads;
    layout->raw_bytes = layout->head_raw_bytes * shape->kv_heads;
    bound_pool(layout);
}
