/* Model-based random testing: a sequence of operations on the cache and on a plain array, compared after
 * each step. */
#include "cache_model.h"
#include "random_kv.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void compare(model *m, const gaac_cache *cache, uint32_t layer, uint32_t sequence, uint64_t first,
                    uint64_t count)
{
    gaac_error error;
    for (unsigned part = 0; part < 2; part++) {
        const size_t stride = row_elements(m, layer, part) + 3;
        uint16_t *rows = malloc(count * stride * 2 + 2);
        assert_int_equal(gaac_cache_read(cache, layer, (gaac_part)part, sequence, first, count, rows, stride, &error),
                         GAAC_OK);
        for (uint64_t i = 0; i < count; i++)
            assert_memory_equal(rows + i * stride, model_row(m, layer, part, sequence, first + i),
                                row_elements(m, layer, part) * 2);
        free(rows);
    }
}

typedef struct run {
    model m;
    gaac_cache *cache;
    uint64_t seed;
    uint16_t *rows;
} run;

static random_kind random_write_kind(run *r)
{
    const unsigned dice = random_below(&r->seed, 40);
    return dice < 34 ? RANDOM_KV : dice < 38 ? RANDOM_OUTLIERS : dice < 39 ? RANDOM_SPECIAL : RANDOM_BITS;
}

/* Writes K and V (or, at times, one of them) of a run of cells, in order or scattered. */
static void step_write(run *r, bool append)
{
    const uint32_t layer = random_below(&r->seed, r->m.layers), sequence = random_below(&r->seed, r->m.sequences);
    const unsigned most = append ? 70 : 20;
    unsigned count = 1 + random_below(&r->seed, most);
    uint64_t first = random_below(&r->seed, r->m.cells - count + 1);
    if (append)
        first = first / 16 * 16;
    const bool scattered = !append && random_below(&r->seed, 3) == 0;
    int64_t cells[128];
    for (unsigned i = 0; i < count; i++)
        cells[i] = scattered ? random_below(&r->seed, r->m.cells) : (int64_t)(first + i);
    const unsigned only = random_below(&r->seed, 12);
    for (unsigned part = 0; part < 2; part++) {
        if (only == part)
            continue;
        const size_t elements = row_elements(&r->m, layer, part);
        random_fill(&r->seed, random_write_kind(r), r->rows, count * elements, (unsigned)elements);
        gaac_error error;
        assert_int_equal(gaac_cache_write(r->cache, layer, (gaac_part)part, sequence, first,
                                          scattered || random_below(&r->seed, 2) ? cells : NULL, count, r->rows,
                                          elements, &error),
                         GAAC_OK);
        for (unsigned i = 0; i < count; i++)
            model_write(&r->m, layer, part, sequence, (uint64_t)cells[i], r->rows + i * elements);
    }
    compare(&r->m, r->cache, layer, sequence, first, count);
}

static void step_drop(run *r)
{
    const uint32_t sequence = random_below(&r->seed, r->m.sequences);
    const bool all = random_below(&r->seed, 20) == 0;
    const uint64_t first = all ? 0 : random_below(&r->seed, r->m.cells);
    const uint64_t count = all ? r->m.cells : random_below(&r->seed, (unsigned)(r->m.cells - first + 1));
    gaac_cache_drop(r->cache, sequence, first, count);
    for (uint32_t layer = 0; layer < r->m.layers; layer++) {
        model_drop(&r->m, layer, sequence, first, count);
        compare(&r->m, r->cache, layer, sequence, 0, r->m.cells);
    }
}

static void step_copy(run *r)
{
    const uint32_t from = random_below(&r->seed, r->m.sequences), to = random_below(&r->seed, r->m.sequences);
    const uint64_t first = random_below(&r->seed, r->m.cells);
    const uint64_t count = random_below(&r->seed, (unsigned)(r->m.cells - first + 1));
    gaac_error error;
    assert_int_equal(gaac_cache_copy(r->cache, from, to, first, count, &error), GAAC_OK);
    for (uint32_t layer = 0; layer < r->m.layers; layer++) {
        model_copy(&r->m, layer, from, to, first, count);
        compare(&r->m, r->cache, layer, from, 0, r->m.cells);
        compare(&r->m, r->cache, layer, to, 0, r->m.cells);
    }
}

