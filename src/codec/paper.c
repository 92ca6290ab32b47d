/* The scheme of the GAAC paper, for study and comparison: groups of eight elements behind a 2-bit tag,
 * independent windows a channel, raw groups for what they miss. docs/paper-scheme.md tells the bytes.
 *
 * Source: "GAAC: Lossless KV Compression for Bandwidth-Efficient LLM Inference on Personal Devices",
 * sections "Lossless KV Compression" and "Nested Precision Modes" (the two ablations). */
#include "base/base.h"
#include "codec/codec_internal.h"

#include <string.h>

enum {
    GROUP = 8,    /* elements of a group */
    MODES = 4,    /* tag values: 2-bit, 3-bit, 4-bit, raw */
    MODE_RAW = 3, /* the exponent as it is: a window of 256 based at 0 */
    TAG_BITS = 2,
};

/* Bits of an element's offset in each mode. */
static const unsigned mode_bits[MODES] = {2, 3, 4, 8};

/* The narrowest mode that a scheme has. Every element's code keeps that many low bits in the common stream. */
static unsigned first_mode(gaac_scheme scheme)
{
    return scheme == GAAC_SCHEME_PAPER_2_3_4_RAW ? 0 : scheme == GAAC_SCHEME_PAPER ? 1 : 2;
}

/* ---- a tile: K or V of one head ------------------------------------------------------------- */

/* Where a tile's streams lie, from its start. */
typedef struct tile_layout {
    uint32_t head_dim;
    uint32_t groups;
    unsigned first_mode;
    unsigned low_bits; /* of an element in the common stream, hence bytes of a group there */
    uint32_t low, tags, escapes;
    uint32_t bytes; /* with the capacity for escapes */
} tile_layout;

static tile_layout tile_layout_of(const gaac_codec *codec, gaac_part part)
{
    const gaac_shape *shape = &codec->layout.shape;
    tile_layout tile = {.head_dim = part == GAAC_K ? shape->head_dim_k : shape->head_dim_v};
    const uint32_t elements = GAAC_BLOCK_TOKENS * tile.head_dim;
    tile.groups = elements / GROUP;
    tile.first_mode = first_mode(codec->scheme);
    tile.low_bits = mode_bits[tile.first_mode];
    tile.low = elements; /* one byte of sign and mantissa each */
    tile.tags = tile.low + tile.groups * tile.low_bits;
    tile.escapes = tile.tags + tile.groups * TAG_BITS / 8; /* 2 * head_dim groups: whole bytes */
    tile.bytes = tile.escapes + codec->pool_bytes;
    return tile;
}

/* The elements of a tile in the order attention reads them: element i is channel at[i] %
 * GAAC_MAX_HEAD_DIM of token at[i] / GAAC_MAX_HEAD_DIM. Eight in a row are a group. */
typedef struct tile_order {
    uint16_t at[GAAC_BLOCK_TOKENS * GAAC_MAX_HEAD_DIM];
} tile_order;

/* Fragment order of a unit back to tokens and channels. */
static void invert_fragments(const gaac_unit *unit, gaac_part part, uint16_t *at)
{
    for (unsigned token = 0; token < GAAC_BLOCK_TOKENS; token++)
        for (unsigned channel = 0; channel < unit->channels; channel++) {
            const unsigned index = part == GAAC_K ? gaac_k_index(unit->fragments, token, channel)
                                                  : gaac_v_index(unit->fragments, token, channel);
            at[index] = (uint16_t)(token * GAAC_MAX_HEAD_DIM + unit->channel + channel);
        }
}

/* Appends `fragments` fragments of a unit: lane by lane, in each lane field by field (A.lo, A.hi, B.lo,
 * B.hi), in each field the registers that share it. Four fragments give a field exactly one group. */
static uint16_t *append_fragments(gaac_part part, const uint16_t *unit_at, unsigned first, unsigned fragments,
                                  uint16_t *out)
{
    for (unsigned lane = 0; lane < GAAC_LANES; lane++)
        for (unsigned field = 0; field < 4; field++)
            for (unsigned f = first; f < first + fragments; f++)
                for (unsigned s = 0; s < 2; s++) {
                    const unsigned b = field >> 1, hi = field & 1;
                    const unsigned r = part == GAAC_K ? s + 2 * b : 2 * s + b;
                    *out++ = unit_at[gaac_fragment_index(f, lane >> 2, lane & 3, r, hi)];
                }
    return out;
}

