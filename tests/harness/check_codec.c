/* Checks and benchmarks of the codec's kernels: tags, decoding, rows. Encoding is in check_encode.c. */
#include "check_codec.h"

#include <string.h>

enum {
    BENCH_UNITS = 32, /* 32 units of K and V at hv 2: 180 KB coded, 256 KB as BF16: L2, not L1 */
    MAX_CAPACITY = 4096,
    MAX_FIXED = GAAC_MAX_HV * GAAC_PART_FIXED_BYTES
};

void describe_unit(unsigned shape, char *text, size_t bytes)
{
    static const char *const parts[3] = {"k", "v", "kv"};
    snprintf(text, bytes, "hv%u_%s", shape_hv(shape), parts[shape_parts(shape) - 1]);
}

static void describe_hv(unsigned shape, char *text, size_t bytes)
{
    snprintf(text, bytes, "hv%u", shape + 1);
}

static void describe_fragments(unsigned shape, char *text, size_t bytes)
{
    snprintf(text, bytes, "%uch", 16 * (shape + 1));
}

/* ---- tags --------------------------------------------------------------------------------------- */

static void compare_tags(harness *h, unsigned hv, unsigned parts, const gaac_unit_tags *expected,
                         const gaac_unit_tags *actual)
{
    for (unsigned part = 0; part < 2; part++) {
        for (unsigned half = 0; half < hv && (parts >> part & 1) != 0; half++) {
            harness_equal(h, part == 0 ? "N of K" : "N of V", expected->n[part][half], actual->n[part][half],
                          sizeof actual->n[part][half]);
            harness_equal(h, part == 0 ? "correction of K" : "correction of V", expected->correction[part][half],
                          actual->correction[part][half], sizeof actual->correction[part][half]);
        }
    }
}

/* The length of a variable part for the checks: exactly enough, one short, anything. */
static uint32_t draw_length(harness *h, uint32_t tags, uint32_t stored)
{
    switch (harness_below(h, 6)) {
    case 0:
        return harness_below(h, tags + 1);
    case 1:
        return tags + stored > 0 ? tags + stored - 1 : 0;
    case 2:
        return tags + harness_below(h, 1024);
    case 3:
        return (tags + stored + 15) / 16 * 16;
    default:
        return tags + stored;
    }
}

static void check_expand(harness *h, unsigned shape)
{
    const unsigned hv = shape_hv(shape), parts = shape_parts(shape);
    const uint32_t tag_bytes = GAAC_TAG_BYTES * hv;
    gaac_unit_tags expected, *actual = harness_memory(h, sizeof *actual);
    uint8_t source[MAX_CAPACITY], *variable = harness_memory(h, MAX_CAPACITY);
    for (unsigned round = 0; round < h->rounds; round++) {
        inputs_variable(h, hv, parts, source, sizeof source);
        const uint32_t bytes = draw_length(h, tag_bytes, inputs_stored(hv, source));
        variable = harness_resize(h, variable, bytes);
        memcpy(variable, source, bytes);
        const bool ok = h->definition->codec.expand_tags(hv, parts, variable, bytes, &expected);
        if (h->tables->codec.expand_tags(hv, parts, variable, bytes, actual) != ok)
            harness_fail(h, "%u bytes: returns %d, expected %d", bytes, !ok, ok);
        else if (ok)
            compare_tags(h, hv, parts, &expected, actual);
        harness_guards(h, "expand_tags");
    }
}

/* ---- decoding ----------------------------------------------------------------------------------- */

/* Any N words, with 0xff in the bytes that the corrections say are not stored: kernels may count on that. */
static void draw_words(harness *h, uint32_t *n, uint32_t *correction)
{
    const uint32_t bits = (uint32_t)harness_random(h) & 0x00808081;
    *n = (uint32_t)harness_random(h) | (bits & 0x00808080) * 2 * 0xff | (bits & 1) * 0xff;
    *correction = bits;
}