static void random_run(uint64_t seed, gaac_cache_mode mode, unsigned steps)
{
    static const gaac_shape all[] = {{1, 64, 64}, {3, 64, 64}, {1, 128, 128}, {2, 80, 80}, {1, 192, 128}, {2, 32, 16}};
    run r = {.seed = seed};
    r.m.layers = 1 + random_below(&r.seed, 3);
    r.m.sequences = 1 + random_below(&r.seed, 3);
    r.m.cells = 16 * (8 + random_below(&r.seed, 12));
    for (uint32_t l = 0; l < r.m.layers; l++)
        r.m.shape[l] = all[random_below(&r.seed, 6)];
    make_model(&r.m);
    r.rows = malloc(128 * 2 * 4096);
    const gaac_cache_config config = {.shapes = r.m.shape,
                                      .layers = r.m.layers,
                                      .sequences = r.m.sequences,
                                      .tokens_per_sequence = r.m.cells,
                                      .mode = mode,
                                      .calibration_tokens = 64 + 16 * random_below(&r.seed, 8)};
    gaac_error error;
    assert_int_equal(gaac_cache_create(&r.cache, &config, &error), GAAC_OK);
    for (unsigned step = 0; step < steps; step++) {
        const unsigned dice = random_below(&r.seed, 100);
        if (dice < 55)
            step_write(&r, true);
        else if (dice < 85)
            step_write(&r, false);
        else if (dice < 90)
            step_drop(&r);
        else if (dice < 94)
            step_copy(&r);
        else if (dice < 96)
            assert_int_equal(gaac_cache_settle(r.cache, &error), GAAC_OK);
        else
            compare(&r.m, r.cache, random_below(&r.seed, r.m.layers), random_below(&r.seed, r.m.sequences), 0,
                    r.m.cells);
        if (step % 16 == 0)
            assert_true(cache_sums_agree(r.cache));
    }
    for (uint32_t l = 0; l < r.m.layers; l++)
        for (uint32_t s = 0; s < r.m.sequences; s++)
            compare(&r.m, r.cache, l, s, 0, r.m.cells);
    gaac_cache_stats stats;
    assert_int_equal(gaac_cache_get_stats(r.cache, GAAC_ALL_LAYERS, &stats, &error), GAAC_OK);
    if (mode == GAAC_CACHE_RAW)
        assert_int_equal(stats.encodes, 0);
    else
        assert_true(stats.encodes > 0 && stats.decodes_to_reopen > 0);
    gaac_cache_destroy(r.cache);
    free(r.rows);
    free_model(&r.m);
}

static void random_operations_coded(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 12; seed++)
        random_run(seed * 7919, GAAC_CACHE_CODED, 400);
}

static void random_operations_raw(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 3; seed++)
        random_run(seed * 104729, GAAC_CACHE_RAW, 300);
}

/* ---- single cases --------------------------------------------------------------------------- */

static gaac_cache *small_cache(gaac_cache_config *config, gaac_shape *shape)
{
    *shape = (gaac_shape){2, 64, 64};
    config->shapes = shape;
    config->layers = 1;
    config->sequences = config->sequences ? config->sequences : 1;
    config->tokens_per_sequence = config->tokens_per_sequence ? config->tokens_per_sequence : 1024;
    gaac_cache *cache;
    gaac_error error;
    assert_int_equal(gaac_cache_create(&cache, config, &error), GAAC_OK);
    return cache;
}

static gaac_status write_tokens(gaac_cache *cache, uint64_t first, unsigned count, random_kind kind, uint64_t *seed,
                                gaac_error *error)
{
    uint16_t *rows = malloc((size_t)count * 128 * 2);
    random_fill(seed, kind, rows, (size_t)count * 128, 128);
    gaac_status status = gaac_cache_write(cache, 0, GAAC_K, 0, first, NULL, count, rows, 128, error);
    if (status == GAAC_OK)
        status = gaac_cache_write(cache, 0, GAAC_V, 0, first, NULL, count, rows, 128, error);
    free(rows);
    return status;
}

static gaac_cache_stats stats_of(const gaac_cache *cache)
{
    gaac_cache_stats stats;
    assert_int_equal(gaac_cache_get_stats(cache, GAAC_ALL_LAYERS, &stats, NULL), GAAC_OK);
    return stats;
}