static void make_order(const gaac_layout *layout, gaac_part part, tile_order *order)
{
    uint16_t unit_at[GAAC_MAX_HV * 4 * GAAC_FRAGMENT_ELEMENTS];
    uint16_t *out = order->at;
    for (uint32_t u = 0; u < layout->units; u++) {
        const gaac_unit *unit = &layout->unit[u];
        if (!(part == GAAC_K ? unit->has_k : unit->has_v))
            continue;
        invert_fragments(unit, part, unit_at);
        for (unsigned f = 0; f < unit->fragments; f += 4)
            out = append_fragments(part, unit_at, f, unit->fragments - f < 4 ? unit->fragments - f : 4, out);
    }
}

/* Window bases of one tile, [mode], each [head_dim]. */
typedef struct tile_bases {
    const uint8_t *of_mode[MODES];
} tile_bases;

static tile_bases bases_of(const gaac_codec *codec, uint32_t head, gaac_part part)
{
    static const uint8_t zeros[GAAC_MAX_HEAD_DIM];
    const gaac_shape *shape = &codec->layout.shape;
    const size_t k_bases = (size_t)shape->kv_heads * shape->head_dim_k;
    const size_t one_width = k_bases + (size_t)shape->kv_heads * shape->head_dim_v;
    const size_t tile = part == GAAC_K ? (size_t)head * shape->head_dim_k : k_bases + (size_t)head * shape->head_dim_v;
    const unsigned first = first_mode(codec->scheme);
    tile_bases bases = {{zeros, zeros, zeros, zeros}};
    for (unsigned mode = first; mode < MODE_RAW; mode++)
        bases.of_mode[mode] = codec->windows->table + (mode - first) * one_width + tile;
    return bases;
}

static void store_bytes(uint8_t *to, uint64_t value, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        to[i] = (uint8_t)(value >> 8 * i);
}

static uint64_t load_bytes(const uint8_t *from, unsigned count)
{
    uint64_t value = 0;
    for (unsigned i = 0; i < count; i++)
        value |= (uint64_t)from[i] << 8 * i;
    return value;
}

/* ---- encoding ------------------------------------------------------------------------------- */

static unsigned choose_mode(unsigned first, const uint8_t exponents[GROUP], const uint8_t *const bases[MODES],
                            const uint16_t *at)
{
    for (unsigned mode = first; mode < MODE_RAW; mode++) {
        unsigned inside = 0;
        for (unsigned i = 0; i < GROUP; i++) {
            const int offset = exponents[i] - bases[mode][at[i] % GAAC_MAX_HEAD_DIM];
            inside += offset >= 0 && offset < 1 << mode_bits[mode];
        }
        if (inside == GROUP)
            return mode;
    }
    return MODE_RAW;
}

/* Encodes a tile. Returns the escape bytes it takes, whether or not they fit. */
static uint32_t encode_tile(const tile_layout *tile, const tile_order *order, const tile_bases *bases,
                            const uint16_t *rows, size_t stride, uint32_t capacity, uint8_t *out,
                            uint32_t groups_by_mode[MODES])
{
    uint32_t escaped = 0;
    memset(out + tile->tags, 0, tile->bytes - tile->tags); /* no old bytes in what escapes leave unused */
    for (uint32_t group = 0; group < tile->groups; group++) {
        const uint16_t *at = order->at + (size_t)group * GROUP;
        uint8_t exponents[GROUP];
        for (unsigned i = 0; i < GROUP; i++) {
            const uint16_t value = rows[at[i] / GAAC_MAX_HEAD_DIM * stride + at[i] % GAAC_MAX_HEAD_DIM];
            exponents[i] = (uint8_t)(value >> 7);
            out[(size_t)group * GROUP + i] = (uint8_t)(value >> 8 & 0x80) | (value & 0x7f);
        }
        const unsigned mode = choose_mode(tile->first_mode, exponents, bases->of_mode, at);
        const unsigned high_bits = mode_bits[mode] - tile->low_bits;
        uint64_t low = 0, high = 0;
        for (unsigned i = 0; i < GROUP; i++) {
            const uint64_t code = (uint64_t)exponents[i] - bases->of_mode[mode][at[i] % GAAC_MAX_HEAD_DIM];
            low |= (code & ((1u << tile->low_bits) - 1)) << tile->low_bits * i;
            high |= code >> tile->low_bits << high_bits * i;
        }
        store_bytes(out + tile->low + (size_t)group * tile->low_bits, low, tile->low_bits);
        out[tile->tags + group / 4] |= (uint8_t)(mode << group % 4 * TAG_BITS);
        if (escaped + high_bits <= capacity)
            store_bytes(out + tile->escapes + escaped, high, high_bits);
        escaped += high_bits;
        groups_by_mode[mode]++;
    }
    return escaped;
}

