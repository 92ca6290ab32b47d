/* The measurement behind `gaac bench codec`. Layers are independent; sums run over all of them. */
#include "codec_bench.h"

#include <stdlib.h>
#include <string.h>

#include "data_error.h"
#include "tool.h"

/* A block in the block table of src/cache, with its state, epoch and counts. */
enum { BLOCK_TABLE_BYTES = 16 };

/* gaac_calibrate's least. */
enum { MIN_CALIBRATION_BLOCKS = 4 };

/* Parts of the tokens, in blocks. */
typedef struct bench_split {
    const kv_dump *source; /* of the calibration: its first `calibration` blocks */
    uint64_t calibration;
    uint64_t first, blocks; /* evaluation, of the dump */
} bench_split;

/* What one scheme took for the evaluated blocks. */
typedef struct scheme_sums {
    uint64_t code_bytes, groups, by_mode[4], exceptions, resident_bytes, raw_blocks, blocks;
    bool exact;
} scheme_sums;

/* The production codec of a layer at its chosen capacity, and room for its coded blocks. */
typedef struct layer_run {
    gaac_codec *codec;
    uint32_t pool_bytes;
    uint8_t *slots;
    uint32_t *entries;
    bool *coded;
} layer_run;

static gaac_status split_tokens(const kv_dump *dump, const kv_dump *calibration, double share, bench_split *split,
                                gaac_error *error)
{
    const uint64_t blocks = dump->tokens / GAAC_BLOCK_TOKENS;
    split->source = calibration ? calibration : dump;
    split->calibration = calibration ? calibration->tokens / GAAC_BLOCK_TOKENS : (uint64_t)(share * (double)blocks);
    split->first = calibration ? 0 : split->calibration;
    split->blocks = blocks - split->first;
    if (split->calibration < MIN_CALIBRATION_BLOCKS || split->blocks == 0)
        return data_error(error, GAAC_ERROR_CORRUPT,
                          "%llu tokens are too few: %d to calibrate on and 16 to evaluate; use a longer dump",
                          (unsigned long long)dump->tokens, MIN_CALIBRATION_BLOCKS * GAAC_BLOCK_TOKENS);
    if (calibration && memcmp(&calibration->shape, &dump->shape, sizeof dump->shape) != 0)
        return data_error(error, GAAC_ERROR_MISMATCH,
                          "its shape is not that of the dump to calibrate on; "
                          "both have to come from one model");
    if (calibration && calibration->layers != dump->layers)
        return data_error(error, GAAC_ERROR_MISMATCH,
                          "has %u layers, the dump to calibrate on %u; "
                          "both have to come from one model",
                          dump->layers, calibration->layers);
    return GAAC_OK;
}

/* Calibrates a layer. The capacity comes from blocks that did not choose the windows it was measured with. */
static gaac_status calibrate(const bench_split *split, uint32_t layer, gaac_scheme scheme, gaac_windows **windows,
                             uint32_t *pool_bytes, gaac_error *error)
{
    const gaac_kv_rows rows = kv_dump_rows(split->source, layer, 0);
    return gaac_calibrate(&split->source->shape, &rows, split->calibration * GAAC_BLOCK_TOKENS, scheme, NULL, windows,
                          pool_bytes, error);
}

/* The codec of a layer. *pool_bytes is the capacity to use, or CHOSEN to use and return the calibrated one. */
enum { CHOSEN = 1 };

static gaac_status make_codec(gaac_codec **codec, const bench_split *split, uint32_t layer, gaac_scheme scheme,
                              uint32_t *pool_bytes, gaac_error *error)
{
    gaac_windows *windows;
    uint32_t chosen;
    gaac_status status = calibrate(split, layer, scheme, &windows, &chosen, error);
    if (status != GAAC_OK)
        return status;
    if (*pool_bytes == CHOSEN)
        *pool_bytes = chosen;
    const gaac_codec_config config = {
        .shape = split->source->shape, .scheme = scheme, .windows = windows, .pool_bytes = *pool_bytes};
    status = gaac_codec_create(codec, &config, error);
    gaac_windows_destroy(windows);
    return status;
}

static gaac_status encode_at(const gaac_codec *codec, const kv_dump *dump, uint32_t layer, uint64_t block, void *slot,
                             uint32_t *entries, gaac_block_info *info, gaac_error *error)
{
    const gaac_kv_rows rows = kv_dump_rows(dump, layer, block * GAAC_BLOCK_TOKENS);
    return gaac_encode_block(codec, &rows, slot, entries, info, error);
}

