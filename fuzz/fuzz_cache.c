/* Fuzz target: a sequence of operations on a cache and on a plain array, compared after each step. The input says
 * what the cache is like, then one operation after the other; values are drawn from a seed, since their number
 * would leave no room for operations.
 *
 * Allocations fail and limits are reached too: then what was there before must still be there. */
#include "cache_model.h"
#include "fuzz_target.h"
#include "random_kv.h"

enum { SHAPES = 6, MOST_STEPS = 64, MOST_ROWS = 64, GAP = 5 };

enum step {
    STEP_APPEND, /* whole runs of cells, as prefill writes them */
    STEP_WRITE,
    STEP_SCATTER,
    STEP_DROP,
    STEP_COPY,
    STEP_SETTLE,
    STEP_REBUILD, /* as a session is saved and restored, under the profile that the cache made */
    STEP_COMPARE,
    STEP_REFUSED, /* places that are not there */
    STEP_FAIL,    /* the next step's allocations fail from some on */
    STEPS
};

static const gaac_shape shapes[SHAPES] = {{1, 64, 64}, {2, 64, 64},  {1, 80, 80},
                                          {2, 32, 16}, {1, 128, 64}, {1, 16, 128}};

typedef struct run {
    fuzz_input input;
    model m;
    gaac_cache *cache;
    gaac_cache_config config;
    uint64_t random;
    uint32_t rows_made;
    size_t allocations_left; /* before they fail */
    bool may_fail;           /* a limit is set, or allocations fail in this step */
} run;

/* ---- the allocator -------------------------------------------------------------------------- */

static void *allocate(void *user, size_t bytes, size_t alignment)
{
    run *r = user;
    void *memory = NULL;
    if (r->allocations_left == 0 || posix_memalign(&memory, alignment, bytes) != 0)
        return NULL;
    r->allocations_left--;
    return memory;
}

static void release(void *user, void *pointer, size_t bytes)
{
    (void)user;
    (void)bytes;
    free(pointer);
}

/* ---- comparing ------------------------------------------------------------------------------ */

/* Rows in memory of exactly their size, `stride` elements from row to row. */
static uint16_t *read_rows(const run *r, uint32_t layer, unsigned part, uint32_t sequence, uint64_t first,
                           uint64_t count, size_t *stride)
{
    const size_t elements = row_elements(&r->m, layer, part);
    *stride = elements + GAP;
    uint16_t *rows = fuzz_alloc((count > 0 ? count * *stride - GAP : 0) * sizeof *rows);
    REQUIRE(gaac_cache_read(r->cache, layer, (gaac_part)part, sequence, first, count, rows, *stride, NULL) == GAAC_OK);
    return rows;
}

static void compare(run *r, uint32_t layer, uint32_t sequence, uint64_t first, uint64_t count)
{
    for (unsigned part = 0; part < 2; part++) {
        size_t stride;
        uint16_t *rows = read_rows(r, layer, part, sequence, first, count, &stride);
        for (uint64_t i = 0; i < count; i++)
            REQUIRE(memcmp(rows + i * stride, model_row(&r->m, layer, part, sequence, first + i),
                           row_elements(&r->m, layer, part) * 2) == 0);
        free(rows);
    }
}

static void compare_all(run *r)
{
    for (uint32_t layer = 0; layer < r->m.layers; layer++)
        for (uint32_t sequence = 0; sequence < r->m.sequences; sequence++)
            compare(r, layer, sequence, 0, r->m.cells);
    gaac_cache_stats stats;
    REQUIRE(cache_sums_agree(r->cache));
    REQUIRE(gaac_cache_get_stats(r->cache, GAAC_ALL_LAYERS, &stats, NULL) == GAAC_OK);
    REQUIRE(stats.bytes_resident <= stats.bytes_resident_peak);
    REQUIRE(r->config.mode != GAAC_CACHE_RAW || (stats.encodes == 0 && stats.blocks_coded == 0));
}

/* ---- writing -------------------------------------------------------------------------------- */

