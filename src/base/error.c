/* Status names, messages, version, shape check. */
#include "base/base.h"
#include "gaac/version.h"

#include <stdarg.h>
#include <stdio.h>

gaac_status gaac_fail(gaac_error *error, gaac_status status, const char *format, ...)
{
    if (error != NULL) {
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(error->message, sizeof error->message, format, arguments);
        va_end(arguments);
        error->status = status;
    }
    return status;
}

const char *gaac_status_name(gaac_status status)
{
    switch (status) {
    case GAAC_OK:
        return "ok";
    case GAAC_ERROR_INVALID_ARGUMENT:
        return "invalid argument";
    case GAAC_ERROR_OUT_OF_MEMORY:
        return "out of memory";
    case GAAC_ERROR_MEMORY_LIMIT:
        return "memory limit";
    case GAAC_ERROR_CORRUPT:
        return "corrupt data";
    case GAAC_ERROR_MISMATCH:
        return "mismatch";
    case GAAC_ERROR_IO:
        return "input/output error";
    case GAAC_ERROR_UNSUPPORTED:
        return "unsupported";
    }
    return "unknown status";
}

const char *gaac_version(void)
{
    return GAAC_VERSION_STRING;
}

static gaac_status check_head_dim(const char *name, uint32_t dim, gaac_error *error)
{
    if (dim == 0 || dim % 16 != 0 || dim > GAAC_MAX_HEAD_DIM)
        return gaac_fail(error, GAAC_ERROR_INVALID_ARGUMENT, "%s is %u; it must be a multiple of 16 between 16 and %d",
                         name, dim, GAAC_MAX_HEAD_DIM);
    return GAAC_OK;
}

gaac_status gaac_shape_check(const gaac_shape *shape, gaac_error *error)
{
    if (shape == NULL)
        return gaac_fail(error, GAAC_ERROR_INVALID_ARGUMENT, "the shape is NULL");
    if (shape->kv_heads == 0 || shape->kv_heads > GAAC_MAX_KV_HEADS)
        return gaac_fail(error, GAAC_ERROR_INVALID_ARGUMENT, "kv_heads is %u; it must be 1 to %d", shape->kv_heads,
                         GAAC_MAX_KV_HEADS);
    const gaac_status status = check_head_dim("head_dim_k", shape->head_dim_k, error);
    return status != GAAC_OK ? status : check_head_dim("head_dim_v", shape->head_dim_v, error);
}