static void self_calibration_compresses(void **state)
{
    (void)state;
    gaac_shape shape;
    gaac_cache_config config = {.calibration_tokens = 256};
    gaac_cache *cache = small_cache(&config, &shape);
    uint64_t seed = 3;
    assert_int_equal(write_tokens(cache, 0, 240, RANDOM_KV, &seed, NULL), GAAC_OK);
    assert_int_equal(stats_of(cache).blocks_waiting, 15);
    assert_int_equal(stats_of(cache).blocks_coded, 0);
    assert_int_equal(write_tokens(cache, 240, 17, RANDOM_KV, &seed, NULL), GAAC_OK);
    const gaac_cache_stats stats = stats_of(cache);
    assert_int_equal(stats.blocks_waiting, 0);
    assert_int_equal(stats.blocks_coded + stats.blocks_raw, 16);
    assert_int_equal(stats.blocks_open, 1);
    assert_true(stats.blocks_coded >= 15);
    assert_true((double)stats.bytes_finalized_bf16 / (double)stats.bytes_finalized_resident > 1.25);
    gaac_cache_destroy(cache);
}

/* Values of another scale come: blocks stop fitting, and a new epoch takes over. */
static void drift_begins_an_epoch(void **state)
{
    (void)state;
    gaac_shape shape;
    gaac_cache_config config = {.calibration_tokens = 256, .tokens_per_sequence = 32768};
    gaac_cache *cache = small_cache(&config, &shape);
    uint64_t seed = 3;
    assert_int_equal(write_tokens(cache, 0, 8192, RANDOM_KV, &seed, NULL), GAAC_OK);
    const uint32_t before = stats_of(cache).epochs;
    uint16_t *rows = malloc((size_t)16384 * 128 * 2);
    random_fill(&seed, RANDOM_KV, rows, (size_t)16384 * 128, 128);
    for (size_t i = 0; i < (size_t)16384 * 128; i++)
        rows[i] = (uint16_t)(rows[i] - (9 << 7)); /* nine exponents lower */
    assert_int_equal(gaac_cache_write(cache, 0, GAAC_K, 0, 8192, NULL, 16384, rows, 128, NULL), GAAC_OK);
    assert_int_equal(gaac_cache_write(cache, 0, GAAC_V, 0, 8192, NULL, 16384, rows, 128, NULL), GAAC_OK);
    const gaac_cache_stats stats = stats_of(cache);
    assert_true(stats.epochs > before);
    assert_true(stats.blocks_coded > stats.blocks_raw);
    uint16_t *back = malloc((size_t)16384 * 128 * 2);
    assert_int_equal(gaac_cache_read(cache, 0, GAAC_K, 0, 8192, 16384, back, 128, NULL), GAAC_OK);
    assert_memory_equal(rows, back, (size_t)16384 * 128 * 2);
    free(rows);
    free(back);
    gaac_cache_destroy(cache);
}

static void memory_limit_is_kept(void **state)
{
    (void)state;
    gaac_shape shape;
    gaac_cache_config config = {.calibration_tokens = 128, .memory_limit = 300 << 10, .tokens_per_sequence = 4096};
    gaac_cache *cache = small_cache(&config, &shape);
    uint64_t seed = 3;
    gaac_error error = {0};
    unsigned tokens = 0;
    gaac_status status = GAAC_OK;
    while (status == GAAC_OK && tokens < 4096) {
        status = write_tokens(cache, tokens, 16, RANDOM_KV, &seed, &error);
        tokens += 16;
    }
    assert_int_equal(status, GAAC_ERROR_MEMORY_LIMIT);
    assert_non_null(strstr(error.message, "limit"));
    assert_true(stats_of(cache).bytes_resident < (400 << 10));
    assert_true(tokens > 16 * 40); /* a BF16 cache would hold 37 blocks */
    gaac_cache_drop(cache, 0, 0, 4096);
    assert_int_equal(stats_of(cache).blocks_coded, 0);
    assert_int_equal(write_tokens(cache, 0, 320, RANDOM_KV, &seed, &error), GAAC_OK);
    gaac_cache_destroy(cache);
}

