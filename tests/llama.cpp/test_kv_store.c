/* The store of a buffer's K and V against plain arrays: random ranges of bytes, rows, copies, clears. */
#include "kv_store.h"
#include "settings.h"
#include "stats.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* cmocka wants the four above first */
#include <cmocka.h>

settings config;

/* The statistics are another room's. */
void stats_register(kv_store *store)
{
    (void)store;
}
void stats_unregister(kv_store *store)
{
    (void)store;
}
void stats_note_peak(void) {}
void stats_keep_profile(kv_store *store)
{
    (void)store;
}
void stats_cache_held(void) {}
uint64_t stats_memory_share(const kv_store *store)
{
    (void)store;
    return 0;
}

enum { CELLS = 70, STREAMS = 3, LAYERS = 2, WIDTH_K = 128, WIDTH_V = 64, STEPS = 4000 };

/* Addresses that nothing may be read from or written to. */
static const uintptr_t BASE = 0x10000;

typedef struct model {
    kv_store *store;
    kv_tensor *tensors[2 * LAYERS];
    uint8_t *plain[2 * LAYERS];
    uint64_t random;
} model;

static uint32_t draw(model *m, uint32_t below)
{
    m->random = m->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(m->random >> 33) % below;
}

static host_tensor tensor_named(const char *name, size_t width, uintptr_t address)
{
    host_tensor tensor = {.type = HOST_TYPE_BF16, .ne = {(int64_t)width, CELLS, STREAMS, 1}, .data = (void *)address};
    tensor.nb[0] = sizeof(uint16_t);
    tensor.nb[1] = width * sizeof(uint16_t);
    snprintf(tensor.name, sizeof tensor.name, "%s", name);
    return tensor;
}

static model make_model(void)
{
    model m = {.store = kv_store_create(), .random = 7};
    uintptr_t address = BASE;
    const char *reason;
    for (int i = 0; i < 2 * LAYERS; i++) {
        char name[32];
        snprintf(name, sizeof name, "cache_%c_l%d", i % 2 ? 'v' : 'k', 3 + i / 2);
        size_t width = i % 2 ? WIDTH_V : WIDTH_K;
        host_tensor tensor = tensor_named(name, width, address);
        assert_true(kv_store_add(m.store, &tensor, &reason));
        size_t bytes = CELLS * STREAMS * tensor.nb[1];
        m.plain[i] = calloc(bytes, 1);
        assert_non_null(m.plain[i]);
        address += bytes + 128;
    }
    assert_true(kv_store_complete(m.store));
    for (int i = 0; i < 2 * LAYERS; i++)
        m.tensors[i] = &m.store->tensors[i];
    return m;
}

static void free_model(model *m)
{
    kv_store_destroy(m->store);
    for (int i = 0; i < 2 * LAYERS; i++)
        free(m->plain[i]);
}

static void check_everything(const model *m)
{
    gaac_error error;
    for (int i = 0; i < 2 * LAYERS; i++) {
        uint8_t *have = malloc(m->tensors[i]->bytes);
        assert_non_null(have);
        assert_int_equal(kv_store_read(m->store, m->tensors[i], 0, have, m->tensors[i]->bytes, &error), GAAC_OK);
        assert_memory_equal(have, m->plain[i], m->tensors[i]->bytes);
        free(have);
    }
}

/* Values with exponents near each other, as real ones have, so that blocks get coded. */
static void draw_values(model *m, uint16_t *values, size_t count)
{
    for (size_t i = 0; i < count; i++)
        values[i] = (uint16_t)((draw(m, 2) << 15) | ((118 + draw(m, 6)) << 7) | draw(m, 128));
}

static void write_rows(model *m, int i)
{
    int64_t rows[40];
    size_t width = m->tensors[i]->width, count = 1 + draw(m, 40);
    uint16_t *values = malloc(count * width * sizeof *values);
    uint32_t first = draw(m, CELLS * STREAMS);
    gaac_error error;
    assert_non_null(values);
    draw_values(m, values, count * width);
    for (size_t j = 0; j < count; j++) {
        rows[j] = (int64_t)(first + j * (1 + draw(m, 2))) % (CELLS * STREAMS);
        memcpy(m->plain[i] + (size_t)rows[j] * width * sizeof *values, values + j * width, width * sizeof *values);
    }
    assert_int_equal(kv_store_write_rows(m->store, m->tensors[i], rows, count, values, &error), GAAC_OK);
    free(values);
}

static void write_bytes(model *m, int i)
{
    size_t offset = draw(m, (uint32_t)m->tensors[i]->bytes);
    size_t size = draw(m, (uint32_t)(m->tensors[i]->bytes - offset) + 1) / (1 + draw(m, 20));
    uint16_t *values = malloc(size + 2);
    gaac_error error;
    assert_non_null(values);
    draw_values(m, values, size / 2 + 1);
    memcpy(m->plain[i] + offset, values, size);
    assert_int_equal(kv_store_write(m->store, m->tensors[i], offset, values, size, &error), GAAC_OK);
    free(values);
}