typedef struct row_list {
    uint32_t layer, sequence, count;
    unsigned part;
    int64_t cells[MOST_ROWS];
    uint16_t *rows;
    size_t stride;
} row_list;

/* No two rows of a run are equal: the mantissas of their first three elements number them. */
static void number_row(run *r, uint16_t *row)
{
    r->rows_made++;
    for (unsigned i = 0; i < 3; i++)
        row[i] = (uint16_t)((row[i] & 0xff80) | (r->rows_made >> 7 * i & 0x7f));
}

static void make_rows(run *r, row_list *list, random_kind kind)
{
    const size_t elements = row_elements(&r->m, list->layer, list->part);
    list->stride = elements + GAP;
    list->rows = fuzz_alloc((list->count * list->stride - GAP) * sizeof *list->rows);
    for (uint32_t i = 0; i < list->count; i++) {
        random_fill(&r->random, kind, list->rows + i * list->stride, elements, (unsigned)elements);
        number_row(r, list->rows + i * list->stride);
    }
}

/* The cell holds what it has to after the first `written` rows. */
static bool cell_as_after(run *r, const row_list *list, int64_t cell, uint32_t written)
{
    size_t stride;
    const uint16_t *want = model_row(&r->m, list->layer, list->part, list->sequence, (uint64_t)cell);
    for (uint32_t i = 0; i < written; i++)
        if (list->cells[i] == cell)
            want = list->rows + i * list->stride;
    uint16_t *have = read_rows(r, list->layer, list->part, list->sequence, (uint64_t)cell, 1, &stride);
    const bool equal = memcmp(have, want, row_elements(&r->m, list->layer, list->part) * 2) == 0;
    free(have);
    return equal;
}

/* After a write that failed: how many rows were written. They are the first ones. */
static uint32_t rows_written(run *r, const row_list *list)
{
    for (uint32_t written = 0; written <= list->count; written++) {
        uint32_t equal = 0;
        while (equal < list->count && cell_as_after(r, list, list->cells[equal], written))
            equal++;
        if (equal == list->count)
            return written;
    }
    fuzz_fail("a write that failed leaves its first rows written, the rest not", __FILE__, __LINE__);
}

static bool is_shortage(const run *r, gaac_status status)
{
    return r->may_fail && (status == GAAC_ERROR_MEMORY_LIMIT || status == GAAC_ERROR_OUT_OF_MEMORY);
}

static void write_list(run *r, row_list *list, bool scattered)
{
    gaac_error error = {GAAC_OK, ""};
    const gaac_status status = gaac_cache_write(
        r->cache, list->layer, (gaac_part)list->part, list->sequence, scattered ? 0 : (uint64_t)list->cells[0],
        scattered ? list->cells : NULL, list->count, list->rows, list->stride, &error);
    REQUIRE(status == GAAC_OK || (is_shortage(r, status) && error.status == status && error.message[0] != '\0'));
    r->allocations_left = SIZE_MAX;
    const uint32_t written = status == GAAC_OK ? list->count : rows_written(r, list);
    for (uint32_t i = 0; i < written; i++)
        model_write(&r->m, list->layer, list->part, list->sequence, (uint64_t)list->cells[i],
                    list->rows + i * list->stride);
}

