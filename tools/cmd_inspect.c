/* gaac inspect: what a profile or a KV dump holds. */
#include <getopt.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "json.h"
#include "plot.h"
#include "profile_text.h"
#include "tool.h"

static const char help[] =
    "gaac inspect - what a profile or a KV dump holds\n"
    "\n"
    "Examples:\n"
    "  gaac inspect model.gaac.safetensors        the model it is for, windows and slot sizes\n"
    "  gaac inspect dump.npy                      windows, mode mix, entropy by layer and head\n"
    "  gaac inspect --plot dump.png dump.npy      the same as a picture (.png or .svg)\n"
    "  gaac inspect --json dump.npy               for scripts\n"
    "\n"
    "A dump is a NumPy array of BF16 bits as uint16, [layer][2 = K, V][token][KV head][head_dim]. Its windows are\n"
    "chosen on all of its tokens, so the coded ratio is the best case; gaac bench codec tests on other tokens.\n"
    "\n"
    "Columns: b4 is the lowest exponent of a channel's window of 16 (range over the channels); 4-bit the share of\n"
    "groups of eight that need it; exc./tile elements outside, per 2048; entropy in bits an exponent, over all\n"
    "channels together and of each channel by itself; coded BF16 bytes over the exact size of the code.\n"
    "\n"
    "Options:\n"
    "  --plot FILE   draw to a .png or .svg file as well\n"
    "  --json        print JSON instead of tables\n"
    "  --help        this text\n";

enum { OPT_PLOT = 256, OPT_JSON };

static const struct option long_options[] = {{"plot", required_argument, NULL, OPT_PLOT},
                                             {"json", no_argument, NULL, OPT_JSON},
                                             {"help", no_argument, NULL, 'h'},
                                             {NULL, 0, NULL, 0}};

typedef struct inspect_arguments {
    const char *file, *plot;
    bool json, help;
} inspect_arguments;

static int parse(int argc, char **argv, inspect_arguments *arguments)
{
    *arguments = (inspect_arguments){.file = ""};
    opterr = 0;
    for (int option; (option = getopt_long(argc, argv, ":h", long_options, NULL)) != -1;) {
        if (option == '?' || option == ':')
            return tool_bad_option("inspect", option, argv);
        if (option == 'h') {
            arguments->help = true;
            return TOOL_OK;
        }
        if (option == OPT_PLOT)
            arguments->plot = optarg;
        else
            arguments->json = true;
    }
    if (argc - optind != 1)
        return tool_fail(TOOL_USAGE, "gaac inspect takes one file: a profile (.safetensors) or a KV dump (.npy)");
    arguments->file = argv[optind];
    return TOOL_OK;
}

/* ---- a profile ------------------------------------------------------------------------------ */

static int inspect_profile(const inspect_arguments *arguments)
{
    gaac_profile *profile;
    gaac_error error;
    if (gaac_profile_load(&profile, arguments->file, NULL, &error) != GAAC_OK)
        return tool_fail_status(arguments->file, &error);
    int code = TOOL_OK;
    if (arguments->json) {
        code = json_print(profile_to_json(profile));
    } else {
        printf("%s\n", arguments->file);
        profile_print_summary(profile);
        profile_print_table(profile);
    }
    if (arguments->plot && code == TOOL_OK)
        code = plot_profile(arguments->plot, tool_base_name(arguments->file), profile);
    gaac_profile_destroy(profile);
    return code;
}

/* ---- a dump --------------------------------------------------------------------------------- */

static void print_numbers(const survey_head *head)
{
    printf(" %4u - %3u %7.2f%% %9.3f %7.3f %7.3f %8.4f\n", head->base_least, head->base_most,
           100 * survey_share_4bit(head), survey_exceptions_per_tile(head), head->entropy, head->channel_entropy,
           survey_coded_ratio(head));
}

static void print_survey(const char *path, const dump_survey *survey)
{
    printf("%s: %u layers, %u KV heads of %u, %llu tokens\n\n", path, survey->layers, survey->heads, survey->head_dim,
           (unsigned long long)survey->tokens);
    printf("%5s %4s %4s %10s %8s %9s %7s %7s %8s\n", "", "", "", "", "", "", "entropy", "", "");
    printf("%5s %4s %4s %10s %8s %9s %7s %7s %8s\n", "layer", "part", "head", "b4", "4-bit", "exc./tile", "all",
           "channel", "coded");
    for (uint32_t layer = 0; layer < survey->layers; layer++)
        for (unsigned part = GAAC_K; part <= GAAC_V; part++)
            for (uint32_t head = 0; head < survey->heads; head++) {
                printf("%5u %4s %4u", layer, part == GAAC_K ? "K" : "V", head);
                print_numbers(dump_survey_at(survey, layer, (gaac_part)part, head));
            }
    const survey_head all = dump_survey_all(survey);
    printf("%15s", "all");
    print_numbers(&all);
    if (survey->tokens < GAAC_BLOCK_TOKENS)
        puts("\nFewer tokens than a block of 16: nothing is coded.");
}

