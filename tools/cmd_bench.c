/* gaac bench: finds what to measure. */
#include <stdio.h>
#include <string.h>

#include "cmd_bench.h"
#include "tool.h"

static const char help[] = "gaac bench - measurements on this machine\n"
                           "\n"
                           "Examples:\n"
                           "  gaac bench codec dump.npy      how well and how fast real KV caches compress\n"
                           "  gaac bench attention           how fast attention reads compressed keys and values\n"
                           "\n"
                           "gaac bench codec --help and gaac bench attention --help explain them.\n";

int cmd_bench(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    if (!strcmp(what, "codec"))
        return cmd_bench_codec(argc - 1, argv + 1);
    if (!strcmp(what, "attention"))
        return cmd_bench_attention(argc - 1, argv + 1);
    if (!strcmp(what, "--help") || !strcmp(what, "-h")) {
        fputs(help, stdout);
        return TOOL_OK;
    }
    if (argc > 1)
        return tool_fail(TOOL_USAGE, "there is no gaac bench %s; codec or attention (gaac bench --help)", what);
    return tool_fail(TOOL_USAGE, "what to measure? gaac bench codec FILE.npy, or gaac bench attention");
}
