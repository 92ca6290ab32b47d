/* The compressed KV cache of one layer on a GPU, as an engine keeps it: calibrates on the device, appends two prompts,
 * then decodes 40 tokens of both from a CUDA graph, over coded blocks and, to compare, over raw ones. All outputs must
 * agree bit for bit, and all keys and values must come back. docs/cuda.md explains the calls. Keys and values are
 * random: there is no model here.
 *
 *     cc cuda_layer.c $(pkg-config --cflags --libs gaac gaac_cuda) -I CUDA/include -L CUDA/lib64 -lcudart -lm
 *
 * Ends with 77 where there is no GPU. */
#include <gaac/codec.h>
#include <gaac/gaac_cuda.h>

#include <cuda_runtime_api.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    KV_HEADS = 8,
    QUERY_HEADS = 32,
    HEAD_DIM = 128,
    ROW = KV_HEADS * HEAD_DIM, /* elements of a token's K or V */
    SEQUENCES = 2,
    STEPS = 40,
    PROMPT_0 = 3000,
    PROMPT_1 = 1237,
    PROMPTS = PROMPT_0 + PROMPT_1,
    SAMPLE = 4096,                                                                    /* tokens to calibrate on */
    SEQUENCE_BLOCKS = (PROMPT_0 + STEPS + GAAC_BLOCK_TOKENS - 1) / GAAC_BLOCK_TOKENS, /* of the longest */
    BLOCKS = SEQUENCES * SEQUENCE_BLOCKS,
    OUT = SEQUENCES * QUERY_HEADS * HEAD_DIM, /* elements that attention writes in a step */
    LSE = SEQUENCES * QUERY_HEADS,
    TRIAL_POOL = 32768 /* bytes; no block of this shape needs more */
};

static const gaac_shape shape = {KV_HEADS, HEAD_DIM, HEAD_DIM};
static const int32_t prompt[SEQUENCES] = {PROMPT_0, PROMPT_1};
static gaac_cuda *cuda;
static cudaStream_t stream;
static gaac_error error;

static void check_gaac(gaac_status status, const char *what)
{
    if (status != GAAC_OK) {
        fprintf(stderr, "%s: %s\n", what, error.message);
        exit(1);
    }
}
static void check_cuda(cudaError_t status, const char *what)
{
    if (status != cudaSuccess) {
        fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(status));
        exit(1);
    }
}
#define GAAC(call) check_gaac((call), #call)
#define CUDA(call) check_cuda((call), #call)

static void *host_memory(size_t bytes)
{
    void *memory = malloc(bytes);
    if (memory == NULL) {
        fprintf(stderr, "no memory for %zu bytes\n", bytes);
        exit(1);
    }
    return memory;
}
/* Zeroed. cudaMalloc's memory lies on 256-byte boundaries, more than any call needs. */
static void *device_memory(size_t bytes)
{
    void *memory = NULL;
    CUDA(cudaMalloc(&memory, bytes));
    CUDA(cudaMemset(memory, 0, bytes));
    return memory;
}
static void *upload(const void *host, size_t bytes)
{
    void *memory = device_memory(bytes);
    CUDA(cudaMemcpy(memory, host, bytes, cudaMemcpyHostToDevice));
    return memory;
}
/* Waits for all work on the stream. */
static void download(void *host, const void *device, size_t bytes)
{
    CUDA(cudaStreamSynchronize(stream));
    CUDA(cudaMemcpy(host, device, bytes, cudaMemcpyDeviceToHost));
}

/* ---- what a model would compute -------------------------------------------------------------- */

static double uniform(void)
{
    static uint64_t state = 0x9e3779b97f4a7c15;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (double)((state >> 11) + 1) / 9007199254740993.0;
}
/* Gaussian, each channel with a deviation of its own, as BF16 bits (cut off, not rounded). */
static void fill(uint16_t *values, size_t tokens, size_t row)
{
    for (size_t i = 0; i < tokens * row; i++) {
        const double deviation = exp2((double)(i % row * 7 % 16) / 4 - 2);
        const float value = (float)(deviation * sqrt(-2 * log(uniform())) * cos(6.283185307 * uniform()));
        uint32_t bits;
        memcpy(&bits, &value, sizeof bits);
        values[i] = (uint16_t)(bits >> 16);
    }
}
static gaac_kv_rows rows_of(const uint16_t *k, const uint16_t *v)
{
    return (gaac_kv_rows){k, v, ROW, HEAD_DIM, ROW, HEAD_DIM};
}

/* ---- a layer's cache ------------------------------------------------------------------------- */

