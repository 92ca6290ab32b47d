/* The production scheme, a block at a time: all units of all heads in one slot, sharing its pool. */
#include "base/base.h"
#include "codec/codec_internal.h"
#include "cpu/cpu.h"

#include <string.h>

/* Values of one part of a unit in fragment order. */
typedef struct unit_fragments {
    _Alignas(64) uint16_t part[2][GAAC_MAX_HV * 4 * GAAC_FRAGMENT_ELEMENTS];
} unit_fragments;

static unsigned unit_parts(const gaac_unit *unit)
{
    return (unit->has_k ? (unsigned)GAAC_HAS_K : 0) | (unit->has_v ? (unsigned)GAAC_HAS_V : 0);
}

static uint32_t part_offset(const gaac_unit *unit, unsigned part)
{
    return part == GAAC_K ? unit->fixed_offset : unit->fixed_v_offset;
}

/* ---- encoding ------------------------------------------------------------------------------- */

typedef struct encoder {
    const gaac_codec *codec;
    uint8_t *slot;
    uint32_t *entries;
    gaac_block_info *info;
    bool fits;
} encoder;

static void encode_coded_unit(encoder *e, uint32_t head, const gaac_unit *unit, const uint16_t *const fragments[2])
{
    const gaac_layout *layout = &e->codec->layout;
    const uint32_t used = e->info->pool_bytes;
    const uint32_t left = e->fits && used <= e->codec->pool_bytes ? e->codec->pool_bytes - used : 0;
    uint8_t *head_fixed = e->slot + (size_t)head * layout->head_fixed_bytes;
    const unsigned parts = unit_parts(unit);
    gaac_unit_info unit_info;
    const bool fits = gaac_cpu_codec()->encode_unit(
        unit->hv, parts, fragments[GAAC_K], fragments[GAAC_V], gaac_codec_bases(e->codec, head, unit, GAAC_K),
        gaac_codec_bases(e->codec, head, unit, GAAC_V), parts & GAAC_HAS_K ? head_fixed + unit->fixed_offset : NULL,
        parts & GAAC_HAS_V ? head_fixed + unit->fixed_v_offset : NULL,
        e->slot + layout->fixed_bytes + (left > 0 ? used : 0), left, &unit_info);
    if (fits && used < GAAC_MAX_POOL_BYTES)
        e->entries[head * layout->coded_units + unit->entry] =
            gaac_entry_make(used, unit_info.bytes, unit_info.exception_flags);
    else
        e->fits = false;
    const uint32_t halves = unit->hv * ((uint32_t)unit->has_k + unit->has_v);
    e->info->pool_bytes += unit_info.bytes;
    e->info->groups += 128 * halves;
    e->info->groups_by_mode[0] += 128 * halves - unit_info.stored_n;
    e->info->groups_by_mode[1] += unit_info.stored_n;
    e->info->exceptions += unit_info.exceptions;
    e->info->coded_bytes +=
        GAAC_PART_FIXED_BYTES * halves + GAAC_TAG_BYTES * unit->hv + unit_info.stored_n + 4 * unit_info.exceptions;
}

static void store_raw_unit(encoder *e, uint32_t head, const gaac_unit *unit, const uint16_t *const fragments[2])
{
    uint8_t *head_fixed = e->slot + (size_t)head * e->codec->layout.head_fixed_bytes;
    const uint32_t bytes = unit->fragments * (uint32_t)GAAC_FRAGMENT_BYTES;
    for (unsigned part = 0; part < 2; part++)
        if (unit_parts(unit) >> part & 1) {
            memcpy(head_fixed + part_offset(unit, part), fragments[part], bytes);
            e->info->coded_bytes += bytes;
        }
}

static void encode_unit(encoder *e, uint32_t head, const gaac_unit *unit, const uint16_t *const fragments[2])
{
    if (unit->hv > 0)
        encode_coded_unit(e, head, unit, fragments);
    else
        store_raw_unit(e, head, unit, fragments);
}