static gaac_status paper_encode(const gaac_codec *codec, const gaac_kv_rows *rows, void *slot, uint32_t *entries,
                                gaac_block_info *info, gaac_error *error)
{
    (void)error;
    const tile_layout tiles[2] = {tile_layout_of(codec, GAAC_K), tile_layout_of(codec, GAAC_V)};
    const size_t head_bytes = (size_t)tiles[GAAC_K].bytes + tiles[GAAC_V].bytes;
    const size_t used_bytes = head_bytes * codec->layout.shape.kv_heads;
    memset(info, 0, sizeof *info);
    memset((uint8_t *)slot + used_bytes, 0, codec->slot_bytes - used_bytes);
    tile_order order = {{0}};
    for (unsigned part = 0; part < 2; part++) {
        make_order(&codec->layout, (gaac_part)part, &order);
        for (uint32_t head = 0; head < codec->layout.shape.kv_heads; head++) {
            const uint16_t *elements =
                part == GAAC_K ? rows->k + head * rows->k_head_stride : rows->v + head * rows->v_head_stride;
            const size_t stride = part == GAAC_K ? rows->k_token_stride : rows->v_token_stride;
            uint8_t *out = (uint8_t *)slot + head * head_bytes + (part == GAAC_V ? tiles[GAAC_K].bytes : 0);
            const tile_bases bases = bases_of(codec, head, (gaac_part)part);
            const uint32_t escaped = encode_tile(&tiles[part], &order, &bases, elements, stride, codec->pool_bytes, out,
                                                 info->groups_by_mode);
            entries[2 * head + part] = escaped;
            info->groups += tiles[part].groups;
            info->coded_bytes += tiles[part].escapes + escaped;
            if (escaped > info->pool_bytes) /* a tile's area is its own: the fullest decides */
                info->pool_bytes = escaped;
        }
    }
    info->coded = info->pool_bytes <= codec->pool_bytes;
    return GAAC_OK;
}

/* ---- decoding ------------------------------------------------------------------------------- */

/* Decodes a tile whose escapes take `escape_bytes`. NULL, or what is wrong with it. */
static const char *decode_tile(const tile_layout *tile, const tile_order *order, const tile_bases *bases,
                               const uint8_t *in, uint32_t escape_bytes, uint16_t *rows, size_t stride)
{
    uint32_t escaped = 0;
    for (uint32_t group = 0; group < tile->groups; group++) {
        const uint16_t *at = order->at + (size_t)group * GROUP;
        const unsigned mode = in[tile->tags + group / 4] >> group % 4 * TAG_BITS & 3;
        if (mode < tile->first_mode)
            return "a tag names a mode that its scheme lacks";
        const unsigned high_bits = mode_bits[mode] - tile->low_bits;
        if (high_bits > escape_bytes - escaped)
            return "its tags need more escape bytes than it has";
        const uint64_t low = load_bytes(in + tile->low + (size_t)group * tile->low_bits, tile->low_bits);
        const uint64_t high = load_bytes(in + tile->escapes + escaped, high_bits);
        escaped += high_bits;
        for (unsigned i = 0; i < GROUP; i++) {
            const uint64_t low_code = low >> tile->low_bits * i & ((1u << tile->low_bits) - 1);
            const uint64_t high_code = high >> high_bits * i & ((1u << high_bits) - 1);
            const unsigned channel = at[i] % GAAC_MAX_HEAD_DIM;
            const uint64_t code = high_code << tile->low_bits | low_code;
            const unsigned exponent = (bases->of_mode[mode][channel] + (unsigned)code) & 0xff;
            const unsigned byte = in[(size_t)group * GROUP + i];
            rows[at[i] / GAAC_MAX_HEAD_DIM * stride + channel] =
                (uint16_t)((byte & 0x80) << 8 | exponent << 7 | (byte & 0x7f));
        }
    }
    return escaped == escape_bytes ? NULL : "it has more escape bytes than its tags need";
}

