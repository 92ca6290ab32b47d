/* gaac bench codec: sizes and speed of the codec on KV dumps. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmd_bench.h"
#include "codec_bench.h"
#include "json.h"
#include "read_bandwidth.h"
#include "tool.h"

static const char help[] =
    "gaac bench codec - how well and how fast real KV caches compress on this machine\n"
    "\n"
    "Examples:\n"
    "  gaac bench codec dump.npy                          calibrate on the first half, evaluate on the second\n"
    "  gaac bench codec --split 0.25 --json a.npy b.npy   a quarter calibrates; JSON for scripts\n"
    "  gaac bench codec --calibrate-on prose.npy code.npy windows from one text, evaluated on another\n"
    "\n"
    "A dump is a NumPy array of BF16 bits as uint16, [layer][2 = K, V][token][KV head][head_dim].\n"
    "\n"
    "Options:\n"
    "  --split SHARE        share of each file's tokens that calibrates, between 0 and 1 (default 0.5)\n"
    "  --calibrate-on FILE  calibrate on this dump instead and evaluate on the whole of the others\n"
    "  --tile-cap BYTES     escape bytes a tile that the paper's scheme reserves (default 128, as in the paper);\n"
    "                       only paper_resident_ratio depends on it\n"
    "  --ablations          also the paper's ablations, 4+raw and 2+3+4+raw\n"
    "  --seconds S          time each direction for about this long (default 0.5)\n"
    "  --json               print a JSON array with one object per file\n"
    "  --help               this text\n"
    "\n"
    "coded: BF16 bytes over the exact size of the code. resident: over what a cache keeps for it (slots of the\n"
    "capacity that the calibration part chose, raw blocks where one does not fit, table entries). A tile has 2048\n"
    "elements. Every block is decoded again and compared. GB/s count BF16 bytes, one thread; below the\n"
    "table is how fast a thread reads memory here.\n";

enum { OPT_SPLIT = 256, OPT_CALIBRATE_ON, OPT_TILE_CAP, OPT_ABLATIONS, OPT_SECONDS, OPT_JSON };
enum { READ_PASSES = 5 };

static const struct option long_options[] = {
    {"split", required_argument, NULL, OPT_SPLIT},
    {"calibrate-on", required_argument, NULL, OPT_CALIBRATE_ON},
    {"tile-cap", required_argument, NULL, OPT_TILE_CAP},
    {"ablations", no_argument, NULL, OPT_ABLATIONS},
    {"seconds", required_argument, NULL, OPT_SECONDS},
    {"json", no_argument, NULL, OPT_JSON},
    {"help", no_argument, NULL, 'h'},
    {NULL, 0, NULL, 0},
};

typedef struct bench_arguments {
    codec_bench_options options;
    const char *calibrate_on;
    bool json, help;
} bench_arguments;

static int parse_number_options(int option, bench_arguments *arguments)
{
    uint64_t number;
    char *end;
    switch (option) {
    case OPT_SPLIT:
        if (!tool_parse_fraction(optarg, &arguments->options.split))
            return tool_fail(TOOL_USAGE, "--split %s: give a number between 0 and 1, such as 0.5", optarg);
        break;
    case OPT_TILE_CAP:
        if (!tool_parse_number(optarg, 64, 65536, &number) || number % 64)
            return tool_fail(TOOL_USAGE, "--tile-cap %s: give a multiple of 64 from 64 to 65536", optarg);
        arguments->options.tile_cap = (uint32_t)number;
        break;
    default:
        arguments->options.min_seconds = strtod(optarg, &end);
        if (end == optarg || *end || !(arguments->options.min_seconds >= 0 && arguments->options.min_seconds <= 3600))
            return tool_fail(TOOL_USAGE, "--seconds %s: give a number of seconds from 0 to 3600", optarg);
        break;
    }
    return TOOL_OK;
}

static int parse(int argc, char **argv, bench_arguments *arguments)
{
    *arguments = (bench_arguments){.options = {.split = 0.5, .tile_cap = 128, .min_seconds = 0.5}};
    opterr = 0;
    for (int option; (option = getopt_long(argc, argv, ":h", long_options, NULL)) != -1;) {
        int code = TOOL_OK;
        switch (option) {
        case 'h':
            arguments->help = true;
            return TOOL_OK;
        case OPT_CALIBRATE_ON:
            arguments->calibrate_on = optarg;
            break;
        case OPT_ABLATIONS:
            arguments->options.ablations = true;
            break;
        case OPT_JSON:
            arguments->json = true;
            break;
        case '?':
        case ':':
            return tool_bad_option("bench codec", option, argv);
        default:
            code = parse_number_options(option, arguments);
        }
        if (code != TOOL_OK)
            return code;
    }
    if (optind == argc)
        return tool_fail(TOOL_USAGE, "gaac bench codec needs a KV dump: gaac bench codec FILE.npy");
    return TOOL_OK;
}

static cJSON *to_json(const char *path, const kv_dump *dump, const codec_bench_result *r, bool ablations)
{
    cJSON *json = cJSON_CreateObject();
    cJSON_AddStringToObject(json, "file", path);
    cJSON_AddNumberToObject(json, "layers", dump->layers);
    cJSON_AddNumberToObject(json, "kv_heads", dump->shape.kv_heads);
    cJSON_AddNumberToObject(json, "head_dim", dump->shape.head_dim_k);
    cJSON_AddNumberToObject(json, "calibration_tokens", (double)r->calibration_tokens);
    cJSON_AddNumberToObject(json, "evaluation_tokens", (double)r->evaluation_tokens);
    json_add_rounded(json, "coded_ratio", r->coded_ratio, 5);
    json_add_rounded(json, "resident_ratio", r->resident_ratio, 5);
    json_add_rounded(json, "paper_coded_ratio", r->paper_coded_ratio, 5);
    json_add_rounded(json, "paper_resident_ratio", r->paper_resident_ratio, 5);
    if (ablations) {
        json_add_rounded(json, "paper_4_raw_coded_ratio", r->paper_4_raw_coded_ratio, 5);
        json_add_rounded(json, "paper_2_3_4_raw_coded_ratio", r->paper_2_3_4_raw_coded_ratio, 5);
    }
    json_add_rounded(json, "exceptions_per_tile", r->exceptions_per_tile, 4);
    json_add_rounded(json, "groups_4bit", r->groups_4bit, 5);
    json_add_rounded(json, "paper_groups_3bit", r->paper_groups[1], 5);
    json_add_rounded(json, "paper_groups_4bit", r->paper_groups[2], 5);
    json_add_rounded(json, "paper_groups_raw", r->paper_groups[3], 5);
    json_add_rounded(json, "raw_blocks", r->raw_blocks, 5);
    cJSON_AddNumberToObject(json, "pool_bytes_least", r->pool_bytes_least);
    cJSON_AddNumberToObject(json, "pool_bytes_most", r->pool_bytes_most);
    cJSON_AddBoolToObject(json, "roundtrip_exact", r->roundtrip_exact);
    json_add_rounded(json, "encode_gbps", r->encode_gbps, 3);
    json_add_rounded(json, "decode_gbps", r->decode_gbps, 3);
    cJSON_AddNumberToObject(json, "working_set_bytes", (double)r->working_set_bytes);
    cJSON_AddStringToObject(json, "isa", gaac_cpu_isa());
    return json;
}

static void print_row(const char *path, const codec_bench_result *r, bool ablations)
{
    printf("%-20s %7.4f %8.4f %7.4f", tool_base_name(path), r->coded_ratio, r->resident_ratio, r->paper_coded_ratio);
    if (ablations)
        printf(" %7.4f %9.4f", r->paper_4_raw_coded_ratio, r->paper_2_3_4_raw_coded_ratio);
    printf(" %9.3f %8.2f%% %7.2f%% %6s %8.2f %8.2f\n", r->exceptions_per_tile, 100 * r->groups_4bit,
           100 * r->raw_blocks, r->roundtrip_exact ? "exact" : "WRONG", r->encode_gbps, r->decode_gbps);
}

static void print_heading(const bench_arguments *arguments)
{
    if (arguments->calibrate_on)
        printf("Calibrated on %s; ", arguments->calibrate_on);
    else
        printf("Calibrated on the first %.4g%% of the tokens, evaluated on the rest; ", 100 * arguments->options.split);
    printf("kernels %s, one thread, GB/s of BF16.\n\n", gaac_cpu_isa());
    printf("%-20s %7s %8s %7s", "file", "coded", "resident", "paper");
    if (arguments->options.ablations)
        printf(" %7s %9s", "4+raw", "2+3+4+raw");
    printf(" %9s %9s %8s %6s %8s %8s\n", "exc./tile", "4-bit", "raw", "bits", "enc GB/s", "dec GB/s");
}

/* Measures one file. Returns an exit code; a wrong round trip is a failure of its own. */
static int bench_file(const char *path, const kv_dump *calibration, const bench_arguments *arguments, cJSON *array)
{
    kv_dump dump;
    codec_bench_result result;
    gaac_error error;
    if (kv_dump_open(&dump, path, &error) != GAAC_OK)
        return tool_fail_status(path, &error);
    int code = TOOL_OK;
    if (codec_bench_run(&dump, calibration, &arguments->options, tool_base_name(path), &result, &error) != GAAC_OK) {
        code = tool_fail_status(path, &error);
    } else {
        if (array)
            cJSON_AddItemToArray(array, to_json(path, &dump, &result, arguments->options.ablations));
        else
            print_row(path, &result, arguments->options.ablations);
        if (!result.roundtrip_exact)
            code = tool_fail(TOOL_FAILED, "%s: a decoded block differs from the original; report this as a bug of GAAC",
                             path);
    }
    kv_dump_close(&dump);
    return code;
}

