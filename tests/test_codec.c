/* The production codec: exactness, bounds, sizes, windows. */
#include "random_kv.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "codec/codec_internal.h"
#include "format/layout.h"

static const gaac_shape shapes[] = {
    {1, 64, 64}, {3, 64, 64},   {2, 128, 128}, {1, 256, 256}, {2, 192, 192}, {1, 80, 80},   {2, 112, 112},
    {1, 96, 96}, {1, 192, 128}, {2, 64, 128},  {1, 16, 48},   {8, 128, 128}, {1, 576, 512}, {5, 32, 32},
};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

typedef struct block {
    gaac_shape shape;
    uint16_t *k, *v, *k_out, *v_out;
    size_t k_count, v_count;
    gaac_kv_rows rows;
    gaac_kv_rows_out out;
} block;

static block make_block(const gaac_shape *shape)
{
    block b = {.shape = *shape};
    b.k_count = (size_t)GAAC_BLOCK_TOKENS * shape->kv_heads * shape->head_dim_k;
    b.v_count = (size_t)GAAC_BLOCK_TOKENS * shape->kv_heads * shape->head_dim_v;
    b.k = malloc(b.k_count * 2);
    b.v = malloc(b.v_count * 2);
    b.k_out = malloc(b.k_count * 2);
    b.v_out = malloc(b.v_count * 2);
    const size_t k_token = (size_t)shape->kv_heads * shape->head_dim_k,
                 v_token = (size_t)shape->kv_heads * shape->head_dim_v;
    b.rows = (gaac_kv_rows){b.k, b.v, k_token, shape->head_dim_k, v_token, shape->head_dim_v};
    b.out = (gaac_kv_rows_out){b.k_out, b.v_out, k_token, shape->head_dim_k, v_token, shape->head_dim_v};
    return b;
}

static void free_block(block *b)
{
    free(b->k);
    free(b->v);
    free(b->k_out);
    free(b->v_out);
}

static void fill_block(block *b, uint64_t *seed, random_kind kind)
{
    random_fill(seed, kind, b->k, b->k_count, b->shape.kv_heads * b->shape.head_dim_k);
    random_fill(seed, kind, b->v, b->v_count, b->shape.kv_heads * b->shape.head_dim_v);
}

static gaac_codec *make_codec(block *b, uint64_t *seed, random_kind kind, uint32_t pool_bytes)
{
    gaac_error error;
    gaac_histogram *histogram;
    assert_int_equal(gaac_histogram_create(&histogram, &b->shape, NULL, &error), GAAC_OK);
    for (int i = 0; i < 8; i++) {
        fill_block(b, seed, kind);
        assert_int_equal(gaac_histogram_add(histogram, &b->rows, GAAC_BLOCK_TOKENS, &error), GAAC_OK);
    }
    gaac_windows *windows;
    assert_int_equal(gaac_windows_choose(&windows, histogram, GAAC_SCHEME_PRODUCTION, 0, NULL, &error), GAAC_OK);
    gaac_histogram_destroy(histogram);
    const gaac_codec_config config = {b->shape, GAAC_SCHEME_PRODUCTION, windows, pool_bytes, NULL};
    gaac_codec *codec;
    assert_int_equal(gaac_codec_create(&codec, &config, &error), GAAC_OK);
    gaac_windows_destroy(windows);
    return codec;
}

static void check_roundtrip(const gaac_codec *codec, block *b, gaac_block_info *info)
{
    gaac_error error;
    uint8_t *slot = aligned_alloc(64, gaac_codec_slot_bytes(codec));
    uint32_t *entries = malloc(gaac_codec_entry_count(codec) * 4 + 4);
    assert_int_equal(gaac_encode_block(codec, &b->rows, slot, entries, info, &error), GAAC_OK);
    if (info->coded) {
        memset(b->k_out, 0xaa, b->k_count * 2);
        memset(b->v_out, 0xaa, b->v_count * 2);
        assert_int_equal(gaac_decode_block(codec, slot, entries, &b->out, &error), GAAC_OK);
        assert_memory_equal(b->k, b->k_out, b->k_count * 2);
        assert_memory_equal(b->v, b->v_out, b->v_count * 2);
    }
    free(slot);
    free(entries);
}