static gaac_cuda_cache make_cache(uint32_t pool_bytes, uint32_t blocks, uint32_t raw_blocks, const void *windows)
{
    gaac_cuda_sizes sizes;
    GAAC(gaac_cuda_get_sizes(&shape, pool_bytes, &sizes, &error));
    return (gaac_cuda_cache){.shape = shape,
                             .pool_bytes = pool_bytes,
                             .blocks = blocks,
                             .slots = device_memory(blocks * sizes.slot_bytes),
                             .slot_stride = sizes.slot_bytes,
                             .entries = device_memory(blocks * sizes.entries_per_block * sizeof(uint32_t)),
                             .entry_stride = sizes.entries_per_block,
                             .raw = device_memory(raw_blocks * sizes.raw_bytes),
                             .raw_used = device_memory((raw_blocks + 31) / 32 * sizeof(uint32_t)),
                             .raw_blocks = raw_blocks,
                             .epochs = 1,
                             .windows = windows,
                             .counters = device_memory(sizeof(gaac_cuda_counters))};
}

static void free_cache(gaac_cuda_cache *cache)
{
    CUDA(cudaFree(cache->slots));
    CUDA(cudaFree(cache->entries));
    CUDA(cudaFree(cache->raw));
    CUDA(cudaFree(cache->raw_used));
    CUDA(cudaFree(cache->counters));
}

/* Windows from rows on the device, made ready for the kernels. */
static void *calibrate(const gaac_kv_rows *rows, uint32_t tokens)
{
    gaac_cuda_sizes sizes;
    GAAC(gaac_cuda_get_sizes(&shape, 0, &sizes, &error));
    uint32_t *counts = device_memory(sizes.histogram_counts * sizeof *counts);
    uint8_t *table = device_memory(sizes.window_table_bytes);
    void *windows = device_memory(sizes.window_bytes);
    GAAC(gaac_cuda_histogram_add(cuda, &shape, rows, tokens, counts, stream, &error));
    GAAC(gaac_cuda_choose_windows(cuda, &shape, counts, 0, table, stream, &error));
    GAAC(gaac_cuda_set_windows(cuda, &shape, table, windows, stream, &error));
    CUDA(cudaStreamSynchronize(stream));
    CUDA(cudaFree(counts));
    CUDA(cudaFree(table));
    return windows;
}

/* The capacity that slots should have: what blocks of `tokens` rows, which the windows were not chosen on, need. */
static uint32_t measure_pool(const gaac_kv_rows *rows, uint32_t tokens, const void *windows)
{
    const uint32_t count = tokens / GAAC_BLOCK_TOKENS;
    gaac_cuda_cache trial = make_cache(TRIAL_POOL, count, count, windows);
    const size_t entries = trial.entry_stride;
    int64_t *offsets = host_memory(count * sizeof *offsets);
    int32_t *blocks = host_memory(count * sizeof *blocks);
    for (uint32_t i = 0; i < count; i++) {
        offsets[i] = (int64_t)i * GAAC_BLOCK_TOKENS * ROW;
        blocks[i] = (int32_t)i;
    }
    int64_t *device_offsets = upload(offsets, count * sizeof *offsets);
    int32_t *device_blocks = upload(blocks, count * sizeof *blocks);
    const gaac_cuda_encode_args args = {
        .rows = *rows, .k_offsets = device_offsets, .blocks = device_blocks, .count = count};
    GAAC(gaac_cuda_encode(cuda, &trial, &args, stream, &error));

    uint32_t *entry = host_memory(count * entries * sizeof *entry), *needs = host_memory(count * sizeof *needs);
    download(entry, trial.entries, count * entries * sizeof *entry);
    for (uint32_t i = 0; i < count; i++) {
        needs[i] = 0;
        for (size_t j = 0; j < entries; j++) {
            const uint32_t e = entry[i * entries + j];
            needs[i] += e >> 31 ? TRIAL_POOL : (e >> 12 & 0xff) * 16; /* raw: too many exceptions, room is no help */
        }
    }
    const uint32_t pool_bytes = (gaac_choose_pool_bytes(&shape, needs, count) + 127) / 128 * 128;
    free(offsets);
    free(blocks);
    free(entry);
    free(needs);
    CUDA(cudaFree(device_offsets));
    CUDA(cudaFree(device_blocks));
    free_cache(&trial);
    return pool_bytes;
}

/* ---- decoding -------------------------------------------------------------------------------- */

/* Device memory that a step works in. */
typedef struct step_memory {
    int32_t *lengths, *block_table;
    uint16_t *k, *v, *q;
    void *workspace;
} step_memory;

