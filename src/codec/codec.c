/* gaac_codec: creation, sizes, and dispatch to its scheme. */
#include "base/base.h"
#include "codec/codec_internal.h"

#include <string.h>

/* Base words of one head's units follow each other: K part then V part of each coded unit. */
static void place_bases(gaac_codec *codec)
{
    uint32_t words = 0;
    for (uint32_t u = 0; u < codec->layout.units; u++) {
        const gaac_unit *unit = &codec->layout.unit[u];
        if (unit->hv == 0)
            continue;
        codec->unit_bases[unit->entry] = words;
        words += ((uint32_t)unit->has_k + unit->has_v) * unit->hv * (GAAC_WORD_BYTES / 4);
    }
    codec->head_base_words = words;
}

gaac_base_words gaac_codec_bases(const gaac_codec *codec, uint32_t head, const gaac_unit *unit, gaac_part part)
{
    if (!(part == GAAC_K ? unit->has_k : unit->has_v))
        return NULL;
    const uint32_t *words = codec->bases + (size_t)head * codec->head_base_words + codec->unit_bases[unit->entry];
    return part == GAAC_V && unit->has_k ? words + unit->hv * (GAAC_WORD_BYTES / 4) : words;
}

/* b4 of an element of a unit. */
static uint32_t base_at(const gaac_codec *codec, uint32_t head, const gaac_unit *unit, gaac_part part, unsigned token,
                        unsigned channel)
{
    const gaac_shape *shape = &codec->layout.shape;
    const uint8_t *table = codec->windows->table;
    if (part == GAAC_K)
        return table[(size_t)head * shape->head_dim_k + unit->channel + channel];
    table += (size_t)shape->kv_heads * shape->head_dim_k;
    return table[((size_t)(token & 1) * shape->kv_heads + head) * shape->head_dim_v + unit->channel + channel];
}

/* Walks the elements of a part and adds each one's b4 into its field of its base word. Elements that
 * share a field (the K channel's tokens; V's tokens of a parity) agree, so writing is idempotent. */
static void fill_part_bases(const gaac_codec *codec, uint32_t head, const gaac_unit *unit, gaac_part part,
                            uint32_t *words)
{
    for (unsigned channel = 0; channel < unit->channels; channel++)
        for (unsigned token = 0; token < GAAC_BLOCK_TOKENS; token++) {
            const unsigned index = part == GAAC_K ? gaac_k_index(unit->fragments, token, channel)
                                                  : gaac_v_index(unit->fragments, token, channel);
            const unsigned f = index / GAAC_FRAGMENT_ELEMENTS, position = index / 8 % GAAC_LANES;
            const unsigned r = index / 2 % 4, hi = index & 1;
            const unsigned s = part == GAAC_K ? r & 1 : r >> 1, b = part == GAAC_K ? r >> 1 : r & 1;
            const uint32_t base = base_at(codec, head, unit, part, token, channel);
            const unsigned bit = 7 + 8 * b + 16 * hi; /* B.hi: 31, wrapping */
            words[gaac_word_offset(f / 4, 2 * (f % 4) + s, position) / 4] |= bit == 31 ? base >> 1 : base << bit;
        }
}

static bool make_bases(gaac_codec *codec)
{
    place_bases(codec);
    if (codec->head_base_words == 0)
        return true; /* head_dim below 64: everything is a raw remainder */
    codec->bases_bytes = (size_t)codec->layout.shape.kv_heads * codec->head_base_words * sizeof(uint32_t);
    codec->bases = gaac_calloc(&codec->allocator, codec->bases_bytes);
    if (codec->bases == NULL)
        return false;
    for (uint32_t head = 0; head < codec->layout.shape.kv_heads; head++)
        for (uint32_t u = 0; u < codec->layout.units; u++)
            for (unsigned part = 0; part < 2; part++) {
                const gaac_unit *unit = &codec->layout.unit[u];
                if (unit->hv > 0 && (part == GAAC_K ? unit->has_k : unit->has_v))
                    fill_part_bases(codec, head, unit, (gaac_part)part,
                                    (uint32_t *)(uintptr_t)gaac_codec_bases(codec, head, unit, (gaac_part)part));
            }
    return true;
}