/* Tags as an encoder's, or any words. */
static void draw_tags(harness *h, unsigned hv, gaac_unit_tags *tags)
{
    uint8_t variable[MAX_CAPACITY];
    inputs_variable(h, hv, GAAC_HAS_K | GAAC_HAS_V, variable, sizeof variable);
    gaac_expand_tags_c(hv, GAAC_HAS_K | GAAC_HAS_V, variable, sizeof variable, tags);
    if (harness_below(h, 4) != 0)
        return;
    for (unsigned i = 0; i < 2 * GAAC_MAX_HV; i++) {
        for (unsigned p = 0; p < GAAC_LANES; p++)
            draw_words(h, &tags->n[i / GAAC_MAX_HV][i % GAAC_MAX_HV][p],
                       &tags->correction[i / GAAC_MAX_HV][i % GAAC_MAX_HV][p]);
    }
}

static void check_decode(harness *h, gaac_part part, unsigned hv)
{
    uint32_t *bases = harness_memory(h, hv * MAX_PART_WORDS * 2);
    gaac_unit_tags *tags = harness_memory(h, sizeof *tags);
    uint8_t *fixed = harness_memory(h, (size_t)hv * GAAC_PART_FIXED_BYTES);
    const size_t bytes = (size_t)hv * MAX_PART_ELEMENTS;
    uint16_t *actual = harness_memory(h, bytes);
    _Alignas(64) uint16_t expected[MAX_PART_ELEMENTS];
    for (unsigned round = 0; round < h->rounds; round++) {
        inputs_bases(h, hv, bases);
        if (harness_below(h, 4) == 0)
            harness_random_bytes(h, bases, hv * MAX_PART_WORDS * 2);
        draw_tags(h, hv, tags);
        harness_random_bytes(h, fixed, (size_t)hv * GAAC_PART_FIXED_BYTES);
        memset(expected, 0, sizeof expected);
        memset(actual, 0xff, bytes);
        h->definition->codec.decode_part[part](hv, fixed, tags, bases, expected, NULL);
        h->tables->codec.decode_part[part](hv, fixed, tags, bases, actual, &(gaac_ahead){fixed, harness_below(h, 80)});
        harness_equal(h, "fragments", expected, actual, bytes);
        harness_guards(h, "decode_part");
    }
}

/* Lines, with the gaps between those of V left alone. */
static void check_lines(harness *h, gaac_part part, unsigned hv)
{
    uint32_t *bases = harness_memory(h, hv * MAX_PART_WORDS * 2);
    gaac_unit_tags *tags = harness_memory(h, sizeof *tags);
    uint8_t *fixed = harness_memory(h, (size_t)hv * GAAC_PART_FIXED_BYTES);
    const size_t bytes = (size_t)hv * MAX_PART_ELEMENTS * (part == GAAC_V ? 2 : 1);
    uint16_t *actual = harness_memory(h, bytes), *fragments = harness_memory(h, (size_t)hv * MAX_PART_ELEMENTS);
    _Alignas(64) uint16_t expected[2 * MAX_PART_ELEMENTS];
    for (unsigned round = 0; round < h->rounds; round++) {
        const gaac_ahead ahead = {fixed, harness_below(h, 80)};
        inputs_bases(h, hv, bases);
        draw_tags(h, hv, tags);
        harness_random_bytes(h, fixed, (size_t)hv * GAAC_PART_FIXED_BYTES);
        harness_random_bytes(h, fragments, (size_t)hv * MAX_PART_ELEMENTS);
        for (unsigned way = 0; way < 2; way++) {
            memset(expected, 0xff, sizeof expected);
            memset(actual, 0xff, bytes);
            if (way == 0) {
                h->definition->codec.decode_lines[part](hv, fixed, tags, bases, expected, NULL);
                h->tables->codec.decode_lines[part](hv, fixed, tags, bases, actual, &ahead);
            } else {
                h->definition->codec.fragments_to_lines[part](4 * hv, fragments, expected);
                h->tables->codec.fragments_to_lines[part](4 * hv, fragments, actual);
            }
            harness_equal(h, "lines", expected, actual, bytes);
            harness_guards(h, "lines");
        }
    }
}

static void check_k_lines(harness *h, unsigned shape)
{
    check_lines(h, GAAC_K, shape + 1);
}
static void check_v_lines(harness *h, unsigned shape)
{
    check_lines(h, GAAC_V, shape + 1);
}

static void check_decode_k(harness *h, unsigned shape)
{
    check_decode(h, GAAC_K, shape + 1);
}
static void check_decode_v(harness *h, unsigned shape)
{
    check_decode(h, GAAC_V, shape + 1);
}