static void fill_bytes(model *m, int i)
{
    size_t offset = draw(m, (uint32_t)m->tensors[i]->bytes);
    size_t size = draw(m, (uint32_t)(m->tensors[i]->bytes - offset) + 1) / (1 + draw(m, 20));
    uint8_t value = draw(m, 3) ? 0 : 0x3f;
    gaac_error error;
    memset(m->plain[i] + offset, value, size);
    assert_int_equal(kv_store_fill(m->store, m->tensors[i], offset, value, size, &error), GAAC_OK);
}

static void copy_stream(model *m, int i)
{
    size_t bytes = m->tensors[i]->bytes / STREAMS;
    size_t from = draw(m, STREAMS) * bytes, to = draw(m, STREAMS) * bytes;
    gaac_error error;
    memmove(m->plain[i] + to, m->plain[i] + from, bytes);
    assert_int_equal(kv_store_copy(m->store, m->tensors[i], from, m->store, m->tensors[i], to, bytes, &error), GAAC_OK);
}

static void clear(model *m)
{
    kv_store_clear(m->store);
    for (int i = 0; i < 2 * LAYERS; i++)
        memset(m->plain[i], 0, m->tensors[i]->bytes);
}

/* The first attention may name the heads after something was written: nothing may be lost. */
static void learn(model *m)
{
    static const gaac_shape shapes[] = {{1, 128, 64}, {2, 64, 32}, {4, 32, 16}};
    gaac_error error;
    assert_int_equal(kv_store_learn(m->store, draw(m, LAYERS), &shapes[draw(m, 3)], &error), GAAC_OK);
}

static void test_random_life(void **state)
{
    (void)state;
    gaac_cache_stats stats = {0};
    uint64_t encodes = 0, reopened = 0;
    config.calibrate_path = "a short cache calibrates itself early for it, so blocks are coded";
    model m = make_model();
    check_everything(&m);
    for (int step = 0; step < STEPS; step++) {
        int i = (int)draw(&m, 2 * LAYERS);
        uint32_t what = draw(&m, 200);
        if (what < 130)
            write_rows(&m, i);
        else if (what < 160)
            write_bytes(&m, i);
        else if (what < 180)
            fill_bytes(&m, i);
        else if (what < 195)
            copy_stream(&m, i);
        else if (what < 199)
            learn(&m);
        else
            clear(&m);
        if (step % 20 == 0)
            check_everything(&m);
        if (m.store->cache && gaac_cache_get_stats(m.store->cache, GAAC_ALL_LAYERS, &stats, NULL) == GAAC_OK) {
            encodes = stats.encodes > encodes ? stats.encodes : encodes;
            reopened = stats.decodes_to_reopen > reopened ? stats.decodes_to_reopen : reopened;
        }
    }
    check_everything(&m);
    assert_true(encodes > 0 && reopened > 0);
    free_model(&m);
}

static void test_names(void **state)
{
    static const struct {
        const char *name;
        bool good;
        gaac_part part;
        int layer;
    } cases[] = {
        {"cache_k_l0", true, GAAC_K, 0},
        {"cache_v_l31", true, GAAC_V, 31},
        {"cache_swa_k_l7", true, GAAC_K, 7},
        {"cache_lidk_l2", true, GAAC_K, 2},
        {"cache_r_l0", false, GAAC_K, 0},
        {"cache_k_l", false, GAAC_K, 0},
        {"cache_k_l1x", false, GAAC_K, 0},
        {"cache_k_l1 (view)", false, GAAC_K, 0},
        {"k", false, GAAC_K, 0},
        {"", false, GAAC_K, 0},
        {"cache__l3", false, GAAC_K, 0},
        {"cache_k", false, GAAC_K, 0},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        host_tensor tensor = tensor_named(cases[i].name, 64, BASE);
        gaac_part part = GAAC_K;
        int layer = -1;
        assert_int_equal(kv_is_cache_tensor(&tensor, &part, &layer), cases[i].good);
        if (cases[i].good) {
            assert_int_equal(part, cases[i].part);
            assert_int_equal(layer, cases[i].layer);
        }
    }
}

static void test_row_outside(void **state)
{
    (void)state;
    model m = make_model();
    gaac_error error;
    static uint16_t row[WIDTH_K];
    for (int64_t bad = -1; bad <= (int64_t)CELLS * STREAMS; bad += (int64_t)CELLS * STREAMS + 1)
        assert_int_equal(kv_store_write_rows(m.store, m.tensors[0], &bad, 1, row, &error), GAAC_ERROR_INVALID_ARGUMENT);
    check_everything(&m);
    free_model(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_life),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_row_outside),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