static void roundtrip_is_exact(void **state)
{
    (void)state;
    uint64_t seed = 12345;
    for (int s = 0; s < SHAPES; s++) {
        block b = make_block(&shapes[s]);
        gaac_codec *codec = make_codec(&b, &seed, RANDOM_KV, 0);
        int coded = 0;
        for (int i = 0; i < 12; i++) {
            gaac_block_info info;
            const random_kind kind = (random_kind)(i % RANDOM_KINDS);
            fill_block(&b, &seed, kind);
            check_roundtrip(codec, &b, &info);
            coded += info.coded;
            if (kind == RANDOM_KV)
                assert_true(info.coded);
        }
        assert_true(coded > 0);
        gaac_codec_destroy(codec);
        free_block(&b);
    }
}

/* Every BF16 pattern as an element of a coded block: one exception-heavy pattern at a time among zeros-like
 * typical values, so that the block stays under the exception limit. */
static void all_patterns_are_exact(void **state)
{
    (void)state;
    uint64_t seed = 7;
    const gaac_shape shape = {1, 128, 128};
    block b = make_block(&shape);
    gaac_codec *codec = make_codec(&b, &seed, RANDOM_KV, 0);
    int coded = 0;
    for (uint32_t pattern = 0; pattern < 65536; pattern += 4) {
        fill_block(&b, &seed, RANDOM_KV);
        for (unsigned i = 0; i < 4; i++) {
            uint16_t *where = i & 1 ? b.v : b.k;
            where[random_below(&seed, 2048)] = (uint16_t)(pattern + i);
        }
        gaac_block_info info;
        check_roundtrip(codec, &b, &info);
        coded += info.coded;
    }
    assert_int_equal(coded, 65536 / 4);
    gaac_codec_destroy(codec);
    free_block(&b);
}

/* With windows right at the ends of the exponent range, where a carry or a borrow would show. */
static void extreme_windows_are_exact(void **state)
{
    (void)state;
    static const uint8_t bases[] = {0, 2, 100, 238, 240};
    uint64_t seed = 99;
    const gaac_shape shape = {1, 128, 128};
    block b = make_block(&shape);
    uint8_t table[3 * 128];
    for (unsigned first = 0; first < 5; first++) {
        for (unsigned i = 0; i < sizeof table; i++)
            table[i] = bases[(first + i) % 5];
        gaac_error error;
        gaac_windows *windows;
        assert_int_equal(
            gaac_windows_from_table(&windows, &shape, GAAC_SCHEME_PRODUCTION, table, sizeof table, NULL, &error),
            GAAC_OK);
        const gaac_codec_config config = {shape, GAAC_SCHEME_PRODUCTION, windows, 0, NULL};
        gaac_codec *codec;
        assert_int_equal(gaac_codec_create(&codec, &config, &error), GAAC_OK);
        for (int round = 0; round < 50; round++) {
            for (unsigned token = 0; token < 16; token++)
                for (unsigned c = 0; c < 128; c++) {
                    const unsigned narrow = random_below(&seed, 3) != 0;
                    const unsigned k_base = table[c], v_base = table[128 + 128 * (token & 1) + c];
                    const unsigned k_shift = c % 4 == 3 ? 6 : 7, v_shift = token % 2 && c % 2 ? 6 : 7;
                    const unsigned k = k_base + (narrow ? k_shift + random_below(&seed, 8) : random_below(&seed, 16));
                    const unsigned v = v_base + (narrow ? v_shift + random_below(&seed, 8) : random_below(&seed, 16));
                    b.k[token * 128 + c] = (uint16_t)(k << 7 | (random_u64(&seed) & 0x807f));
                    b.v[token * 128 + c] = (uint16_t)(v << 7 | (random_u64(&seed) & 0x807f));
                }
            gaac_block_info info;
            check_roundtrip(codec, &b, &info);
            assert_true(info.coded);
            assert_int_equal(info.exceptions, 0);
        }
        gaac_codec_destroy(codec);
        gaac_windows_destroy(windows);
    }
    free_block(&b);
}