/* ---- benchmarks of tags and decoding ------------------------------------------------------------ */

/* Coded units of typical data, and where decoding puts one. */
typedef struct coded_units {
    const gaac_codec_kernels *kernels;
    unsigned hv, parts;
    uint8_t *fixed[2]; /* hv * 1408 bytes a unit */
    uint8_t *variable; /* MAX_CAPACITY bytes a unit */
    uint32_t bytes[BENCH_UNITS];
    gaac_unit_tags *tags;
    uint32_t *bases[2];
    uint16_t *fragments;
} coded_units;

static void make_coded_units(harness *h, const harness_tables *tables, unsigned hv, unsigned parts, coded_units *units)
{
    const size_t fixed_bytes = (size_t)hv * GAAC_PART_FIXED_BYTES, bf16 = (size_t)hv * MAX_PART_ELEMENTS;
    uint16_t *source[2] = {harness_memory(h, bf16), harness_memory(h, bf16)};
    *units = (coded_units){.kernels = &tables->codec, .hv = hv, .parts = parts};
    for (unsigned part = 0; part < 2; part++) {
        units->fixed[part] = harness_memory(h, BENCH_UNITS * fixed_bytes);
        units->bases[part] = harness_memory(h, hv * MAX_PART_WORDS * 2);
        inputs_bases(h, hv, units->bases[part]);
    }
    units->variable = harness_memory(h, (size_t)BENCH_UNITS * MAX_CAPACITY);
    units->tags = harness_memory(h, BENCH_UNITS * sizeof *units->tags);
    units->fragments = harness_memory(h, 2 * bf16);
    for (unsigned i = 0; i < BENCH_UNITS; i++) {
        gaac_unit_info info;
        uint8_t *variable = units->variable + (size_t)i * MAX_CAPACITY;
        for (unsigned part = 0; part < 2; part++)
            inputs_elements(h, (gaac_part)part, hv, INPUTS_TYPICAL, 0, units->bases[part], source[part]);
        gaac_encode_unit_c(hv, parts, source[0], source[1], units->bases[0], units->bases[1],
                           units->fixed[0] + i * fixed_bytes, units->fixed[1] + i * fixed_bytes, variable, MAX_CAPACITY,
                           &info);
        units->bytes[i] = info.bytes;
        gaac_expand_tags_c(hv, parts, variable, info.bytes, &units->tags[i]);
    }
}

static void run_expand(void *context)
{
    const coded_units *units = context;
    for (unsigned i = 0; i < BENCH_UNITS; i++)
        units->kernels->expand_tags(units->hv, units->parts, units->variable + (size_t)i * MAX_CAPACITY,
                                    units->bytes[i], units->tags);
}

static void bench_expand(harness *h, const harness_tables *tables, unsigned shape)
{
    coded_units units;
    make_coded_units(h, tables, shape_hv(shape), shape_parts(shape), &units);
    harness_time(h, run_expand, &units, BENCH_UNITS, shape_bf16_bytes(shape));
}

static void run_decode(const coded_units *units, gaac_part part)
{
    const size_t fixed_bytes = (size_t)units->hv * GAAC_PART_FIXED_BYTES;
    for (unsigned i = 0; i < BENCH_UNITS; i++)
        units->kernels->decode_part[part](units->hv, units->fixed[part] + i * fixed_bytes, &units->tags[i],
                                          units->bases[part], units->fragments, NULL);
}

static void run_lines(const coded_units *units, gaac_part part)
{
    const size_t fixed_bytes = (size_t)units->hv * GAAC_PART_FIXED_BYTES;
    for (unsigned i = 0; i < BENCH_UNITS; i++)
        units->kernels->decode_lines[part](units->hv, units->fixed[part] + i * fixed_bytes, &units->tags[i],
                                           units->bases[part], units->fragments, NULL);
}

static void run_k_lines(void *context)
{
    run_lines(context, GAAC_K);
}
static void run_v_lines(void *context)
{
    run_lines(context, GAAC_V);
}

static void run_decode_k(void *context)
{
    run_decode(context, GAAC_K);
}
static void run_decode_v(void *context)
{
    run_decode(context, GAAC_V);
}

