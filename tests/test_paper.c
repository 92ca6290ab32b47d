/* The paper's scheme: exact round trips, hand-made bytes, an independent count of its groups, hostile
 * bytes, and the ratios measured on real KV. */
#include "codec/codec_internal.h"
#include "gaac/codec.h"
#include "npy_fixture.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static const gaac_scheme schemes[] = {GAAC_SCHEME_PAPER, GAAC_SCHEME_PAPER_4_RAW, GAAC_SCHEME_PAPER_2_3_4_RAW};
enum { SCHEMES = 3 };

/* Bits of the narrowest mode: what the common stream holds of each element. */
static unsigned low_bits(gaac_scheme scheme)
{
    return scheme == GAAC_SCHEME_PAPER ? 3 : scheme == GAAC_SCHEME_PAPER_4_RAW ? 4 : 2;
}

static uint32_t random_state;

static uint32_t draw(void)
{
    random_state ^= random_state << 13; /* xorshift32 */
    random_state ^= random_state >> 17;
    random_state ^= random_state << 5;
    return random_state;
}

/* ---- a block with room around its rows ------------------------------------------------------- */

enum { GUARD = 0xa55a, PAD = 3 }; /* elements between the heads of a row, and around everything */

typedef struct block {
    gaac_shape shape;
    size_t k_row, v_row; /* elements of a row, padding included */
    size_t k_count, v_count;
    uint16_t *k, *v;
} block;

static void *allocate(size_t bytes)
{
    void *memory = malloc(bytes);
    if (memory == NULL)
        abort();
    return memory;
}

static block new_block(gaac_shape shape)
{
    block b = {.shape = shape};
    b.k_row = (size_t)shape.kv_heads * (shape.head_dim_k + PAD);
    b.v_row = (size_t)shape.kv_heads * (shape.head_dim_v + PAD);
    b.k_count = GAAC_BLOCK_TOKENS * b.k_row;
    b.v_count = GAAC_BLOCK_TOKENS * b.v_row;
    b.k = allocate(b.k_count * sizeof *b.k);
    b.v = allocate(b.v_count * sizeof *b.v);
    for (size_t i = 0; i < b.k_count; i++)
        b.k[i] = GUARD;
    for (size_t i = 0; i < b.v_count; i++)
        b.v[i] = GUARD;
    return b;
}

static void free_block(block *b)
{
    free(b->k);
    free(b->v);
}

static uint16_t *element(const block *b, gaac_part part, uint32_t token, uint32_t head, uint32_t channel)
{
    return part == GAAC_K ? &b->k[token * b->k_row + head * (b->shape.head_dim_k + PAD) + channel]
                          : &b->v[token * b->v_row + head * (b->shape.head_dim_v + PAD) + channel];
}

static uint32_t head_dim(const block *b, unsigned part)
{
    return part == GAAC_K ? b->shape.head_dim_k : b->shape.head_dim_v;
}

static gaac_kv_rows rows_of(const block *b)
{
    return (gaac_kv_rows){b->k, b->v, b->k_row, b->shape.head_dim_k + PAD, b->v_row, b->shape.head_dim_v + PAD};
}

static gaac_kv_rows_out rows_out(const block *b)
{
    return (gaac_kv_rows_out){b->k, b->v, b->k_row, b->shape.head_dim_k + PAD, b->v_row, b->shape.head_dim_v + PAD};
}

typedef uint16_t value_of(void *context, uint32_t channel);

static void fill_block(block *b, value_of *value, void *context)
{
    for (unsigned part = 0; part < 2; part++)
        for (uint32_t token = 0; token < GAAC_BLOCK_TOKENS; token++)
            for (uint32_t head = 0; head < b->shape.kv_heads; head++)
                for (uint32_t channel = 0; channel < head_dim(b, part); channel++)
                    *element(b, (gaac_part)part, token, head, channel) = value(context, channel);
}

/* Every pattern in turn. */
static uint16_t next_pattern(void *context, uint32_t channel)
{
    (void)channel;
    return (uint16_t)(*(uint32_t *)context)++;
}

/* Exponents that use every mode: mostly a narrow run at a place that depends on the channel, some wider,
 * some anywhere. *context: elements in 64 that leave the narrow run. */
