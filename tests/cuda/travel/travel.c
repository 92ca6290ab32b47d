#include "travel.h"

#include "random_kv.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cJSON.h>

static const struct {
    const char *name;
    gaac_shape shape;
    random_kind kind;
} cases[TRAVEL_CASES] = {
    {"d64", {1, 64, 64}, RANDOM_KV},          {"d128-two-heads", {2, 128, 128}, RANDOM_OUTLIERS},
    {"d256", {1, 256, 256}, RANDOM_OUTLIERS}, {"d80-two-heads", {2, 80, 80}, RANDOM_OUTLIERS},
    {"d112", {1, 112, 112}, RANDOM_KV},       {"k192-v128", {1, 192, 128}, RANDOM_OUTLIERS},
    {"k64-v128", {1, 64, 128}, RANDOM_KV},
};

static void require(bool condition, const char *what)
{
    if (!condition) {
        fprintf(stderr, "travelling blocks: %s\n", what);
        exit(1);
    }
}

static travel_bytes allocate(size_t size)
{
    const travel_bytes memory = {aligned_alloc(64, (size + 63) / 64 * 64), size};
    require(memory.bytes != NULL, "no memory");
    return memory;
}

gaac_kv_rows travel_rows(const travel_block *block)
{
    const gaac_shape *shape = &block->shape;
    return (gaac_kv_rows){
        (const uint16_t *)(const void *)block->k.bytes, (const uint16_t *)(const void *)block->v.bytes,
        (size_t)shape->kv_heads * shape->head_dim_k,    shape->head_dim_k,
        (size_t)shape->kv_heads * shape->head_dim_v,    shape->head_dim_v};
}

gaac_codec *travel_codec(const travel_block *block)
{
    gaac_windows *windows;
    gaac_codec *codec;
    require(gaac_windows_from_table(&windows, &block->shape, GAAC_SCHEME_PRODUCTION, block->windows.bytes,
                                    block->windows.size, NULL, NULL) == GAAC_OK,
            "a window table is not sound");
    const gaac_codec_config config = {block->shape, GAAC_SCHEME_PRODUCTION, windows, block->pool_bytes, NULL};
    require(gaac_codec_create(&codec, &config, NULL) == GAAC_OK, "no codec for this block");
    gaac_windows_destroy(windows);
    return codec;
}

static void fill(uint64_t *seed, random_kind kind, travel_bytes memory, size_t row)
{
    random_fill(seed, kind, (uint16_t *)(void *)memory.bytes, memory.size / 2, (unsigned)row);
}

travel_block travel_make(unsigned number)
{
    travel_block block = {.shape = cases[number].shape};
    const gaac_shape *shape = &block.shape;
    snprintf(block.name, sizeof block.name, "%s", cases[number].name);
    const size_t k_row = (size_t)shape->kv_heads * shape->head_dim_k;
    const size_t v_row = (size_t)shape->kv_heads * shape->head_dim_v, tokens = 64 * GAAC_BLOCK_TOKENS;
    uint64_t seed = number + 1;
    block.k = allocate(tokens * k_row * 2);
    block.v = allocate(tokens * v_row * 2);
    fill(&seed, RANDOM_KV, block.k, k_row);
    fill(&seed, RANDOM_KV, block.v, v_row);
    const gaac_kv_rows rows = travel_rows(&block);
    gaac_windows *windows;
    require(gaac_calibrate(shape, &rows, tokens, GAAC_SCHEME_PRODUCTION, NULL, &windows, &block.pool_bytes, NULL) ==
                GAAC_OK,
            "calibration failed");
    block.pool_bytes = block.pool_bytes / 128 * 128 + 256; /* room for exceptions */
    size_t bytes;
    const uint8_t *table = gaac_windows_table(windows, &bytes);
    block.windows = allocate(bytes);
    memcpy(block.windows.bytes, table, bytes);
    gaac_windows_destroy(windows);
    gaac_codec *codec = travel_codec(&block);
    block.slot = allocate(gaac_codec_slot_bytes(codec));
    block.entries = allocate(gaac_codec_entry_count(codec) * 4);
    block.k.size = GAAC_BLOCK_TOKENS * k_row * 2;
    block.v.size = GAAC_BLOCK_TOKENS * v_row * 2;
    gaac_block_info info = {0};
    for (unsigned tries = 0; tries < 50 && !(info.coded && (cases[number].kind == RANDOM_KV || info.exceptions > 0));
         tries++) {
        fill(&seed, cases[number].kind, block.k, k_row);
        fill(&seed, cases[number].kind, block.v, v_row);
        require(gaac_encode_block(codec, &rows, block.slot.bytes, (uint32_t *)(void *)block.entries.bytes, &info,
                                  NULL) == GAAC_OK,
                "encoding failed");
    }
    require(info.coded, "the block does not fit its slot");
    gaac_codec_destroy(codec);
    return block;
}

void travel_free(travel_block *block)
{
    free(block->windows.bytes);
    free(block->entries.bytes);
    free(block->slot.bytes);
    free(block->k.bytes);
    free(block->v.bytes);
}