static gaac_status paper_decode(const gaac_codec *codec, const void *slot, const uint32_t *entries,
                                const gaac_kv_rows_out *rows, gaac_error *error)
{
    const tile_layout tiles[2] = {tile_layout_of(codec, GAAC_K), tile_layout_of(codec, GAAC_V)};
    const size_t head_bytes = (size_t)tiles[GAAC_K].bytes + tiles[GAAC_V].bytes;
    tile_order order = {{0}};
    for (unsigned part = 0; part < 2; part++) {
        make_order(&codec->layout, (gaac_part)part, &order);
        for (uint32_t head = 0; head < codec->layout.shape.kv_heads; head++) {
            uint16_t *elements =
                part == GAAC_K ? rows->k + head * rows->k_head_stride : rows->v + head * rows->v_head_stride;
            const size_t stride = part == GAAC_K ? rows->k_token_stride : rows->v_token_stride;
            const uint8_t *in = (const uint8_t *)slot + head * head_bytes + (part == GAAC_V ? tiles[GAAC_K].bytes : 0);
            const uint32_t escaped = entries[2 * head + part];
            const tile_bases bases = bases_of(codec, head, (gaac_part)part);
            const char *wrong = escaped > codec->pool_bytes
                                    ? "its table entry says more escape bytes than a slot holds"
                                    : decode_tile(&tiles[part], &order, &bases, in, escaped, elements, stride);
            if (wrong != NULL)
                return gaac_fail(error, GAAC_ERROR_CORRUPT, "%s of head %u: %s", part == GAAC_K ? "K" : "V", head,
                                 wrong);
        }
    }
    return GAAC_OK;
}

const gaac_scheme_ops gaac_paper_ops = {paper_encode, paper_decode};

/* ---- sizes and windows ---------------------------------------------------------------------- */

static uint32_t round_up_to_slot(uint32_t bytes)
{
    return (bytes + GAAC_SLOT_ALIGN - 1) / GAAC_SLOT_ALIGN * GAAC_SLOT_ALIGN;
}

void gaac_paper_codec_sizes(gaac_codec *codec)
{
    const gaac_shape *shape = &codec->layout.shape;
    const uint32_t head_dim = shape->head_dim_k > shape->head_dim_v ? shape->head_dim_k : shape->head_dim_v;
    const uint32_t groups = GAAC_BLOCK_TOKENS * head_dim / GROUP;
    const uint32_t all_raw = round_up_to_slot(groups * (mode_bits[MODE_RAW] - mode_bits[first_mode(codec->scheme)]));
    if (codec->pool_bytes == 0 || codec->pool_bytes > all_raw) /* more could never be used */
        codec->pool_bytes = all_raw;
    const uint32_t head_bytes = tile_layout_of(codec, GAAC_K).bytes + tile_layout_of(codec, GAAC_V).bytes;
    codec->slot_bytes = round_up_to_slot(head_bytes * shape->kv_heads);
    codec->entry_count = 2 * shape->kv_heads;
}

/* Of the windows that cover the most, the lowest: on real KV the longer tail is below. */
static uint8_t best_window(const uint64_t counts[256], unsigned width)
{
    uint64_t inside = 0;
    for (unsigned e = 0; e < width; e++)
        inside += counts[e];
    uint64_t best_inside = inside;
    unsigned best = 0;
    for (unsigned base = 1; base + width <= 256; base++) {
        inside += counts[base + width - 1] - counts[base - 1];
        if (inside > best_inside) {
            best_inside = inside;
            best = base;
        }
    }
    return (uint8_t)best;
}

void gaac_paper_choose_windows(const gaac_histogram *histogram, gaac_windows *windows)
{
    const gaac_shape *shape = &windows->shape;
    uint8_t *base = windows->table;
    for (unsigned mode = first_mode(windows->scheme); mode < MODE_RAW; mode++)
        for (unsigned part = 0; part < 2; part++)
            for (uint32_t head = 0; head < shape->kv_heads; head++)
                for (uint32_t channel = 0; channel < (part == GAAC_K ? shape->head_dim_k : shape->head_dim_v);
                     channel++) {
                    uint64_t counts[256];
                    /* Can't fail: the windows have the histogram's shape. */
                    (void)gaac_histogram_counts(histogram, (gaac_part)part, head, channel, counts, NULL);
                    *base++ = best_window(counts, 1u << mode_bits[mode]);
                }
}