/* What the figures stand beside: a code that is read as fast as memory gives it costs nothing. */
static void print_read_bandwidth(void)
{
    const gaac_executor one = {.workers = 1};
    read_bandwidth *reader = read_bandwidth_create(&one);
    double best = 0;
    for (unsigned pass = 0; pass < READ_PASSES; pass++) {
        const double gbps = read_bandwidth_pass(reader);
        best = gbps > best ? gbps : best;
    }
    printf("\nMemory, read by one thread: %.1f GB/s.\n", best);
    read_bandwidth_destroy(reader);
}

int cmd_bench_codec(int argc, char **argv)
{
    bench_arguments arguments;
    int code = parse(argc, argv, &arguments);
    if (code != TOOL_OK)
        return code;
    if (arguments.help) {
        fputs(help, stdout);
        return TOOL_OK;
    }
    kv_dump calibration = {0};
    gaac_error error;
    if (arguments.calibrate_on && kv_dump_open(&calibration, arguments.calibrate_on, &error) != GAAC_OK)
        return tool_fail_status(arguments.calibrate_on, &error);
    cJSON *array = arguments.json ? cJSON_CreateArray() : NULL;
    if (!array)
        print_heading(&arguments);
    for (int i = optind; i < argc; i++) {
        fflush(stdout);
        const int result = bench_file(argv[i], arguments.calibrate_on ? &calibration : NULL, &arguments, array);
        if (result > code)
            code = result;
    }
    if (array) {
        const int printed = json_print(array);
        code = code ? code : printed;
    } else if (code == TOOL_OK) {
        print_read_bandwidth();
    }
    if (arguments.calibrate_on)
        kv_dump_close(&calibration);
    return code;
}