static void bench_decode(harness *h, const harness_tables *tables, gaac_part part, unsigned hv)
{
    coded_units units;
    make_coded_units(h, tables, hv, GAAC_HAS_K | GAAC_HAS_V, &units);
    harness_time(h, part == GAAC_K ? run_decode_k : run_decode_v, &units, BENCH_UNITS, (size_t)hv * MAX_PART_ELEMENTS);
}

static void bench_lines(harness *h, const harness_tables *tables, gaac_part part, unsigned hv)
{
    coded_units units;
    make_coded_units(h, tables, hv, GAAC_HAS_K | GAAC_HAS_V, &units);
    harness_time(h, part == GAAC_K ? run_k_lines : run_v_lines, &units, BENCH_UNITS, (size_t)hv * MAX_PART_ELEMENTS);
}

static void bench_k_lines(harness *h, const harness_tables *tables, unsigned shape)
{
    bench_lines(h, tables, GAAC_K, shape + 1);
}
static void bench_v_lines(harness *h, const harness_tables *tables, unsigned shape)
{
    bench_lines(h, tables, GAAC_V, shape + 1);
}

static void bench_decode_k(harness *h, const harness_tables *tables, unsigned shape)
{
    bench_decode(h, tables, GAAC_K, shape + 1);
}
static void bench_decode_v(harness *h, const harness_tables *tables, unsigned shape)
{
    bench_decode(h, tables, GAAC_V, shape + 1);
}

/* Both steps, as a reader of a unit takes them. */
static void run_read(void *context)
{
    const coded_units *units = context;
    const size_t fixed_bytes = (size_t)units->hv * GAAC_PART_FIXED_BYTES;
    for (unsigned i = 0; i < BENCH_UNITS; i++) {
        units->kernels->expand_tags(units->hv, units->parts, units->variable + (size_t)i * MAX_CAPACITY,
                                    units->bytes[i], units->tags);
        for (unsigned part = 0; part < 2; part++)
            units->kernels->decode_part[part](units->hv, units->fixed[part] + i * fixed_bytes, units->tags,
                                              units->bases[part], units->fragments, NULL);
    }
}

static void bench_read(harness *h, const harness_tables *tables, unsigned shape)
{
    coded_units units;
    make_coded_units(h, tables, shape + 1, GAAC_HAS_K | GAAC_HAS_V, &units);
    harness_time(h, run_read, &units, BENCH_UNITS, (size_t)(shape + 1) * MAX_PART_ELEMENTS * 2);
}

/* A unit encoded by the definition, read back with the kernels under test: what comes out is what went in. */
static void check_read(harness *h, unsigned shape)
{
    const unsigned hv = shape + 1, both = GAAC_HAS_K | GAAC_HAS_V;
    const size_t bytes = (size_t)hv * MAX_PART_ELEMENTS;
    _Alignas(64) uint32_t bases[2][MAX_PART_WORDS];
    _Alignas(64) uint16_t source[2][MAX_PART_ELEMENTS];
    _Alignas(64) uint8_t fixed[2][MAX_FIXED];
    _Alignas(64) uint8_t variable[MAX_CAPACITY];
    uint16_t *fragments = harness_memory(h, bytes);
    for (unsigned round = 0; round < h->rounds; round++) {
        gaac_unit_tags tags;
        gaac_unit_info info;
        for (unsigned part = 0; part < 2; part++) {
            inputs_bases(h, hv, bases[part]);
            inputs_elements(h, (gaac_part)part, hv, (inputs_kind)harness_below(h, INPUTS_KINDS), round, bases[part],
                            source[part]);
        }
        if (!gaac_encode_unit_c(hv, both, source[0], source[1], bases[0], bases[1], fixed[0], fixed[1], variable,
                                sizeof variable, &info))
            continue; /* too many exceptions for a unit */
        if (!h->tables->codec.expand_tags(hv, both, variable, info.bytes, &tags))
            harness_fail(h, "expand_tags refuses what the definition encoded");
        for (unsigned part = 0; part < 2; part++) {
            h->tables->codec.decode_part[part](hv, fixed[part], &tags, bases[part], fragments, NULL);
            if ((info.exception_flags >> 2 * part & 3) != 0)
                gaac_apply_exceptions(hv, (gaac_part)part, variable, info.bytes, fragments);
            harness_equal(h, part == 0 ? "K read back" : "V read back", source[part], fragments, bytes);
        }
    }
}

