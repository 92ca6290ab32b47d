/* bench_ggml: attention of GAAC (coded and raw blocks) and of ggml's CPU backend (F16, BF16 and Q8_0 caches) on the
 * same keys, values and queries, in turns, in one process. Prints a table, or with --json an array.
 *
 *   bench_ggml [--json] [--threads N] [--tokens T --query-tokens Q] [--seconds S] [--backends FOLDER]
 *
 * 32 query and 8 KV heads of 128. Without --tokens two shapes: decoding at 64K tokens, and the prefill of 512 tokens
 * after 6,656. Without --threads 1, and all of the machine's. GAAC_CPU lowers GAAC's kernels, not ggml's. */
#include "ggml_attention.h"

#include "json.h"
#include "kv_sample.h"
#include "tool.h"

#include <getopt.h>
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { KV_HEADS = 8, GQA = 4, HEAD_DIM = 128, MOST_ROUNDS = 1000, LEAST_ROUNDS = 5 };

/* A side that takes longer (ggml's prefill from BF16 or Q8_0) has SLOW_SAMPLES samples, the warm-up among them: noise
 * is small beside such times, and patience too. */
#define SLOW_SECONDS 1.0
enum { SLOW_SAMPLES = 2 };

enum { CODED, RAW, GGML_F16, GGML_BF16, GGML_Q8_0, SIDES };
static const char *const side_names[SIDES] = {"gaac_coded", "gaac_raw", "ggml_f16", "ggml_bf16", "ggml_q8_0"};
static const enum ggml_type side_types[SIDES] = {
    [GGML_F16] = GGML_TYPE_F16, [GGML_BF16] = GGML_TYPE_BF16, [GGML_Q8_0] = GGML_TYPE_Q8_0};

/* Mean square error over mean square, each side against GAAC raw: what a benchmark of another computation would not
 * pass. Q and P are rounded differently, and 8-bit blocks mix channels of different scale. */
static const double most_error[SIDES] = {[GGML_F16] = 1e-3, [GGML_BF16] = 1e-3, [GGML_Q8_0] = 1e-2};

typedef struct options {
    bool json;
    unsigned threads; /* 0: both */
    uint64_t tokens;  /* 0: both shapes */
    uint32_t query_tokens;
    double seconds;
    const char *backends;
} options;

typedef struct bench {
    attention_shape shape;
    unsigned threads;
    ggml_host host;
    ggml_attention ggml[SIDES];
    gaac_cache *cache[2];
    gaac_thread_pool *pool;
    gaac_executor executor;
    float *q, *out[2];
    double *seconds[SIDES];
    unsigned samples[SIDES]; /* in seconds[] */
    unsigned rounds;
    double coded_ratio;
} bench;

/* ---- setting up ------------------------------------------------------------------------------ */

static gaac_status make_cache(bench *b, gaac_cache_mode mode, const kv_dump *sample, gaac_error *error)
{
    const gaac_cache_config config = {
        .shapes = &sample->shape, .layers = 1, .sequences = 1, .tokens_per_sequence = b->shape.tokens, .mode = mode};
    const gaac_status status = gaac_cache_create(&b->cache[mode], &config, error);
    return status == GAAC_OK ? kv_sample_fill(sample, b->cache[mode], b->shape.tokens, error) : status;
}

/* The rows that the caches hold, as one array of K and one of V for ggml. */
static bool make_ggml(bench *b)
{
    const size_t row = (size_t)KV_HEADS * HEAD_DIM;
    uint16_t *rows[2];
    gaac_error error;
    bool made = true;
    for (gaac_part part = GAAC_K; part <= GAAC_V; part++) {
        rows[part] = tool_alloc(b->shape.tokens * row * sizeof(uint16_t));
        made =
            made && gaac_cache_read(b->cache[RAW], 0, part, 0, 0, b->shape.tokens, rows[part], row, &error) == GAAC_OK;
    }
    for (unsigned side = GGML_F16; side < SIDES && made; side++)
        made = ggml_attention_create(&b->ggml[side], &b->host, &b->shape, side_types[side], rows[GAAC_K], rows[GAAC_V],
                                     b->q);
    free(rows[GAAC_K]);
    free(rows[GAAC_V]);
    return made;
}