/* What attention leaves: BF16 and the log of each softmax's sum. On the device. */
typedef struct step_output {
    uint16_t *out;
    float *lse;
} step_output;

static gaac_cuda_plan_args plan_of(const step_memory *step)
{
    return (gaac_cuda_plan_args){.shape = shape,
                                 .query_heads = QUERY_HEADS,
                                 .sequences = SEQUENCES,
                                 .query_tokens = 1,
                                 .lengths = step->lengths};
}

/* One token of each sequence into the cache, and attention over it. A model has many layers: it plans once, then
 * appends and attends in each. */
static void decode_step(const gaac_cuda_cache *cache, const step_memory *step, bool keep_raw, const step_output *to)
{
    const gaac_cuda_append_args append = {.rows = rows_of(step->k, step->v),
                                          .sequences = SEQUENCES,
                                          .tokens = SEQUENCES,
                                          .lengths = step->lengths,
                                          .block_table = step->block_table,
                                          .block_table_stride = SEQUENCE_BLOCKS,
                                          .keep_raw = keep_raw};
    GAAC(gaac_cuda_append(cuda, cache, &append, stream, &error));
    const gaac_cuda_attention_args attention = {.plan = plan_of(step),
                                                .workspace = step->workspace,
                                                .block_table = step->block_table,
                                                .block_table_stride = SEQUENCE_BLOCKS,
                                                .q = step->q,
                                                .q_token_stride = QUERY_HEADS * HEAD_DIM,
                                                .q_head_stride = HEAD_DIM,
                                                .out = to->out,
                                                .out_token_stride = QUERY_HEADS * HEAD_DIM,
                                                .out_head_stride = HEAD_DIM,
                                                .lse = to->lse,
                                                .scale = 1 / sqrtf(HEAD_DIM)};
    GAAC(gaac_cuda_attention(cuda, cache, &attention, stream, &error));
}

/* The prompts of all sequences at once: rows of one after those of the other. */
static void prefill(const gaac_cuda_cache *cache, const step_memory *step, const uint16_t *k, const uint16_t *v,
                    const int32_t *query_start, bool keep_raw)
{
    const gaac_cuda_append_args args = {.rows = rows_of(k, v),
                                        .sequences = SEQUENCES,
                                        .tokens = PROMPTS,
                                        .query_start = query_start,
                                        .lengths = step->lengths,
                                        .block_table = step->block_table,
                                        .block_table_stride = SEQUENCE_BLOCKS,
                                        .keep_raw = keep_raw};
    GAAC(gaac_cuda_append(cuda, cache, &args, stream, &error));
}

/* Expands a cache to BF16, as for an engine's own prefill kernel, and compares with what was put in: the prompts, then
 * a row a sequence for each step. */
static bool values_come_back(const gaac_cuda_cache *cache, const step_memory *step, const uint16_t *k,
                             const uint16_t *v)
{
    const size_t tokens = PROMPTS + SEQUENCES * STEPS, bytes = tokens * ROW * sizeof(uint16_t);
    const int64_t row_start[SEQUENCES] = {0, PROMPT_0 + STEPS};
    int64_t *device_row_start = upload(row_start, sizeof row_start);
    uint16_t *device_k = device_memory(bytes), *device_v = device_memory(bytes);
    const gaac_cuda_expand_args args = {.rows = {device_k, device_v, ROW, HEAD_DIM, ROW, HEAD_DIM},
                                        .sequences = SEQUENCES,
                                        .max_tokens = PROMPT_0 + STEPS,
                                        .lengths = step->lengths,
                                        .row_start = device_row_start,
                                        .block_table = step->block_table,
                                        .block_table_stride = SEQUENCE_BLOCKS};
    GAAC(gaac_cuda_expand(cuda, cache, &args, stream, &error));
    uint16_t *out_k = host_memory(bytes), *out_v = host_memory(bytes);
    download(out_k, device_k, bytes);
    download(out_v, device_v, bytes);
    bool same = true;
    for (int s = 0; s < SEQUENCES; s++)
        for (int cell = 0; cell < prompt[s] + STEPS; cell++) {
            const size_t out = (size_t)row_start[s] + (size_t)cell;
            const size_t in = (size_t)(cell < prompt[s] ? (s == 0 ? 0 : PROMPT_0) + cell
                                                        : PROMPTS + SEQUENCES * (cell - prompt[s]) + s);
            same = same && memcmp(out_k + out * ROW, k + in * ROW, ROW * sizeof *k) == 0 &&
                   memcmp(out_v + out * ROW, v + in * ROW, ROW * sizeof *v) == 0;
        }
    free(out_k);
    free(out_v);
    CUDA(cudaFree(device_k));
    CUDA(cudaFree(device_v));
    CUDA(cudaFree(device_row_start));
    return same;
}