/* ---- rows --------------------------------------------------------------------------------------- */

static size_t row_elements(unsigned fragments, size_t stride)
{
    return (GAAC_BLOCK_TOKENS - 1) * stride + (size_t)fragments * GAAC_FRAGMENT_CHANNELS;
}

static void check_to_fragments(harness *h, gaac_part part, unsigned fragments)
{
    const size_t channels = (size_t)fragments * GAAC_FRAGMENT_CHANNELS, bytes = fragments * GAAC_FRAGMENT_BYTES;
    uint16_t *rows = harness_memory(h, 2 * row_elements(fragments, 2 * channels + 64));
    uint16_t *actual = harness_memory(h, bytes);
    uint16_t expected[MAX_PART_ELEMENTS];
    for (unsigned round = 0; round < h->rounds; round++) {
        const size_t stride = channels + harness_below(h, (uint32_t)channels + 64);
        rows = harness_resize(h, rows, 2 * row_elements(fragments, stride));
        harness_random_bytes(h, rows, 2 * row_elements(fragments, stride));
        memset(actual, 0xff, bytes);
        h->definition->codec.rows_to_fragments[part](fragments, rows, stride, expected);
        h->tables->codec.rows_to_fragments[part](fragments, rows, stride, actual);
        harness_equal(h, "fragments", expected, actual, bytes);
        harness_guards(h, "rows_to_fragments");
    }
}

static void check_to_rows(harness *h, gaac_part part, unsigned fragments)
{
    enum { MAX_STRIDE = 2 * 8 * GAAC_FRAGMENT_CHANNELS + 64 };
    const size_t channels = (size_t)fragments * GAAC_FRAGMENT_CHANNELS, bytes = fragments * GAAC_FRAGMENT_BYTES;
    uint16_t *in = harness_memory(h, bytes);
    uint16_t *actual = harness_memory(h, 2 * row_elements(fragments, 2 * channels + 64));
    uint16_t expected[GAAC_BLOCK_TOKENS * MAX_STRIDE];
    for (unsigned round = 0; round < h->rounds; round++) {
        const size_t stride = channels + harness_below(h, (uint32_t)channels + 64);
        const size_t row_bytes = 2 * row_elements(fragments, stride);
        actual = harness_resize(h, actual, row_bytes);
        harness_random_bytes(h, in, bytes);
        harness_random_bytes(h, actual, row_bytes);
        memcpy(expected, actual, row_bytes); /* what lies between the rows must stay */
        h->definition->codec.fragments_to_rows[part](fragments, in, expected, stride);
        h->tables->codec.fragments_to_rows[part](fragments, in, actual, stride);
        harness_equal(h, "rows", expected, actual, row_bytes);
        harness_guards(h, "fragments_to_rows");
    }
}

static void check_k_to_fragments(harness *h, unsigned shape)
{
    check_to_fragments(h, GAAC_K, shape + 1);
}
static void check_v_to_fragments(harness *h, unsigned shape)
{
    check_to_fragments(h, GAAC_V, shape + 1);
}
static void check_k_to_rows(harness *h, unsigned shape)
{
    check_to_rows(h, GAAC_K, shape + 1);
}
static void check_v_to_rows(harness *h, unsigned shape)
{
    check_to_rows(h, GAAC_V, shape + 1);
}

typedef struct row_blocks {
    const gaac_codec_kernels *kernels;
    gaac_part part;
    unsigned fragments;
    uint16_t *rows, *out;
} row_blocks;

static void run_to_fragments(void *context)
{
    const row_blocks *b = context;
    const size_t channels = (size_t)b->fragments * GAAC_FRAGMENT_CHANNELS, elements = GAAC_BLOCK_TOKENS * channels;
    for (unsigned i = 0; i < BENCH_UNITS; i++)
        b->kernels->rows_to_fragments[b->part](b->fragments, b->rows + i * elements, channels, b->out);
}