static int make(bench *b, const options *o)
{
    const size_t elements = (size_t)b->shape.query_tokens * KV_HEADS * GQA * HEAD_DIM;
    const gaac_shape shape = {KV_HEADS, HEAD_DIM, HEAD_DIM};
    gaac_cache_stats stats;
    gaac_error error;
    kv_dump sample;
    b->q = tool_alloc(elements * sizeof *b->q);
    kv_sample_normal(b->q, elements, 0);
    for (unsigned side = 0; side < SIDES; side++) {
        b->seconds[side] = tool_alloc(MOST_ROUNDS * sizeof(double));
        if (side <= RAW)
            b->out[side] = tool_alloc(elements * sizeof(float));
    }
    kv_sample_draw(&sample, &shape);
    gaac_status status = make_cache(b, GAAC_CACHE_CODED, &sample, &error);
    if (status == GAAC_OK)
        status = make_cache(b, GAAC_CACHE_RAW, &sample, &error);
    kv_sample_release(&sample);
    if (status == GAAC_OK)
        status = gaac_cache_get_stats(b->cache[CODED], 0, &stats, &error);
    if (status == GAAC_OK)
        status = gaac_thread_pool_create(&b->pool, b->threads, NULL, &error);
    if (status != GAAC_OK)
        return tool_fail_status("bench_ggml", &error);
    b->coded_ratio = (double)stats.bytes_finalized_bf16 / (double)stats.bytes_finalized_code;
    b->executor = gaac_thread_pool_executor(b->pool);
    if (!ggml_host_open(&b->host, o->backends, (int)b->threads) || !make_ggml(b))
        return tool_fail(TOOL_FAILED, "ggml's CPU backend in %s can't be used; scripts/get-stock.sh builds one",
                         o->backends);
    return TOOL_OK;
}

static void clean_up(bench *b)
{
    for (unsigned side = 0; side < SIDES; side++) {
        if (b->ggml[side].context != NULL)
            ggml_attention_destroy(&b->ggml[side]);
        free(b->seconds[side]);
    }
    ggml_host_close(&b->host);
    gaac_thread_pool_destroy(b->pool);
    for (unsigned side = CODED; side <= RAW; side++) {
        gaac_cache_destroy(b->cache[side]);
        free(b->out[side]);
    }
    free(b->q);
}

/* ---- measuring ------------------------------------------------------------------------------- */

