/* gaac bench attention: attention over coded and raw blocks, side by side, as a table or for scripts. */
#include <getopt.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "attention_bench.h"
#include "cmd_bench.h"
#include "json.h"
#include "tool.h"

static const char help[] =
    "gaac bench attention - how fast attention reads compressed keys and values on this machine\n"
    "\n"
    "Examples:\n"
    "  gaac bench attention                                table: head_dim 64 and 128, GQA 1, 4, 8, each kernel set\n"
    "  gaac bench attention --isa avx2 --threads 2         fewer rows\n"
    "  gaac bench attention --json --head-dim 128 --gqa 4  one measurement, for scripts\n"
    "  gaac bench attention --kv dump.npy                  with the keys and values of a model\n"
    "\n"
    "Options (a table takes several values, with commas, for the first four; --json takes one):\n"
    "  --head-dim D       channels of a head (default 64,128; JSON 128)\n"
    "  --gqa G            query heads that share a KV head (default 1,4,8; JSON 4)\n"
    "  --threads N        up to this machine's (default 1 and 2; JSON all)\n"
    "  --isa NAME         c, avx2, avx512, avx512bf16 or amx (default all that the machine has; JSON the best)\n"
    "  --kv-heads H       KV heads (default 8)\n"
    "  --tokens T         tokens of context, at least 1024 (default: 512 MiB of BF16; 64 MiB with plain C)\n"
    "  --layers L         layers of that many tokens, one call each (default 1)\n"
    "  --query-tokens Q   1 is decoding, more is prefill at the end of the context (default 1)\n"
    "  --kv FILE.npy      keys and values from a dump, repeated to that length (default: drawn, normal in a channel)\n"
    "  --seconds S        of each measurement (default 1)\n"
    "  --json             print one JSON object\n"
    "  --help             this text\n"
    "\n"
    "fused: attention over coded blocks. raw: the same kernels over the same values as BF16. Both in GB/s of BF16,\n"
    "median and (best) of alternating passes. read: this machine's read bandwidth with as many threads, plain loads.\n";

enum {
    MOST_VALUES = 16,
    MOST_ISAS = 32,      /* kernel sets are bits of a word */
    LEAST_TOKENS = 1024, /* what the cache calibrates on: below it nothing is coded */
    NOT_THIS_ISA = 77    /* exit code of a child whose kernel set the machine lacks */
};
#define WORKING_SET (512.0 * (1 << 20))
#define PLAIN_C_WORKING_SET (64.0 * (1 << 20)) /* limited by arithmetic: more says nothing, and takes minutes */

enum {
    OPT_HEAD_DIM = 256,
    OPT_GQA,
    OPT_THREADS,
    OPT_ISA,
    OPT_KV_HEADS,
    OPT_TOKENS,
    OPT_LAYERS,
    OPT_QUERY_TOKENS,
    OPT_KV,
    OPT_SECONDS,
    OPT_JSON
};

static const struct option long_options[] = {
    {"head-dim", required_argument, NULL, OPT_HEAD_DIM},
    {"gqa", required_argument, NULL, OPT_GQA},
    {"threads", required_argument, NULL, OPT_THREADS},
    {"isa", required_argument, NULL, OPT_ISA},
    {"kv-heads", required_argument, NULL, OPT_KV_HEADS},
    {"tokens", required_argument, NULL, OPT_TOKENS},
    {"layers", required_argument, NULL, OPT_LAYERS},
    {"query-tokens", required_argument, NULL, OPT_QUERY_TOKENS},
    {"kv", required_argument, NULL, OPT_KV},
    {"seconds", required_argument, NULL, OPT_SECONDS},
    {"json", no_argument, NULL, OPT_JSON},
    {"help", no_argument, NULL, 'h'},
    {NULL, 0, NULL, 0},
};

typedef struct value_list {
    uint32_t value[MOST_VALUES];
    unsigned count; /* 0: not given */
} value_list;

typedef struct arguments {
    value_list head_dims, gqas, threads;
    uint32_t isas; /* bit i: tool_isa_names[i]; 0: not given */
    uint32_t kv_heads, layers, query_tokens;
    uint64_t tokens; /* 0: by the working set */
    double seconds;
    const char *kv;
    kv_dump dump; /* open when kv is given */
    bool json, help;
} arguments;

/* ---- the command line ------------------------------------------------------------------------ */

static unsigned machine_threads(void)
{
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? (unsigned)CPU_COUNT(&set) : 1;
}