static encoder start_encoder(const gaac_codec *codec, void *slot, uint32_t *entries, gaac_block_info *info)
{
    memset(info, 0, sizeof *info);
    return (encoder){codec, slot, entries, info, true};
}

static void finish_encoder(encoder *e)
{
    e->info->coded = e->fits && e->info->exceptions <= e->codec->layout.max_exceptions;
    if (e->info->coded) /* the rest of the pool never carries old bytes out of the process */
        memset(e->slot + e->codec->layout.fixed_bytes + e->info->pool_bytes, 0,
               e->codec->pool_bytes - e->info->pool_bytes);
}

static gaac_status production_encode(const gaac_codec *codec, const gaac_kv_rows *rows, void *slot, uint32_t *entries,
                                     gaac_block_info *info, gaac_error *error)
{
    (void)error;
    const gaac_codec_kernels *kernels = gaac_cpu_codec();
    encoder e = start_encoder(codec, slot, entries, info);
    unit_fragments scratch;
    const uint16_t *const fragments[2] = {scratch.part[GAAC_K], scratch.part[GAAC_V]};
    for (uint32_t head = 0; head < codec->layout.shape.kv_heads; head++)
        for (uint32_t u = 0; u < codec->layout.units; u++) {
            const gaac_unit *unit = &codec->layout.unit[u];
            if (unit->has_k)
                kernels->rows_to_fragments[GAAC_K](unit->fragments,
                                                   rows->k + head * rows->k_head_stride + unit->channel,
                                                   rows->k_token_stride, scratch.part[GAAC_K]);
            if (unit->has_v)
                kernels->rows_to_fragments[GAAC_V](unit->fragments,
                                                   rows->v + head * rows->v_head_stride + unit->channel,
                                                   rows->v_token_stride, scratch.part[GAAC_V]);
            encode_unit(&e, head, unit, fragments);
        }
    finish_encoder(&e);
    return GAAC_OK;
}

static const uint16_t *raw_fragments(const uint8_t *raw, uint32_t offset)
{
    return (const uint16_t *)(const void *)(raw + offset);
}

gaac_status gaac_encode_raw_block(const gaac_codec *codec, const uint8_t *raw, void *slot, uint32_t *entries,
                                  gaac_block_info *info, gaac_error *error)
{
    (void)error;
    encoder e = start_encoder(codec, slot, entries, info);
    for (uint32_t head = 0; head < codec->layout.shape.kv_heads; head++, raw += codec->layout.head_raw_bytes)
        for (uint32_t u = 0; u < codec->layout.units; u++) {
            const gaac_unit *unit = &codec->layout.unit[u];
            const uint16_t *const fragments[2] = {unit->has_k ? raw_fragments(raw, unit->raw_k_offset) : NULL,
                                                  unit->has_v ? raw_fragments(raw, unit->raw_v_offset) : NULL};
            encode_unit(&e, head, unit, fragments);
        }
    finish_encoder(&e);
    return GAAC_OK;
}

/* ---- decoding ------------------------------------------------------------------------------- */

