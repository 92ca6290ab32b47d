#include "attention_bench.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kv_sample.h"
#include "read_bandwidth.h"
#include "tool.h"

enum { MOST_ROUNDS = 1000 };

/* ---- the caches ------------------------------------------------------------------------------ */

static gaac_status create_cache(gaac_cache **cache, const attention_size *size, gaac_cache_mode mode, gaac_error *error)
{
    gaac_shape *shapes = tool_alloc(size->layers * sizeof *shapes);
    for (uint32_t layer = 0; layer < size->layers; layer++)
        shapes[layer] = size->shape;
    const gaac_cache_config config = {
        .shapes = shapes, .layers = size->layers, .sequences = 1, .tokens_per_sequence = size->tokens, .mode = mode};
    const gaac_status status = gaac_cache_create(cache, &config, error);
    free(shapes);
    return status;
}

static gaac_status note_coding(attention_caches *caches, gaac_error *error)
{
    gaac_cache_stats stats;
    const gaac_status status = gaac_cache_get_stats(caches->coded, GAAC_ALL_LAYERS, &stats, error);
    if (status != GAAC_OK)
        return status;
    const uint64_t blocks = stats.blocks_coded + stats.blocks_raw + stats.blocks_waiting + stats.blocks_open;
    caches->coded_ratio = (double)stats.bytes_finalized_bf16 / (double)stats.bytes_finalized_code;
    caches->resident_ratio = (double)stats.bytes_finalized_bf16 / (double)stats.bytes_finalized_resident;
    caches->raw_blocks = blocks ? 1 - (double)stats.blocks_coded / (double)blocks : 0;
    return GAAC_OK;
}

gaac_status attention_caches_create(attention_caches *caches, const attention_size *size, const kv_dump *sample,
                                    gaac_error *error)
{
    kv_dump drawn = {0};
    *caches = (attention_caches){.size = *size};
    gaac_status status = create_cache(&caches->coded, size, GAAC_CACHE_CODED, error);
    if (status == GAAC_OK)
        status = create_cache(&caches->raw, size, GAAC_CACHE_RAW, error);
    if (status == GAAC_OK && !sample)
        kv_sample_draw(&drawn, &size->shape);
    if (status == GAAC_OK)
        status = kv_sample_fill(sample ? sample : &drawn, caches->coded, size->tokens, error);
    if (status == GAAC_OK)
        status = kv_sample_fill(sample ? sample : &drawn, caches->raw, size->tokens, error);
    if (status == GAAC_OK)
        status = note_coding(caches, error);
    kv_sample_release(&drawn);
    if (status != GAAC_OK)
        attention_caches_destroy(caches);
    return status;
}

void attention_caches_destroy(attention_caches *caches)
{
    gaac_cache_destroy(caches->coded);
    gaac_cache_destroy(caches->raw);
    *caches = (attention_caches){0};
}

double attention_bf16_bytes(const attention_size *size)
{
    return 2.0 * size->shape.kv_heads * (size->shape.head_dim_k + size->shape.head_dim_v) * size->layers *
           (double)size->tokens;
}

/* ---- passes ---------------------------------------------------------------------------------- */

enum { FUSED, RAW, SIDES };

/* What the passes of one measurement share. */
typedef struct bench {
    const gaac_cache *cache[SIDES];
    attention_size size;
    gaac_attention_args args;
    gaac_executor executor;
    read_bandwidth *reader;
    size_t layer_elements; /* of an output: the next layer's lies behind it */
    float *q, *out[SIDES];
    double *seconds[SIDES], *ratio; /* [MOST_ROUNDS] */
} bench;

static gaac_status pass(bench *b, unsigned side, double *seconds, gaac_error *error)
{
    gaac_attention_args args = b->args;
    const double start = tool_seconds();
    for (args.layer = 0; args.layer < b->size.layers; args.layer++) {
        args.out = b->out[side] + args.layer * b->layer_elements;
        const gaac_status status = gaac_attention(b->cache[side], &args, &b->executor, error);
        if (status != GAAC_OK)
            return status;
    }
    *seconds = tool_seconds() - start;
    return GAAC_OK;
}