/* At the limit the cells that are there can be written again and again, in every layer, in whole blocks and
 * in parts (what a server does with the cells of a request that failed). */
static void full_cache_can_be_rewritten(void **state)
{
    (void)state;
    const gaac_shape shapes[3] = {{1, 64, 64}, {1, 64, 64}, {1, 64, 64}};
    const gaac_cache_config config = {.shapes = shapes,
                                      .layers = 3,
                                      .sequences = 1,
                                      .tokens_per_sequence = 4096,
                                      .memory_limit = 700 << 10,
                                      .calibration_tokens = 128};
    gaac_cache *cache;
    gaac_error error = {0};
    assert_int_equal(gaac_cache_create(&cache, &config, &error), GAAC_OK);
    uint64_t seed = 12;
    uint16_t rows[16 * 64];
    uint64_t cells = 0;
    gaac_status status = GAAC_OK;
    random_fill(&seed, RANDOM_KV, rows, 16 * 64, 64);
    for (; status == GAAC_OK && cells < 4096; cells += 16)
        for (uint32_t i = 0; status == GAAC_OK && i < 6; i++)
            status = gaac_cache_write(cache, i / 2, i % 2 ? GAAC_V : GAAC_K, 0, cells, NULL, 16, rows, 64, &error);
    assert_int_equal(status, GAAC_ERROR_MEMORY_LIMIT);
    cells -= 16; /* the last were not written in all layers */
    assert_true(stats_of(cache).blocks_coded > 100);
    for (unsigned round = 0; round < 4; round++)
        for (uint32_t i = 0; i < 6; i++)
            for (uint64_t cell = 0; cell + 16 <= cells; cell += 16) {
                const unsigned count = round < 2 ? 16 : 3;
                random_fill(&seed, RANDOM_KV, rows, 16 * 64, 64);
                assert_int_equal(
                    gaac_cache_write(cache, i / 2, i % 2 ? GAAC_V : GAAC_K, 0, cell, NULL, count, rows, 64, &error),
                    GAAC_OK);
                uint16_t back[16 * 64];
                assert_int_equal(gaac_cache_read(cache, i / 2, i % 2 ? GAAC_V : GAAC_K, 0, cell, count, back, 64, NULL),
                                 GAAC_OK);
                assert_memory_equal(back, rows, count * 128);
            }
    gaac_cache_destroy(cache);
}

static void dropped_memory_goes_back(void **state)
{
    (void)state;
    gaac_shape shape;
    gaac_cache_config config = {.calibration_tokens = 256, .tokens_per_sequence = 65536};
    gaac_cache *cache = small_cache(&config, &shape);
    uint64_t seed = 9;
    assert_int_equal(write_tokens(cache, 0, 32768, RANDOM_KV, &seed, NULL), GAAC_OK);
    const uint64_t full = stats_of(cache).bytes_resident;
    gaac_cache_drop(cache, GAAC_ALL_SEQUENCES, 0, UINT64_MAX);
    assert_true(stats_of(cache).bytes_resident < full / 8);
    gaac_cache_destroy(cache);
}

/* NaN and infinity in K and V survive, coded or raw. */
static void non_finite_survives(void **state)
{
    (void)state;
    gaac_shape shape;
    gaac_cache_config config = {.calibration_tokens = 64};
    gaac_cache *cache = small_cache(&config, &shape);
    uint64_t seed = 4;
    assert_int_equal(write_tokens(cache, 0, 128, RANDOM_KV, &seed, NULL), GAAC_OK);
    uint16_t rows[16 * 128], back[16 * 128];
    random_fill(&seed, RANDOM_KV, rows, 16 * 128, 128);
    rows[5] = 0x7fc3;
    rows[300] = 0xff80;
    for (unsigned part = 0; part < 2; part++)
        assert_int_equal(gaac_cache_write(cache, 0, (gaac_part)part, 0, 128, NULL, 16, rows, 128, NULL), GAAC_OK);
    gaac_block_view view;
    gaac_cache_block(cache, 0, 0, 8, &view);
    assert_false(view.finite);
    gaac_cache_block(cache, 0, 0, 7, &view);
    assert_true(view.finite);
    for (unsigned part = 0; part < 2; part++) {
        assert_int_equal(gaac_cache_read(cache, 0, (gaac_part)part, 0, 128, 16, back, 128, NULL), GAAC_OK);
        assert_memory_equal(rows, back, sizeof rows);
    }
    gaac_cache_destroy(cache);
}

