/* Rows so far apart that their offsets pass 32 bits, in elements and in bytes: what a long context's cache has.
 * Only the pages around the rows themselves are mapped. */
#include "check_codec.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MAX_CHANNELS = 128 };

/* Elements from row to row: more than 32 bits can say, and of no alignment. */
#define FAR_STRIDE (((size_t)1 << 32) + 12)

static const unsigned far_fragments[FAR_SHAPES] = {1, 7, 8}; /* every length of a kernel's last, smaller steps */

void describe_far(unsigned shape, char *text, size_t bytes)
{
    snprintf(text, bytes, "%uch", far_fragments[shape] * GAAC_FRAGMENT_CHANNELS);
}

typedef struct far_rows {
    uintptr_t first; /* address of row 0: a page's start */
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
    return (neighbourhood){(uint8_t *)(rows->first + start), (uint8_t *)(rows->first + row), end - start};
}

static void unmap_rows(const far_rows *rows, unsigned first_token)
{
    for (unsigned token = first_token; token < GAAC_BLOCK_TOKENS; token++) {
        const neighbourhood n = neighbourhood_of(rows, token);
        munmap(n.start, n.bytes);
    }
}

static uint8_t *map(uint8_t *hint, size_t bytes)
{
    return mmap(hint, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

/* The last row lies where the system likes, the others below it, where address space is free as a rule. */
static bool map_rows(harness *h, unsigned fragments, far_rows *rows)
{
    const unsigned last = GAAC_BLOCK_TOKENS - 1;
    *rows = (far_rows){.row_bytes = (size_t)2 * fragments * GAAC_FRAGMENT_CHANNELS};
    const neighbourhood from_zero = neighbourhood_of(rows, last);
    uint8_t *top = map(NULL, from_zero.bytes);
    if (top == MAP_FAILED) {
        harness_fail(h, "no memory for rows");
        return false;
    }
    rows->first = (uintptr_t)top - (uintptr_t)from_zero.start;
    for (unsigned token = last; token-- > 0;) {
        const neighbourhood n = neighbourhood_of(rows, token);
        uint8_t *place = map(n.start, n.bytes);
        if (place == n.start)
            continue;
        harness_fail(h, "no place for row %u, %zu bytes below the last", token, (size_t)(top - n.start));
        if (place != MAP_FAILED)
            munmap(place, n.bytes);
        unmap_rows(rows, token + 1);
        return false;
    }
    return true;
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
    h->tables->codec.rows_to_fragments[part](fragments, (const uint16_t *)rows.first, FAR_STRIDE, actual);
    harness_equal(h, "fragments", expected, actual, bytes);
    unmap_rows(&rows, 0);
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
    h->tables->codec.fragments_to_rows[part](fragments, in, (uint16_t *)rows.first, FAR_STRIDE);
    for (unsigned token = 0; token < GAAC_BLOCK_TOKENS; token++) {
        const neighbourhood n = neighbourhood_of(&rows, token);
        harness_equal(h, "a row and what is around it", around[token], n.start, n.bytes);
    }
    unmap_rows(&rows, 0);
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