/* ---- files ----------------------------------------------------------------------------------- */

static void add_hex(cJSON *object, const char *name, travel_bytes memory)
{
    char *text = malloc(2 * memory.size + 1);
    require(text != NULL, "no memory");
    text[0] = 0;
    for (size_t i = 0; i < memory.size; i++)
        snprintf(text + 2 * i, 3, "%02x", memory.bytes[i]);
    cJSON_AddStringToObject(object, name, text);
    free(text);
}

void travel_write(const char *path, const char *encoder, const travel_block blocks[TRAVEL_CASES])
{
    cJSON *json = cJSON_CreateObject(), *list;
    cJSON_AddStringToObject(json, "encoder", encoder);
    list = cJSON_AddArrayToObject(json, "blocks");
    for (unsigned i = 0; i < TRAVEL_CASES; i++) {
        const travel_block *block = &blocks[i];
        cJSON *object = cJSON_CreateObject();
        cJSON_AddStringToObject(object, "case", block->name);
        cJSON_AddNumberToObject(object, "kv_heads", block->shape.kv_heads);
        cJSON_AddNumberToObject(object, "head_dim_k", block->shape.head_dim_k);
        cJSON_AddNumberToObject(object, "head_dim_v", block->shape.head_dim_v);
        cJSON_AddNumberToObject(object, "pool_bytes", block->pool_bytes);
        add_hex(object, "windows", block->windows);
        add_hex(object, "entries", block->entries);
        add_hex(object, "slot", block->slot);
        add_hex(object, "k", block->k);
        add_hex(object, "v", block->v);
        cJSON_AddItemToArray(list, object);
    }
    char *text = cJSON_Print(json);
    FILE *file = fopen(path, "wb");
    require(file != NULL && fputs(text, file) >= 0 && fputc('\n', file) >= 0 && fclose(file) == 0,
            "the file could not be written");
    cJSON_free(text);
    cJSON_Delete(json);
}

static uint32_t read_number(const cJSON *object, const char *name)
{
    const cJSON *item = cJSON_GetObjectItem(object, name);
    require(cJSON_IsNumber(item), "the file lacks a number");
    return (uint32_t)item->valuedouble;
}

static travel_bytes read_hex(const cJSON *object, const char *name, size_t size)
{
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItem(object, name));
    require(text != NULL && strlen(text) == 2 * size, "bytes in the file are of another size than the shape's");
    const travel_bytes memory = allocate(size);
    for (size_t i = 0; i < size; i++) {
        const char digits[3] = {text[2 * i], text[2 * i + 1], 0};
        memory.bytes[i] = (uint8_t)strtoul(digits, NULL, 16);
    }
    return memory;
}

static travel_block read_block(const cJSON *object)
{
    travel_block block = {.shape = {read_number(object, "kv_heads"), read_number(object, "head_dim_k"),
                                    read_number(object, "head_dim_v")},
                          .pool_bytes = read_number(object, "pool_bytes")};
    const gaac_shape *shape = &block.shape;
    require(gaac_shape_check(shape, NULL) == GAAC_OK, "a shape in the file is not sound");
    const char *name = cJSON_GetStringValue(cJSON_GetObjectItem(object, "case"));
    snprintf(block.name, sizeof block.name, "%s", name != NULL ? name : "");
    block.windows = read_hex(object, "windows", gaac_windows_table_bytes(shape, GAAC_SCHEME_PRODUCTION));
    gaac_codec *codec = travel_codec(&block);
    block.entries = read_hex(object, "entries", gaac_codec_entry_count(codec) * 4);
    block.slot = read_hex(object, "slot", gaac_codec_slot_bytes(codec));
    gaac_codec_destroy(codec);
    block.k = read_hex(object, "k", (size_t)shape->kv_heads * shape->head_dim_k * GAAC_BLOCK_TOKENS * 2);
    block.v = read_hex(object, "v", (size_t)shape->kv_heads * shape->head_dim_v * GAAC_BLOCK_TOKENS * 2);
    return block;
}

void travel_read(const char *path, travel_block blocks[TRAVEL_CASES])
{
    enum { MOST = 4 << 20 };
    char *text = calloc(1, MOST);
    FILE *file = fopen(path, "rb");
    require(text != NULL && file != NULL, "the file could not be opened");
    require(fread(text, 1, MOST - 1, file) > 0 && fclose(file) == 0, "the file could not be read");
    cJSON *json = cJSON_Parse(text);
    const cJSON *list = cJSON_GetObjectItem(json, "blocks");
    require(cJSON_GetArraySize(list) == TRAVEL_CASES, "the file does not hold every case");
    for (int i = 0; i < TRAVEL_CASES; i++) {
        blocks[i] = read_block(cJSON_GetArrayItem(list, i));
        require(strcmp(blocks[i].name, cases[i].name) == 0, "a case in the file is another");
    }
    cJSON_Delete(json);
    free(text);
}