static void wrong_places_are_refused(void **state)
{
    (void)state;
    gaac_shape shape;
    gaac_cache_config config = {0};
    gaac_cache *cache = small_cache(&config, &shape);
    uint16_t row[128] = {0};
    gaac_error error;
    const int64_t negative = -1, beyond = 1024;
    assert_int_equal(gaac_cache_write(cache, 1, GAAC_K, 0, 0, NULL, 1, row, 128, &error), GAAC_ERROR_INVALID_ARGUMENT);
    assert_int_equal(gaac_cache_write(cache, 0, GAAC_K, 1, 0, NULL, 1, row, 128, &error), GAAC_ERROR_INVALID_ARGUMENT);
    assert_int_equal(gaac_cache_write(cache, 0, GAAC_K, 0, 1024, NULL, 1, row, 128, &error),
                     GAAC_ERROR_INVALID_ARGUMENT);
    assert_int_equal(gaac_cache_write(cache, 0, GAAC_K, 0, UINT64_MAX, NULL, 2, row, 128, &error),
                     GAAC_ERROR_INVALID_ARGUMENT);
    assert_int_equal(gaac_cache_write(cache, 0, GAAC_K, 0, 0, &negative, 1, row, 128, &error),
                     GAAC_ERROR_INVALID_ARGUMENT);
    assert_int_equal(gaac_cache_write(cache, 0, GAAC_K, 0, 0, &beyond, 1, row, 128, &error),
                     GAAC_ERROR_INVALID_ARGUMENT);
    assert_int_equal(gaac_cache_read(cache, 0, GAAC_V, 0, 1000, 25, row, 128, &error), GAAC_ERROR_INVALID_ARGUMENT);
    assert_int_equal(gaac_cache_write(cache, 0, GAAC_K, 0, 0, NULL, 0, row, 128, &error), GAAC_OK); /* zero tokens */
    gaac_cache_destroy(cache);
}

/* Every allocation through the hook fails in turn: the right status, nothing leaked. */
typedef struct failing {
    unsigned left;
    size_t outstanding;
} failing;

static void *failing_allocate(void *user, size_t bytes, size_t alignment)
{
    failing *f = user;
    if (f->left == 0)
        return NULL;
    f->left--;
    f->outstanding++;
    return aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}

static void failing_release(void *user, void *pointer, size_t bytes)
{
    (void)bytes;
    ((failing *)user)->outstanding--;
    free(pointer);
}

static void failing_allocations_are_errors(void **state)
{
    (void)state;
    uint64_t seed = 8;
    bool succeeded = false;
    for (unsigned allowed = 0; !succeeded && allowed < 200; allowed++) {
        failing f = {allowed, 0};
        const gaac_allocator hook = {failing_allocate, failing_release, &f};
        const gaac_shape shape = {2, 64, 64};
        gaac_cache_config config = {.shapes = &shape,
                                    .layers = 1,
                                    .sequences = 1,
                                    .tokens_per_sequence = 512,
                                    .calibration_tokens = 64,
                                    .allocator = &hook};
        gaac_cache *cache;
        gaac_error error;
        gaac_status status = gaac_cache_create(&cache, &config, &error);
        if (status == GAAC_OK) {
            status = write_tokens(cache, 0, 128, RANDOM_KV, &seed, &error);
            succeeded = status == GAAC_OK;
            gaac_cache_destroy(cache);
        }
        assert_true(status == GAAC_OK || status == GAAC_ERROR_OUT_OF_MEMORY);
        assert_int_equal(f.outstanding, 0);
    }
    assert_true(succeeded);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_operations_coded),     cmocka_unit_test(random_operations_raw),
        cmocka_unit_test(self_calibration_compresses), cmocka_unit_test(drift_begins_an_epoch),
        cmocka_unit_test(memory_limit_is_kept),        cmocka_unit_test(full_cache_can_be_rewritten),
        cmocka_unit_test(dropped_memory_goes_back),    cmocka_unit_test(non_finite_survives),
        cmocka_unit_test(wrong_places_are_refused),    cmocka_unit_test(failing_allocations_are_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
