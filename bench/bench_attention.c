/* Times attention over a coded and a raw cache in one run, alternating, and prints both and their ratio; the
 * fastest pass over all layers counts, since whatever else the machine does only adds.
 * Throughput is in gigabytes of KV as BF16 for decode, in GFLOP/s (4 * head_dim a score) for prefill. */
#include "attention/attention.h"
#include "base/base.h"
#include "cpu/cpu.h"

#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct options {
    unsigned kv_heads, group, head_dim, cells, query_tokens, workers, layers, seconds_tenths;
    gaac_isa isa;
    bool json, raw; /* raw: both caches raw */
} options;

static uint64_t random_state = 88172645463325252u;

static float uniform(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (float)(random_state >> 40) / 16777216.0f;
}

/* Roughly normal: what KV looks like within a channel. */
static float normal(void)
{
    return (uniform() + uniform() + uniform() + uniform() - 2) * 1.73f;
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void must(gaac_status status, const gaac_error *error)
{
    if (status == GAAC_OK)
        return;
    fprintf(stderr, "bench_attention: %s\n", error->message);
    exit(1);
}

static void *allocate(size_t bytes)
{
    void *memory = calloc(1, bytes);
    if (memory == NULL) {
        fprintf(stderr, "bench_attention: no memory for %zu bytes\n", bytes);
        exit(1);
    }
    return memory;
}

static gaac_cache *make_cache(const options *o, gaac_cache_mode mode)
{
    gaac_shape *shapes = allocate(o->layers * sizeof *shapes);
    for (unsigned layer = 0; layer < o->layers; layer++)
        shapes[layer] = (gaac_shape){o->kv_heads, o->head_dim, o->head_dim};
    const gaac_cache_config config = {
        .shapes = shapes, .layers = o->layers, .sequences = 1, .tokens_per_sequence = o->cells, .mode = mode};
    gaac_cache *cache = NULL;
    gaac_error error;
    must(gaac_cache_create(&cache, &config, &error), &error);
    free(shapes);
    return cache;
}

static void fill(const options *o, gaac_cache *a, gaac_cache *b)
{
    const size_t row = (size_t)o->kv_heads * o->head_dim;
    uint16_t *rows = allocate(row * GAAC_BLOCK_TOKENS * sizeof *rows);
    float *scale = allocate(row * sizeof *scale);
    gaac_error error;
    for (size_t i = 0; i < row; i++)
        scale[i] = exp2f(2 * normal());
    for (unsigned layer = 0; layer < o->layers; layer++) {
        for (unsigned first = 0; first < o->cells; first += GAAC_BLOCK_TOKENS) {
            const unsigned count = o->cells - first < GAAC_BLOCK_TOKENS ? o->cells - first : GAAC_BLOCK_TOKENS;
            for (gaac_part part = GAAC_K; part <= GAAC_V; part++) {
                for (unsigned token = 0; token < count; token++) {
                    for (size_t i = 0; i < row; i++)
                        rows[token * row + i] = gaac_float_to_bf16(normal() * scale[i]);
                }
                must(gaac_cache_write(a, layer, part, 0, first, NULL, count, rows, row, &error), &error);
                must(gaac_cache_write(b, layer, part, 0, first, NULL, count, rows, row, &error), &error);
            }
        }
    }
    free(scale);
    free(rows);
}

typedef struct bench {
    options o;
    gaac_codec_kernels codec;
    gaac_attention_kernels attention;
    gaac_cache *cache[2]; /* coded, raw */
    float *q, *out[2];
    gaac_executor executor;
} bench;

/* One pass over all layers; seconds. */
static double pass(bench *b, unsigned which)
{
    const options *o = &b->o;
    const uint32_t heads = o->kv_heads * o->group;
    gaac_attention_args args = {
        .cells = o->cells,
        .query_tokens = o->query_tokens,
        .query_heads = heads,
        .q = b->q,
        .q_token_stride = (size_t)heads * o->head_dim,
        .q_head_stride = o->head_dim,
        .out = b->out[which],
        .out_token_stride = (size_t)heads * o->head_dim,
        .out_head_stride = o->head_dim,
        .scale = 1 / sqrtf((float)o->head_dim),
        .mask_kind = GAAC_MASK_CAUSAL,
        .causal_first = o->cells - o->query_tokens,
    };
    const double start = now();
    for (args.layer = 0; args.layer < o->layers; args.layer++) {
        gaac_error error;
        must(gaac_attention_with(&b->codec, &b->attention, b->cache[which], &args, &b->executor, &error), &error);
    }
    return now() - start;
}

static void report(const bench *b, const double seconds[2])
{
    const options *o = &b->o;
    const double scores = (double)o->query_tokens * (o->cells - (o->query_tokens - 1) / 2.0) * o->kv_heads * o->group;
    const double gflop = 4e-9 * o->head_dim * scores * o->layers;
    const double gigabytes = 4e-9 * o->head_dim * o->kv_heads * o->cells * o->layers;
    const char *format =
        o->json ? "{\"isa\": \"%s\", \"kv_heads\": %u, \"group\": %u, \"head_dim\": %u, \"cells\": %u, "
                  "\"query_tokens\": %u, \"workers\": %u, \"coded_gbps\": %.2f, \"raw_gbps\": %.2f, "
                  "\"coded_gflops\": %.1f, \"raw_gflops\": %.1f, \"coded_over_raw\": %.3f}\n"
                : "%s: %u KV heads x %u, head_dim %u, %u cells, %u query tokens, %u workers: coded %.2f, raw %.2f GB/s "
                  "as BF16; coded %.1f, raw %.1f GFLOP/s; coded over raw %.3f\n";
    printf(format, gaac_isa_name(o->isa), o->kv_heads, o->group, o->head_dim, o->cells, o->query_tokens, o->workers,
           gigabytes / seconds[0], gigabytes / seconds[1], gflop / seconds[0], gflop / seconds[1],
           seconds[1] / seconds[0]);
}

static void run(bench *b)
{
    double best[2] = {INFINITY, INFINITY};
    unsigned passes = 0;
    const double end = now() + b->o.seconds_tenths / 10.0;
    pass(b, 0);
    pass(b, 1);
    const size_t out = (size_t)b->o.query_tokens * b->o.kv_heads * b->o.group * b->o.head_dim;
    if (memcmp(b->out[0], b->out[1], out * sizeof(float)) != 0) {
        fprintf(stderr, "bench_attention: coded and raw outputs differ\n");
        exit(1);
    }
    while (passes++ < 3 || now() < end) {
        for (unsigned which = 0; which < 2; which++)
            best[which] = fmin(best[which], pass(b, which));
    }
    report(b, best);
}

static const char usage[] =
    "usage: bench_attention [options]\n"
    "  -k N  KV heads (3)            -g N  query heads a KV head (3)   -d N  head_dim (64)\n"
    "  -c N  cells (6144)            -q N  query tokens (1)            -w N  workers (2)\n"
    "  -l N  layers (30)             -t N  tenths of a second (20)     -i NAME  instruction set (the best)\n"
    "  -j    JSON                    -r    raw against raw: what noise looks like\n";

static bool parse_isa(const char *name, gaac_isa *isa)
{
    for (int i = 0; i < GAAC_ISA_COUNT; i++) {
        if (strcmp(gaac_isa_name((gaac_isa)i), name) == 0 && gaac_isa_supported((gaac_isa)i)) {
            *isa = (gaac_isa)i;
            return true;
        }
    }
    return false;
}

static bool parse(int argc, char **argv, options *o)
{
    int option;
    while ((option = getopt(argc, argv, "k:g:d:c:q:w:l:t:i:jr")) != -1) {
        const unsigned n = optarg != NULL ? (unsigned)strtoul(optarg, NULL, 10) : 0;
        unsigned *field = option == 'k'   ? &o->kv_heads
                          : option == 'g' ? &o->group
                          : option == 'd' ? &o->head_dim
                          : option == 'c' ? &o->cells
                          : option == 'q' ? &o->query_tokens
                          : option == 'w' ? &o->workers
                          : option == 'l' ? &o->layers
                          : option == 't' ? &o->seconds_tenths
                                          : NULL;
        if (option == 'j')
            o->json = true;
        else if (option == 'r')
            o->raw = true;
        else if (option == 'i' ? optarg == NULL || !parse_isa(optarg, &o->isa) : field == NULL || n == 0)
            return false;
        if (field != NULL)
            *field = n;
    }
    return optind == argc && o->query_tokens <= o->cells;
}

int main(int argc, char **argv)
{
    bench b = {.o = {3, 3, 64, 6144, 1, 2, 30, 20, GAAC_ISA_C, false, false}};
    for (int i = 0; i < GAAC_ISA_COUNT; i++)
        b.o.isa = gaac_isa_supported((gaac_isa)i) ? (gaac_isa)i : b.o.isa;
    if (!parse(argc, argv, &b.o)) {
        fputs(usage, stderr);
        return 2;
    }
    gaac_cpu_tables(b.o.isa, &b.codec, &b.attention);
    const size_t elements = (size_t)b.o.query_tokens * b.o.kv_heads * b.o.group * b.o.head_dim;
    b.q = allocate(elements * sizeof(float));
    b.out[0] = allocate(elements * sizeof(float));
    b.out[1] = allocate(elements * sizeof(float));
    for (size_t i = 0; i < elements; i++)
        b.q[i] = normal() * 0.1f;
    b.cache[0] = make_cache(&b.o, b.o.raw ? GAAC_CACHE_RAW : GAAC_CACHE_CODED);
    b.cache[1] = make_cache(&b.o, GAAC_CACHE_RAW);
    fill(&b.o, b.cache[0], b.cache[1]);

    gaac_thread_pool *pool = NULL;
    gaac_error error;
    must(gaac_thread_pool_create(&pool, b.o.workers, NULL, &error), &error);
    b.executor = gaac_thread_pool_executor(pool);
    run(&b);
    gaac_thread_pool_destroy(pool);
    gaac_cache_destroy(b.cache[0]);
    gaac_cache_destroy(b.cache[1]);
    free(b.out[1]);
    free(b.out[0]);
    free(b.q);
    return 0;
}