static gaac_status check_config(const gaac_codec_config *config, gaac_error *error)
{
    const gaac_status status = gaac_shape_check(&config->shape, error);
    if (status != GAAC_OK)
        return status;
    if (gaac_scheme_name(config->scheme) == NULL)
        return gaac_fail(error, GAAC_ERROR_INVALID_ARGUMENT, "there is no scheme %d", (int)config->scheme);
    if (config->windows == NULL)
        return gaac_fail(error, GAAC_ERROR_INVALID_ARGUMENT, "a codec needs windows: calibrate first");
    if (config->windows->scheme != config->scheme ||
        memcmp(&config->windows->shape, &config->shape, sizeof config->shape) != 0)
        return gaac_fail(error, GAAC_ERROR_MISMATCH, "the windows are for another shape or scheme");
    if (config->scheme == GAAC_SCHEME_PRODUCTION &&
        (config->pool_bytes % GAAC_SLOT_ALIGN != 0 || config->pool_bytes > GAAC_MAX_POOL_BYTES))
        return gaac_fail(error, GAAC_ERROR_INVALID_ARGUMENT, "pool_bytes is %u; it must be a multiple of %d up to %d",
                         config->pool_bytes, GAAC_SLOT_ALIGN, GAAC_MAX_POOL_BYTES);
    return GAAC_OK;
}

gaac_status gaac_codec_create(gaac_codec **codec, const gaac_codec_config *config, gaac_error *error)
{
    *codec = NULL;
    gaac_status status = check_config(config, error);
    if (status != GAAC_OK)
        return status;
    const gaac_allocator hook = gaac_allocator_or_default(config->allocator);
    gaac_codec *made = gaac_calloc(&hook, sizeof *made);
    if (made == NULL)
        return gaac_fail(error, GAAC_ERROR_OUT_OF_MEMORY, "no memory for a codec");
    made->allocator = hook;
    made->scheme = config->scheme;
    gaac_layout_init(&made->layout, &config->shape);
    made->pool_bytes = config->pool_bytes;
    status = gaac_windows_from_table(&made->windows, &config->shape, config->scheme, config->windows->table,
                                     config->windows->bytes, &hook, error);
    if (status == GAAC_OK && config->scheme == GAAC_SCHEME_PRODUCTION) {
        made->ops = &gaac_production_ops;
        if (made->pool_bytes == 0)
            made->pool_bytes = made->layout.max_pool_bytes;
        made->slot_bytes = made->layout.fixed_bytes + made->pool_bytes;
        made->entry_count = made->layout.shape.kv_heads * made->layout.coded_units;
        if (!make_bases(made))
            status = gaac_fail(error, GAAC_ERROR_OUT_OF_MEMORY, "no memory for a codec's tables");
    } else if (status == GAAC_OK) {
        made->ops = &gaac_paper_ops;
        gaac_paper_codec_sizes(made);
    }
    if (status != GAAC_OK) {
        gaac_codec_destroy(made);
        return status;
    }
    *codec = made;
    return GAAC_OK;
}

void gaac_codec_destroy(gaac_codec *codec)
{
    if (codec != NULL) {
        const gaac_allocator hook = codec->allocator;
        gaac_windows_destroy(codec->windows);
        gaac_free(&hook, codec->bases, codec->bases_bytes);
        gaac_free(&hook, codec, sizeof *codec);
    }
}

size_t gaac_codec_slot_bytes(const gaac_codec *codec)
{
    return codec->slot_bytes;
}

size_t gaac_codec_entry_count(const gaac_codec *codec)
{
    return codec->entry_count;
}

size_t gaac_codec_raw_bytes(const gaac_codec *codec)
{
    return codec->layout.raw_bytes;
}

gaac_status gaac_encode_block(const gaac_codec *codec, const gaac_kv_rows *rows, void *slot, uint32_t *entries,
                              gaac_block_info *info, gaac_error *error)
{
    gaac_block_info unused;
    return codec->ops->encode(codec, rows, slot, entries, info != NULL ? info : &unused, error);
}

gaac_status gaac_decode_block(const gaac_codec *codec, const void *slot, const uint32_t *entries,
                              const gaac_kv_rows_out *rows, gaac_error *error)
{
    return codec->ops->decode(codec, slot, entries, rows, error);
}
