#include "tool.h"

#include <errno.h>
#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static bool progress_shown;

int tool_fail(int code, const char *format, ...)
{
    tool_progress_done();
    va_list arguments;
    va_start(arguments, format);
    fputs("gaac: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    return code;
}

int tool_fail_status(const char *what, const gaac_error *error)
{
    const bool data = error->status == GAAC_ERROR_CORRUPT || error->status == GAAC_ERROR_MISMATCH ||
                      error->status == GAAC_ERROR_UNSUPPORTED;
    const int code = data ? TOOL_BAD_DATA : TOOL_FAILED;
    if (strstr(error->message, what)) /* the library named it already */
        return tool_fail(code, "%s", error->message);
    return tool_fail(code, "%s: %s", what, error->message);
}

void tool_warn(const char *format, ...)
{
    tool_progress_done();
    va_list arguments;
    va_start(arguments, format);
    fputs("gaac: warning: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
}

int tool_bad_option(const char *command, int code, char *const argv[])
{
    /* '?' leaves the letter of an unknown short option in optopt and 0 for an unknown long one; ':' is met
     * with optind just past the option, and optopt may be the code that a long option stands for. */
    const char *word = argv[optind - 1];
    const char letter[3] = {'-', (char)optopt, 0};
    if (code == '?' ? optopt != 0 : strncmp(word, "--", 2) != 0)
        word = letter;
    if (code == ':')
        return tool_fail(TOOL_USAGE, "%s needs a value; see gaac %s --help", word, command);
    return tool_fail(TOOL_USAGE, "%s is not an option of gaac %s; see gaac %s --help", word, command, command);
}

void tool_progress(const char *format, ...)
{
    if (!isatty(STDERR_FILENO))
        return;
    va_list arguments;
    va_start(arguments, format);
    fputs("\r\033[K", stderr);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fflush(stderr);
    progress_shown = true;
}

void tool_progress_done(void)
{
    if (progress_shown)
        fputs("\r\033[K", stderr);
    progress_shown = false;
}

void *tool_alloc(size_t bytes)
{
    const size_t rounded = (bytes + 63) / 64 * 64;
    void *pointer = rounded >= bytes ? aligned_alloc(64, rounded ? rounded : 64) : NULL;
    if (!pointer)
        exit(tool_fail(TOOL_FAILED, "no memory for %zu bytes; close something or use a smaller file", bytes));
    memset(pointer, 0, rounded);
    return pointer;
}

char *tool_format(const char *format, ...)
{
    va_list arguments, again;
    va_start(arguments, format);
    va_copy(again, arguments);
    const int length = vsnprintf(NULL, 0, format, arguments);
    va_end(arguments);
    const size_t size = length < 0 ? 1 : (size_t)length + 1;
    char *text = tool_alloc(size);
    vsnprintf(text, size, format, again);
    va_end(again);
    return text;
}

void string_list_add(string_list *list, const char *string)
{
    string_list_insert(list, list->count, string);
}

void string_list_insert(string_list *list, size_t at, const char *string)
{
    if (list->count + 2 > list->room) {
        const size_t room = list->room ? 2 * list->room : 16;
        char **items = tool_alloc(room * sizeof *items);
        if (list->items)
            memcpy(items, list->items, list->count * sizeof *items);
        free(list->items);
        list->items = items;
        list->room = room;
    }
    memmove(list->items + at + 1, list->items + at, (list->count - at) * sizeof *list->items);
    list->items[at] = tool_format("%s", string);
    list->items[++list->count] = NULL;
}

void string_list_free(string_list *list)
{
    for (size_t i = 0; i < list->count; i++)
        free(list->items[i]);
    free(list->items);
    *list = (string_list){0};
}

bool tool_parse_number(const char *text, uint64_t least, uint64_t most, uint64_t *value)
{
    if (*text < '0' || *text > '9')
        return false;
    char *end;
    errno = 0;
    *value = strtoull(text, &end, 10);
    return !errno && !*end && *value >= least && *value <= most;
}

bool tool_parse_fraction(const char *text, double *value)
{
    char *end;
    *value = strtod(text, &end);
    return end != text && !*end && *value > 0 && *value < 1;
}

const char *const tool_isa_names[] = {"c", "avx2", "avx512", "avx512bf16", "amx", "neon", "neonbf16", NULL};

bool tool_is_isa(const char *name)
{
    for (unsigned i = 0; tool_isa_names[i]; i++)
        if (!strcmp(name, tool_isa_names[i]))
            return true;
    return false;
}

char *tool_list_isas(void)
{
    char *list = tool_format("%s", tool_isa_names[0]);
    for (unsigned i = 1; tool_isa_names[i]; i++) {
        char *longer = tool_format("%s%s%s", list, tool_isa_names[i + 1] ? ", " : " or ", tool_isa_names[i]);
        free(list);
        list = longer;
    }
    return list;
}

const char *tool_base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

double tool_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}
