/* The format's bytes do not change unnoticed: encoding gives the golden slots, decoding the golden values.
 * `test_golden write DIR` makes the files anew, for a deliberate change of the format. */
#include "golden.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <cJSON.h>

static char *to_hex(const void *bytes, size_t size)
{
    char *text = malloc(2 * size + 1);
    text[0] = 0;
    for (size_t i = 0; i < size; i++)
        snprintf(text + 2 * i, 3, "%02x", ((const uint8_t *)bytes)[i]);
    return text;
}

static void add_hex(cJSON *object, const char *name, const void *bytes, size_t size)
{
    char *text = to_hex(bytes, size);
    cJSON_AddStringToObject(object, name, text);
    free(text);
}

/* Calibrates on 64 blocks of the case's values and encodes one more. Returns the case as JSON. */
static cJSON *encode_case(unsigned number)
{
    const golden_case *c = &golden_cases[number];
    const gaac_shape *shape = &c->shape;
    const size_t k_row = (size_t)shape->kv_heads * shape->head_dim_k,
                 v_row = (size_t)shape->kv_heads * shape->head_dim_v;
    const size_t tokens = 64 * GAAC_BLOCK_TOKENS;
    uint16_t *k = malloc(tokens * k_row * 2), *v = malloc(tokens * v_row * 2);
    uint64_t seed = number + 1;
    random_fill(&seed, RANDOM_KV, k, tokens * k_row, (unsigned)k_row);
    random_fill(&seed, RANDOM_KV, v, tokens * v_row, (unsigned)v_row);
    const gaac_kv_rows rows = {k, v, k_row, shape->head_dim_k, v_row, shape->head_dim_v};
    gaac_windows *windows;
    uint32_t pool_bytes;
    assert_int_equal(gaac_calibrate(shape, &rows, tokens, GAAC_SCHEME_PRODUCTION, NULL, &windows, &pool_bytes, NULL),
                     GAAC_OK);
    pool_bytes += 64; /* room for the cases with exceptions */
    const gaac_codec_config config = {*shape, GAAC_SCHEME_PRODUCTION, windows, pool_bytes, NULL};
    gaac_codec *codec;
    assert_int_equal(gaac_codec_create(&codec, &config, NULL), GAAC_OK);
    uint8_t *slot = aligned_alloc(64, gaac_codec_slot_bytes(codec));
    uint32_t *entries = malloc(gaac_codec_entry_count(codec) * 4);
    gaac_block_info info = {0};
    for (unsigned tries = 0; tries < 50 && !(info.coded && (c->kind == RANDOM_KV || info.exceptions > 0)); tries++) {
        random_fill(&seed, c->kind, k, GAAC_BLOCK_TOKENS * k_row, (unsigned)k_row);
        random_fill(&seed, c->kind, v, GAAC_BLOCK_TOKENS * v_row, (unsigned)v_row);
        assert_int_equal(gaac_encode_block(codec, &rows, slot, entries, &info, NULL), GAAC_OK);
    }
    assert_true(info.coded);
    cJSON *json = cJSON_CreateObject();
    cJSON_AddStringToObject(json, "case", c->name);
    cJSON_AddNumberToObject(json, "kv_heads", shape->kv_heads);
    cJSON_AddNumberToObject(json, "head_dim_k", shape->head_dim_k);
    cJSON_AddNumberToObject(json, "head_dim_v", shape->head_dim_v);
    cJSON_AddNumberToObject(json, "pool_bytes", pool_bytes);
    size_t bytes;
    const uint8_t *table = gaac_windows_table(windows, &bytes);
    add_hex(json, "windows", table, bytes);
    add_hex(json, "entries", entries, gaac_codec_entry_count(codec) * 4);
    add_hex(json, "slot", slot, gaac_codec_slot_bytes(codec));
    add_hex(json, "k", k, GAAC_BLOCK_TOKENS * k_row * 2);
    add_hex(json, "v", v, GAAC_BLOCK_TOKENS * v_row * 2);
    free(k);
    free(v);
    free(slot);
    free(entries);
    gaac_windows_destroy(windows);
    gaac_codec_destroy(codec);
    return json;
}