/* Decodes the parts of a coded unit into fragments[part]. */
static gaac_status decode_coded_unit(const gaac_codec *codec, const uint8_t *slot, const uint32_t *entries,
                                     uint32_t head, const gaac_unit *unit, uint16_t *const fragments[2],
                                     gaac_error *error)
{
    const gaac_codec_kernels *kernels = gaac_cpu_codec();
    const gaac_layout *layout = &codec->layout;
    const uint32_t entry = entries[head * layout->coded_units + unit->entry];
    const uint32_t offset = gaac_entry_offset(entry), bytes = gaac_entry_length(entry);
    if (offset + bytes > codec->pool_bytes)
        return gaac_fail(error, GAAC_ERROR_CORRUPT, "head %u: its table entry points outside the slot", head);
    const uint8_t *variable = slot + layout->fixed_bytes + offset;
    gaac_unit_tags tags;
    if (!kernels->expand_tags(unit->hv, unit_parts(unit), variable, bytes, &tags))
        return gaac_fail(error, GAAC_ERROR_CORRUPT, "head %u: its tags need more bytes than the slot holds", head);
    if (unit->has_k != unit->has_v && !gaac_is_of_one_part(unit->hv, unit->has_k ? GAAC_K : GAAC_V, variable, bytes,
                                                           gaac_entry_exceptions(entry) != 0))
        return gaac_fail(error, GAAC_ERROR_CORRUPT, "head %u: its tags or exceptions are not its own", head);
    const uint8_t *head_fixed = slot + (size_t)head * layout->head_fixed_bytes;
    for (unsigned part = 0; part < 2; part++) {
        if ((unit_parts(unit) >> part & 1) == 0)
            continue;
        kernels->decode_part[part](unit->hv, head_fixed + part_offset(unit, part), &tags,
                                   gaac_codec_bases(codec, head, unit, (gaac_part)part), fragments[part], NULL);
        if ((gaac_entry_exceptions(entry) >> 2 * part & 3) != 0 &&
            !gaac_apply_exceptions(unit->hv, (gaac_part)part, variable, bytes, fragments[part]))
            return gaac_fail(error, GAAC_ERROR_CORRUPT, "head %u: its exceptions have no end", head);
    }
    return GAAC_OK;
}

static gaac_status decode_unit(const gaac_codec *codec, const uint8_t *slot, const uint32_t *entries, uint32_t head,
                               const gaac_unit *unit, uint16_t *const fragments[2], gaac_error *error)
{
    if (unit->hv > 0)
        return decode_coded_unit(codec, slot, entries, head, unit, fragments, error);
    const uint8_t *head_fixed = slot + (size_t)head * codec->layout.head_fixed_bytes;
    for (unsigned part = 0; part < 2; part++)
        if (unit_parts(unit) >> part & 1)
            memcpy(fragments[part], head_fixed + part_offset(unit, part),
                   unit->fragments * (size_t)GAAC_FRAGMENT_BYTES);
    return GAAC_OK;
}

static gaac_status production_decode(const gaac_codec *codec, const void *slot, const uint32_t *entries,
                                     const gaac_kv_rows_out *rows, gaac_error *error)
{
    const gaac_codec_kernels *kernels = gaac_cpu_codec();
    unit_fragments scratch;
    uint16_t *const fragments[2] = {scratch.part[GAAC_K], scratch.part[GAAC_V]};
    for (uint32_t head = 0; head < codec->layout.shape.kv_heads; head++)
        for (uint32_t u = 0; u < codec->layout.units; u++) {
            const gaac_unit *unit = &codec->layout.unit[u];
            const gaac_status status = decode_unit(codec, slot, entries, head, unit, fragments, error);
            if (status != GAAC_OK)
                return status;
            if (unit->has_k)
                kernels->fragments_to_rows[GAAC_K](unit->fragments, scratch.part[GAAC_K],
                                                   rows->k + head * rows->k_head_stride + unit->channel,
                                                   rows->k_token_stride);
            if (unit->has_v)
                kernels->fragments_to_rows[GAAC_V](unit->fragments, scratch.part[GAAC_V],
                                                   rows->v + head * rows->v_head_stride + unit->channel,
                                                   rows->v_token_stride);
        }
    return GAAC_OK;
}

gaac_status gaac_decode_raw_block(const gaac_codec *codec, const void *slot, const uint32_t *entries, uint8_t *raw,
                                  gaac_error *error)
{
    for (uint32_t head = 0; head < codec->layout.shape.kv_heads; head++, raw += codec->layout.head_raw_bytes)
        for (uint32_t u = 0; u < codec->layout.units; u++) {
            const gaac_unit *unit = &codec->layout.unit[u];
            uint16_t *const fragments[2] = {(uint16_t *)(void *)(raw + unit->raw_k_offset),
                                            (uint16_t *)(void *)(raw + unit->raw_v_offset)};
            const gaac_status status = decode_unit(codec, slot, entries, head, unit, fragments, error);
            if (status != GAAC_OK)
                return status;
        }
    return GAAC_OK;
}

const gaac_scheme_ops gaac_production_ops = {production_encode, production_decode};