static uint16_t clustered(void *context, uint32_t channel)
{
    const uint32_t bits = draw(), centre = 100 + channel % 5;
    const uint32_t kind = bits >> 16 & 63;
    uint32_t exponent = centre + (bits >> 24 & 3);
    if (kind < *(uint32_t *)context)
        exponent = kind == 0 ? bits >> 24 : centre - 8 + (bits >> 24 & 15);
    return (uint16_t)((bits & 0x807f) | (exponent & 0xff) << 7);
}

static gaac_windows *windows_for(const block *b, gaac_scheme scheme)
{
    gaac_histogram *histogram;
    gaac_windows *windows;
    const gaac_kv_rows rows = rows_of(b);
    assert_int_equal(gaac_histogram_create(&histogram, &b->shape, NULL, NULL), GAAC_OK);
    assert_int_equal(gaac_histogram_add(histogram, &rows, GAAC_BLOCK_TOKENS, NULL), GAAC_OK);
    assert_int_equal(gaac_windows_choose(&windows, histogram, scheme, 0, NULL, NULL), GAAC_OK);
    gaac_histogram_destroy(histogram);
    return windows;
}

static gaac_codec *codec_for(const block *b, gaac_scheme scheme, uint32_t pool_bytes)
{
    gaac_windows *windows = windows_for(b, scheme);
    const gaac_codec_config config = {
        .shape = b->shape, .scheme = scheme, .windows = windows, .pool_bytes = pool_bytes};
    gaac_codec *codec;
    assert_int_equal(gaac_codec_create(&codec, &config, NULL), GAAC_OK);
    gaac_windows_destroy(windows);
    return codec;
}

/* A slot of exactly its size (so that AddressSanitizer sees a byte too many), and its entries. */
typedef struct slot {
    uint8_t *bytes;
    uint32_t *entries;
} slot;

static slot new_slot(const gaac_codec *codec)
{
    slot s = {aligned_alloc(64, gaac_codec_slot_bytes(codec)), calloc(gaac_codec_entry_count(codec), sizeof(uint32_t))};
    assert_true(s.bytes != NULL && s.entries != NULL);
    memset(s.bytes, 0xee, gaac_codec_slot_bytes(codec));
    return s;
}

static void free_slot(slot *s)
{
    free(s->bytes);
    free(s->entries);
}

static void assert_same_block(const block *a, const block *b)
{
    assert_memory_equal(a->k, b->k, a->k_count * sizeof *a->k); /* padding and its guards included */
    assert_memory_equal(a->v, b->v, a->v_count * sizeof *a->v);
}

static void check_round_trip(const gaac_codec *codec, const block *b, gaac_block_info *info)
{
    slot s = new_slot(codec);
    block back = new_block(b->shape);
    const gaac_kv_rows in = rows_of(b);
    const gaac_kv_rows_out out = rows_out(&back);
    assert_int_equal(gaac_encode_block(codec, &in, s.bytes, s.entries, info, NULL), GAAC_OK);
    assert_true(info->coded);
    assert_int_equal(gaac_decode_block(codec, s.bytes, s.entries, &out, NULL), GAAC_OK);
    assert_same_block(b, &back);
    free_block(&back);
    free_slot(&s);
}

