/* Small things every room uses: error messages, allocation through the hook, reserved memory, checksum. */
#ifndef GAAC_BASE_BASE_H
#define GAAC_BASE_BASE_H

#include "gaac/common.h"

/* Sets *error (if not NULL) from a printf format and returns status. */
gaac_status gaac_fail(gaac_error *error, gaac_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* The hook to use for an optional one. */
gaac_allocator gaac_allocator_or_default(const gaac_allocator *allocator);

/* Zeroed memory, 64-byte aligned, or NULL. bytes > 0. gaac_free takes NULL too. */
void *gaac_calloc(const gaac_allocator *allocator, size_t bytes);
void gaac_free(const gaac_allocator *allocator, void *pointer, size_t bytes);

/* CRC-64/XZ (ECMA-182, reflected) of bytes, continuing from `crc` (0 to start). */
uint64_t gaac_crc64(uint64_t crc, const void *bytes, size_t size);

/* Address space: reserve without memory behind it, commit (readable, writable, zero), give back (the
 * pages go, the range stays committed and reads as zero), release. Offsets and sizes are multiples of
 * the page size. reserve returns NULL and commit false when the system refuses. A range starts on a huge page's
 * boundary; prefer_huge asks for huge pages behind it, which the system may not have, and avoid_huge for none. */
enum { GAAC_HUGE_PAGE = 2 << 20 };
size_t gaac_page_bytes(void);
void *gaac_memory_reserve(size_t bytes);
bool gaac_memory_commit(void *address, size_t bytes);
void gaac_memory_prefer_huge(void *address, size_t bytes);
void gaac_memory_avoid_huge(void *address, size_t bytes);
void gaac_memory_give_back(void *address, size_t bytes);
void gaac_memory_release(void *address, size_t bytes);

#endif
