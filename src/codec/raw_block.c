/* Raw blocks: BF16 in fragment order, all heads and units of a block. */
#include "codec/codec_internal.h"
#include "cpu/cpu.h"

static uint16_t *fragments_at(uint8_t *raw, uint32_t offset)
{
    return (uint16_t *)(void *)(raw + offset);
}

static bool has_part(const gaac_unit *unit, gaac_part part)
{
    return part == GAAC_K ? unit->has_k : unit->has_v;
}

static uint32_t raw_offset(const gaac_unit *unit, gaac_part part)
{
    return part == GAAC_K ? unit->raw_k_offset : unit->raw_v_offset;
}

static uint32_t head_dim_of(const gaac_layout *layout, gaac_part part)
{
    return part == GAAC_K ? layout->shape.head_dim_k : layout->shape.head_dim_v;
}

static void write_heads(const gaac_layout *layout, gaac_part part, const uint16_t *rows, size_t token_stride,
                        size_t head_stride, uint8_t *raw)
{
    for (uint32_t head = 0; head < layout->shape.kv_heads; head++, raw += layout->head_raw_bytes, rows += head_stride)
        for (uint32_t u = 0; u < layout->units; u++) {
            const gaac_unit *unit = &layout->unit[u];
            if (has_part(unit, part))
                gaac_cpu_codec()->rows_to_fragments[part](unit->fragments, rows + unit->channel, token_stride,
                                                          fragments_at(raw, raw_offset(unit, part)));
        }
}

void gaac_rows_to_raw_block(const gaac_layout *layout, const gaac_kv_rows *rows, uint8_t *raw)
{
    write_heads(layout, GAAC_K, rows->k, rows->k_token_stride, rows->k_head_stride, raw);
    write_heads(layout, GAAC_V, rows->v, rows->v_token_stride, rows->v_head_stride, raw);
}

void gaac_raw_block_write_part(const gaac_layout *layout, gaac_part part, const uint16_t *rows, size_t stride,
                               uint8_t *raw)
{
    write_heads(layout, part, rows, stride, head_dim_of(layout, part), raw);
}

void gaac_raw_block_read_part(const gaac_layout *layout, gaac_part part, const uint8_t *raw, uint16_t *rows,
                              size_t stride)
{
    const uint32_t head_dim = head_dim_of(layout, part);
    for (uint32_t head = 0; head < layout->shape.kv_heads; head++, raw += layout->head_raw_bytes, rows += head_dim)
        for (uint32_t u = 0; u < layout->units; u++) {
            const gaac_unit *unit = &layout->unit[u];
            if (has_part(unit, part))
                gaac_cpu_codec()->fragments_to_rows[part](
                    unit->fragments, (const uint16_t *)(const void *)(raw + raw_offset(unit, part)),
                    rows + unit->channel, stride);
        }
}

typedef enum row_move { ROW_READ, ROW_WRITE, ROW_ZERO } row_move;

/* Moves one token's row of a part to or from a raw block. */
static void move_row(const gaac_layout *layout, gaac_part part, unsigned token, uint8_t *raw, uint16_t *row,
                     row_move move)
{
    const uint32_t head_dim = head_dim_of(layout, part);
    for (uint32_t head = 0; head < layout->shape.kv_heads; head++, raw += layout->head_raw_bytes)
        for (uint32_t u = 0; u < layout->units; u++) {
            const gaac_unit *unit = &layout->unit[u];
            if (!has_part(unit, part))
                continue;
            uint16_t *fragments = fragments_at(raw, raw_offset(unit, part));
            for (unsigned channel = 0; channel < unit->channels; channel++) {
                uint16_t *element = &fragments[part == GAAC_K ? gaac_k_index(unit->fragments, token, channel)
                                                              : gaac_v_index(unit->fragments, token, channel)];
                if (move == ROW_READ)
                    row[head * head_dim + unit->channel + channel] = *element;
                else
                    *element = move == ROW_WRITE ? row[head * head_dim + unit->channel + channel] : 0;
            }
        }
}

void gaac_raw_block_write_row(const gaac_layout *layout, gaac_part part, unsigned token, const uint16_t *row,
                              uint8_t *raw)
{
    move_row(layout, part, token, raw, (uint16_t *)(uintptr_t)row, ROW_WRITE);
}

void gaac_raw_block_read_row(const gaac_layout *layout, gaac_part part, unsigned token, const uint8_t *raw,
                             uint16_t *row)
{
    move_row(layout, part, token, (uint8_t *)(uintptr_t)raw, row, ROW_READ);
}

void gaac_raw_block_zero_rows(const gaac_layout *layout, gaac_part part, unsigned first, unsigned count, uint8_t *raw)
{
    for (unsigned token = first; token < first + count; token++)
        move_row(layout, part, token, raw, NULL, ROW_ZERO);
}

bool gaac_raw_block_finite(const gaac_layout *layout, const uint8_t *raw)
{
    const uint16_t *bits = (const uint16_t *)(const void *)raw;
    for (uint32_t i = 0; i < layout->raw_bytes / 2; i++)
        if ((bits[i] & 0x7f80) == 0x7f80)
            return false;
    return true;
}
