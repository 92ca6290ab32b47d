/* gaac exec: runs a llama.cpp program with the GAAC device. */
#include <getopt.h>
#include <stdio.h>
#include <string.h>

#include "launch.h"

static const char help[] =
    "gaac exec - run a llama.cpp program with its KV cache compressed, losslessly\n"
    "\n"
    "Examples:\n"
    "  gaac exec -- llama-server -m model.gguf -c 32768\n"
    "  gaac exec --profile model.gaac.safetensors -- llama-cli -m model.gguf\n"
    "  gaac exec --memory 2G --stats stats.json -- llama-bench -m model.gguf -d 4096\n"
    "  gaac exec -- python -m llama_cpp.server --model model.gguf\n"
    "  gaac exec --dry-run -- llama-server -m model.gguf     show what would run\n"
    "\n"
    "The program is any stock llama.cpp with loadable backends. gaac exec points it at the plug-in and adds\n"
    "-dev GAAC0 -ngl 99 -fa on -ctk bf16 -ctv bf16, except what the command already says. Weights stay where they\n"
    "are; only the KV cache is ours. Options that keep GAAC from the cache get a warning, and run as given.\n"
    "\n"
    "Options (before --):\n"
    "  --profile FILE   windows measured by gaac calibrate (default: measure on the first tokens)\n"
    "  --memory SIZE    most memory for the cache, such as 800M or 2G (default: no limit)\n"
    "  --mode MODE      coded, or raw: the same path uncompressed, to prove that outputs agree (default coded)\n"
    "  --threads N      threads of attention (default: as many as the program uses)\n"
    "  --stats FILE     write statistics as JSON when the program ends\n"
    "  --plugin FILE    libggml-gaac.so (default: GAAC_PLUGIN, then where gaac was installed or built)\n"
    "  --program KIND   treat the program as common, bench, python-server, python or none (default: by its name)\n"
    "  --dry-run        print the environment and the command, run nothing\n"
    "  --help           this text\n"
    "\n"
    "Exit code: the program's; 126 when it can't be executed, 127 when it isn't found, 2 for bad usage, 3 for a\n"
    "profile that is damaged or of another model.\n";

enum { OPT_PROFILE = 256, OPT_MEMORY, OPT_MODE, OPT_THREADS, OPT_STATS, OPT_PLUGIN, OPT_PROGRAM, OPT_DRY_RUN };

static const struct option long_options[] = {
    {"profile", required_argument, NULL, OPT_PROFILE},
    {"memory", required_argument, NULL, OPT_MEMORY},
    {"mode", required_argument, NULL, OPT_MODE},
    {"threads", required_argument, NULL, OPT_THREADS},
    {"stats", required_argument, NULL, OPT_STATS},
    {"plugin", required_argument, NULL, OPT_PLUGIN},
    {"program", required_argument, NULL, OPT_PROGRAM},
    {"dry-run", no_argument, NULL, OPT_DRY_RUN},
    {"help", no_argument, NULL, 'h'},
    {NULL, 0, NULL, 0},
};

typedef struct exec_arguments {
    launch_options launch;
    bool dry_run, help;
} exec_arguments;

/* "800M", "2G": bytes, with K, M, G or T for powers of 1024. */
static bool parse_size(const char *text, uint64_t *bytes)
{
    static const char units[] = "KMGT";
    char digits[24];
    const size_t length = strspn(text, "0123456789");
    const char *unit = text[length] ? strchr(units, text[length]) : NULL;
    if (!length || length >= sizeof digits || (text[length] && (!unit || text[length + 1])))
        return false;
    memcpy(digits, text, length);
    digits[length] = 0;
    const unsigned shift = unit ? 10 * (unsigned)(unit - units + 1) : 0;
    if (!tool_parse_number(digits, 1, UINT64_MAX >> shift, bytes))
        return false;
    *bytes <<= shift;
    return true;
}

static int take_option(int option, exec_arguments *arguments)
{
    launch_options *launch = &arguments->launch;
    switch (option) {
    case OPT_PROFILE:
        launch->profile = optarg;
        break;
    case OPT_MEMORY:
        if (!parse_size(optarg, &launch->memory))
            return tool_fail(TOOL_USAGE, "--memory %s: give a size such as 800M or 2G", optarg);
        break;
    case OPT_MODE:
        if (strcmp(optarg, "coded") != 0 && strcmp(optarg, "raw") != 0)
            return tool_fail(TOOL_USAGE, "--mode %s: say coded or raw", optarg);
        launch->mode = optarg;
        break;
    case OPT_THREADS:
        if (!tool_parse_number(optarg, 1, 1024, &launch->threads))
            return tool_fail(TOOL_USAGE, "--threads %s: give a number from 1 to 1024", optarg);
        break;
    case OPT_STATS:
        launch->stats = optarg;
        break;
    case OPT_PLUGIN:
        launch->plugin = optarg;
        break;
    case OPT_PROGRAM:
        launch->family_given = host_family_named(optarg, &launch->family);
        if (!launch->family_given)
            return tool_fail(TOOL_USAGE, "--program %s: say common, bench, python-server, python or none", optarg);
        break;
    default:
        arguments->dry_run = true;
        break;
    }
    return TOOL_OK;
}

static int parse(int argc, char **argv, exec_arguments *arguments)
{
    *arguments = (exec_arguments){0};
    opterr = 0;
    /* '+': stop at the program, whose options are its own even where the user forgot the "--". */
    for (int option; (option = getopt_long(argc, argv, "+:h", long_options, NULL)) != -1;) {
        if (option == 'h') {
            arguments->help = true;
            return TOOL_OK;
        }
        if (option == '?' || option == ':')
            return tool_bad_option("exec", option, argv);
        const int code = take_option(option, arguments);
        if (code != TOOL_OK)
            return code;
    }
    if (optind == argc)
        return tool_fail(TOOL_USAGE, "gaac exec needs a program: gaac exec -- llama-server -m model.gguf");
    return TOOL_OK;
}

int cmd_exec(int argc, char **argv)
{
    exec_arguments arguments;
    int code = parse(argc, argv, &arguments);
    if (code != TOOL_OK)
        return code;
    if (arguments.help) {
        fputs(help, stdout);
        return TOOL_OK;
    }
    host_launch run;
    code = launch_prepare(&run, &arguments.launch, argv + optind);
    if (code == TOOL_OK && arguments.dry_run)
        launch_print(&run);
    else if (code == TOOL_OK)
        code = launch_execute(&run);
    launch_free(&run);
    return code;
}