/* Shapes that split into 128, 64 and remainders of 16, 32, 48 channels, alike and different in K and V. */
static const gaac_shape shapes[] = {
    {1, 16, 16},  {2, 32, 32},   {1, 48, 80},   {3, 64, 64},   {2, 96, 96},     {1, 112, 112},
    {2, 128, 64}, {1, 192, 128}, {1, 256, 256}, {1, 576, 512}, {1, 1024, 1024}, {256, 16, 32},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

/* ---- round trips ------------------------------------------------------------------------------ */

static void every_pattern_comes_back(void **state)
{
    (void)state;
    for (unsigned i = 0; i < SCHEMES; i++)
        for (unsigned j = 0; j < SHAPES; j++) {
            block b = new_block(shapes[j]);
            uint32_t pattern = 0;
            fill_block(&b, next_pattern, &pattern);
            gaac_codec *codec = codec_for(&b, schemes[i], 0);
            pattern = 0;
            do { /* V goes on where K stopped, so both see every pattern in some block */
                gaac_block_info info;
                fill_block(&b, next_pattern, &pattern);
                check_round_trip(codec, &b, &info);
            } while (pattern < 2 * 65536);
            gaac_codec_destroy(codec);
            free_block(&b);
        }
}

/* ---- groups and sizes, counted another way ------------------------------------------------------ */

/* Whether all eight of a group of a 64- or 128-channel part lie in their windows of 1 << bits. Written from
 * docs/format.md's element map rather than from layout.h: K: token g + 8s, channel 16 HV t + 4(4h + j) + c;
 * V: channel 8 HV g + 2(4h + j) + b, token 2t + 8s + hi. */
static bool group_inside(const block *b, gaac_part part, uint32_t head, const uint8_t *bases, unsigned bits, unsigned h,
                         unsigned lane, unsigned field)
{
    const unsigned hv = head_dim(b, part) / 64, g = lane / 4, t = lane % 4;
    for (unsigned j = 0; j < 4; j++)
        for (unsigned s = 0; s < 2; s++) {
            const unsigned channel =
                part == GAAC_K ? 16 * hv * t + 4 * (4 * h + j) + field : 8 * hv * g + 2 * (4 * h + j) + field / 2;
            const unsigned token = part == GAAC_K ? g + 8 * s : 2 * t + 8 * s + field % 2;
            const int exponent = *element(b, part, token, head, channel) >> 7 & 0xff;
            const int offset = exponent - bases[channel];
            if (offset < 0 || offset >= 1 << bits)
                return false;
        }
    return true;
}

/* The mode of a group, as an index of groups_by_mode. */
static unsigned group_mode(const block *b, gaac_scheme scheme, const uint8_t *table, gaac_part part, uint32_t head,
                           unsigned h, unsigned lane, unsigned field)
{
    const gaac_shape *shape = &b->shape;
    const size_t k_bases = (size_t)shape->kv_heads * shape->head_dim_k;
    const size_t one_width = k_bases + (size_t)shape->kv_heads * shape->head_dim_v;
    const size_t tile = part == GAAC_K ? (size_t)head * shape->head_dim_k : k_bases + (size_t)head * shape->head_dim_v;
    for (unsigned bits = low_bits(scheme); bits <= 4; bits++)
        if (group_inside(b, part, head, table + (bits - low_bits(scheme)) * one_width + tile, bits, h, lane, field))
            return bits - 2;
    return 3;
}

static void info_matches_an_independent_count(void **state)
{
    (void)state;
    static const gaac_shape wide[] = {{2, 64, 64}, {1, 128, 128}, {3, 128, 64}};
    for (unsigned i = 0; i < SCHEMES; i++)
        for (unsigned j = 0; j < 3; j++)
            for (uint32_t spread = 0; spread <= 12; spread += 2) {
                random_state = 1 + spread;
                block b = new_block(wide[j]);
                fill_block(&b, clustered, &spread);
                gaac_codec *codec = codec_for(&b, schemes[i], 0);
                gaac_block_info info;
                check_round_trip(codec, &b, &info);

                uint32_t modes[4] = {0}, tile_bits = 0, fullest = 0;
                const uint8_t *table = gaac_windows_table(codec->windows, NULL);
                for (unsigned part = 0; part < 2; part++)
                    for (uint32_t head = 0; head < b.shape.kv_heads; head++) {
                        uint32_t escape_bits = 0;
                        for (unsigned h = 0; h < head_dim(&b, part) / 64; h++)
                            for (unsigned group = 0; group < 128; group++) {
                                const unsigned mode =
                                    group_mode(&b, schemes[i], table, (gaac_part)part, head, h, group / 4, group % 4);
                                const unsigned width = mode == 3 ? 8 : mode + 2;
                                modes[mode]++;
                                tile_bits += 8 * 8 + 8 * width + 2; /* sign and mantissa, codes, tag */
                                escape_bits += 8 * (width - low_bits(schemes[i]));
                            }
                        if (escape_bits / 8 > fullest)
                            fullest = escape_bits / 8;
                    }
                assert_memory_equal(info.groups_by_mode, modes, sizeof modes);
                assert_int_equal(info.groups, modes[0] + modes[1] + modes[2] + modes[3]);
                assert_int_equal(info.coded_bytes * 8, tile_bits);
                assert_int_equal(info.pool_bytes, fullest);
                assert_int_equal(info.exceptions, 0);
                if (spread == 12) /* the input reaches every mode, so that the counts mean something */
                    for (unsigned mode = low_bits(schemes[i]) - 2; mode < 4; mode++)
                        assert_true(modes[mode] > 0);
                gaac_codec_destroy(codec);
                free_block(&b);
            }
}

/* ---- bytes written by hand ---------------------------------------------------------------------- */

static gaac_codec *codec_with_bases(gaac_shape shape, gaac_scheme scheme, const uint8_t *base_of_width)
{
    uint8_t table[3 * 32];
    const size_t bytes = gaac_windows_table_bytes(&shape, scheme), one = shape.head_dim_k + shape.head_dim_v;
    assert_true(shape.kv_heads == 1 && bytes <= sizeof table);
    for (size_t i = 0; i < bytes; i++)
        table[i] = base_of_width[i / one];
    gaac_windows *windows;
    gaac_codec *codec;
    assert_int_equal(gaac_windows_from_table(&windows, &shape, scheme, table, bytes, NULL, NULL), GAAC_OK);
    const gaac_codec_config config = {.shape = shape, .scheme = scheme, .windows = windows};
    assert_int_equal(gaac_codec_create(&codec, &config, NULL), GAAC_OK);
    gaac_windows_destroy(windows);
    return codec;
}

static uint16_t exponent_121(void *context, uint32_t channel)
{
    (void)context;
    (void)channel;
    return 0x8000 | 121 << 7 | 0x2b;
}

/* 16 channels, K: group 0 is lane 0: channels 0..3, of each tokens 0 and 8 (docs/paper-scheme.md). */
static void bytes_are_as_documented(void **state)
{
    (void)state;
    static const uint8_t bases[3][3] = {{120, 118, 0}, {118, 0, 0}, {120, 120, 118}};
    /* group 0, element 2 (channel 1, token 0) is raised to 130: offset 12 in [118, 133] */
    static const uint8_t low_0[3][4] = {{0x1b, 0xb7, 0x6d}, {0x33, 0x3c, 0x33, 0x33}, {0xcf, 0xff}};
    static const uint8_t low_1[3][4] = {{0x49, 0x92, 0x24}, {0x33, 0x33, 0x33, 0x33}, {0x55, 0x55}};
    const gaac_shape shape = {1, 16, 16};
    for (unsigned i = 0; i < SCHEMES; i++) {
        gaac_codec *codec = codec_with_bases(shape, schemes[i], bases[i]);
        const unsigned low = low_bits(schemes[i]);
        const size_t low_at = 256, tags_at = low_at + 32 * low, escapes_at = tags_at + 8;
        block b = new_block(shape);
        slot s = new_slot(codec);
        gaac_block_info info;
        fill_block(&b, exponent_121, NULL);
        *element(&b, GAAC_K, 0, 0, 1) = 130 << 7 | 0x7f;
        *element(&b, GAAC_K, 15, 0, 15) = 7 << 7; /* the last element of K's last group: raw */
        const gaac_kv_rows rows = rows_of(&b);
        assert_int_equal(gaac_encode_block(codec, &rows, s.bytes, s.entries, &info, NULL), GAAC_OK);
        assert_true(info.coded);

        assert_int_equal(s.bytes[0], 0xab); /* sign, mantissa */
        assert_int_equal(s.bytes[2], 0x7f);
        assert_int_equal(s.bytes[255], 0x00);
        assert_memory_equal(s.bytes + low_at, low_0[i], low);
        assert_memory_equal(s.bytes + low_at + low, low_1[i], low);
        const unsigned narrow = low - 2; /* the tag of the narrowest mode */
        assert_int_equal(s.bytes[tags_at], 2 | narrow << 2 | narrow << 4 | narrow << 6);
        assert_int_equal(s.bytes[tags_at + 7], narrow | narrow << 2 | narrow << 4 | 3 << 6);
        /* group 0's high bits (offset 3, and 12 for element 2), then group 31's (121, and 7 at the end) */
        const uint8_t *escapes = s.bytes + escapes_at;
        if (schemes[i] == GAAC_SCHEME_PAPER) { /* one bit each: 3 >> 3 = 0, 12 >> 3 = 1; five: 15, 0 */
            static const uint8_t expected[6] = {0x04, 0xef, 0xbd, 0xf7, 0xde, 0x03};
            assert_memory_equal(escapes, expected, 6);
            assert_int_equal(s.entries[0], 6);
        } else if (schemes[i] == GAAC_SCHEME_PAPER_4_RAW) { /* none; four: 121 >> 4 = 7, 0 */
            static const uint8_t expected[4] = {0x77, 0x77, 0x77, 0x07};
            assert_memory_equal(escapes, expected, 4);
            assert_int_equal(s.entries[0], 4);
        } else { /* two bits each: 0, and 12 >> 2 = 3; six: 121 >> 2 = 30, 7 >> 2 = 1 */
            static const uint8_t expected[8] = {0x30, 0x00, 0x9e, 0xe7, 0x79, 0x9e, 0xe7, 0x05};
            assert_memory_equal(escapes, expected, 8);
            assert_int_equal(s.entries[0], 8);
        }
        assert_int_equal(s.entries[1], 0);
        /* V's tile follows K's area for escapes, whose rest is zero */
        const size_t v_at = escapes_at + codec->pool_bytes;
        for (size_t at = escapes_at + s.entries[0]; at < v_at; at++)
            assert_int_equal(s.bytes[at], 0);
        assert_int_equal(s.bytes[v_at], 0xab);
        free_slot(&s);
        free_block(&b);
        gaac_codec_destroy(codec);
    }
}

/* ---- windows -------------------------------------------------------------------------------------- */

static uint8_t best_base_by_trying(const uint64_t counts[256], unsigned width)
{
    uint64_t best_inside = 0;
    unsigned best = 0;
    for (unsigned base = 0; base + width <= 256; base++) {
        uint64_t inside = 0;
        for (unsigned e = base; e < base + width; e++)
            inside += counts[e];
        if (inside > best_inside) {
            best_inside = inside;
            best = base;
        }
    }
    return (uint8_t)best;
}

static uint16_t anything_of_channel(void *context, uint32_t channel)
{
    (void)context;
    const uint32_t spread = 1u << channel % 9; /* 1 .. 256 exponents, up to the edges of the range */
    return (uint16_t)((256 - spread + draw() % spread) << 7 | (draw() & 0x807f));
}

static void windows_cover_the_most(void **state)
{
    (void)state;
    random_state = 99;
    block b = new_block((gaac_shape){2, 48, 32});
    fill_block(&b, anything_of_channel, NULL);
    gaac_histogram *histogram;
    const gaac_kv_rows rows = rows_of(&b);
    assert_int_equal(gaac_histogram_create(&histogram, &b.shape, NULL, NULL), GAAC_OK);
    assert_int_equal(gaac_histogram_add(histogram, &rows, GAAC_BLOCK_TOKENS, NULL), GAAC_OK);
    for (unsigned i = 0; i < SCHEMES; i++) {
        gaac_windows *windows;
        size_t bytes, at = 0;
        assert_int_equal(gaac_windows_choose(&windows, histogram, schemes[i], 0, NULL, NULL), GAAC_OK);
        const uint8_t *table = gaac_windows_table(windows, &bytes);
        for (unsigned bits = low_bits(schemes[i]); bits <= 4; bits++)
            for (unsigned part = 0; part < 2; part++)
                for (uint32_t head = 0; head < b.shape.kv_heads; head++)
                    for (uint32_t channel = 0; channel < head_dim(&b, part); channel++) {
                        uint64_t counts[256];
                        assert_int_equal(gaac_histogram_counts(histogram, (gaac_part)part, head, channel, counts, NULL),
                                         GAAC_OK);
                        assert_int_equal(table[at++], best_base_by_trying(counts, 1u << bits));
                    }
        assert_int_equal(at, bytes);
        gaac_windows_destroy(windows);
    }
    gaac_histogram_destroy(histogram);
    free_block(&b);
}

/* ---- capacity ------------------------------------------------------------------------------------- */

static void a_full_tile_leaves_the_block_raw(void **state)
{
    (void)state;
    random_state = 7;
    uint32_t spread = 6;
    block b = new_block((gaac_shape){2, 128, 128});
    fill_block(&b, clustered, &spread);
    for (unsigned i = 0; i < SCHEMES; i++) {
        gaac_codec *roomy = codec_for(&b, schemes[i], 0);
        gaac_block_info need;
        check_round_trip(roomy, &b, &need);
        assert_true(need.pool_bytes > 64);
        const uint32_t enough = (need.pool_bytes + 63) / 64 * 64;
        for (uint32_t capacity = 64; capacity <= enough; capacity += 64) {
            gaac_codec *codec = codec_for(&b, schemes[i], capacity);
            slot s = new_slot(codec);
            gaac_block_info info;
            const gaac_kv_rows rows = rows_of(&b);
            assert_int_equal(gaac_codec_slot_bytes(codec), 4 * (2048 + 256 * low_bits(schemes[i]) + 64 + capacity));
            assert_int_equal(gaac_encode_block(codec, &rows, s.bytes, s.entries, &info, NULL), GAAC_OK);
            assert_int_equal(info.coded, capacity == enough);
            need.coded = info.coded; /* all else is told as if there had been room */
            assert_memory_equal(&info, &need, sizeof info);
            if (info.coded)
                check_round_trip(codec, &b, &info);
            free_slot(&s);
            gaac_codec_destroy(codec);
        }
        gaac_codec_destroy(roomy);
    }
    free_block(&b);
}

static size_t slot_bytes_with(gaac_shape shape, gaac_scheme scheme, uint32_t pool_bytes)
{
    const size_t bytes = gaac_windows_table_bytes(&shape, scheme);
    uint8_t *table = calloc(bytes, 1);
    gaac_windows *windows;
    gaac_codec *codec;
    assert_non_null(table);
    assert_int_equal(gaac_windows_from_table(&windows, &shape, scheme, table, bytes, NULL, NULL), GAAC_OK);
    const gaac_codec_config config = {.shape = shape, .scheme = scheme, .windows = windows, .pool_bytes = pool_bytes};
    assert_int_equal(gaac_codec_create(&codec, &config, NULL), GAAC_OK);
    const size_t slot_bytes = gaac_codec_slot_bytes(codec);
    gaac_codec_destroy(codec);
    gaac_windows_destroy(windows);
    free(table);
    return slot_bytes;
}

static void a_capacity_past_the_largest_is_the_largest(void **state)
{
    (void)state;
    const gaac_shape largest = {256, 1024, 1024};
    for (unsigned i = 0; i < SCHEMES; i++) {
        const size_t tile = 16 * 1024 + 2048 * low_bits(schemes[i]) + 512 + 2048 * (8 - low_bits(schemes[i]));
        assert_int_equal(slot_bytes_with(largest, schemes[i], 0), 512 * tile);
        assert_int_equal(slot_bytes_with(largest, schemes[i], UINT32_MAX - 63), 512 * tile);
    }
}

/* ---- hostile bytes -------------------------------------------------------------------------------- */

static gaac_status decode_into(const gaac_codec *codec, const slot *s, const block *out, gaac_error *error)
{
    const gaac_kv_rows_out rows = rows_out(out);
    return gaac_decode_block(codec, s->bytes, s->entries, &rows, error);
}

static void wrong_entries_and_tags_are_corrupt(void **state)
{
    (void)state;
    random_state = 11;
    uint32_t spread = 6;
    block b = new_block((gaac_shape){2, 64, 48}), out = new_block(b.shape);
    fill_block(&b, clustered, &spread);
    for (unsigned i = 0; i < SCHEMES; i++) {
        gaac_codec *codec = codec_for(&b, schemes[i], 0);
        slot s = new_slot(codec);
        gaac_block_info info;
        gaac_error error;
        const gaac_kv_rows rows = rows_of(&b);
        assert_int_equal(gaac_encode_block(codec, &rows, s.bytes, s.entries, &info, NULL), GAAC_OK);
        for (size_t entry = 0; entry < gaac_codec_entry_count(codec); entry++) {
            const uint32_t right = s.entries[entry];
            const uint32_t wrong[] = {right - 1, right + 1, 0, codec->pool_bytes + 1, UINT32_MAX};
            assert_true(right > 0);
            for (unsigned w = 0; w < sizeof wrong / sizeof *wrong; w++) {
                s.entries[entry] = wrong[w];
                memset(&error, 0, sizeof error);
                assert_int_equal(decode_into(codec, &s, &out, &error), GAAC_ERROR_CORRUPT);
                assert_true(strlen(error.message) > 10);
            }
            s.entries[entry] = right;
        }
        assert_int_equal(decode_into(codec, &s, &out, NULL), GAAC_OK);
        if (low_bits(schemes[i]) > 2) { /* the 2-bit mode where the scheme has none */
            s.bytes[16 * 64 + 128 * low_bits(schemes[i])] &= 0xfc;
            assert_int_equal(decode_into(codec, &s, &out, NULL), GAAC_ERROR_CORRUPT);
        }
        free_slot(&s);
        gaac_codec_destroy(codec);
    }
    free_block(&out);
    free_block(&b);
}

static void assert_guards(const block *b)
{
    for (unsigned part = 0; part < 2; part++)
        for (uint32_t token = 0; token < GAAC_BLOCK_TOKENS; token++)
            for (uint32_t head = 0; head < b->shape.kv_heads; head++)
                for (uint32_t pad = 0; pad < PAD; pad++)
                    assert_int_equal(*element(b, (gaac_part)part, token, head, head_dim(b, part) + pad), GUARD);
}

/* Under AddressSanitizer the slot and the rows have nothing around them; without it the guards tell. */
static void any_bytes_are_safe(void **state)
{
    (void)state;
    random_state = 5;
    unsigned decoded = 0, refused = 0;
    for (unsigned i = 0; i < SCHEMES; i++)
        for (unsigned round = 0; round < 400; round++) {
            uint32_t spread = draw() % 40;
            block b = new_block(shapes[draw() % 7]), out = new_block(b.shape);
            fill_block(&b, clustered, &spread);
            gaac_codec *codec = codec_for(&b, schemes[i], 64 * (draw() % 12));
            slot s = new_slot(codec);
            gaac_block_info info;
            const gaac_kv_rows rows = rows_of(&b);
            const size_t bytes = gaac_codec_slot_bytes(codec);
            assert_int_equal(gaac_encode_block(codec, &rows, s.bytes, s.entries, &info, NULL), GAAC_OK);
            const unsigned flips = round % 4 == 3 ? (unsigned)bytes * 4 : 1 + round % 4; /* some, or noise all over */
            for (unsigned flip = 0; flip < flips; flip++)
                s.bytes[draw() % bytes] ^= (uint8_t)(1u << draw() % 8);
            if (round % 8 >= 4)
                s.entries[draw() % gaac_codec_entry_count(codec)] = draw() % (codec->pool_bytes + 2);
            const gaac_status status = decode_into(codec, &s, &out, NULL);
            assert_true(status == GAAC_OK || status == GAAC_ERROR_CORRUPT);
            *(status == GAAC_OK ? &decoded : &refused) += 1;
            assert_guards(&out);
            free_slot(&s);
            gaac_codec_destroy(codec);
            free_block(&out);
            free_block(&b);
        }
    assert_true(decoded > 100 && refused > 100);
}

/* ---- real KV -------------------------------------------------------------------------------------- */

typedef struct tally {
    uint64_t blocks, raw_bytes, coded_bytes;
    uint64_t groups[4];
} tally;

static void tally_layer(const kv_dump *dump, uint32_t layer, gaac_scheme scheme, tally *sum)
{
    const gaac_shape shape = kv_dump_shape(dump);
    const uint32_t half = dump->tokens / 2;
    const gaac_kv_rows first = kv_dump_rows(dump, layer, 0);
    gaac_histogram *histogram;
    gaac_windows *windows;
    gaac_codec *codec;
    assert_int_equal(gaac_histogram_create(&histogram, &shape, NULL, NULL), GAAC_OK);
    assert_int_equal(gaac_histogram_add(histogram, &first, half, NULL), GAAC_OK);
    assert_int_equal(gaac_windows_choose(&windows, histogram, scheme, 0, NULL, NULL), GAAC_OK);
    const gaac_codec_config config = {.shape = shape, .scheme = scheme, .windows = windows};
    assert_int_equal(gaac_codec_create(&codec, &config, NULL), GAAC_OK);
    slot s = new_slot(codec);
    block in = new_block(shape), out = new_block(shape);
    for (uint32_t token = half; token + GAAC_BLOCK_TOKENS <= dump->tokens; token += GAAC_BLOCK_TOKENS) {
        const gaac_kv_rows rows = kv_dump_rows(dump, layer, token);
        for (uint32_t t = 0; t < GAAC_BLOCK_TOKENS; t++)
            for (uint32_t head = 0; head < shape.kv_heads; head++) {
                const size_t at = t * rows.k_token_stride + head * rows.k_head_stride;
                memcpy(element(&in, GAAC_K, t, head, 0), rows.k + at, shape.head_dim_k * sizeof(uint16_t));
                memcpy(element(&in, GAAC_V, t, head, 0), rows.v + at, shape.head_dim_v * sizeof(uint16_t));
            }
        gaac_block_info info;
        assert_int_equal(gaac_encode_block(codec, &rows, s.bytes, s.entries, &info, NULL), GAAC_OK);
        assert_int_equal(decode_into(codec, &s, &out, NULL), GAAC_OK);
        assert_same_block(&in, &out);
        sum->blocks++;
        sum->raw_bytes += gaac_codec_raw_bytes(codec);
        sum->coded_bytes += info.coded_bytes;
        for (unsigned mode = 0; mode < 4; mode++)
            sum->groups[mode] += info.groups_by_mode[mode];
    }
    free_block(&out);
    free_block(&in);
    free_slot(&s);
    gaac_codec_destroy(codec);
    gaac_windows_destroy(windows);
    gaac_histogram_destroy(histogram);
}

/* Measured apart, in NumPy, with the same groups; and for 3+4+raw by the README beside the data. They hold
 * to the digits given, so the bound is their rounding. The paper, on its own models: 1.406, 1.304, 1.439. */
static const struct {
    const char *name;
    double ratio[SCHEMES];
} measured[] = {
    {"smollm2-prose", {1.4036, 1.3029, 1.4403}},
    {"gemma-prose", {1.4042, 1.3051, 1.4350}},
    {"smollm2-code", {1.4057, 1.3032, 1.4446}},
    {"gemma-code", {1.4023, 1.3028, 1.4336}},
};

static void real_kv_codes_to_the_measured_ratios(void **state)
{
    (void)state;
    unsigned read = 0;
    for (unsigned i = 0; i < sizeof measured / sizeof *measured; i++) {
        char path[4096];
        kv_dump dump;
        (void)snprintf(path, sizeof path, "%s/kv/%s.npy", GAAC_SHARED_DATA, measured[i].name);
        if (!kv_dump_load(path, &dump)) {
            print_message("skipped: there is no KV dump %s\n", path);
            continue;
        }
        read++;
        for (unsigned j = 0; j < SCHEMES; j++) {
            tally sum = {0};
            for (uint32_t layer = 0; layer < dump.layers; layer++)
                tally_layer(&dump, layer, schemes[j], &sum);
            const double groups = (double)(sum.groups[0] + sum.groups[1] + sum.groups[2] + sum.groups[3]) / 100;
            const double ratio = (double)sum.raw_bytes / (double)sum.coded_bytes;
            print_message("%-14s %-16s coded ratio %.5f; 2-bit %.2f%%, 3-bit %.2f%%, 4-bit %.2f%%, raw %.2f%%\n",
                          measured[i].name, gaac_scheme_name(schemes[j]), ratio, (double)sum.groups[0] / groups,
                          (double)sum.groups[1] / groups, (double)sum.groups[2] / groups,
                          (double)sum.groups[3] / groups);
            assert_true(ratio > measured[i].ratio[j] - 0.0001 && ratio < measured[i].ratio[j] + 0.0001);
        }
        kv_dump_free(&dump);
    }
    if (read == 0)
        skip();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_pattern_comes_back),
        cmocka_unit_test(info_matches_an_independent_count),
        cmocka_unit_test(bytes_are_as_documented),
        cmocka_unit_test(windows_cover_the_most),
        cmocka_unit_test(a_full_tile_leaves_the_block_raw),
        cmocka_unit_test(a_capacity_past_the_largest_is_the_largest),
        cmocka_unit_test(wrong_entries_and_tags_are_corrupt),
        cmocka_unit_test(any_bytes_are_safe),
        cmocka_unit_test(real_kv_codes_to_the_measured_ratios),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
