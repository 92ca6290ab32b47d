/* Fills a gaac_error for the command's own file readers, so that they report as the library does. */
#ifndef GAAC_TOOL_DATA_ERROR_H
#define GAAC_TOOL_DATA_ERROR_H

#include <stdarg.h>
#include <stdio.h>

#include "gaac/common.h"

__attribute__((format(printf, 3, 4))) static inline gaac_status data_error(gaac_error *error, gaac_status status,
                                                                           const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    if (error) {
        error->status = status;
        vsnprintf(error->message, sizeof error->message, format, arguments);
    }
    va_end(arguments);
    return status;
}

#endif
