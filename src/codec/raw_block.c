/* Raw blocks: BF16 in fragment order, all heads and units of a block. */
#include "codec/codec_internal.h"
#include "cpu/cpu.h"

static uint16_t *fragments_at(uint8_t *raw, uint32_t offset)
{
    return (uint16_t *)(void *)(raw + offset);
}

void gaac_rows_to_raw_block(const gaac_layout *layout, const gaac_kv_rows *rows, uint8_t *raw)
{
    const gaac_codec_kernels *kernels = gaac_cpu_codec();
    for (uint32_t head = 0; head < layout->shape.kv_heads; head++, raw += layout->head_raw_bytes)
        for (uint32_t u = 0; u < layout->units; u++) {
            const gaac_unit *unit = &layout->unit[u];
            if (unit->has_k)
                kernels->rows_to_fragments[GAAC_K](unit->fragments, rows->k + head * rows->k_head_stride + unit->channel,
                                                   rows->k_token_stride, fragments_at(raw, unit->raw_k_offset));
            if (unit->has_v)
                kernels->rows_to_fragments[GAAC_V](unit->fragments, rows->v + head * rows->v_head_stride + unit->channel,
                                                   rows->v_token_stride, fragments_at(raw, unit->raw_v_offset));
        }
}

/* Moves one token's row of a part to (write) or from a raw block. */
static void move_row(const gaac_layout *layout, gaac_part part, unsigned token, uint8_t *raw, uint16_t *row, bool write)
{
    const uint32_t head_dim = part == GAAC_K ? layout->shape.head_dim_k : layout->shape.head_dim_v;
    for (uint32_t head = 0; head < layout->shape.kv_heads; head++, raw += layout->head_raw_bytes, row += head_dim)
        for (uint32_t u = 0; u < layout->units; u++) {
            const gaac_unit *unit = &layout->unit[u];
            if (!(part == GAAC_K ? unit->has_k : unit->has_v))
                continue;
            uint16_t *fragments = fragments_at(raw, part == GAAC_K ? unit->raw_k_offset : unit->raw_v_offset);
            for (unsigned channel = 0; channel < unit->channels; channel++) {
                uint16_t *element = &fragments[part == GAAC_K ? gaac_k_index(unit->fragments, token, channel)
                                                              : gaac_v_index(unit->fragments, token, channel)];
                if (write)
                    *element = row[unit->channel + channel];
                else
                    row[unit->channel + channel] = *element;
            }
        }
}

void gaac_raw_block_write_row(const gaac_layout *layout, gaac_part part, unsigned token, const uint16_t *row,
                              uint8_t *raw)
{
    move_row(layout, part, token, raw, (uint16_t *)(uintptr_t)row, true);
}

void gaac_raw_block_read_row(const gaac_layout *layout, gaac_part part, unsigned token, const uint8_t *raw,
                             uint16_t *row)
{
    move_row(layout, part, token, (uint8_t *)(uintptr_t)raw, row, false);
}

bool gaac_raw_block_finite(const gaac_layout *layout, const uint8_t *raw)
{
    const uint16_t *bits = (const uint16_t *)(const void *)raw;
    for (uint32_t i = 0; i < layout->raw_bytes / 2; i++)
        if ((bits[i] & 0x7f80) == 0x7f80)
            return false;
    return true;
}
