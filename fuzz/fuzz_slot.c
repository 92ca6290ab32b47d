/* Fuzz target: slots, and what goes into them. Every kernel set of the machine decodes and encodes the same
 * input through the library's block calls, and must come to what the plain C definition comes to.
 *
 * Input: mode, shape, windows and pool, seed (a byte each), then the mode's own bytes. */
#include "attention/kernels.h"
#include "codec/codec_internal.h"
#include "cpu/cpu.h"
#include "fuzz_target.h"
#include "gaac/gaac.h"

enum mode { MODE_DECODE, MODE_ENCODE_BITS, MODE_ENCODE_NEAR, MODE_PAPER, MODES };
enum { SHAPES = 10, WINDOW_STYLES = 4, POOLS = 4, SCHEMES = 4, GAP = 3, FRESH = 0xa5 };

static const gaac_shape shapes[SHAPES] = {
    {1, 64, 64},  {1, 128, 128}, {1, 80, 80},  {1, 96, 96},   {1, 256, 256},
    {1, 64, 128}, {2, 128, 64},  {1, 80, 176}, {2, 112, 112}, {3, 16, 48},
};
static const uint32_t pools[POOLS] = {0, 64, 320, 1024}; /* 0: room for the largest block */

/* ---- kernel sets ---------------------------------------------------------------------------- */

static gaac_codec_kernels tables[GAAC_ISA_COUNT]; /* the definition first */
static unsigned table_count;
static const gaac_codec_kernels *current;

/* The linker puts this in the place of the library's choice (--wrap, CMakeLists.txt), so that the block
 * calls run with one set after the other. */
const gaac_codec_kernels *__wrap_gaac_cpu_codec(void);
const gaac_codec_kernels *__wrap_gaac_cpu_codec(void)
{
    return current;
}

static void find_tables(void)
{
    for (unsigned isa = GAAC_ISA_C; isa < GAAC_ISA_COUNT; isa++) {
        gaac_attention_kernels unused;
        if (!gaac_isa_supported((gaac_isa)isa))
            continue;
        gaac_cpu_tables((gaac_isa)isa, &tables[table_count], &unused);
        if (table_count == 0 || memcmp(&tables[table_count], &tables[table_count - 1], sizeof tables[0]) != 0)
            table_count++;
    }
    current = &tables[0];
}

/* ---- codecs --------------------------------------------------------------------------------- */

static uint64_t next_random(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return *state >> 32;
}

/* Bases as a model has them, both ends of the range, and any. Only bases of the field B.hi must be even. */
static uint8_t draw_base(unsigned style, uint64_t *random, bool even)
{
    const uint64_t bits = next_random(random);
    const unsigned base = style == 0   ? 108 + bits % 13
                          : style == 1 ? GAAC_WINDOW_MAX_BASE
                          : style == 2 ? 0
                                       : bits % 241;
    return (uint8_t)(even ? base & ~1u : base);
}

static gaac_windows *make_windows(const gaac_shape *shape, gaac_scheme scheme, unsigned style)
{
    const size_t bytes = gaac_windows_table_bytes(shape, scheme), k_bytes = (size_t)shape->kv_heads * shape->head_dim_k;
    uint8_t *table = fuzz_alloc(bytes);
    uint64_t random = style;
    for (size_t i = 0; i < bytes; i++) {
        const size_t v = i - k_bytes; /* of V's bases, where i is one */
        const bool even = i < k_bytes ? gaac_k_wraps((unsigned)(i % shape->head_dim_k))
                                      : gaac_v_wraps(v >= (size_t)shape->kv_heads * shape->head_dim_v,
                                                     (unsigned)(v % shape->head_dim_v));
        table[i] = draw_base(style, &random, even);
    }
    gaac_windows *windows;
    REQUIRE(gaac_windows_from_table(&windows, shape, scheme, table, bytes, NULL, NULL) == GAAC_OK);
    free(table);
    return windows;
}