/* Whole numbers with commas. `range` says what is allowed. */
static int parse_list(const char *name, uint64_t least, uint64_t most, const char *range, value_list *list)
{
    char *text = tool_format("%s", optarg), *rest = text;
    bool sound = true;
    list->count = 0;
    for (char *word; sound && (word = strsep(&rest, ",")) != NULL;) {
        uint64_t value;
        sound = list->count < MOST_VALUES && tool_parse_number(word, least, most, &value);
        if (sound)
            list->value[list->count++] = (uint32_t)value;
    }
    free(text);
    return sound ? TOOL_OK : tool_fail(TOOL_USAGE, "%s %s: give %s", name, optarg, range);
}

static int parse_head_dims(arguments *a)
{
    const int code = parse_list("--head-dim", 16, GAAC_MAX_HEAD_DIM, "multiples of 16 from 16 to 1024", &a->head_dims);
    for (unsigned i = 0; code == TOOL_OK && i < a->head_dims.count; i++)
        if (a->head_dims.value[i] % 16)
            return tool_fail(TOOL_USAGE, "--head-dim %s: give multiples of 16 from 16 to 1024", optarg);
    return code;
}

static int parse_threads(arguments *a)
{
    char range[64];
    snprintf(range, sizeof range, "1 to %u; this process may use %u CPUs", machine_threads(), machine_threads());
    return parse_list("--threads", 1, machine_threads(), range, &a->threads);
}

/* Adds a kernel set; false for no known one. */
static bool add_isa(arguments *a, const char *name)
{
    for (unsigned i = 0; i < MOST_ISAS && tool_isa_names[i]; i++) {
        if (!strcmp(name, tool_isa_names[i])) {
            a->isas |= UINT32_C(1) << i;
            return true;
        }
    }
    return false;
}

static int parse_isas(arguments *a)
{
    char *text = tool_format("%s", optarg), *rest = text;
    int code = TOOL_OK;
    for (char *word; code == TOOL_OK && (word = strsep(&rest, ",")) != NULL;) {
        if (!add_isa(a, word)) {
            char *known = tool_list_isas();
            code = tool_fail(TOOL_USAGE, "--isa %s: give %s", optarg, known);
            free(known);
        }
    }
    free(text);
    return code;
}

static int parse_size(const char *name, uint64_t least, uint64_t most, uint64_t *value)
{
    if (tool_parse_number(optarg, least, most, value))
        return TOOL_OK;
    return tool_fail(TOOL_USAGE, "%s %s: give a whole number from %llu to %llu", name, optarg,
                     (unsigned long long)least, (unsigned long long)most);
}

static int parse_seconds(arguments *a)
{
    char *end;
    a->seconds = strtod(optarg, &end);
    if (end == optarg || *end || !(a->seconds >= 0 && a->seconds <= 3600))
        return tool_fail(TOOL_USAGE, "--seconds %s: give a number of seconds from 0 to 3600", optarg);
    return TOOL_OK;
}

static int parse_option(int option, arguments *a)
{
    uint64_t number = 0;
    int code;
    switch (option) {
    case OPT_HEAD_DIM:
        return parse_head_dims(a);
    case OPT_GQA:
        return parse_list("--gqa", 1, 128, "whole numbers from 1 to 128", &a->gqas);
    case OPT_THREADS:
        return parse_threads(a);
    case OPT_ISA:
        return parse_isas(a);
    case OPT_SECONDS:
        return parse_seconds(a);
    case OPT_TOKENS:
        return parse_size("--tokens", LEAST_TOKENS, 1 << 28, &a->tokens);
    case OPT_KV_HEADS:
        code = parse_size("--kv-heads", 1, GAAC_MAX_KV_HEADS, &number);
        a->kv_heads = (uint32_t)number;
        return code;
    case OPT_LAYERS:
        code = parse_size("--layers", 1, 1024, &number);
        a->layers = (uint32_t)number;
        return code;
    default:
        code = parse_size("--query-tokens", 1, 1 << 16, &number);
        a->query_tokens = (uint32_t)number;
        return code;
    }
}

/* What one JSON object can't hold. */
static int check_json(const arguments *a)
{
    if (a->head_dims.count > 1 || a->gqas.count > 1 || a->threads.count > 1 || (a->isas & (a->isas - 1)) != 0)
        return tool_fail(TOOL_USAGE, "--json is one measurement; give one value for each option, or leave --json out");
    return TOOL_OK;
}