static void golden_path(char *path, size_t size, const char *folder, unsigned number)
{
    snprintf(path, size, "%s/%s.json", folder, golden_cases[number].name);
}

static void bytes_are_golden(void **state)
{
    (void)state;
    for (unsigned number = 0; number < GOLDEN_CASES; number++) {
        char path[512];
        golden_path(path, sizeof path, GAAC_GOLDEN_DIR, number);
        FILE *file = fopen(path, "rb");
        assert_non_null(file);
        char *text = calloc(1, 1 << 20);
        size_t size = fread(text, 1, (1 << 20) - 1, file);
        assert_int_equal(fclose(file), 0);
        assert_true(size > 1000);
        cJSON *want = cJSON_Parse(text), *have = encode_case(number);
        assert_non_null(want);
        assert_true(cJSON_Compare(want, have, true));
        cJSON_Delete(want);
        cJSON_Delete(have);
        free(text);
    }
}

static uint8_t *from_hex(const cJSON *object, const char *name, size_t *size)
{
    const char *text = cJSON_GetObjectItem(object, name)->valuestring;
    *size = strlen(text) / 2;
    uint8_t *bytes = aligned_alloc(64, (*size + 63) / 64 * 64);
    for (size_t i = 0; i < *size; i++) {
        const char digits[3] = {text[2 * i], text[2 * i + 1], 0};
        bytes[i] = (uint8_t)strtoul(digits, NULL, 16);
    }
    return bytes;
}

static void golden_slots_decode(void **state)
{
    (void)state;
    for (unsigned number = 0; number < GOLDEN_CASES; number++) {
        cJSON *json = encode_case(number); /* equal to the file: bytes_are_golden */
        const gaac_shape *shape = &golden_cases[number].shape;
        size_t table_bytes, entry_bytes, slot_bytes, k_bytes, v_bytes;
        uint8_t *table = from_hex(json, "windows", &table_bytes), *entries = from_hex(json, "entries", &entry_bytes);
        uint8_t *slot = from_hex(json, "slot", &slot_bytes), *k = from_hex(json, "k", &k_bytes),
                *v = from_hex(json, "v", &v_bytes);
        gaac_windows *windows;
        assert_int_equal(
            gaac_windows_from_table(&windows, shape, GAAC_SCHEME_PRODUCTION, table, table_bytes, NULL, NULL), GAAC_OK);
        const gaac_codec_config config = {*shape, GAAC_SCHEME_PRODUCTION, windows,
                                          (uint32_t)cJSON_GetObjectItem(json, "pool_bytes")->valuedouble, NULL};
        gaac_codec *codec;
        assert_int_equal(gaac_codec_create(&codec, &config, NULL), GAAC_OK);
        assert_int_equal(gaac_codec_slot_bytes(codec), slot_bytes);
        uint16_t *k_out = malloc(k_bytes), *v_out = malloc(v_bytes);
        const size_t k_row = k_bytes / 32, v_row = v_bytes / 32;
        const gaac_kv_rows_out out = {k_out, v_out, k_row, shape->head_dim_k, v_row, shape->head_dim_v};
        assert_int_equal(gaac_decode_block(codec, slot, (const uint32_t *)(const void *)entries, &out, NULL), GAAC_OK);
        assert_memory_equal(k_out, k, k_bytes);
        assert_memory_equal(v_out, v, v_bytes);
        free(k_out);
        free(v_out);
        free(table);
        free(entries);
        free(slot);
        free(k);
        free(v);
        gaac_windows_destroy(windows);
        gaac_codec_destroy(codec);
        cJSON_Delete(json);
    }
}

static int write_files(const char *folder)
{
    for (unsigned number = 0; number < GOLDEN_CASES; number++) {
        char path[512];
        golden_path(path, sizeof path, folder, number);
        cJSON *json = encode_case(number);
        char *text = cJSON_Print(json);
        FILE *file = fopen(path, "wb");
        if (file == NULL || fputs(text, file) < 0 || fputc('\n', file) < 0 || fclose(file) != 0)
            return 1;
        cJSON_free(text);
        cJSON_Delete(json);
    }
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "write") == 0)
        return write_files(argv[2]);
    const struct CMUnitTest tests[] = {cmocka_unit_test(bytes_are_golden), cmocka_unit_test(golden_slots_decode)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