/* Decodes into a dense block of rows and compares with the dump, bit for bit. */
static bool decodes_to(const gaac_codec *codec, const kv_dump *dump, uint32_t layer, uint64_t block, const void *slot,
                       const uint32_t *entries, uint16_t *scratch)
{
    const size_t stride = kv_dump_token_stride(dump), elements = GAAC_BLOCK_TOKENS * stride;
    const gaac_kv_rows rows = kv_dump_rows(dump, layer, block * GAAC_BLOCK_TOKENS);
    const gaac_kv_rows_out out = {.k = scratch,
                                  .v = scratch + elements,
                                  .k_token_stride = stride,
                                  .k_head_stride = dump->shape.head_dim_k,
                                  .v_token_stride = stride,
                                  .v_head_stride = dump->shape.head_dim_v};
    memset(scratch, 0x5a, 2 * elements * sizeof *scratch);
    return gaac_decode_block(codec, slot, entries, &out, NULL) == GAAC_OK &&
           memcmp(out.k, rows.k, elements * sizeof *scratch) == 0 &&
           memcmp(out.v, rows.v, elements * sizeof *scratch) == 0;
}

/* Encodes, decodes and counts every evaluated block of a layer. */
static gaac_status measure(const gaac_codec *codec, const kv_dump *dump, const bench_split *split, uint32_t layer,
                           scheme_sums *sums, gaac_error *error)
{
    const size_t raw_bytes = gaac_codec_raw_bytes(codec), entry_count = gaac_codec_entry_count(codec);
    const size_t coded_bytes = gaac_codec_slot_bytes(codec) + entry_count * sizeof(uint32_t);
    void *slot = tool_alloc(gaac_codec_slot_bytes(codec));
    uint32_t *entries = tool_alloc(entry_count * sizeof *entries);
    uint16_t *scratch = tool_alloc(2 * GAAC_BLOCK_TOKENS * kv_dump_token_stride(dump) * sizeof *scratch);
    gaac_status status = GAAC_OK;
    for (uint64_t i = 0; i < split->blocks && status == GAAC_OK; i++) {
        gaac_block_info info;
        status = encode_at(codec, dump, layer, split->first + i, slot, entries, &info, error);
        if (status != GAAC_OK)
            break;
        sums->blocks++;
        sums->raw_blocks += !info.coded;
        sums->code_bytes += info.coded ? info.coded_bytes : raw_bytes;
        sums->resident_bytes += (info.coded ? coded_bytes : raw_bytes) + BLOCK_TABLE_BYTES;
        sums->groups += info.groups;
        for (unsigned mode = 0; mode < 4; mode++)
            sums->by_mode[mode] += info.groups_by_mode[mode];
        sums->exceptions += info.exceptions;
        if (info.coded && !decodes_to(codec, dump, layer, split->first + i, slot, entries, scratch))
            sums->exact = false;
    }
    free(scratch);
    free(entries);
    free(slot);
    return status;
}

static gaac_status measure_scheme(const kv_dump *dump, const bench_split *split, uint32_t layer, gaac_scheme scheme,
                                  uint32_t pool_bytes, scheme_sums *sums, gaac_error *error)
{
    gaac_codec *codec;
    gaac_status status = make_codec(&codec, split, layer, scheme, &pool_bytes, error);
    if (status != GAAC_OK)
        return status;
    status = measure(codec, dump, split, layer, sums, error);
    gaac_codec_destroy(codec);
    return status;
}

/* ---- timing --------------------------------------------------------------------------------- */

static gaac_status prepare_run(layer_run *run, const bench_split *split, uint32_t layer, gaac_error *error)
{
    run->pool_bytes = CHOSEN;
    const gaac_status status = make_codec(&run->codec, split, layer, GAAC_SCHEME_PRODUCTION, &run->pool_bytes, error);
    if (status != GAAC_OK)
        return status;
    run->slots = tool_alloc(split->blocks * gaac_codec_slot_bytes(run->codec));
    run->entries = tool_alloc(split->blocks * gaac_codec_entry_count(run->codec) * sizeof *run->entries);
    run->coded = tool_alloc(split->blocks * sizeof *run->coded);
    return GAAC_OK;
}

static void free_runs(layer_run *runs, uint32_t layers)
{
    for (uint32_t layer = 0; layer < layers; layer++) {
        free(runs[layer].coded);
        free(runs[layer].entries);
        free(runs[layer].slots);
        gaac_codec_destroy(runs[layer].codec);
    }
    free(runs);
}