static void step_write(run *r, enum step step)
{
    static const random_kind kinds[8] = {RANDOM_KV,       RANDOM_KV,   RANDOM_KV,    RANDOM_KV,
                                         RANDOM_OUTLIERS, RANDOM_BITS, RANDOM_ZEROS, RANDOM_SPECIAL};
    const unsigned choice = fuzz_byte(&r->input), parts = choice & 3; /* 1: K only, 2: V only */
    row_list list = {.layer = (choice >> 2) % r->m.layers, .sequence = (choice >> 4) % r->m.sequences};
    const random_kind kind = kinds[fuzz_byte(&r->input) & 7];
    const unsigned first = fuzz_byte(&r->input) % r->m.cells;
    const unsigned start = step == STEP_APPEND ? first / GAAC_BLOCK_TOKENS * GAAC_BLOCK_TOKENS : first;
    list.count = 1 + fuzz_below(&r->input, step == STEP_APPEND ? MOST_ROWS : 20);
    if (list.count > r->m.cells - start)
        list.count = r->m.cells - start;
    for (uint32_t i = 0; i < list.count; i++)
        list.cells[i] = step == STEP_SCATTER ? fuzz_byte(&r->input) % r->m.cells : start + i;
    for (list.part = 0; list.part < 2; list.part++)
        if (parts == 0 || parts == 3 || parts == list.part + 1) {
            make_rows(r, &list, kind);
            write_list(r, &list, step == STEP_SCATTER);
            free(list.rows);
        }
    compare(r, list.layer, list.sequence, start, list.count);
}

/* ---- the other steps ------------------------------------------------------------------------ */

static void step_drop(run *r)
{
    const unsigned choice = fuzz_byte(&r->input);
    const uint32_t only = choice % (r->m.sequences + 1); /* the last: all sequences */
    const uint64_t first = fuzz_byte(&r->input) % r->m.cells;
    const uint64_t most = r->m.cells - first, count = 1 + fuzz_byte(&r->input) % most;
    const bool open_ended = count == most && (choice & 0x80) != 0; /* past the last cell is fine */
    gaac_cache_drop(r->cache, only == r->m.sequences ? GAAC_ALL_SEQUENCES : only, first,
                    open_ended ? UINT64_MAX : count);
    for (uint32_t layer = 0; layer < r->m.layers; layer++)
        for (uint32_t sequence = 0; sequence < r->m.sequences; sequence++)
            if (only == sequence || only == r->m.sequences)
                model_drop(&r->m, layer, sequence, first, count);
}

/* After a copy that failed: a cell of the destination is the source's or what it was. What counts as written is
 * read off the cache then: it only decides what a later drop does. */
static void take_over(run *r, uint32_t layer, uint32_t from, uint32_t to, uint64_t first, uint64_t count)
{
    for (unsigned part = 0; part < 2; part++) {
        size_t stride;
        const size_t bytes = row_elements(&r->m, layer, part) * 2;
        uint16_t *rows = read_rows(r, layer, part, to, 0, r->m.cells, &stride);
        for (uint64_t c = 0; c < r->m.cells; c++) {
            const uint16_t *have = rows + c * stride;
            REQUIRE(
                memcmp(have, model_row(&r->m, layer, part, to, c), bytes) == 0 ||
                (c >= first && c < first + count && memcmp(have, model_row(&r->m, layer, part, from, c), bytes) == 0));
            memcpy(model_row(&r->m, layer, part, to, c), have, bytes);
        }
        free(rows);
    }
    for (uint64_t c = 0; c < r->m.cells; c++) {
        const gaac_block *block = gaac_block_at(r->cache, &r->cache->layer[layer], to, c / GAAC_BLOCK_TOKENS);
        const bool used = block->state != GAAC_STATE_EMPTY, open = block->state == GAAC_STATE_OPEN && !block->valid;
        const unsigned cell = c % GAAC_BLOCK_TOKENS;
        r->m.used[layer][model_block(&r->m, to, c)] = used;
        r->m.complete[layer][model_block(&r->m, to, c)] = used && !open;
        r->m.written[layer][(size_t)to * r->m.cells + c] =
            (uint8_t)(!used  ? 0
                      : open ? (block->written[0] >> cell & 1) | (block->written[1] >> cell & 1) << 1
                             : MODEL_K_AND_V);
    }
}