static double cpu_seconds(void)
{
    struct timespec time;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* ggml's and OpenMP's workers go on polling for a while after a graph, and would slow the next side down. Waits until
 * the process does nothing; a second is plenty. */
static bool wait_until_quiet(void)
{
    const struct timespec pause = {0, 5000000};
    for (unsigned i = 0; i < 200; i++) {
        const double before = cpu_seconds();
        nanosleep(&pause, NULL);
        if (cpu_seconds() - before < 0.0005)
            return true;
    }
    return false;
}

static bool run_gaac(bench *b, unsigned side)
{
    const size_t row = (size_t)KV_HEADS * GQA * HEAD_DIM;
    const gaac_attention_args args = {.cells = b->shape.tokens,
                                      .query_tokens = b->shape.query_tokens,
                                      .query_heads = KV_HEADS * GQA,
                                      .q = b->q,
                                      .q_token_stride = row,
                                      .q_head_stride = HEAD_DIM,
                                      .out = b->out[side],
                                      .out_token_stride = row,
                                      .out_head_stride = HEAD_DIM,
                                      .scale = 1 / sqrtf(HEAD_DIM),
                                      .mask_kind = GAAC_MASK_CAUSAL,
                                      .causal_first = b->shape.tokens - b->shape.query_tokens};
    return gaac_attention(b->cache[side], &args, &b->executor, NULL) == GAAC_OK;
}

static bool is_slow(const bench *b, unsigned side)
{
    return b->samples[side] > 0 && b->seconds[side][0] > SLOW_SECONDS;
}

/* Every side once, the first another each time. */
static int run_round(bench *b, unsigned round)
{
    for (unsigned turn = 0; turn < SIDES; turn++) {
        const unsigned side = (turn + round) % SIDES;
        if (is_slow(b, side) && b->samples[side] >= SLOW_SAMPLES)
            continue;
        if (!wait_until_quiet())
            return tool_fail(TOOL_FAILED, "threads of ggml don't come to rest; set OMP_WAIT_POLICY=passive");
        const double start = tool_seconds();
        const bool done = side <= RAW ? run_gaac(b, side) : ggml_attention_run(&b->ggml[side]);
        b->seconds[side][b->samples[side]++] = tool_seconds() - start;
        if (!done)
            return tool_fail(TOOL_FAILED, "%s: attention failed; use a smaller shape", side_names[side]);
    }
    return TOOL_OK;
}

/* All sides computed the same? */
static int check_outputs(const bench *b)
{
    const size_t elements = (size_t)b->shape.query_tokens * KV_HEADS * GQA * HEAD_DIM;
    if (memcmp(b->out[CODED], b->out[RAW], elements * sizeof(float)) != 0)
        return tool_fail(TOOL_FAILED, "GAAC's coded and raw outputs differ; report this as a bug of GAAC");
    for (unsigned side = GGML_F16; side < SIDES; side++) {
        const float *out = ggml_attention_output(&b->ggml[side]);
        double error = 0, all = 0;
        for (size_t i = 0; i < elements; i++) {
            const double difference = (double)out[i] - b->out[RAW][i];
            error += difference * difference;
            all += (double)b->out[RAW][i] * b->out[RAW][i];
        }
        if (!(error <= most_error[side] * all))
            return tool_fail(TOOL_FAILED, "%s computes something else than GAAC (error %.2g of the mean square)",
                             side_names[side], error / all);
    }
    return TOOL_OK;
}

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(const bench *b, unsigned side)
{
    double sorted[MOST_ROUNDS];
    const unsigned count = b->samples[side];
    memcpy(sorted, b->seconds[side], count * sizeof *sorted);
    qsort(sorted, count, sizeof *sorted, compare_doubles);
    return count % 2 ? sorted[count / 2] : (sorted[count / 2 - 1] + sorted[count / 2]) / 2;
}

static int measure(bench *b, double seconds)
{
    int code = run_round(b, 0); /* warms up */
    if (code == TOOL_OK)
        code = check_outputs(b);
    for (unsigned side = 0; side < SIDES; side++)
        b->samples[side] = is_slow(b, side);
    const double start = tool_seconds();
    while (code == TOOL_OK && b->rounds < MOST_ROUNDS && (b->rounds < LEAST_ROUNDS || tool_seconds() - start < seconds))
        code = run_round(b, b->rounds++);
    return code;
}

/* ---- reports --------------------------------------------------------------------------------- */

static void add_json(cJSON *array, const bench *b)
{
    char name[64];
    cJSON *json = cJSON_CreateObject();
    cJSON_AddStringToObject(json, "isa", gaac_cpu_isa());
    cJSON_AddNumberToObject(json, "threads", b->threads);
    cJSON_AddNumberToObject(json, "tokens", (double)b->shape.tokens);
    cJSON_AddNumberToObject(json, "query_tokens", b->shape.query_tokens);
    cJSON_AddNumberToObject(json, "head_dim", HEAD_DIM);
    cJSON_AddNumberToObject(json, "query_heads", KV_HEADS * GQA);
    cJSON_AddNumberToObject(json, "kv_heads", KV_HEADS);
    cJSON_AddNumberToObject(json, "rounds", b->rounds);
    json_add_rounded(json, "coded_ratio", b->coded_ratio, 4);
    for (unsigned side = 0; side < SIDES; side++) {
        snprintf(name, sizeof name, "%s_ms", side_names[side]);
        json_add_rounded(json, name, 1e3 * median(b, side), 3);
    }
    for (unsigned side = GGML_F16; side < SIDES; side++) {
        snprintf(name, sizeof name, "fused_over_%s", side_names[side]);
        json_add_rounded(json, name, median(b, side) / median(b, CODED), 3);
        snprintf(name, sizeof name, "raw_over_%s", side_names[side]);
        json_add_rounded(json, name, median(b, side) / median(b, RAW), 3);
    }
    cJSON_AddItemToArray(array, json);
}

static void print_heading(void)
{
    printf("Attention, %d query and %d KV heads of %d, milliseconds (median); in brackets, how many times faster GAAC "
           "coded is.\n\n",
           KV_HEADS * GQA, KV_HEADS, HEAD_DIM);
    printf("%-10s %7s %7s %7s %10s %8s %17s %17s %17s\n", "isa", "threads", "tokens", "queries", "GAAC coded",
           "GAAC raw", "ggml F16", "ggml BF16", "ggml Q8_0");
}

static void print_row(const bench *b)
{
    printf("%-10s %7u %7llu %7u %10.2f %8.2f", gaac_cpu_isa(), b->threads, (unsigned long long)b->shape.tokens,
           b->shape.query_tokens, 1e3 * median(b, CODED), 1e3 * median(b, RAW));
    for (unsigned side = GGML_F16; side < SIDES; side++) {
        char text[40];
        snprintf(text, sizeof text, "%.2f (%.2fx)", 1e3 * median(b, side), median(b, side) / median(b, CODED));
        printf(" %17s", text);
    }
    printf("\n");
    fflush(stdout);
}

/* ---- the whole ------------------------------------------------------------------------------- */

static int run(const options *o, unsigned threads, uint64_t tokens, uint32_t query_tokens, cJSON *array)
{
    bench b = {.shape = {KV_HEADS, GQA, HEAD_DIM, query_tokens, tokens}, .threads = threads};
    int code = make(&b, o);
    if (code == TOOL_OK)
        code = measure(&b, o->seconds);
    if (code == TOOL_OK && array)
        add_json(array, &b);
    else if (code == TOOL_OK)
        print_row(&b);
    clean_up(&b);
    return code;
}

static int run_shapes(const options *o, unsigned threads, cJSON *array)
{
    if (o->tokens != 0)
        return run(o, threads, o->tokens, o->query_tokens, array);
    const int code = run(o, threads, 65536, 1, array);
    return code == TOOL_OK ? run(o, threads, 6656 + 512, 512, array) : code;
}

static unsigned machine_threads(void)
{
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? (unsigned)CPU_COUNT(&set) : 1;
}

static int usage(void)
{
    return tool_fail(TOOL_USAGE, "usage: bench_ggml [--json] [--threads N] [--tokens T --query-tokens Q] [--seconds S] "
                                 "[--backends FOLDER]; T a multiple of 256, at least 1024");
}

static int parse(int argc, char **argv, options *o)
{
    static const struct option names[] = {
        {"json", no_argument, NULL, 'j'},
        {"threads", required_argument, NULL, 't'},
        {"tokens", required_argument, NULL, 'c'},
        {"query-tokens", required_argument, NULL, 'q'},
        {"seconds", required_argument, NULL, 's'},
        {"backends", required_argument, NULL, 'b'},
        {NULL, 0, NULL, 0},
    };
    *o = (options){.query_tokens = 1, .seconds = 3, .backends = STOCK_BACKENDS};
    bool sound = true;
    for (int option; sound && (option = getopt_long(argc, argv, "", names, NULL)) != -1;) {
        uint64_t number = 0;
        if (option == 'j')
            o->json = true;
        else if (option == 'b')
            o->backends = optarg;
        else
            sound =
                (option == 't' || option == 'c' || option == 'q' || option == 's') &&
                tool_parse_number(optarg, option == 's' ? 0 : 1, option == 't' ? machine_threads() : 1 << 20, &number);
        if (option == 't')
            o->threads = (unsigned)number;
        else if (option == 'c')
            o->tokens = number;
        else if (option == 'q')
            o->query_tokens = (uint32_t)number;
        else if (option == 's')
            o->seconds = (double)number;
    }
    const bool fits = o->tokens == 0 ? o->query_tokens == 1
                                     : o->tokens % 256 == 0 && o->tokens >= 1024 && o->query_tokens <= o->tokens;
    return sound && fits && optind == argc ? TOOL_OK : usage();
}

int main(int argc, char **argv)
{
    options o;
    int code = parse(argc, argv, &o);
    if (code != TOOL_OK)
        return code;
    cJSON *array = o.json ? cJSON_CreateArray() : NULL;
    if (!array)
        print_heading();
    const unsigned all = machine_threads();
    if (o.threads != 0)
        code = run_shapes(&o, o.threads, array);
    else
        code = run_shapes(&o, 1, array);
    if (code == TOOL_OK && o.threads == 0 && all > 1)
        code = run_shapes(&o, all < 2 ? all : 2, array);
    if (array) {
        const int printed = json_print(array);
        code = code != TOOL_OK ? code : printed;
    }
    return code;
}
