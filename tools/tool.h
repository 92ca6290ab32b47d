/* What every subcommand of the gaac command shares: exit codes, one-line errors, progress, memory. */
#ifndef GAAC_TOOL_H
#define GAAC_TOOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gaac/gaac.h"

/* Exit codes, documented in docs/gaac-command.md. The last two are env(1)'s. */
enum tool_exit {
    TOOL_OK = 0,
    TOOL_FAILED = 1,   /* sound request, but it did not work out: I/O, memory, the host failed */
    TOOL_USAGE = 2,    /* the command line is wrong */
    TOOL_BAD_DATA = 3, /* an input file is damaged, of the wrong kind, or another model's */
    TOOL_CANNOT_EXECUTE = 126,
    TOOL_NOT_FOUND = 127
};

/* Prints "gaac: MESSAGE" on stderr as one line and returns `code`, so that callers can return it. */
int tool_fail(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The same for what goes wrong in the library; `what` (a path, usually) stands before a message without it. */
int tool_fail_status(const char *what, const gaac_error *error);
/* Prints "gaac: warning: MESSAGE" on stderr. */
void tool_warn(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* The error for what getopt_long (with opterr 0 and a leading ':') returned as '?' or ':'. */
int tool_bad_option(const char *command, int code, char *const argv[]);

/* Progress: one line that is rewritten, on stderr and only when that is a terminal. */
void tool_progress(const char *format, ...) __attribute__((format(printf, 1, 2)));
void tool_progress_done(void); /* clears the line */

/* Memory of the command itself: never NULL, exits with TOOL_FAILED when there is none. */
void *tool_alloc(size_t bytes); /* zeroed, 64-byte aligned, released with free() */
char *tool_format(const char *format, ...) __attribute__((format(printf, 1, 2))); /* released with free() */

/* A list of strings that owns its copies and ends with NULL. Zero-initialise. */
typedef struct string_list {
    char **items;
    size_t count, room;
} string_list;
void string_list_add(string_list *list, const char *string);
void string_list_insert(string_list *list, size_t at, const char *string);
void string_list_free(string_list *list);

/* A whole decimal number in [least, most]; false for anything else. */
bool tool_parse_number(const char *text, uint64_t least, uint64_t most, uint64_t *value);
bool tool_parse_fraction(const char *text, double *value); /* 0 < value < 1 */

/* The kernel sets that gaac_cpu_isa() may name and GAAC_CPU may ask for, each ladder upwards; ends with NULL. */
extern const char *const tool_isa_names[];
bool tool_is_isa(const char *name);
char *tool_list_isas(void); /* "c, avx2 or ...", released with free() */

const char *tool_base_name(const char *path); /* after the last '/' */
double tool_seconds(void);                    /* a monotonic clock */

/* The subcommands. argv[0] is the subcommand's name; each returns an exit code. */
int cmd_exec(int argc, char **argv);
int cmd_calibrate(int argc, char **argv);
int cmd_inspect(int argc, char **argv);
int cmd_bench(int argc, char **argv);

#endif