static void set_default(value_list *list, bool one, const value_list *table, uint32_t json)
{
    if (list->count == 0)
        *list = one ? (value_list){{json}, 1} : *table;
}

static void fill_defaults(arguments *a)
{
    const uint32_t all = machine_threads();
    set_default(&a->head_dims, a->json, &(value_list){{64, 128}, 2}, 128);
    set_default(&a->gqas, a->json, &(value_list){{1, 4, 8}, 3}, 4);
    set_default(&a->threads, a->json, &(value_list){{1, 2}, all > 1 ? 2 : 1}, all);
    if (a->kv_heads == 0)
        a->kv_heads = 8;
    const char *cpu = getenv("GAAC_CPU");
    if (a->isas == 0 && cpu)
        (void)add_isa(a, cpu); /* main has checked it */
}

static int parse(int argc, char **argv, arguments *a)
{
    *a = (arguments){.layers = 1, .query_tokens = 1, .seconds = 1};
    opterr = 0;
    for (int option; (option = getopt_long(argc, argv, ":h", long_options, NULL)) != -1;) {
        int code = TOOL_OK;
        if (option == 'h') {
            a->help = true;
            return TOOL_OK;
        }
        if (option == '?' || option == ':')
            return tool_bad_option("bench attention", option, argv);
        if (option == OPT_JSON)
            a->json = true;
        else if (option == OPT_KV)
            a->kv = optarg;
        else
            code = parse_option(option, a);
        if (code != TOOL_OK)
            return code;
    }
    if (optind < argc)
        return tool_fail(TOOL_USAGE, "%s: gaac bench attention takes options only; a dump goes with --kv",
                         argv[optind]);
    if (a->tokens != 0 && a->query_tokens > a->tokens)
        return tool_fail(TOOL_USAGE, "--query-tokens %u: more than the %llu tokens of context; raise --tokens",
                         a->query_tokens, (unsigned long long)a->tokens);
    return a->json ? check_json(a) : TOOL_OK;
}

/* A dump brings its shape. */
static int open_dump(arguments *a)
{
    gaac_error error;
    if (!a->kv)
        return TOOL_OK;
    if (kv_dump_open(&a->dump, a->kv, &error) != GAAC_OK)
        return tool_fail_status(a->kv, &error);
    const gaac_shape *shape = &a->dump.shape;
    if ((a->kv_heads && a->kv_heads != shape->kv_heads) ||
        (a->head_dims.count && (a->head_dims.count > 1 || a->head_dims.value[0] != shape->head_dim_k))) {
        const int code = tool_fail(TOOL_USAGE, "%s has %u KV heads of %u channels; leave --kv-heads and --head-dim out",
                                   a->kv, shape->kv_heads, shape->head_dim_k);
        kv_dump_close(&a->dump);
        return code;
    }
    a->kv_heads = shape->kv_heads;
    a->head_dims = (value_list){{shape->head_dim_k}, 1};
    return TOOL_OK;
}

/* ---- measuring ------------------------------------------------------------------------------- */

static bool is_plain_c(void)
{
    return !strcmp(gaac_cpu_isa(), "c");
}

static attention_size size_of(const arguments *a, uint32_t head_dim)
{
    attention_size size = {{a->kv_heads, head_dim, head_dim}, a->layers, 1};
    const double token = attention_bf16_bytes(&size);
    size.tokens = a->tokens;
    if (size.tokens == 0) {
        size.tokens = (uint64_t)((is_plain_c() ? PLAIN_C_WORKING_SET : WORKING_SET) / token);
        size.tokens = (size.tokens + GAAC_BLOCK_TOKENS - 1) / GAAC_BLOCK_TOKENS * GAAC_BLOCK_TOKENS;
        if (size.tokens < LEAST_TOKENS)
            size.tokens = LEAST_TOKENS;
        if (size.tokens < a->query_tokens)
            size.tokens = a->query_tokens;
    }
    return size;
}

static int make_caches(const arguments *a, uint32_t head_dim, attention_caches *caches)
{
    gaac_error error;
    const attention_size size = size_of(a, head_dim);
    const double bytes = 2 * attention_bf16_bytes(&size);
    const double memory = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    if (bytes > memory / 2)
        return tool_fail(TOOL_USAGE,
                         "that needs %.1f GiB of this machine's %.1f; lower --tokens, --layers or --kv-heads",
                         bytes / (1 << 30), memory / (1 << 30));
    tool_progress("filling two caches with %.0f MB of keys and values", attention_bf16_bytes(&size) / 1e6);
    if (attention_caches_create(caches, &size, a->kv ? &a->dump : NULL, &error) != GAAC_OK)
        return tool_fail_status("the caches", &error);
    tool_progress_done();
    return TOOL_OK;
}

