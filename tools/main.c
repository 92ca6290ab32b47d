/* The gaac command: finds the subcommand and runs it. */
#include "tool.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gaac/version.h"

static const char help[] =
    "gaac - run language models on a losslessly compressed KV cache\n"
    "\n"
    "Examples:\n"
    "  gaac exec -- llama-server -m model.gguf -c 32768   stock llama.cpp, 28% less KV memory, lossless\n"
    "  gaac calibrate -m model.gguf -f text.txt           measure the model's exponents once: a profile\n"
    "  gaac exec --profile model.gaac.safetensors -- llama-cli -m model.gguf\n"
    "  gaac inspect model.gaac.safetensors                what a profile (or a KV dump, .npy) holds\n"
    "  gaac bench codec --split 0.5 dump.npy              how well and how fast real KV compresses here\n"
    "  gaac bench attention                               how fast attention reads the compressed cache here\n"
    "\n"
    "Commands:\n"
    "  exec        run a llama.cpp program with the GAAC device (sets the environment, adds the options)\n"
    "  calibrate   make a profile of a model from a text\n"
    "  inspect     show a profile or a KV dump, as a table, JSON or a picture\n"
    "  bench       measure the codec, and attention over compressed blocks\n"
    "\n"
    "  gaac COMMAND --help explains a command. gaac --version names this version and the CPU's kernels.\n"
    "\n"
    "Exit codes: 0 done, 1 failed, 2 bad usage, 3 bad input data; gaac exec ends as the program does\n"
    "(126 when it can't be executed, 127 when it isn't found).\n";

static const struct command {
    const char *name;
    int (*run)(int argc, char **argv);
} commands[] = {
    {"exec", cmd_exec},
    {"calibrate", cmd_calibrate},
    {"inspect", cmd_inspect},
    {"bench", cmd_bench},
};

/* The library ignores a GAAC_CPU that it does not know; a user who set it meant something. */
static int check_cpu_variable(void)
{
    const char *value = getenv("GAAC_CPU");
    if (!value || tool_is_isa(value))
        return TOOL_OK;
    char *known = tool_list_isas();
    const int code = tool_fail(TOOL_USAGE, "GAAC_CPU=%s: set it to %s", value, known);
    free(known);
    return code;
}

int main(int argc, char **argv)
{
    if (argc < 2)
        return tool_fail(TOOL_USAGE, "which command? one of exec, calibrate, inspect, bench; see gaac --help");
    const int code = check_cpu_variable();
    if (code != TOOL_OK)
        return code;
    const char *name = argv[1];
    if (!strcmp(name, "--help") || !strcmp(name, "-h") || !strcmp(name, "help")) {
        fputs(help, stdout);
        return TOOL_OK;
    }
    if (!strcmp(name, "--version") || !strcmp(name, "-V")) {
        printf("gaac %s (library %s, kernels %s)\n", GAAC_VERSION_STRING, gaac_version(), gaac_cpu_isa());
        return TOOL_OK;
    }
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        if (!strcmp(name, commands[i].name))
            return commands[i].run(argc - 1, argv + 1);
    return tool_fail(TOOL_USAGE, "%s is not a command; one of exec, calibrate, inspect, bench (gaac --help)", name);
}