/* Says what the cache holds and takes; false when it lost tokens or coded nothing. */
static bool report(const gaac_cuda_cache *cache)
{
    gaac_cuda_counters counters;
    gaac_cuda_sizes sizes;
    download(&counters, cache->counters, sizeof counters);
    GAAC(gaac_cuda_get_sizes(&shape, cache->pool_bytes, &sizes, &error));
    const uint64_t complete = (PROMPT_0 + STEPS) / GAAC_BLOCK_TOKENS + (PROMPT_1 + STEPS) / GAAC_BLOCK_TOKENS;
    const uint64_t entry_bytes = sizes.entries_per_block * sizeof(uint32_t);
    const uint64_t code = counters.encoded * (sizes.slot_bytes - cache->pool_bytes + entry_bytes) + counters.pool_bytes;
    printf("%llu blocks coded, %llu complete ones stay raw, %llu lost; %llu exceptions\n",
           (unsigned long long)counters.encoded, (unsigned long long)counters.fallbacks,
           (unsigned long long)counters.lost, (unsigned long long)counters.exceptions);
    if (counters.encoded + counters.fallbacks != complete || counters.encoded == 0 || counters.lost != 0) {
        fprintf(stderr, "of %llu complete blocks\n", (unsigned long long)complete);
        return false;
    }
    const double raw = (double)sizes.raw_bytes;
    const uint64_t resident = sizes.slot_bytes + entry_bytes;
    printf("a block: %zu bytes as BF16, %.0f coded (%.3f times less), %llu in memory (%.3f times less)\n",
           sizes.raw_bytes, (double)code / (double)counters.encoded, raw * (double)counters.encoded / (double)code,
           (unsigned long long)resident, raw / (double)resident);
    return true;
}