static void add_numbers(cJSON *json, const survey_head *head)
{
    cJSON_AddNumberToObject(json, "base_least", head->base_least);
    cJSON_AddNumberToObject(json, "base_most", head->base_most);
    json_add_rounded(json, "groups_3bit", head->groups ? 1 - survey_share_4bit(head) : 0, 5);
    json_add_rounded(json, "groups_4bit", survey_share_4bit(head), 5);
    json_add_rounded(json, "exceptions_per_tile", survey_exceptions_per_tile(head), 4);
    json_add_rounded(json, "entropy", head->entropy, 4);
    json_add_rounded(json, "channel_entropy", head->channel_entropy, 4);
    json_add_rounded(json, "coded_ratio", survey_coded_ratio(head), 5);
}

static cJSON *survey_to_json(const char *path, const dump_survey *survey)
{
    cJSON *json = cJSON_CreateObject();
    const survey_head all = dump_survey_all(survey);
    cJSON_AddStringToObject(json, "kind", "dump");
    cJSON_AddStringToObject(json, "file", path);
    cJSON_AddNumberToObject(json, "layers", survey->layers);
    cJSON_AddNumberToObject(json, "kv_heads", survey->heads);
    cJSON_AddNumberToObject(json, "head_dim", survey->head_dim);
    cJSON_AddNumberToObject(json, "tokens", (double)survey->tokens);
    add_numbers(json, &all);
    cJSON *rows = cJSON_AddArrayToObject(json, "heads");
    for (uint32_t layer = 0; layer < survey->layers; layer++)
        for (unsigned part = GAAC_K; part <= GAAC_V; part++)
            for (uint32_t head = 0; head < survey->heads; head++) {
                cJSON *row = cJSON_CreateObject();
                cJSON_AddItemToArray(rows, row);
                cJSON_AddNumberToObject(row, "layer", layer);
                cJSON_AddStringToObject(row, "part", part == GAAC_K ? "K" : "V");
                cJSON_AddNumberToObject(row, "head", head);
                add_numbers(row, dump_survey_at(survey, layer, (gaac_part)part, head));
            }
    return json;
}

static int inspect_dump(const inspect_arguments *arguments)
{
    kv_dump dump;
    dump_survey survey;
    gaac_error error;
    if (kv_dump_open(&dump, arguments->file, &error) != GAAC_OK)
        return tool_fail_status(arguments->file, &error);
    const char *name = tool_base_name(arguments->file);
    const gaac_status status = dump_survey_make(&survey, &dump, name, &error);
    kv_dump_close(&dump);
    if (status != GAAC_OK)
        return tool_fail_status(arguments->file, &error);
    int code = TOOL_OK;
    if (arguments->json)
        code = json_print(survey_to_json(arguments->file, &survey));
    else
        print_survey(arguments->file, &survey);
    if (arguments->plot && code == TOOL_OK)
        code = plot_dump(arguments->plot, name, &survey);
    dump_survey_free(&survey);
    return code;
}

/* A .npy file starts with a byte that no safetensors header (a length below 100 MB) has there. */
static bool is_npy(const char *path)
{
    char magic[6] = {0};
    FILE *file = fopen(path, "rb");
    if (!file)
        return false;
    const bool npy = fread(magic, 1, sizeof magic, file) == sizeof magic && !memcmp(magic, "\x93NUMPY", sizeof magic);
    fclose(file);
    const size_t length = strlen(path);
    return npy || (length > 4 && !strcmp(path + length - 4, ".npy"));
}

int cmd_inspect(int argc, char **argv)
{
    inspect_arguments arguments;
    int code = parse(argc, argv, &arguments);
    if (code != TOOL_OK)
        return code;
    if (arguments.help) {
        fputs(help, stdout);
        return TOOL_OK;
    }
    if (arguments.plot && (code = plot_check(arguments.plot)) != TOOL_OK)
        return code;
    struct stat about; /* opening a pipe would wait for its writer */
    if (stat(arguments.file, &about) == 0 && !S_ISREG(about.st_mode))
        return tool_fail(TOOL_FAILED, "%s: not a regular file; save the profile or dump and give its path",
                         arguments.file);
    return is_npy(arguments.file) ? inspect_dump(&arguments) : inspect_profile(&arguments);
}
