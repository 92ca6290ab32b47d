/* Measures the codec on a KV dump: calibrate on one part of the tokens, evaluate on the rest. */
#ifndef GAAC_TOOL_CODEC_BENCH_H
#define GAAC_TOOL_CODEC_BENCH_H

#include "kv_dump.h"

typedef struct codec_bench_options {
    double split;       /* share of the tokens that calibrates; not used with a calibration dump */
    uint32_t tile_cap;  /* escape bytes that the paper's scheme reserves a tile, for its resident ratio */
    bool ablations;     /* also the paper's 4+raw and 2+3+4+raw */
    double min_seconds; /* of each timing */
} codec_bench_options;

/* Ratios are BF16 bytes over the bytes that they take. */
typedef struct codec_bench_result {
    uint64_t calibration_tokens, evaluation_tokens; /* a layer */
    double coded_ratio;                             /* exact code, no slots: blocks that can't be coded count as BF16 */
    double resident_ratio; /* slots of the chosen capacity, raw fallbacks, entries, block table */
    double paper_coded_ratio, paper_resident_ratio;
    double paper_4_raw_coded_ratio, paper_2_3_4_raw_coded_ratio; /* 0 unless asked for */
    double paper_groups[4];                     /* shares of the paper's 2-, 3-, 4-bit and raw groups */
    double exceptions_per_tile;                 /* tile: 2048 elements (16 tokens x 128 channels) */
    double groups_4bit;                         /* share of the groups of eight */
    double raw_blocks;                          /* share of the blocks that stay raw at the chosen capacity */
    uint32_t pool_bytes_least, pool_bytes_most; /* chosen capacities over the layers */
    bool roundtrip_exact;                       /* every scheme gave every bit back */
    double encode_gbps, decode_gbps;            /* 1e9 BF16 bytes a second, one thread, production */
    uint64_t working_set_bytes;                 /* BF16 bytes that a timed pass goes through */
} codec_bench_result;

/* calibration: another dump of the same shape that calibrates as a whole (the evaluation is then the
 * whole of `dump`), or NULL to split `dump`. Whole blocks of 16 tokens only: up to 15 at the end of a part are
 * left out. `name` is for progress. */
gaac_status codec_bench_run(const kv_dump *dump, const kv_dump *calibration, const codec_bench_options *options,
                            const char *name, codec_bench_result *result, gaac_error *error);

#endif
