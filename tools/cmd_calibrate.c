/* gaac calibrate: a profile of a model, made by stock llama-perplexity reading a text under the plug-in. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cjson/cJSON.h>

#include "follow.h"
#include "gguf.h"
#include "launch.h"
#include "locate.h"
#include "profile_text.h"

static const char help[] =
    "gaac calibrate - measure a model's exponents on a text and write a profile\n"
    "\n"
    "Examples:\n"
    "  gaac calibrate -m model.gguf -f text.txt                       writes model.gaac.safetensors here\n"
    "  gaac calibrate -m model.gguf -f text.txt -c 8192 -o my.safetensors\n"
    "  gaac exec --profile model.gaac.safetensors -- llama-server -m model.gguf\n"
    "\n"
    "Runs stock llama-perplexity on the text with the GAAC device, which counts exponents and writes the profile. A\n"
    "profile spares each run its own calibration on the first tokens. A bad one costs bytes, never bits.\n"
    "\n"
    "Options:\n"
    "  -m, --model FILE     the model, as llama.cpp runs it (GGUF)\n"
    "  -f, --file FILE      the text: ordinary prose or code of the kind that you will run, some 100 KB\n"
    "  -o, --output FILE    the profile (default: the model's name with .gaac.safetensors, here)\n"
    "  -c, --context N      tokens of a context (default 5632, or what the model has). Windows come from the first "
    "three\n"
    "                       quarters of it, at most 4096 tokens; the text has to hold two contexts\n"
    "      --tokens N       tokens to read in all, rounded up to whole contexts (default one context)\n"
    "  -t, --threads N      threads of the program (default: its own)\n"
    "      --host PROGRAM   llama-perplexity (default: beside this command, then on PATH)\n"
    "      --plugin FILE    libggml-gaac.so (default: GAAC_PLUGIN, then where gaac was installed or built)\n"
    "      --verbose        show the program's own output\n"
    "      --dry-run        print the environment and the command, run nothing\n"
    "      --help           this text\n"
    "\n"
    "The profile records the model's name and a fingerprint of its file: XXH3-128 over the size, the first MiB and\n"
    "the last MiB. gaac exec refuses a profile whose fingerprint is another file's.\n";

enum { OPT_TOKENS = 256, OPT_HOST, OPT_PLUGIN, OPT_VERBOSE, OPT_DRY_RUN };

static const struct option long_options[] = {
    {"model", required_argument, NULL, 'm'},
    {"file", required_argument, NULL, 'f'},
    {"output", required_argument, NULL, 'o'},
    {"context", required_argument, NULL, 'c'},
    {"threads", required_argument, NULL, 't'},
    {"tokens", required_argument, NULL, OPT_TOKENS},
    {"host", required_argument, NULL, OPT_HOST},
    {"plugin", required_argument, NULL, OPT_PLUGIN},
    {"verbose", no_argument, NULL, OPT_VERBOSE},
    {"dry-run", no_argument, NULL, OPT_DRY_RUN},
    {"help", no_argument, NULL, 'h'},
    {NULL, 0, NULL, 0},
};

/* The plug-in calibrates a layer once 4096 tokens of it, or three quarters of a shorter context, are complete. */
enum { DEFAULT_CONTEXT = 5632, LEAST_CONTEXT = 128 };

typedef struct calibrate_arguments {
    const char *model, *text, *output, *host, *plugin;
    uint64_t context, tokens, threads;
    bool verbose, dry_run, help;
} calibrate_arguments;

/* ---- the command line ----------------------------------------------------------------------- */

static int take_number(int option, calibrate_arguments *arguments)
{
    uint64_t *value = option == 'c' ? &arguments->context : option == 't' ? &arguments->threads : &arguments->tokens;
    const char *name = option == 'c' ? "--context" : option == 't' ? "--threads" : "--tokens";
    const uint64_t least = option == 't' ? 1 : LEAST_CONTEXT;
    if (!tool_parse_number(optarg, least, 1u << 30, value))
        return tool_fail(TOOL_USAGE, "%s %s: give a whole number of at least %llu", name, optarg,
                         (unsigned long long)least);
    return TOOL_OK;
}