/* Kept from input to input: making one takes longer than a block. */
static const gaac_codec *codec_of(unsigned shape, gaac_scheme scheme, unsigned style, unsigned pool)
{
    static gaac_codec *codecs[SHAPES][SCHEMES][WINDOW_STYLES][POOLS];
    gaac_codec **codec = &codecs[shape][scheme][style][pool];
    if (*codec == NULL) {
        gaac_windows *windows = make_windows(&shapes[shape], scheme, style);
        const gaac_codec_config config = {
            .shape = shapes[shape], .scheme = scheme, .windows = windows, .pool_bytes = pools[pool]};
        REQUIRE(gaac_codec_create(codec, &config, NULL) == GAAC_OK);
        gaac_windows_destroy(windows);
    }
    return *codec;
}

/* ---- rows ----------------------------------------------------------------------------------- */

/* K and V of a block, with a gap after each row that nobody may write. */
typedef struct block_rows {
    uint16_t *part[2];
    size_t stride[2], elements[2]; /* of a part, without what follows its last row */
} block_rows;

static block_rows make_rows(const gaac_shape *shape)
{
    block_rows rows;
    for (unsigned part = 0; part < 2; part++) {
        const size_t row = (size_t)shape->kv_heads * (part == GAAC_K ? shape->head_dim_k : shape->head_dim_v);
        rows.stride[part] = row + GAP;
        rows.elements[part] = GAAC_BLOCK_TOKENS * rows.stride[part] - GAP;
        rows.part[part] = fuzz_alloc(rows.elements[part] * sizeof(uint16_t));
        memset(rows.part[part], FRESH, rows.elements[part] * sizeof(uint16_t));
    }
    return rows;
}

static void free_rows(block_rows *rows)
{
    free(rows->part[GAAC_K]);
    free(rows->part[GAAC_V]);
}

static bool rows_equal(const block_rows *a, const block_rows *b)
{
    return memcmp(a->part[GAAC_K], b->part[GAAC_K], a->elements[GAAC_K] * sizeof(uint16_t)) == 0 &&
           memcmp(a->part[GAAC_V], b->part[GAAC_V], a->elements[GAAC_V] * sizeof(uint16_t)) == 0;
}

static gaac_status decode(const gaac_codec *codec, const uint8_t *slot, const uint32_t *entries, block_rows *rows)
{
    const gaac_shape *shape = &codec->layout.shape;
    const gaac_kv_rows_out out = {.k = rows->part[GAAC_K],
                                  .v = rows->part[GAAC_V],
                                  .k_token_stride = rows->stride[GAAC_K],
                                  .k_head_stride = shape->head_dim_k,
                                  .v_token_stride = rows->stride[GAAC_V],
                                  .v_head_stride = shape->head_dim_v};
    gaac_error error = {GAAC_OK, ""};
    const gaac_status status = gaac_decode_block(codec, slot, entries, &out, &error);
    REQUIRE(status == GAAC_OK || (status == GAAC_ERROR_CORRUPT && error.status == status && error.message[0] != '\0'));
    return status;
}

/* ---- decoding any bytes --------------------------------------------------------------------- */

static uint32_t record_at(const uint8_t *variable, uint32_t end)
{
    uint32_t record;
    memcpy(&record, variable + end - 4, sizeof record);
    return record;
}