int main(void)
{
    int devices = 0;
    const cudaError_t asked = cudaGetDeviceCount(&devices);
    if (asked != cudaSuccess || devices == 0) {
        fprintf(stderr, "skipped: no GPU: %s\n", cudaGetErrorString(asked));
        return 77;
    }
    GAAC(gaac_cuda_create(&cuda, 0, NULL, &error));
    CUDA(cudaStreamCreate(&stream));

    /* Calibration: windows from one half of a sample, the slots' capacity from the other. */
    const size_t half = (size_t)SAMPLE / 2 * ROW;
    uint16_t *sample = host_memory(2 * half * sizeof *sample);
    fill(sample, SAMPLE, ROW);
    uint16_t *sample_k = upload(sample, 2 * half * sizeof *sample);
    fill(sample, SAMPLE, ROW);
    uint16_t *sample_v = upload(sample, 2 * half * sizeof *sample);
    free(sample);
    const gaac_kv_rows first = rows_of(sample_k, sample_v), second = rows_of(sample_k + half, sample_v + half);
    void *windows = calibrate(&first, SAMPLE / 2);
    const uint32_t pool_bytes = measure_pool(&second, SAMPLE / 2, windows);
    CUDA(cudaFree(sample_k));
    CUDA(cudaFree(sample_v));

    /* Raw blocks: one a sequence for the open block, and some for blocks that do not fit. */
    gaac_cuda_cache coded = make_cache(pool_bytes, BLOCKS, SEQUENCES + BLOCKS / 32 + 1, windows);
    gaac_cuda_cache raw = make_cache(pool_bytes, BLOCKS, BLOCKS, windows);

    /* What the model computes: the prompts, then a row a sequence for each step. */
    const size_t tokens = PROMPTS + SEQUENCES * STEPS, bytes = tokens * ROW * sizeof(uint16_t);
    uint16_t *k = host_memory(bytes), *v = host_memory(bytes), *q = host_memory((size_t)OUT * sizeof *q);
    fill(k, tokens, ROW);
    fill(v, tokens, ROW);
    uint16_t *device_k = upload(k, bytes), *device_v = upload(v, bytes);

    /* Any physical block may hold any block of a sequence. */
    int32_t block_table[BLOCKS], lengths[SEQUENCES];
    for (int i = 0; i < BLOCKS; i++)
        block_table[i] = BLOCKS - 1 - i * 7 % BLOCKS;
    const int32_t query_start[SEQUENCES + 1] = {0, PROMPT_0, PROMPTS};
    int32_t *device_query_start = upload(query_start, sizeof query_start);
    step_memory step = {.lengths = upload(prompt, sizeof prompt),
                        .block_table = upload(block_table, sizeof block_table),
                        .k = device_memory(SEQUENCES * ROW * sizeof(uint16_t)),
                        .v = device_memory(SEQUENCES * ROW * sizeof(uint16_t)),
                        .q = device_memory((size_t)OUT * sizeof(uint16_t))};
    const gaac_cuda_plan_args plan = plan_of(&step);
    size_t workspace_bytes = 0;
    GAAC(gaac_cuda_plan_bytes(cuda, &plan, &workspace_bytes, &error));
    step.workspace = device_memory(workspace_bytes);

    prefill(&coded, &step, device_k, device_v, device_query_start, false);
    prefill(&raw, &step, device_k, device_v, device_query_start, true);

    /* A step as a graph: everything that changes from step to step lies on the device. */
    const step_output of_coded = {device_memory(OUT * sizeof(uint16_t)), device_memory(LSE * sizeof(float))};
    const step_output of_raw = {device_memory(OUT * sizeof(uint16_t)), device_memory(LSE * sizeof(float))};
    cudaGraph_t graph;
    cudaGraphExec_t decode;
    CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    GAAC(gaac_cuda_plan(cuda, &plan, step.workspace, stream, &error));
    decode_step(&coded, &step, false, &of_coded);
    decode_step(&raw, &step, true, &of_raw);
    CUDA(cudaStreamEndCapture(stream, &graph));
    CUDA(cudaGraphInstantiate(&decode, graph, 0));

    size_t differences = 0;
    static uint16_t out_coded[OUT], out_raw[OUT];
    static uint32_t lse_coded[LSE], lse_raw[LSE]; /* bits */
    for (int n = 0; n < STEPS; n++) {
        for (int s = 0; s < SEQUENCES; s++)
            lengths[s] = prompt[s] + n + 1;
        fill(q, SEQUENCES, (size_t)QUERY_HEADS * HEAD_DIM);
        const size_t row = (PROMPTS + (size_t)n * SEQUENCES) * ROW, row_bytes = SEQUENCES * ROW * sizeof(uint16_t);
        CUDA(cudaMemcpy(step.lengths, lengths, sizeof lengths, cudaMemcpyHostToDevice));
        CUDA(cudaMemcpy(step.q, q, OUT * sizeof *q, cudaMemcpyHostToDevice));
        CUDA(cudaMemcpy(step.k, k + row, row_bytes, cudaMemcpyHostToDevice));
        CUDA(cudaMemcpy(step.v, v + row, row_bytes, cudaMemcpyHostToDevice));
        CUDA(cudaMemset(of_coded.out, 0xff, sizeof out_coded)); /* what is not written differs */
        CUDA(cudaMemset(of_coded.lse, 0xff, sizeof lse_coded));
        CUDA(cudaGraphLaunch(decode, stream));
        download(out_coded, of_coded.out, sizeof out_coded);
        download(out_raw, of_raw.out, sizeof out_raw);
        download(lse_coded, of_coded.lse, sizeof lse_coded);
        download(lse_raw, of_raw.lse, sizeof lse_raw);
        for (int i = 0; i < OUT; i++)
            differences += out_coded[i] != out_raw[i];
        for (int i = 0; i < LSE; i++)
            differences += lse_coded[i] != lse_raw[i];
    }

    const bool reported = report(&coded), back = values_come_back(&coded, &step, k, v);
    printf("%d steps of %d sequences, kernel \"%s\": %zu outputs differ from raw mode's; keys and values %s\n", STEPS,
           SEQUENCES, gaac_cuda_attention_kernel(cuda, &shape), differences,
           back ? "come back bit for bit" : "DO NOT COME BACK");

    CUDA(cudaGraphExecDestroy(decode));
    CUDA(cudaGraphDestroy(graph));
    free_cache(&coded);
    free_cache(&raw);
    void *const device[] = {windows,      device_k,     device_v,   device_query_start, step.lengths,
                            step.k,       step.v,       step.q,     step.block_table,   step.workspace,
                            of_coded.out, of_coded.lse, of_raw.out, of_raw.lse};
    for (size_t i = 0; i < sizeof device / sizeof device[0]; i++)
        CUDA(cudaFree(device[i]));
    CUDA(cudaStreamDestroy(stream));
    gaac_cuda_destroy(cuda);
    free(k);
    free(v);
    free(q);
    return reported && back && differences == 0 ? 0 : 1;
}