/* A block fits exactly when the pool holds what it needs. */
static void capacity_decides(void **state)
{
    (void)state;
    uint64_t seed = 5;
    const gaac_shape shape = {3, 64, 64};
    block b = make_block(&shape);
    gaac_codec *roomy = make_codec(&b, &seed, RANDOM_KV, 0);
    unsigned fits = 0, too_small = 0;
    for (uint32_t pool = 64; pool <= 512; pool += 64) {
        gaac_error error;
        const gaac_codec_config config = {shape, GAAC_SCHEME_PRODUCTION, roomy->windows, pool, NULL};
        gaac_codec *codec;
        assert_int_equal(gaac_codec_create(&codec, &config, &error), GAAC_OK);
        assert_int_equal(gaac_codec_slot_bytes(codec), 3 * 2816 + pool);
        for (int i = 0; i < 50; i++) {
            gaac_block_info need, info;
            fill_block(&b, &seed, RANDOM_KV);
            check_roundtrip(roomy, &b, &need);
            check_roundtrip(codec, &b, &info);
            assert_int_equal(info.pool_bytes, need.pool_bytes);
            assert_int_equal(info.coded, need.pool_bytes <= pool);
            fits += info.coded;
            too_small += !info.coded;
        }
        gaac_codec_destroy(codec);
    }
    assert_true(fits > 0 && too_small > 0);
    gaac_codec_destroy(roomy);
    free_block(&b);
}

/* Random and damaged slots: any status, never an access outside (AddressSanitizer watches). */
static void damaged_slots_are_safe(void **state)
{
    (void)state;
    uint64_t seed = 31;
    for (int s = 0; s < SHAPES; s++) {
        block b = make_block(&shapes[s]);
        gaac_codec *codec = make_codec(&b, &seed, RANDOM_KV, 0);
        const size_t slot_bytes = gaac_codec_slot_bytes(codec), count = gaac_codec_entry_count(codec);
        uint8_t *slot = aligned_alloc(64, slot_bytes);
        uint32_t *entries = malloc(count * 4 + 4);
        gaac_error error;
        int refused = 0;
        for (int i = 0; i < 60; i++) {
            for (size_t j = 0; j < slot_bytes; j++)
                slot[j] = (uint8_t)random_u64(&seed);
            for (size_t j = 0; j < count; j++)
                entries[j] = (uint32_t)random_u64(&seed);
            refused += gaac_decode_block(codec, slot, entries, &b.out, &error) == GAAC_ERROR_CORRUPT;
        }
        if (count > 0)
            assert_true(refused > 0);
        free(slot);
        free(entries);
        gaac_codec_destroy(codec);
        free_block(&b);
    }
}

