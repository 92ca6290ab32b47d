/* gaac_harness: checks every kernel of every instruction set of this machine, and times those that passed. */
#include "harness.h"

#include <getopt.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void usage(FILE *out)
{
    fputs("usage: gaac_harness [--bench] [--filter TEXT] [--rounds N] [--seed N] [--quiet]\n"
          "Checks every kernel byte for byte against its plain C definition, on every instruction set that this\n"
          "machine has; with --bench also times those that passed, beside plain C in the same run.\n"
          "  --filter TEXT  only kernels whose name (codec.decode_k/hv2 avx512) contains TEXT\n"
          "  --rounds N     inputs a kernel (default 400)\n"
          "  --seed N       of the random inputs (a failure prints it)\n"
          "  --quiet        print only failures and figures\n"
          "Exit status: 0 all equal, 1 a kernel differs, 2 wrong use or nothing to check.\n",
          out);
}

/* A positive number, or 0 if text isn't one. */
static uint64_t number(const char *text)
{
    char *end;
    const unsigned long long value = strtoull(text, &end, 0);
    return *text != '\0' && *end == '\0' ? value : 0;
}

static int bad_number(const char *option)
{
    fprintf(stderr, "gaac_harness: %s wants a positive number\n", option);
    return 2;
}

static void write_text(const char *text)
{
    const ssize_t written = write(STDERR_FILENO, text, strlen(text));
    (void)written; /* there is nobody left to tell */
}

/* A kernel touched memory that isn't its own, or used an instruction that the machine lacks. */
static void crashed(int signal_number)
{
    write_text(signal_number == SIGILL ? "FAIL unknown instruction in " : "FAIL access outside the buffers in ");
    write_text(harness_running);
    write_text("\n");
    _exit(1);
}

int main(int argc, char **argv)
{
    static const struct option names[] = {
        {"bench", no_argument, NULL, 'b'},
        {"filter", required_argument, NULL, 'f'},
        {"rounds", required_argument, NULL, 'r'},
        {"seed", required_argument, NULL, 's'},
        {"quiet", no_argument, NULL, 'q'},
        {"help", no_argument, NULL, 'h'},
        {NULL, 0, NULL, 0},
    };
    harness_options options = {0};
    int option;
    while ((option = getopt_long(argc, argv, "", names, NULL)) != -1) {
        switch (option) {
        case 'b':
            options.bench = true;
            break;
        case 'f':
            options.filter = optarg;
            break;
        case 'r':
            if ((options.rounds = (unsigned)number(optarg)) == 0)
                return bad_number("--rounds");
            break;
        case 's':
            if ((options.seed = number(optarg)) == 0)
                return bad_number("--seed");
            break;
        case 'q':
            options.quiet = true;
            break;
        case 'h':
            usage(stdout);
            return 0;
        default:
            usage(stderr);
            return 2;
        }
    }
    if (optind < argc) {
        usage(stderr);
        return 2;
    }
    signal(SIGSEGV, crashed);
    signal(SIGBUS, crashed);
    signal(SIGILL, crashed);
    unsigned checked;
    const unsigned failed = harness_run(&options, stdout, &checked);
    printf("%u kernels checked, %u failed\n", checked, failed);
    if (failed > 0)
        return 1;
    return checked > 0 ? 0 : 2;
}
