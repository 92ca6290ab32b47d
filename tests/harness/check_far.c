/* Rows so far apart that their offsets pass 32 bits, in elements and in bytes: what a long context's cache has.
 * Address space is all that this takes; only the pages around the rows themselves are memory. */
#include "check_codec.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MAX_CHANNELS = 128 };

/* Elements from row to row: row 8 lies 2^32 elements from row 0, and rows are aligned to nothing but themselves. */
#define FAR_STRIDE ((size_t)0x20000000 + 12)

static const unsigned far_fragments[FAR_SHAPES] = {1, 7, 8}; /* every length of a kernel's last, smaller steps */

void describe_far(unsigned shape, char *text, size_t bytes)
{
    snprintf(text, bytes, "%uch", far_fragments[shape] * GAAC_FRAGMENT_CHANNELS);
}

typedef struct far_rows {
    uint8_t *mapping;
    size_t mapped;
    size_t row_bytes;
} far_rows;

/* A row and the memory around it. */
typedef struct neighbourhood {
    uint8_t *start, *row;
    size_t bytes;
} neighbourhood;

static neighbourhood neighbourhood_of(const far_rows *rows, unsigned token)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const size_t row = 2 * FAR_STRIDE * token, start = row / page * page;
    const size_t end = (row + rows->row_bytes + page) / page * page; /* at least one byte behind the row */
    return (neighbourhood){rows->mapping + start, rows->mapping + row, end - start};
}

static bool map_rows(harness *h, unsigned fragments, far_rows *rows)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    rows->row_bytes = (size_t)2 * fragments * GAAC_FRAGMENT_CHANNELS;
    rows->mapped = 2 * FAR_STRIDE * GAAC_BLOCK_TOKENS + 2 * page;
    rows->mapping = mmap(NULL, rows->mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    bool mapped = rows->mapping != MAP_FAILED;
    for (unsigned token = 0; mapped && token < GAAC_BLOCK_TOKENS; token++) {
        const neighbourhood n = neighbourhood_of(rows, token);
        mapped = mprotect(n.start, n.bytes, PROT_READ | PROT_WRITE) == 0;
    }
    if (!mapped)
        harness_fail(h, "no %zu bytes of address space", rows->mapped);
    return mapped;
}

static void check_far_to_fragments(harness *h, gaac_part part, unsigned fragments)
{
    const size_t channels = (size_t)fragments * GAAC_FRAGMENT_CHANNELS, bytes = (size_t)fragments * GAAC_FRAGMENT_BYTES;
    uint16_t *actual = harness_memory(h, bytes);
    uint16_t near[GAAC_BLOCK_TOKENS * MAX_CHANNELS], expected[MAX_PART_ELEMENTS];
    far_rows rows;
    if (!map_rows(h, fragments, &rows))
        return;
    for (unsigned token = 0; token < GAAC_BLOCK_TOKENS; token++) {
        const neighbourhood n = neighbourhood_of(&rows, token);
        harness_random_bytes(h, n.start, n.bytes);
        memcpy(near + token * channels, n.row, rows.row_bytes);
    }
    h->definition->codec.rows_to_fragments[part](fragments, near, channels, expected);
    h->tables->codec.rows_to_fragments[part](fragments, (const void *)rows.mapping, FAR_STRIDE, actual);
    harness_equal(h, "fragments", expected, actual, bytes);
    munmap(rows.mapping, rows.mapped);
}

static void check_far_to_rows(harness *h, gaac_part part, unsigned fragments)
{
    const size_t channels = (size_t)fragments * GAAC_FRAGMENT_CHANNELS, bytes = (size_t)fragments * GAAC_FRAGMENT_BYTES;
    uint16_t *in = harness_memory(h, bytes);
    uint16_t near[GAAC_BLOCK_TOKENS * MAX_CHANNELS];
    uint8_t *around[GAAC_BLOCK_TOKENS];
    far_rows rows;
    if (!map_rows(h, fragments, &rows))
        return;
    harness_random_bytes(h, in, bytes);
    h->definition->codec.fragments_to_rows[part](fragments, in, near, channels);
    for (unsigned token = 0; token < GAAC_BLOCK_TOKENS; token++) {
        const neighbourhood n = neighbourhood_of(&rows, token);
        harness_random_bytes(h, n.start, n.bytes);
        around[token] = harness_memory(h, n.bytes);
        memcpy(around[token], n.start, n.bytes); /* what lies between the rows must stay */
        memcpy(around[token] + (n.row - n.start), near + token * channels, rows.row_bytes);
    }
    h->tables->codec.fragments_to_rows[part](fragments, in, (void *)rows.mapping, FAR_STRIDE);
    for (unsigned token = 0; token < GAAC_BLOCK_TOKENS; token++) {
        const neighbourhood n = neighbourhood_of(&rows, token);
        harness_equal(h, "a row and what is around it", around[token], n.start, n.bytes);
    }
    munmap(rows.mapping, rows.mapped);
}

void check_far_k_to_fragments(harness *h, unsigned shape)
{
    check_far_to_fragments(h, GAAC_K, far_fragments[shape]);
}
void check_far_v_to_fragments(harness *h, unsigned shape)
{
    check_far_to_fragments(h, GAAC_V, far_fragments[shape]);
}
void check_far_k_to_rows(harness *h, unsigned shape)
{
    check_far_to_rows(h, GAAC_K, far_fragments[shape]);
}
void check_far_v_to_rows(harness *h, unsigned shape)
{
    check_far_to_rows(h, GAAC_V, far_fragments[shape]);
}