static void step_copy(run *r)
{
    const unsigned choice = fuzz_byte(&r->input);
    const uint32_t from = (choice & 15) % r->m.sequences, to = (choice >> 4) % r->m.sequences;
    const uint64_t first = fuzz_byte(&r->input) % r->m.cells;
    const uint64_t count = 1 + fuzz_byte(&r->input) % (r->m.cells - first);
    gaac_error error = {GAAC_OK, ""};
    const gaac_status status = gaac_cache_copy(r->cache, from, to, first, count, &error);
    REQUIRE(status == GAAC_OK || (is_shortage(r, status) && error.status == status));
    r->allocations_left = SIZE_MAX;
    for (uint32_t layer = 0; layer < r->m.layers; layer++) {
        if (status == GAAC_OK)
            model_copy(&r->m, layer, from, to, first, count);
        else
            take_over(r, layer, from, to, first, count);
        compare(r, layer, from, 0, r->m.cells);
        compare(r, layer, to, 0, r->m.cells);
    }
}

static void step_settle(run *r)
{
    const gaac_status status = gaac_cache_settle(r->cache, NULL);
    REQUIRE(status == GAAC_OK || is_shortage(r, status));
}

/* The profile as it is after a way through a file. */
static gaac_profile *carried_profile(const run *r)
{
    const gaac_profile_info info = {.model_name = "fuzz"};
    gaac_profile *exported, *parsed;
    uint8_t *bytes;
    size_t size;
    const gaac_status status = gaac_cache_export_profile(r->cache, &info, &exported, NULL);
    if (status != GAAC_OK) {
        REQUIRE(status == GAAC_ERROR_UNSUPPORTED);
        return NULL;
    }
    REQUIRE(gaac_profile_serialize(exported, &bytes, &size, NULL) == GAAC_OK);
    REQUIRE(gaac_profile_parse(&parsed, bytes, size, NULL, NULL) == GAAC_OK);
    gaac_profile_destroy(exported);
    free(bytes);
    return parsed;
}

/* Writes all blocks that are in use into a fresh cache; that completes them. */
static void restore(run *r, uint32_t layer, uint32_t sequence)
{
    for (uint64_t first = 0; first < r->m.cells; first += GAAC_BLOCK_TOKENS)
        for (unsigned part = 0; part < 2 && r->m.used[layer][model_block(&r->m, sequence, first)]; part++) {
            REQUIRE(gaac_cache_write(r->cache, layer, (gaac_part)part, sequence, first, NULL, GAAC_BLOCK_TOKENS,
                                     model_row(&r->m, layer, part, sequence, first), row_elements(&r->m, layer, part),
                                     NULL) == GAAC_OK);
            for (uint64_t c = first; c < first + GAAC_BLOCK_TOKENS; c++)
                r->m.written[layer][(size_t)sequence * r->m.cells + c] = MODEL_K_AND_V;
            r->m.complete[layer][model_block(&r->m, sequence, first)] = 1;
        }
}

static void step_rebuild(run *r)
{
    if (r->config.memory_limit != 0)
        return;
    gaac_profile *profile = carried_profile(r);
    gaac_cache_destroy(r->cache);
    r->config.profile = profile;
    REQUIRE(gaac_cache_create(&r->cache, &r->config, NULL) == GAAC_OK && r->cache != NULL);
    r->config.profile = NULL; /* the cache has copied it */
    gaac_profile_destroy(profile);
    for (uint32_t layer = 0; layer < r->m.layers; layer++)
        for (uint32_t sequence = 0; sequence < r->m.sequences; sequence++)
            restore(r, layer, sequence);
    compare_all(r);
}