/* One pass over all layers: BF16 bytes that went through. */
static uint64_t encode_pass(const layer_run *runs, const kv_dump *dump, const bench_split *split)
{
    uint64_t bytes = 0;
    for (uint32_t layer = 0; layer < dump->layers; layer++) {
        const layer_run *run = &runs[layer];
        const size_t slot_bytes = gaac_codec_slot_bytes(run->codec), entries = gaac_codec_entry_count(run->codec);
        for (uint64_t i = 0; i < split->blocks; i++) {
            gaac_block_info info;
            encode_at(run->codec, dump, layer, split->first + i, run->slots + i * slot_bytes,
                      run->entries + i * entries, &info, NULL);
            run->coded[i] = info.coded;
        }
        bytes += split->blocks * gaac_codec_raw_bytes(run->codec);
    }
    return bytes;
}

static uint64_t decode_pass(const layer_run *runs, const kv_dump *dump, const bench_split *split, uint16_t *rows)
{
    const size_t stride = kv_dump_token_stride(dump), elements = GAAC_BLOCK_TOKENS * stride;
    uint64_t bytes = 0;
    for (uint32_t layer = 0; layer < dump->layers; layer++) {
        const layer_run *run = &runs[layer];
        const size_t slot_bytes = gaac_codec_slot_bytes(run->codec), entries = gaac_codec_entry_count(run->codec);
        for (uint64_t i = 0; i < split->blocks; i++) {
            if (!run->coded[i])
                continue;
            uint16_t *k = rows + (layer * split->blocks + i) * 2 * elements;
            const gaac_kv_rows_out out = {.k = k,
                                          .v = k + elements,
                                          .k_token_stride = stride,
                                          .k_head_stride = dump->shape.head_dim_k,
                                          .v_token_stride = stride,
                                          .v_head_stride = dump->shape.head_dim_v};
            gaac_decode_block(run->codec, run->slots + i * slot_bytes, run->entries + i * entries, &out, NULL);
            bytes += gaac_codec_raw_bytes(run->codec);
        }
    }
    return bytes;
}

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Median speed over passes that take min_seconds together, at least five. rows NULL: encode. */
static double timed(const layer_run *runs, const kv_dump *dump, const bench_split *split, uint16_t *rows,
                    double min_seconds)
{
    enum { MOST = 1000 };
    double *speed = tool_alloc(MOST * sizeof *speed), total = 0;
    size_t passes = 0;
    while (passes < MOST && (passes < 5 || total < min_seconds)) {
        const double start = tool_seconds();
        const uint64_t bytes = rows ? decode_pass(runs, dump, split, rows) : encode_pass(runs, dump, split);
        const double seconds = tool_seconds() - start;
        speed[passes++] = seconds > 0 ? 1e-9 * (double)bytes / seconds : 0;
        total += seconds;
    }
    qsort(speed, passes, sizeof *speed, compare_doubles);
    const double median = speed[passes / 2];
    free(speed);
    return median;
}

static void note_capacities(const layer_run *runs, uint32_t layers, codec_bench_result *result)
{
    result->pool_bytes_least = result->pool_bytes_most = runs[0].pool_bytes;
    for (uint32_t layer = 1; layer < layers; layer++) {
        if (runs[layer].pool_bytes < result->pool_bytes_least)
            result->pool_bytes_least = runs[layer].pool_bytes;
        if (runs[layer].pool_bytes > result->pool_bytes_most)
            result->pool_bytes_most = runs[layer].pool_bytes;
    }
}

static gaac_status time_codec(const kv_dump *dump, const bench_split *split, double min_seconds,
                              codec_bench_result *result, gaac_error *error)
{
    layer_run *runs = tool_alloc(dump->layers * sizeof *runs);
    gaac_status status = GAAC_OK;
    for (uint32_t layer = 0; layer < dump->layers && status == GAAC_OK; layer++)
        status = prepare_run(&runs[layer], split, layer, error);
    if (status == GAAC_OK) {
        note_capacities(runs, dump->layers, result);
        result->working_set_bytes = dump->layers * split->blocks * gaac_codec_raw_bytes(runs[0].codec);
        uint16_t *rows = tool_alloc(result->working_set_bytes);
        encode_pass(runs, dump, split); /* touches all memory before the clock runs */
        decode_pass(runs, dump, split, rows);
        result->encode_gbps = timed(runs, dump, split, NULL, min_seconds);
        result->decode_gbps = timed(runs, dump, split, rows, min_seconds);
        free(rows);
    }
    free_runs(runs, dump->layers);
    return status;
}