static int measure(const arguments *a, const attention_caches *caches, uint32_t gqa, uint32_t threads,
                   attention_bench_result *result)
{
    gaac_error error;
    const attention_bench_options options = {
        .gqa = gqa,
        .query_tokens = a->query_tokens,
        .threads = threads,
        .seconds = a->seconds,
        .min_rounds = is_plain_c() ? 3 : 9,
    };
    if (attention_bench_run(caches, &options, result, &error) != GAAC_OK)
        return tool_fail_status("attention", &error);
    return TOOL_OK;
}

static int report_difference(const attention_bench_result *result)
{
    if (result->bit_identical)
        return TOOL_OK;
    return tool_fail(TOOL_FAILED, "attention over coded blocks differs from raw blocks; report this as a bug of GAAC");
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static void add_shape(cJSON *json, const arguments *a, const attention_caches *caches)
{
    cJSON_AddStringToObject(json, "isa", gaac_cpu_isa());
    cJSON_AddNumberToObject(json, "head_dim", caches->size.shape.head_dim_k);
    cJSON_AddNumberToObject(json, "gqa", a->gqas.value[0]);
    cJSON_AddNumberToObject(json, "kv_heads", caches->size.shape.kv_heads);
    cJSON_AddNumberToObject(json, "threads", a->threads.value[0]);
    cJSON_AddNumberToObject(json, "tokens", (double)caches->size.tokens);
    cJSON_AddNumberToObject(json, "layers", caches->size.layers);
    cJSON_AddNumberToObject(json, "query_tokens", a->query_tokens);
    cJSON_AddStringToObject(json, "kv", a->kv ? a->kv : "drawn");
    cJSON_AddNumberToObject(json, "working_set_bytes", attention_bf16_bytes(&caches->size));
    json_add_rounded(json, "coded_ratio", caches->coded_ratio, 4);
    json_add_rounded(json, "resident_ratio", caches->resident_ratio, 4);
    json_add_rounded(json, "raw_blocks", caches->raw_blocks, 5);
}

static int print_json(const arguments *a, const attention_caches *caches, const attention_bench_result *r)
{
    cJSON *json = cJSON_CreateObject();
    json_add_rounded(json, "fused_over_raw", r->fused_over_raw, 4);
    json_add_rounded(json, "fused_over_raw_best", r->fused_over_raw_best, 4);
    json_add_rounded(json, "fused_gbps", r->fused_gbps, 3);
    json_add_rounded(json, "fused_best_gbps", r->fused_best_gbps, 3);
    json_add_rounded(json, "raw_gbps", r->raw_gbps, 3);
    json_add_rounded(json, "raw_best_gbps", r->raw_best_gbps, 3);
    json_add_rounded(json, "read_gbps", r->read_gbps, 3);
    json_add_rounded(json, "fused_gflops", r->fused_gflops, 2);
    json_add_rounded(json, "raw_gflops", r->raw_gflops, 2);
    cJSON_AddBoolToObject(json, "bit_identical", r->bit_identical);
    cJSON_AddNumberToObject(json, "rounds", r->rounds);
    add_shape(json, a, caches);
    return json_print(json);
}

static int run_json(const arguments *a)
{
    attention_caches caches = {0};
    attention_bench_result result;
    const char *isa = NULL;
    for (unsigned i = 0; i < MOST_ISAS && tool_isa_names[i]; i++)
        isa = a->isas >> i & 1 ? tool_isa_names[i] : isa;
    if (isa) {
        setenv("GAAC_CPU", isa, 1); /* before the library has looked at it */
        if (strcmp(gaac_cpu_isa(), isa) != 0)
            return tool_fail(TOOL_USAGE, "--isa %s: this machine does not have it", isa);
    }
    int code = make_caches(a, a->head_dims.value[0], &caches);
    if (code != TOOL_OK)
        return code;
    code = measure(a, &caches, a->gqas.value[0], a->threads.value[0], &result);
    if (code == TOOL_OK)
        code = print_json(a, &caches, &result);
    if (code == TOOL_OK)
        code = report_difference(&result);
    attention_caches_destroy(&caches);
    return code;
}

/* ---- the table ------------------------------------------------------------------------------- */

static void print_heading(const arguments *a)
{
    printf("Attention, %u query token%s, %u KV heads, keys and values %s. GB/s of BF16, median (best).\n",
           a->query_tokens, a->query_tokens > 1 ? "s" : "", a->kv_heads,
           a->kv ? tool_base_name(a->kv) : "drawn (normal within a channel)");
    printf("read: plain loads by as many threads. coded: BF16 bytes over code.\n\n");
    printf("%-10s %8s %3s %7s %6s %6s %6s %15s %15s %15s %10s\n", "isa", "head_dim", "GQA", "threads", "MB", "coded",
           "read", "raw", "fused", "fused/raw", "fused/read");
}

static void print_pair(double median, double best, int decimals)
{
    char text[40];
    snprintf(text, sizeof text, "%.*f (%.*f)", decimals, median, decimals, best);
    printf(" %15s", text);
}

static void print_row(const attention_caches *caches, uint32_t gqa, uint32_t threads, const attention_bench_result *r)
{
    printf("%-10s %8u %3u %7u %6.0f %6.3f %6.1f", gaac_cpu_isa(), caches->size.shape.head_dim_k, gqa, threads,
           attention_bf16_bytes(&caches->size) / 1e6, caches->coded_ratio, r->read_gbps);
    print_pair(r->raw_gbps, r->raw_best_gbps, 1);
    print_pair(r->fused_gbps, r->fused_best_gbps, 1);
    print_pair(r->fused_over_raw, r->fused_over_raw_best, 2);
    printf(" %10.2f%s\n", r->fused_gbps / r->read_gbps, r->bit_identical ? "" : "  DIFFERENT BITS");
    fflush(stdout);
}

static int print_rows(const arguments *a, const attention_caches *caches)
{
    attention_bench_result result;
    for (unsigned t = 0; t < a->threads.count; t++) {
        for (unsigned g = 0; g < a->gqas.count; g++) {
            int code = measure(a, caches, a->gqas.value[g], a->threads.value[t], &result);
            if (code == TOOL_OK) {
                print_row(caches, a->gqas.value[g], a->threads.value[t], &result);
                code = report_difference(&result);
            }
            if (code != TOOL_OK)
                return code;
        }
    }
    return TOOL_OK;
}

/* All rows of one kernel set, in a process of its own: the library chooses its kernels once a process. */
static int run_child(const arguments *a, const char *isa)
{
    setenv("GAAC_CPU", isa, 1);
    if (strcmp(gaac_cpu_isa(), isa) != 0)
        return NOT_THIS_ISA;
    for (unsigned i = 0; i < a->head_dims.count; i++) {
        attention_caches caches = {0};
        int code = make_caches(a, a->head_dims.value[i], &caches);
        if (code != TOOL_OK)
            return code;
        code = print_rows(a, &caches);
        attention_caches_destroy(&caches);
        if (code != TOOL_OK)
            return code;
    }
    return TOOL_OK;
}

static int run_isa(const arguments *a, const char *isa)
{
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        const int code = run_child(a, isa);
        fflush(stdout);
        _exit(code);
    }
    int status;
    if (child < 0 || waitpid(child, &status, 0) != child)
        return tool_fail(TOOL_FAILED, "the system started no process for %s; close something and try again", isa);
    if (WIFEXITED(status))
        return WEXITSTATUS(status);
    return tool_fail(TOOL_FAILED, "measuring %s ended with signal %d; report this as a bug of GAAC", isa,
                     WTERMSIG(status));
}

static int run_table(const arguments *a)
{
    int code = TOOL_OK;
    print_heading(a);
    for (unsigned i = 0; i < MOST_ISAS && tool_isa_names[i] && code == TOOL_OK; i++) {
        if (a->isas != 0 && !(a->isas >> i & 1))
            continue;
        code = run_isa(a, tool_isa_names[i]);
        if (code == NOT_THIS_ISA)
            code = a->isas != 0 ? tool_fail(TOOL_USAGE, "--isa %s: this machine does not have it", tool_isa_names[i])
                                : TOOL_OK;
    }
    return code;
}

int cmd_bench_attention(int argc, char **argv)
{
    arguments a;
    int code = parse(argc, argv, &a);
    if (code != TOOL_OK)
        return code;
    if (a.help) {
        fputs(help, stdout);
        return TOOL_OK;
    }
    code = open_dump(&a);
    if (code != TOOL_OK)
        return code;
    fill_defaults(&a);
    code = a.json ? run_json(&a) : run_table(&a);
    if (a.kv)
        kv_dump_close(&a.dump);
    return code;
}