static int take_option(int option, calibrate_arguments *arguments)
{
    switch (option) {
    case 'm':
        arguments->model = optarg;
        return TOOL_OK;
    case 'f':
        arguments->text = optarg;
        return TOOL_OK;
    case 'o':
        arguments->output = optarg;
        return TOOL_OK;
    case OPT_HOST:
        arguments->host = optarg;
        return TOOL_OK;
    case OPT_PLUGIN:
        arguments->plugin = optarg;
        return TOOL_OK;
    case OPT_VERBOSE:
        arguments->verbose = true;
        return TOOL_OK;
    case OPT_DRY_RUN:
        arguments->dry_run = true;
        return TOOL_OK;
    default:
        return take_number(option, arguments);
    }
}

static int parse(int argc, char **argv, calibrate_arguments *arguments)
{
    *arguments = (calibrate_arguments){.model = "", .text = ""};
    opterr = 0;
    for (int option; (option = getopt_long(argc, argv, ":m:f:o:c:t:h", long_options, NULL)) != -1;) {
        if (option == 'h') {
            arguments->help = true;
            return TOOL_OK;
        }
        if (option == '?' || option == ':')
            return tool_bad_option("calibrate", option, argv);
        const int code = take_option(option, arguments);
        if (code != TOOL_OK)
            return code;
    }
    if (optind < argc)
        return tool_fail(TOOL_USAGE, "%s: what is this? name the model with -m and the text with -f", argv[optind]);
    if (*arguments->model == '\0' || *arguments->text == '\0')
        return tool_fail(TOOL_USAGE, "gaac calibrate needs %s",
                         *arguments->model != '\0' ? "a text: -f text.txt" : "a model: -m model.gguf");
    return TOOL_OK;
}

/* ---- what the plug-in is told ---------------------------------------------------------------- */

/* The name that the model gives itself, or else its file's without .gguf. */
static char *model_name(const gguf_info *model, const char *path)
{
    const char *base = tool_base_name(path);
    const size_t length = strlen(base);
    if (*model->name)
        return tool_format("%s", model->name);
    const bool suffix = length > 5 && !strcmp(base + length - 5, ".gguf");
    return tool_format("%.*s", (int)(suffix ? length - 5 : length), base);
}

static char *calibrate_info(const calibrate_arguments *arguments, const gguf_info *model, const char *fingerprint)
{
    char *name = model_name(model, arguments->model);
    cJSON *json = cJSON_CreateObject();
    cJSON_AddStringToObject(json, "model_name", name);
    cJSON_AddStringToObject(json, "model_hash", fingerprint);
    cJSON_AddNumberToObject(json, "rope_base", model->rope_base);
    cJSON_AddStringToObject(json, "rope_scaling", model->rope_scaling);
    cJSON_AddStringToObject(json, "text", tool_base_name(arguments->text));
    char *printed = cJSON_PrintUnformatted(json);
    char *text = tool_format("%s", printed ? printed : "{}");
    cJSON_free(printed);
    cJSON_Delete(json);
    free(name);
    return text;
}

static void add_option(string_list *command, const char *option, const char *value)
{
    string_list_add(command, option);
    string_list_add(command, value);
}

static void add_number(string_list *command, const char *option, uint64_t value)
{
    char text[32];
    snprintf(text, sizeof text, "%llu", (unsigned long long)value);
    add_option(command, option, text);
}

/* One context at a time (-b = -c at most), so that a context is one sequence. */
static void make_command(string_list *command, const calibrate_arguments *arguments, const char *program,
                         uint64_t context, uint64_t chunks)
{
    string_list_add(command, program);
    add_option(command, "-m", arguments->model);
    add_option(command, "-f", arguments->text);
    add_number(command, "-c", context);
    add_number(command, "-b", context < 2048 ? context : 2048);
    add_number(command, "--chunks", chunks);
    if (arguments->threads)
        add_number(command, "-t", arguments->threads);
}

/* ---- running --------------------------------------------------------------------------------- */