/* What docs/format.md lets a decoder of untrusted bytes refuse (section 8), written from it once more. */
static bool unit_is_sound(const gaac_codec *codec, const gaac_unit *unit, const uint8_t *pool, uint32_t entry)
{
    const uint32_t offset = (entry & 0xfff) * 16, length = (entry >> 12 & 0xff) * 16, flags = entry >> 20 & 0xf;
    const uint32_t tag_bytes = 32 * unit->hv;
    if (offset + length > codec->pool_bytes || length < tag_bytes)
        return false;
    const uint8_t *variable = pool + offset;
    uint32_t stored = 0;
    for (uint32_t bit = 0; bit < 8 * tag_bytes; bit++)
        if (variable[bit / 8] >> bit % 8 & 1) {
            const unsigned part = bit % (8 * unit->hv) / (4 * unit->hv);
            if (!(part == 0 ? unit->has_k : unit->has_v))
                return false;
            stored++;
        }
    if (tag_bytes + stored > length)
        return false;
    uint32_t end = length;
    for (bool more = flags != 0; more; end -= 4) {
        if (end < tag_bytes + 4)
            return false;
        const uint32_t record = record_at(variable, end);
        if ((record >> 13 & 1) >= unit->hv || !(record >> 14 & 1 ? unit->has_v : unit->has_k))
            return false;
        more = record >> 31;
    }
    return true;
}

static bool slot_is_sound(const gaac_codec *codec, const uint8_t *slot, const uint32_t *entries)
{
    const gaac_layout *layout = &codec->layout;
    for (uint32_t head = 0; head < layout->shape.kv_heads; head++)
        for (uint32_t u = 0; u < layout->units; u++)
            if (layout->unit[u].hv > 0 && !unit_is_sound(codec, &layout->unit[u], slot + layout->fixed_bytes,
                                                         entries[head * layout->coded_units + layout->unit[u].entry]))
                return false;
    return true;
}

/* A block decoded in fragment order holds what the rows hold. */
static void check_raw_block(const gaac_codec *codec, const uint8_t *slot, const uint32_t *entries, gaac_status expected,
                            const block_rows *rows)
{
    const gaac_layout *layout = &codec->layout;
    uint8_t *raw = fuzz_alloc(layout->raw_bytes);
    REQUIRE(gaac_decode_raw_block(codec, slot, entries, raw, NULL) == expected);
    if (expected == GAAC_OK) {
        block_rows again = make_rows(&layout->shape);
        for (unsigned part = 0; part < 2; part++)
            gaac_raw_block_read_part(layout, (gaac_part)part, raw, again.part[part], again.stride[part]);
        REQUIRE(rows_equal(&again, rows));
        free_rows(&again);
    }
    free(raw);
}

static void decode_with_all(const gaac_codec *codec, const uint8_t *slot, const uint32_t *entries)
{
    gaac_status expected = GAAC_OK;
    block_rows first = make_rows(&codec->layout.shape);
    for (unsigned i = 0; i < table_count; i++) {
        current = &tables[i];
        block_rows rows = i == 0 ? first : make_rows(&codec->layout.shape);
        const gaac_status status = decode(codec, slot, entries, &rows);
        if (i == 0)
            expected = status;
        REQUIRE(status == expected);
        REQUIRE(status != GAAC_OK || rows_equal(&rows, &first));
        check_raw_block(codec, slot, entries, expected, &rows);
        if (i > 0)
            free_rows(&rows);
    }
    free_rows(&first);
    REQUIRE((expected == GAAC_OK) == slot_is_sound(codec, slot, entries));
}

/* Entries and pool are the input's, the fixed parts random: any bytes there decode, without a branch. */
static void try_decode(const gaac_codec *codec, uint64_t random, fuzz_input *input)
{
    const gaac_layout *layout = &codec->layout;
    uint8_t *slot = fuzz_alloc(codec->slot_bytes);
    uint32_t *entries = fuzz_alloc(codec->entry_count * sizeof *entries);
    fuzz_bytes(input, entries, codec->entry_count * sizeof *entries);
    fuzz_bytes(input, slot + layout->fixed_bytes, codec->pool_bytes);
    for (uint32_t i = 0; i < layout->fixed_bytes; i++)
        slot[i] = (uint8_t)next_random(&random);
    decode_with_all(codec, slot, entries);
    free(entries);
    free(slot);
}

/* ---- encoding any values -------------------------------------------------------------------- */

