/* Times gaac_attention over a coded cache and over a cache in raw mode that hold the same keys and values. */
#ifndef GAAC_TOOL_ATTENTION_BENCH_H
#define GAAC_TOOL_ATTENTION_BENCH_H

#include "gaac/gaac.h"
#include "kv_dump.h"

typedef struct attention_size {
    gaac_shape shape;
    uint32_t layers;
    uint64_t tokens; /* cells of a layer */
} attention_size;

/* Two caches with the same content, and what coding made of it. */
typedef struct attention_caches {
    gaac_cache *coded, *raw;
    attention_size size;
    double coded_ratio, resident_ratio; /* BF16 bytes over exact code; over slots, raw blocks and table entries */
    double raw_blocks;                  /* share of the coded cache's blocks that are not coded */
} attention_caches;

/* Fills both from a dump, or from drawn data of the shape when sample is NULL. */
gaac_status attention_caches_create(attention_caches *caches, const attention_size *size, const kv_dump *sample,
                                    gaac_error *error);
void attention_caches_destroy(attention_caches *caches);
/* BF16 bytes of all keys and values, which throughput is counted in. */
double attention_bf16_bytes(const attention_size *size);

typedef struct attention_bench_options {
    uint32_t gqa, query_tokens;
    unsigned threads;
    double seconds;      /* rounds go on for about this long ... */
    unsigned min_rounds; /* ... and are at least so many */
} attention_bench_options;

/* A round is a pass over memory (the read test), one of attention over all layers of the coded cache and one over
 * the raw: the read test also leaves both the same caches. Medians are over rounds. */
typedef struct attention_bench_result {
    double fused_gbps, fused_best_gbps; /* coded: 1e9 BF16 bytes of keys and values a second */
    double raw_gbps, raw_best_gbps;
    double fused_over_raw;           /* median of the rounds' own ratios */
    double fused_over_raw_best;      /* best pass over best pass */
    double read_gbps;                /* best pass of plain loads by as many threads */
    double fused_gflops, raw_gflops; /* of the medians, 4 * head_dim operations a score */
    unsigned rounds;
    bool bit_identical; /* every output of every round: coded against raw */
} attention_bench_result;

gaac_status attention_bench_run(const attention_caches *caches, const attention_bench_options *options,
                                attention_bench_result *result, gaac_error *error);

#endif