/* ---- the whole ------------------------------------------------------------------------------ */

enum { OPEN, CAPPED, PAPER, PAPER_CAPPED, PAPER_4, PAPER_2_3_4, SUMS };

static gaac_status measure_layer(const kv_dump *dump, const bench_split *split, const codec_bench_options *options,
                                 uint32_t layer, scheme_sums sums[SUMS], gaac_error *error)
{
    const struct {
        gaac_scheme scheme;
        uint32_t pool_bytes;
    } plan[SUMS] = {
        [OPEN] = {GAAC_SCHEME_PRODUCTION, 0},     [CAPPED] = {GAAC_SCHEME_PRODUCTION, CHOSEN},
        [PAPER] = {GAAC_SCHEME_PAPER, 0},         [PAPER_CAPPED] = {GAAC_SCHEME_PAPER, options->tile_cap},
        [PAPER_4] = {GAAC_SCHEME_PAPER_4_RAW, 0}, [PAPER_2_3_4] = {GAAC_SCHEME_PAPER_2_3_4_RAW, 0},
    };
    gaac_status status = GAAC_OK;
    for (unsigned i = 0; i < (options->ablations ? SUMS : PAPER_4) && status == GAAC_OK; i++)
        status = measure_scheme(dump, split, layer, plan[i].scheme, plan[i].pool_bytes, &sums[i], error);
    return status;
}

static double ratio(double bf16_bytes, uint64_t bytes)
{
    return bytes ? bf16_bytes / (double)bytes : 0;
}

static void conclude(const kv_dump *dump, const bench_split *split, const scheme_sums sums[SUMS],
                     codec_bench_result *result)
{
    const double elements =
        2.0 * dump->layers * (double)split->blocks * GAAC_BLOCK_TOKENS * (double)kv_dump_token_stride(dump);
    const double bytes = elements * sizeof(uint16_t);
    result->calibration_tokens = split->calibration * GAAC_BLOCK_TOKENS;
    result->evaluation_tokens = split->blocks * GAAC_BLOCK_TOKENS;
    result->coded_ratio = ratio(bytes, sums[OPEN].code_bytes);
    result->resident_ratio = ratio(bytes, sums[CAPPED].resident_bytes);
    result->raw_blocks = (double)sums[CAPPED].raw_blocks / (double)sums[CAPPED].blocks;
    result->exceptions_per_tile = (double)sums[OPEN].exceptions / (elements / 2048);
    result->groups_4bit = sums[OPEN].groups ? (double)sums[OPEN].by_mode[1] / (double)sums[OPEN].groups : 0;
    result->paper_coded_ratio = ratio(bytes, sums[PAPER].code_bytes);
    result->paper_resident_ratio = ratio(bytes, sums[PAPER_CAPPED].resident_bytes);
    for (unsigned mode = 0; mode < 4; mode++)
        result->paper_groups[mode] =
            sums[PAPER].groups ? (double)sums[PAPER].by_mode[mode] / (double)sums[PAPER].groups : 0;
    result->paper_4_raw_coded_ratio = ratio(bytes, sums[PAPER_4].code_bytes);
    result->paper_2_3_4_raw_coded_ratio = ratio(bytes, sums[PAPER_2_3_4].code_bytes);
    result->roundtrip_exact = true;
    for (unsigned i = 0; i < SUMS; i++)
        result->roundtrip_exact = result->roundtrip_exact && sums[i].exact;
}

gaac_status codec_bench_run(const kv_dump *dump, const kv_dump *calibration, const codec_bench_options *options,
                            const char *name, codec_bench_result *result, gaac_error *error)
{
    bench_split split;
    *result = (codec_bench_result){0};
    gaac_status status = split_tokens(dump, calibration, options->split, &split, error);
    if (status != GAAC_OK)
        return status;
    scheme_sums sums[SUMS] = {0};
    for (unsigned i = 0; i < SUMS; i++)
        sums[i].exact = true;
    for (uint32_t layer = 0; layer < dump->layers && status == GAAC_OK; layer++) {
        tool_progress("%s: layer %u of %u", name, layer + 1, dump->layers);
        status = measure_layer(dump, &split, options, layer, sums, error);
    }
    if (status == GAAC_OK) {
        tool_progress("%s: timing", name);
        conclude(dump, &split, sums, result);
        status = time_codec(dump, &split, options->min_seconds, result, error);
    }
    tool_progress_done();
    return status;
}