/* A coded block, or why there is none. */
typedef struct coded_block {
    uint8_t *slot;
    uint32_t *entries;
    gaac_block_info info;
} coded_block;

/* A slot of old bytes, so that one that is not written shows. */
static coded_block make_block(const gaac_codec *codec, uint8_t old)
{
    coded_block block = {.slot = fuzz_alloc(codec->slot_bytes),
                         .entries = fuzz_alloc(codec->entry_count * sizeof(uint32_t))};
    memset(block.slot, old, codec->slot_bytes);
    memset(block.entries, old, codec->entry_count * sizeof(uint32_t));
    return block;
}

static void free_block(coded_block *block)
{
    free(block->slot);
    free(block->entries);
}

static void require_equal(const gaac_codec *codec, const coded_block *a, const coded_block *b)
{
    const gaac_block_info *x = &a->info, *y = &b->info;
    REQUIRE(x->coded == y->coded && x->coded_bytes == y->coded_bytes && x->pool_bytes == y->pool_bytes);
    REQUIRE(x->groups == y->groups && memcmp(x->groups_by_mode, y->groups_by_mode, sizeof x->groups_by_mode) == 0);
    REQUIRE(x->exceptions == y->exceptions);
    if (x->coded) {
        REQUIRE(memcmp(a->slot, b->slot, codec->slot_bytes) == 0);
        REQUIRE(memcmp(a->entries, b->entries, codec->entry_count * sizeof(uint32_t)) == 0);
    }
}

static coded_block encode(const gaac_codec *codec, const block_rows *rows, uint8_t old)
{
    const gaac_shape *shape = &codec->layout.shape;
    const gaac_kv_rows in = {.k = rows->part[GAAC_K],
                             .v = rows->part[GAAC_V],
                             .k_token_stride = rows->stride[GAAC_K],
                             .k_head_stride = shape->head_dim_k,
                             .v_token_stride = rows->stride[GAAC_V],
                             .v_head_stride = shape->head_dim_v};
    coded_block block = make_block(codec, old);
    REQUIRE(gaac_encode_block(codec, &in, block.slot, block.entries, &block.info, NULL) == GAAC_OK);
    if (codec->scheme == GAAC_SCHEME_PRODUCTION) { /* as a raw block in fragment order it is the same code */
        uint8_t *raw = fuzz_alloc(codec->layout.raw_bytes);
        coded_block again = make_block(codec, (uint8_t)~old);
        gaac_rows_to_raw_block(&codec->layout, &in, raw);
        REQUIRE(gaac_encode_raw_block(codec, raw, again.slot, again.entries, &again.info, NULL) == GAAC_OK);
        require_equal(codec, &block, &again);
        free_block(&again);
        free(raw);
    }
    return block;
}

static void require_lossless(const gaac_codec *codec, const coded_block *block, const block_rows *rows)
{
    block_rows back = make_rows(&codec->layout.shape);
    REQUIRE(decode(codec, block->slot, block->entries, &back) == GAAC_OK);
    REQUIRE(rows_equal(&back, rows));
    free_rows(&back);
}

static void round_trip(const gaac_codec *codec, const block_rows *rows)
{
    current = &tables[0];
    coded_block expected = encode(codec, rows, FRESH);
    const gaac_block_info *info = &expected.info;
    if (codec->scheme == GAAC_SCHEME_PRODUCTION) /* the shapes here are too small for the limits of a unit */
        REQUIRE(info->coded ==
                (info->exceptions <= codec->layout.max_exceptions && info->pool_bytes <= codec->pool_bytes));
    for (unsigned i = 0; i < (codec->scheme == GAAC_SCHEME_PRODUCTION ? table_count : 1); i++) {
        current = &tables[i];
        coded_block block = encode(codec, rows, (uint8_t)(i + 1));
        require_equal(codec, &expected, &block);
        if (block.info.coded)
            require_lossless(codec, &block, rows);
        free_block(&block);
    }
    if (info->coded && codec->scheme == GAAC_SCHEME_PRODUCTION)
        REQUIRE(slot_is_sound(codec, expected.slot, expected.entries));
    free_block(&expected);
}