/* The sides take turns at being first. */
static gaac_status run_round(bench *b, unsigned round, attention_bench_result *result, gaac_error *error)
{
    const size_t out_bytes = b->size.layers * b->layer_elements * sizeof(float);
    for (unsigned side = 0; side < SIDES; side++)
        memset(b->out[side], 0x5a + (int)side, out_bytes); /* outputs that are not written can't be equal */
    result->read_gbps = fmax(result->read_gbps, read_bandwidth_pass(b->reader));
    for (unsigned turn = 0; turn < SIDES; turn++) {
        const unsigned side = (turn + round) % SIDES;
        const gaac_status status = pass(b, side, &b->seconds[side][round], error);
        if (status != GAAC_OK)
            return status;
    }
    b->ratio[round] = b->seconds[RAW][round] / b->seconds[FUSED][round];
    if (memcmp(b->out[FUSED], b->out[RAW], out_bytes) != 0)
        result->bit_identical = false;
    return GAAC_OK;
}

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Sorts; returns the middle. */
static double median(double *values, unsigned count)
{
    qsort(values, count, sizeof *values, compare_doubles);
    return count % 2 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

static void conclude(bench *b, attention_bench_result *result)
{
    const double queries = b->args.query_tokens;
    const double scores = queries * ((double)b->size.tokens - (queries - 1) / 2) * b->args.query_heads;
    const double gflop = 2e-9 * (b->size.shape.head_dim_k + b->size.shape.head_dim_v) * scores * b->size.layers;
    const double gigabytes = 1e-9 * attention_bf16_bytes(&b->size);
    double middle[SIDES];
    for (unsigned side = 0; side < SIDES; side++)
        middle[side] = median(b->seconds[side], result->rounds);
    result->fused_gbps = gigabytes / middle[FUSED];
    result->raw_gbps = gigabytes / middle[RAW];
    result->fused_best_gbps = gigabytes / b->seconds[FUSED][0];
    result->raw_best_gbps = gigabytes / b->seconds[RAW][0];
    result->fused_over_raw = median(b->ratio, result->rounds);
    result->fused_over_raw_best = b->seconds[RAW][0] / b->seconds[FUSED][0];
    result->fused_gflops = gflop / middle[FUSED];
    result->raw_gflops = gflop / middle[RAW];
}

static void prepare(bench *b, const attention_caches *caches, const attention_bench_options *options)
{
    const uint32_t heads = caches->size.shape.kv_heads * options->gqa;
    const size_t head_dim = caches->size.shape.head_dim_k;
    b->cache[FUSED] = caches->coded;
    b->cache[RAW] = caches->raw;
    b->size = caches->size;
    b->layer_elements = options->query_tokens * heads * head_dim;
    b->q = tool_alloc(b->layer_elements * sizeof *b->q);
    kv_sample_normal(b->q, b->layer_elements, 0);
    b->ratio = tool_alloc(MOST_ROUNDS * sizeof *b->ratio);
    for (unsigned side = 0; side < SIDES; side++) {
        b->out[side] = tool_alloc(b->size.layers * b->layer_elements * sizeof(float));
        b->seconds[side] = tool_alloc(MOST_ROUNDS * sizeof(double));
    }
    b->args = (gaac_attention_args){.cells = b->size.tokens,
                                    .query_tokens = options->query_tokens,
                                    .query_heads = heads,
                                    .q = b->q,
                                    .q_token_stride = heads * head_dim,
                                    .q_head_stride = head_dim,
                                    .out_token_stride = heads * head_dim,
                                    .out_head_stride = head_dim,
                                    .scale = 1 / sqrtf((float)head_dim),
                                    .mask_kind = GAAC_MASK_CAUSAL,
                                    .causal_first = b->size.tokens - options->query_tokens};
}

static void clean_up(bench *b)
{
    for (unsigned side = 0; side < SIDES; side++) {
        free(b->seconds[side]);
        free(b->out[side]);
    }
    free(b->ratio);
    free(b->q);
}

gaac_status attention_bench_run(const attention_caches *caches, const attention_bench_options *options,
                                attention_bench_result *result, gaac_error *error)
{
    gaac_thread_pool *pool;
    gaac_status status = gaac_thread_pool_create(&pool, options->threads, NULL, error);
    if (status != GAAC_OK)
        return status;
    bench b = {.executor = gaac_thread_pool_executor(pool)};
    prepare(&b, caches, options);
    b.reader = read_bandwidth_create(&b.executor);
    *result = (attention_bench_result){.bit_identical = true};
    status = run_round(&b, 0, result, error); /* warms up; the first round overwrites its times */
    const double start = tool_seconds();
    while (status == GAAC_OK && result->rounds < MOST_ROUNDS &&
           (result->rounds < options->min_rounds || tool_seconds() - start < options->seconds))
        status = run_round(&b, result->rounds++, result, error);
    if (status == GAAC_OK)
        conclude(&b, result);
    read_bandwidth_destroy(b.reader);
    clean_up(&b);
    gaac_thread_pool_destroy(pool);
    return status;
}