static void run_to_rows(void *context)
{
    const row_blocks *b = context;
    const size_t channels = (size_t)b->fragments * GAAC_FRAGMENT_CHANNELS, elements = GAAC_BLOCK_TOKENS * channels;
    for (unsigned i = 0; i < BENCH_UNITS; i++)
        b->kernels->fragments_to_rows[b->part](b->fragments, b->rows + i * elements, b->out, channels);
}

static void bench_rows(harness *h, const harness_tables *tables, gaac_part part, unsigned fragments, bool to_rows)
{
    const size_t bytes = (size_t)fragments * GAAC_FRAGMENT_BYTES;
    row_blocks blocks = {&tables->codec, part, fragments, harness_memory(h, BENCH_UNITS * bytes),
                         harness_memory(h, bytes)};
    harness_time(h, to_rows ? run_to_rows : run_to_fragments, &blocks, BENCH_UNITS, bytes);
}

static void bench_k_to_fragments(harness *h, const harness_tables *t, unsigned s)
{
    bench_rows(h, t, GAAC_K, s + 1, false);
}
static void bench_v_to_fragments(harness *h, const harness_tables *t, unsigned s)
{
    bench_rows(h, t, GAAC_V, s + 1, false);
}
static void bench_k_to_rows(harness *h, const harness_tables *t, unsigned s)
{
    bench_rows(h, t, GAAC_K, s + 1, true);
}
static void bench_v_to_rows(harness *h, const harness_tables *t, unsigned s)
{
    bench_rows(h, t, GAAC_V, s + 1, true);
}

/* ---- the family --------------------------------------------------------------------------------- */

#define FUNCTION(name, member)                                                                                         \
    static harness_function *function_##name(const harness_tables *tables)                                             \
    {                                                                                                                  \
        return (harness_function *)tables->codec.member;                                                               \
    }
FUNCTION(expand, expand_tags)
FUNCTION(decode_k, decode_part[GAAC_K])
FUNCTION(decode_v, decode_part[GAAC_V])
FUNCTION(k_lines, decode_lines[GAAC_K])
FUNCTION(v_lines, decode_lines[GAAC_V])
FUNCTION(encode, encode_unit)
FUNCTION(k_to_fragments, rows_to_fragments[GAAC_K])
FUNCTION(v_to_fragments, rows_to_fragments[GAAC_V])
FUNCTION(k_to_rows, fragments_to_rows[GAAC_K])
FUNCTION(v_to_rows, fragments_to_rows[GAAC_V])

static const harness_entry entries[] = {
    {"expand_tags", UNIT_SHAPES, describe_unit, function_expand, check_expand, bench_expand},
    {"decode_k", 2, describe_hv, function_decode_k, check_decode_k, bench_decode_k},
    {"decode_v", 2, describe_hv, function_decode_v, check_decode_v, bench_decode_v},
    {"k_lines", 2, describe_hv, function_k_lines, check_k_lines, bench_k_lines},
    {"v_lines", 2, describe_hv, function_v_lines, check_v_lines, bench_v_lines},
    {"read_unit", 2, describe_hv, function_decode_k, check_read, bench_read},
    {"encode_unit", UNIT_SHAPES, describe_unit, function_encode, check_encode, bench_encode},
    {"k_rows_to_fragments", 8, describe_fragments, function_k_to_fragments, check_k_to_fragments, bench_k_to_fragments},
    {"v_rows_to_fragments", 8, describe_fragments, function_v_to_fragments, check_v_to_fragments, bench_v_to_fragments},
    {"k_fragments_to_rows", 8, describe_fragments, function_k_to_rows, check_k_to_rows, bench_k_to_rows},
    {"v_fragments_to_rows", 8, describe_fragments, function_v_to_rows, check_v_to_rows, bench_v_to_rows},
    {"far_k_rows_to_fragments", FAR_SHAPES, describe_far, function_k_to_fragments, check_far_k_to_fragments, NULL},
    {"far_v_rows_to_fragments", FAR_SHAPES, describe_far, function_v_to_fragments, check_far_v_to_fragments, NULL},
    {"far_k_fragments_to_rows", FAR_SHAPES, describe_far, function_k_to_rows, check_far_k_to_rows, NULL},
    {"far_v_fragments_to_rows", FAR_SHAPES, describe_far, function_v_to_rows, check_far_v_to_rows, NULL},
};

const harness_family harness_codec = {"codec", sizeof entries / sizeof entries[0], entries};