/* The input again and again; none at all is zeros. */
static unsigned cycle(const fuzz_input *input, size_t i)
{
    return input->left > 0 ? input->at[i % input->left] : 0;
}

/* A byte near a base: below, inside, above the windows. Its sign and mantissa don't matter to the code's size. */
static uint16_t value_near(unsigned base, unsigned byte, uint64_t random)
{
    const int exponent = (int)base + (int)(byte & 31) - 8;
    return (uint16_t)((random & 0x807f) | (unsigned)(exponent < 0 ? 0 : exponent > 255 ? 255 : exponent) << 7);
}

static unsigned base_of(const gaac_codec *codec, unsigned part, unsigned token, size_t channel)
{
    const gaac_shape *shape = &codec->layout.shape;
    const size_t k = (size_t)shape->kv_heads * shape->head_dim_k, v = (size_t)shape->kv_heads * shape->head_dim_v;
    return gaac_windows_table(codec->windows, NULL)[part == GAAC_K ? channel : k + (token & 1) * v + channel];
}

static void try_encode(const gaac_codec *codec, enum mode mode, uint64_t random, const fuzz_input *input)
{
    block_rows rows = make_rows(&codec->layout.shape);
    size_t n = 0;
    for (unsigned part = 0; part < 2; part++)
        for (unsigned token = 0; token < GAAC_BLOCK_TOKENS; token++)
            for (size_t channel = 0; channel < rows.stride[part] - GAP; channel++, n++)
                rows.part[part][token * rows.stride[part] + channel] =
                    mode == MODE_ENCODE_NEAR
                        ? value_near(base_of(codec, part, token, channel), cycle(input, n), next_random(&random))
                        : (uint16_t)(cycle(input, 2 * n) | cycle(input, 2 * n + 1) << 8);
    round_trip(codec, &rows);
    free_rows(&rows);
}

/* ---- the paper's schemes: plain C, the same promises ---------------------------------------- */

static void try_paper(const gaac_codec *codec, uint64_t random, const fuzz_input *input)
{
    uint8_t *slot = fuzz_alloc(codec->slot_bytes);
    uint32_t *entries = fuzz_alloc(codec->entry_count * sizeof *entries);
    block_rows rows = make_rows(&codec->layout.shape);
    for (size_t i = 0; i < codec->slot_bytes; i++)
        slot[i] = (uint8_t)(cycle(input, i) ^ (input->left == 0 ? next_random(&random) : 0));
    for (size_t i = 0; i < codec->entry_count; i++)
        entries[i] = (uint32_t)next_random(&random);
    if (decode(codec, slot, entries, &rows) == GAAC_OK)
        round_trip(codec, &rows);
    free_rows(&rows);
    free(entries);
    free(slot);
    try_encode(codec, MODE_ENCODE_BITS, random, input);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    if (table_count == 0)
        find_tables();
    fuzz_input input = {bytes, size};
    const enum mode mode = (enum mode)fuzz_below(&input, MODES);
    const unsigned shape = fuzz_below(&input, SHAPES), choice = fuzz_byte(&input);
    const uint64_t random = fuzz_byte(&input);
    const gaac_scheme scheme = mode == MODE_PAPER ? (gaac_scheme)(1 + (choice >> 4) % 3) : GAAC_SCHEME_PRODUCTION;
    const gaac_codec *codec = codec_of(shape, scheme, choice & 3, choice >> 2 & 3);
    if (mode == MODE_DECODE)
        try_decode(codec, random, &input);
    else if (mode == MODE_PAPER)
        try_paper(codec, random, &input);
    else
        try_encode(codec, mode, random, &input);
    return 0;
}
