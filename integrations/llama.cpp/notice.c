#include "notice.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>

static void print_line(const char *format, va_list arguments)
{
    char line[512];
    vsnprintf(line, sizeof line, format, arguments);
    fprintf(stderr, "gaac: %s\n", line); /* one call: lines of other threads stay whole */
}

void notice(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    print_line(format, arguments);
    va_end(arguments);
}

void notice_once(notice_reason reason, const char *format, ...)
{
    static atomic_bool told[NOTICE_REASONS];
    if (atomic_exchange(&told[reason], true))
        return;
    va_list arguments;
    va_start(arguments, format);
    print_line(format, arguments);
    va_end(arguments);
}