static void step_refused(run *r)
{
    static const uint64_t huge[4] = {0, 1, UINT64_MAX / 2, UINT64_MAX};
    const unsigned choice = fuzz_byte(&r->input);
    const uint64_t first = r->m.cells + huge[choice & 3];
    const int64_t cell = choice & 4 ? (int64_t)first : -1 - (int64_t)huge[choice & 1];
    uint16_t row[256] = {0};
    gaac_error error = {GAAC_OK, ""};
    const uint32_t layer = choice & 8 ? r->m.layers : 0, sequence = choice & 16 ? r->m.sequences : 0;
    if (first >= r->m.cells) {
        REQUIRE(gaac_cache_write(r->cache, layer, GAAC_K, sequence, first, NULL, 1, row, 0, &error) ==
                GAAC_ERROR_INVALID_ARGUMENT);
        REQUIRE(gaac_cache_read(r->cache, layer, GAAC_V, sequence, first, 1, row, 0, &error) ==
                GAAC_ERROR_INVALID_ARGUMENT);
        REQUIRE(gaac_cache_copy(r->cache, 0, sequence, first, 1, &error) == GAAC_ERROR_INVALID_ARGUMENT);
    }
    if (cell < 0 || (uint64_t)cell >= r->m.cells)
        REQUIRE(gaac_cache_write(r->cache, 0, GAAC_K, 0, 0, &cell, 1, row, 0, &error) == GAAC_ERROR_INVALID_ARGUMENT);
    REQUIRE(gaac_cache_read(r->cache, 0, GAAC_K, 0, 1, r->m.cells, row, 0, &error) == GAAC_ERROR_INVALID_ARGUMENT);
    REQUIRE(error.status == GAAC_ERROR_INVALID_ARGUMENT && error.message[0] != '\0');
}

static void take_step(run *r, enum step step)
{
    switch (step) {
    case STEP_APPEND:
    case STEP_WRITE:
    case STEP_SCATTER:
        step_write(r, step);
        break;
    case STEP_DROP:
        step_drop(r);
        break;
    case STEP_COPY:
        step_copy(r);
        break;
    case STEP_SETTLE:
        step_settle(r);
        break;
    case STEP_REBUILD:
        step_rebuild(r);
        break;
    case STEP_REFUSED:
        step_refused(r);
        break;
    default:
        compare_all(r);
    }
}

/* ---- a run ---------------------------------------------------------------------------------- */

static void configure(run *r, const gaac_allocator *hook)
{
    static const uint64_t limits[4] = {0, 0, 96 << 10, 256 << 10};
    const unsigned choice = fuzz_byte(&r->input), size = fuzz_byte(&r->input);
    r->random = 1 + choice + 256u * size;
    r->m.layers = 1 + (choice & 1);
    r->m.sequences = 1 + (choice >> 1 & 3) % 3;
    r->m.cells = GAAC_BLOCK_TOKENS * (5 + (size & 7));
    for (uint32_t layer = 0; layer < r->m.layers; layer++)
        r->m.shape[layer] = shapes[fuzz_below(&r->input, SHAPES)];
    make_model(&r->m);
    r->config = (gaac_cache_config){.shapes = r->m.shape,
                                    .layers = r->m.layers,
                                    .sequences = r->m.sequences,
                                    .tokens_per_sequence = r->m.cells - (choice >> 3 & 7),
                                    .mode = choice >> 6 == 0 ? GAAC_CACHE_RAW : GAAC_CACHE_CODED,
                                    .memory_limit = limits[size >> 3 & 3],
                                    .calibration_tokens = 64 + 16 * (size >> 5 & 3),
                                    .allocator = hook};
    REQUIRE(gaac_cache_create(&r->cache, &r->config, NULL) == GAAC_OK && r->cache != NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    run r = {.input = {bytes, size}, .allocations_left = SIZE_MAX};
    const gaac_allocator hook = {allocate, release, &r};
    configure(&r, &hook);
    for (unsigned i = 0; i < MOST_STEPS && r.input.left > 0; i++) {
        enum step step = (enum step)fuzz_below(&r.input, STEPS);
        const bool failing = step == STEP_FAIL;
        if (failing) {
            const size_t left = fuzz_byte(&r.input) & 15;
            step = (enum step)fuzz_below(&r.input, STEP_REBUILD); /* those that may run short of memory */
            r.allocations_left = step == STEP_DROP ? SIZE_MAX : left;
        }
        r.may_fail = failing || r.config.memory_limit != 0;
        take_step(&r, step);
        r.allocations_left = SIZE_MAX;
        REQUIRE(cache_sums_agree(r.cache));
    }
    compare_all(&r);
    gaac_cache_destroy(r.cache);
    free_model(&r.m);
    return 0;
}