static void wrong_arguments_are_named(void **state)
{
    (void)state;
    gaac_error error;
    const gaac_shape odd = {1, 100, 128}, none = {0, 64, 64}, good = {1, 64, 64};
    assert_int_equal(gaac_shape_check(&odd, &error), GAAC_ERROR_INVALID_ARGUMENT);
    assert_non_null(strstr(error.message, "head_dim_k is 100"));
    assert_int_equal(gaac_shape_check(&none, &error), GAAC_ERROR_INVALID_ARGUMENT);
    gaac_histogram *histogram;
    assert_int_equal(gaac_histogram_create(&histogram, &good, NULL, &error), GAAC_OK);
    gaac_windows *windows;
    assert_int_equal(gaac_windows_choose(&windows, histogram, GAAC_SCHEME_PRODUCTION, 0, NULL, &error),
                     GAAC_ERROR_INVALID_ARGUMENT); /* nothing counted */
    gaac_histogram_destroy(histogram);
    uint8_t table[3 * 64];
    memset(table, 241, sizeof table);
    assert_int_equal(
        gaac_windows_from_table(&windows, &good, GAAC_SCHEME_PRODUCTION, table, sizeof table, NULL, &error),
        GAAC_ERROR_CORRUPT);
    memset(table, 101, sizeof table); /* odd where the field wraps */
    assert_int_equal(
        gaac_windows_from_table(&windows, &good, GAAC_SCHEME_PRODUCTION, table, sizeof table, NULL, &error),
        GAAC_ERROR_CORRUPT);
    assert_int_equal(gaac_windows_from_table(&windows, &good, GAAC_SCHEME_PRODUCTION, table, 5, NULL, &error),
                     GAAC_ERROR_CORRUPT);
}

/* The chosen window is the best by trying every base. */
static void windows_are_optimal(void **state)
{
    (void)state;
    uint64_t seed = 77;
    const gaac_shape shape = {1, 64, 64};
    gaac_error error;
    block b = make_block(&shape);
    gaac_histogram *histogram;
    assert_int_equal(gaac_histogram_create(&histogram, &shape, NULL, &error), GAAC_OK);
    for (int i = 0; i < 20; i++) {
        fill_block(&b, &seed, i % 2 ? RANDOM_KV : RANDOM_OUTLIERS);
        gaac_histogram_add(histogram, &b.rows, GAAC_BLOCK_TOKENS, &error);
    }
    assert_int_equal(gaac_histogram_tokens(histogram), 320);
    gaac_windows *windows;
    assert_int_equal(gaac_windows_choose(&windows, histogram, GAAC_SCHEME_PRODUCTION, 10, NULL, &error), GAAC_OK);
    const uint8_t *table = gaac_windows_table(windows, NULL);
    for (unsigned c = 0; c < 64; c++) {
        uint64_t counts[256];
        assert_int_equal(gaac_histogram_counts(histogram, GAAC_K, 0, c, counts, &error), GAAC_OK);
        const int shift = c % 4 == 3 ? 6 : 7;
        uint64_t best = UINT64_MAX, chosen = 0;
        for (int base = 0; base <= 240; base += c % 4 == 3 ? 2 : 1) {
            uint64_t cost = 0;
            for (int e = 0; e < 256; e++) {
                const int d = e - base;
                cost += counts[e] * (uint64_t)(d < 0 || d > 15 ? 10 : d < shift || d > shift + 7 ? 1 : 0);
            }
            best = cost < best ? cost : best;
            if (base == table[c])
                chosen = cost;
        }
        assert_int_equal(chosen, best);
    }
    gaac_windows_destroy(windows);
    gaac_histogram_destroy(histogram);
    free_block(&b);
}

static void element_maps_are_bijections(void **state)
{
    (void)state;
    for (unsigned fragments = 1; fragments <= 8; fragments++) {
        bool k_seen[2048] = {false}, v_seen[2048] = {false};
        for (unsigned token = 0; token < 16; token++)
            for (unsigned channel = 0; channel < 16 * fragments; channel++) {
                const unsigned k = gaac_k_index(fragments, token, channel), v = gaac_v_index(fragments, token, channel);
                assert_true(k < fragments * 256 && v < fragments * 256);
                assert_false(k_seen[k] || v_seen[v]);
                k_seen[k] = v_seen[v] = true;
            }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(element_maps_are_bijections),
        cmocka_unit_test(roundtrip_is_exact),
        cmocka_unit_test(all_patterns_are_exact),
        cmocka_unit_test(extreme_windows_are_exact),
        cmocka_unit_test(capacity_decides),
        cmocka_unit_test(damaged_slots_are_safe),
        cmocka_unit_test(wrong_arguments_are_named),
        cmocka_unit_test(windows_are_optimal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