static int check_text(const char *path)
{
    struct stat about; /* opening a pipe would wait for its writer, and the host has to read it all again */
    if (stat(path, &about) == 0 && !S_ISREG(about.st_mode))
        return tool_fail(TOOL_FAILED, "%s: the text is not a regular file; save it and give its path", path);
    FILE *file = fopen(path, "rb");
    if (!file)
        return tool_fail(TOOL_FAILED, "%s: the text can't be opened; check the path", path);
    const bool empty = fgetc(file) == EOF;
    fclose(file);
    return empty ? tool_fail(TOOL_BAD_DATA, "%s: the text is empty; give some 100 KB of ordinary text", path) : TOOL_OK;
}

/* Loads what the plug-in wrote, which checks all of it, and tells what it holds. */
static int check_profile(const char *path)
{
    gaac_profile *profile;
    gaac_error error;
    if (access(path, F_OK) != 0)
        return tool_fail(TOOL_FAILED,
                         "the program ended without writing %s: the cache was not on GAAC; run again with "
                         "--verbose to see why",
                         path);
    if (gaac_profile_load(&profile, path, NULL, &error) != GAAC_OK)
        return tool_fail_status(path, &error);
    printf("%s\n", path);
    profile_print_summary(profile);
    gaac_profile_destroy(profile);
    return TOOL_OK;
}

static int run(const calibrate_arguments *arguments, const char *info, const char *program, const char *output,
               uint64_t context)
{
    const uint64_t chunks = arguments->tokens ? (arguments->tokens + context - 1) / context : 1;
    string_list command = {0};
    make_command(&command, arguments, program, context, chunks);
    const launch_options options = {.plugin = arguments->plugin,
                                    .calibrate = output,
                                    .calibrate_info = info,
                                    .family_given = true,
                                    .family = HOST_COMMON};
    host_launch launched;
    unsetenv("GAAC_PROFILE"); /* the profile to be made, not one to be used */
    int code = launch_prepare(&launched, &options, command.items);
    if (code == TOOL_OK && arguments->dry_run) {
        launch_print(&launched);
    } else if (code == TOOL_OK) {
        unlink(output); /* what is there afterwards is new */
        code = follow_program(&launched, chunks, arguments->verbose);
        if (code == TOOL_OK)
            code = check_profile(output);
    }
    launch_free(&launched);
    string_list_free(&command);
    return code;
}

/* model.gguf -> model.gaac.safetensors, in the current directory. */
static char *default_output(const char *model)
{
    const char *base = tool_base_name(model);
    const size_t length = strlen(base);
    const bool suffix = length > 5 && !strcmp(base + length - 5, ".gguf");
    return tool_format("%.*s.gaac.safetensors", (int)(suffix ? length - 5 : length), base);
}

static int calibrate(const calibrate_arguments *arguments)
{
    gguf_info model;
    gaac_error error;
    char fingerprint[GGUF_FINGERPRINT_SIZE];
    if (gguf_read(&model, arguments->model, &error) != GAAC_OK ||
        gguf_fingerprint(arguments->model, fingerprint, &error) != GAAC_OK)
        return tool_fail_status(arguments->model, &error);
    int code = check_text(arguments->text);
    if (code != TOOL_OK)
        return code;
    uint64_t context = arguments->context;
    if (!context) {
        const bool shorter = model.context_length >= LEAST_CONTEXT && model.context_length < DEFAULT_CONTEXT;
        context = shorter ? model.context_length : DEFAULT_CONTEXT;
    }
    char *program = arguments->host ? tool_format("%s", arguments->host) : locate_program("llama-perplexity");
    if (!program)
        return tool_fail(TOOL_NOT_FOUND, "llama-perplexity is not on PATH; install llama.cpp or name it with --host");
    char *output = arguments->output ? tool_format("%s", arguments->output) : default_output(arguments->model);
    char *info = calibrate_info(arguments, &model, fingerprint);
    code = run(arguments, info, program, output, context);
    free(info);
    free(output);
    free(program);
    return code;
}

int cmd_calibrate(int argc, char **argv)
{
    calibrate_arguments arguments;
    const int code = parse(argc, argv, &arguments);
    if (code != TOOL_OK)
        return code;
    if (arguments.help) {
        fputs(help, stdout);
        return TOOL_OK;
    }
    return calibrate(&arguments);
}
