/* What the vector encoders share: the state between finding a unit's codes and writing its variable part,
 * and the rare things that plain C does for them. */
#ifndef GAAC_CPU_ENCODING_H
#define GAAC_CPU_ENCODING_H

#include "codec/unit.h"

#include <string.h>

/* What a vector encoder knows of a unit once the fixed parts are written. outside has bit 4 * (k & 3) + byte of N
 * for the elements that lie outside both windows, by [part][half][k >> 2][position]; it is zero in the halves that the
 * unit lacks, or undefined as a whole where the unit has no exceptions. How an encoder orders the rest of a unit's
 * [part] is its own matter: bytes of N words; 0xff for those that are stored, else 0; tag bits at their places in the
 * format's tags. */
typedef struct gaac_encoding {
    _Alignas(64) uint32_t n[2][GAAC_MAX_HV][GAAC_LANES];
    _Alignas(64) uint32_t stored[2][GAAC_MAX_HV][GAAC_LANES];
    _Alignas(64) uint32_t tags[2][GAAC_LANES];
    _Alignas(64) uint16_t outside[2][GAAC_MAX_HV][2][GAAC_LANES];
    bool has_outside;
} gaac_encoding;

/* The exceptions of a unit, in the order of the format. */
typedef struct gaac_exceptions {
    uint32_t count; /* may pass the size of records: then they fit no unit */
    uint32_t flags; /* as gaac_unit_info.exception_flags */
    uint32_t records[GAAC_MAX_UNIT_POOL / 4];
} gaac_exceptions;

/* Lists the elements that encoding->outside names. fragments[part] is read where the unit has the part. */
void gaac_exceptions_collect(gaac_exceptions *exceptions, unsigned hv, unsigned parts, const gaac_encoding *encoding,
                             const uint16_t *const fragments[2]);

/* Fills info; false if the variable part doesn't fit. */
static inline bool gaac_encoding_measure(unsigned hv, uint32_t stored_n, const gaac_exceptions *exceptions,
                                         uint32_t capacity, gaac_unit_info *info)
{
    const uint32_t used = GAAC_TAG_BYTES * hv + stored_n + 4 * exceptions->count;
    info->bytes = (used + GAAC_POOL_ALIGN - 1) / GAAC_POOL_ALIGN * GAAC_POOL_ALIGN;
    info->stored_n = stored_n;
    info->exceptions = exceptions->count;
    info->exception_flags = exceptions->flags;
    return info->bytes <= capacity && info->bytes <= GAAC_MAX_UNIT_POOL;
}

/* Writes the padding, and over the end of what comes before it: to be called before that is written. */
static inline void gaac_padding_write(const gaac_exceptions *exceptions, const gaac_unit_info *info, uint8_t *variable)
{
    memset(variable + info->bytes - 4 * exceptions->count - GAAC_POOL_ALIGN, 0, GAAC_POOL_ALIGN);
}

/* Writes the exceptions. */
void gaac_exceptions_write(const gaac_exceptions *exceptions, const gaac_unit_info *info, uint8_t *variable);

#endif
