#include "fixture.h"

gaac_cuda *gpu;
gaac_error gpu_error;
uint32_t gpu_pool_room;

void gpu_start(void)
{
    int devices = 0;
    const cudaError_t status = cudaGetDeviceCount(&devices);
    if (status != cudaSuccess || devices == 0) {
        fprintf(stderr, "skipped: no GPU (%s)\n", cudaGetErrorString(status));
        exit(77);
    }
    if (gaac_cuda_create(&gpu, 0, NULL, &gpu_error) != GAAC_OK) {
        fprintf(stderr, "gaac_cuda_create: %s\n", gpu_error.message);
        exit(1);
    }
}

int gpu_stop(int failed)
{
    gaac_cuda_destroy(gpu);
    const cudaError_t status = cudaDeviceReset();
    if (status != cudaSuccess)
        fprintf(stderr, "at the end: %s\n", cudaGetErrorString(status));
    return failed != 0 || status != cudaSuccess;
}

bool gpu_small(void)
{
    return getenv("GAAC_TEST_SMALL") != NULL;
}

void gpu_check(cudaError_t status, const char *call, const char *file, int line)
{
    if (status != cudaSuccess) {
        fprintf(stderr, "%s: %s\n", call, cudaGetErrorString(status));
        _fail(file, line);
    }
}

void gpu_check_gaac(gaac_status status, const char *call, const char *file, int line)
{
    if (status != GAAC_OK) {
        fprintf(stderr, "%s: %s\n", call, gpu_error.message);
        _fail(file, line);
    }
}

void *host_memory(size_t bytes)
{
    const size_t whole = (bytes / 64 + 1) * 64;
    void *memory = aligned_alloc(64, whole);
    if (memory == NULL) {
        fprintf(stderr, "no memory for %zu bytes\n", bytes);
        exit(1);
    }
    return memset(memory, 0, whole);
}

void *gpu_allocate(size_t bytes)
{
    void *device = NULL;
    assert_cuda(cudaMalloc(&device, bytes));
    assert_cuda(cudaMemset(device, 0, bytes));
    return device;
}

void *gpu_upload(const void *host, size_t bytes)
{
    void *device = gpu_allocate(bytes);
    gpu_write(device, host, bytes);
    return device;
}

void gpu_free(void *device)
{
    assert_cuda(cudaFree(device));
}

void gpu_write(void *device, const void *host, size_t bytes)
{
    assert_cuda(cudaDeviceSynchronize());
    assert_cuda(cudaMemcpy(device, host, bytes, cudaMemcpyHostToDevice));
}

void gpu_read(void *host, const void *device, size_t bytes)
{
    assert_cuda(cudaDeviceSynchronize());
    assert_cuda(cudaMemcpy(host, device, bytes, cudaMemcpyDeviceToHost));
}

/* ---- values ---------------------------------------------------------------------------------- */

kv kv_random(uint64_t *seed, random_kind kind, gaac_shape shape, size_t tokens)
{
    kv values = {.shape = shape,
                 .tokens = tokens,
                 .k_row = (size_t)shape.kv_heads * shape.head_dim_k,
                 .v_row = (size_t)shape.kv_heads * shape.head_dim_v};
    values.k = host_memory(tokens * values.k_row * 2);
    values.v = host_memory(tokens * values.v_row * 2);
    random_fill(seed, kind, values.k, tokens * values.k_row, (unsigned)values.k_row);
    random_fill(seed, kind, values.v, tokens * values.v_row, (unsigned)values.v_row);
    values.rows = (gaac_kv_rows){values.k, values.v, values.k_row, shape.head_dim_k, values.v_row, shape.head_dim_v};
    return values;
}

void kv_free(kv *values)
{
    free(values->k);
    free(values->v);
}

gaac_kv_rows kv_at(const kv *values, size_t token)
{
    gaac_kv_rows rows = values->rows;
    rows.k += token * values->k_row;
    rows.v += token * values->v_row;
    return rows;
}

void kv_drift(kv *values, size_t first, size_t tokens, uint32_t epoch)
{
    for (size_t i = first * values->k_row; i < (first + tokens) * values->k_row; i++)
        values->k[i] = (uint16_t)(values->k[i] + (epoch << 7)); /* the exponent */
}

/* ---- caches ---------------------------------------------------------------------------------- */

/* Windows of each epoch and the pool that serves all of them. */
static uint32_t calibrate(uint64_t *seed, gpu_cache *c, gaac_shape shape)
{
    uint32_t pool_bytes = 0;
    for (uint32_t e = 0; e < c->epochs; e++) {
        kv values = kv_random(seed, RANDOM_KV, shape, 64 * GAAC_BLOCK_TOKENS);
        kv_drift(&values, 0, values.tokens, e);
        uint32_t needed;
        assert_gaac(gaac_calibrate(&shape, &values.rows, values.tokens, GAAC_SCHEME_PRODUCTION, NULL, &c->windows[e],
                                   &needed, &gpu_error));
        pool_bytes = needed > pool_bytes ? needed : pool_bytes;
        kv_free(&values);
    }
    return (pool_bytes + gpu_pool_room + 127) / 128 * 128;
}

/* The windows of every epoch, made ready by the library. */
static void *upload_windows(const gpu_cache *c)
{
    uint8_t *windows = gpu_allocate(c->epochs * c->sizes.window_bytes);
    for (uint32_t e = 0; e < c->epochs; e++) {
        size_t bytes;
        const uint8_t *table = gaac_windows_table(c->windows[e], &bytes);
        assert_int_equal(bytes, c->sizes.window_table_bytes);
        uint8_t *device = gpu_upload(table, bytes);
        assert_gaac(
            gaac_cuda_set_windows(gpu, &c->cache.shape, device, windows + e * c->sizes.window_bytes, NULL, &gpu_error));
        assert_cuda(cudaDeviceSynchronize());
        gpu_free(device);
    }
    return windows;
}

gpu_cache gpu_cache_make(uint64_t *seed, gaac_shape shape, uint32_t blocks, uint32_t raw_blocks, uint32_t epochs)
{
    gpu_cache c = {.epochs = epochs};
    assert_in_range(epochs, 1, GPU_EPOCHS);
    gaac_layout_init(&c.layout, &shape);
    gaac_cuda_cache *cache = &c.cache;
    cache->shape = shape;
    cache->pool_bytes = calibrate(seed, &c, shape);
    assert_gaac(gaac_cuda_get_sizes(&shape, cache->pool_bytes, &c.sizes, &gpu_error));
    for (uint32_t e = 0; e < epochs; e++) {
        const gaac_codec_config config = {shape, GAAC_SCHEME_PRODUCTION, c.windows[e], cache->pool_bytes, NULL};
        assert_gaac(gaac_codec_create(&c.codec[e], &config, &gpu_error));
        assert_int_equal(gaac_codec_slot_bytes(c.codec[e]), c.sizes.slot_bytes);
    }
    cache->blocks = blocks;
    cache->slot_stride = c.sizes.slot_bytes + 128; /* a gap shows strides that are taken for sizes */
    cache->entry_stride = (c.sizes.entries_per_block + 3) / 2 * 2;
    cache->raw_blocks = raw_blocks;
    cache->epochs = epochs;
    cache->slots = gpu_allocate(blocks * cache->slot_stride);
    cache->entries = gpu_allocate(blocks * cache->entry_stride * 4);
    cache->raw = gpu_allocate(raw_blocks * c.sizes.raw_bytes);
    cache->raw_used = gpu_allocate((raw_blocks + 31) / 32 * 4);
    cache->counters = gpu_allocate(sizeof *cache->counters);
    cache->windows = upload_windows(&c);
    c.slots = host_memory(blocks * cache->slot_stride);
    c.entries = host_memory(blocks * cache->entry_stride * 4);
    c.raw = host_memory(raw_blocks * c.sizes.raw_bytes);
    c.raw_used = host_memory((raw_blocks + 31) / 32 * 4);
    /* What lies in unused memory must not matter: NaN and bits at random. */
    for (size_t i = 0; i < blocks * cache->slot_stride; i++)
        c.slots[i] = (uint8_t)random_u64(seed);
    memset(c.raw, 0xff, raw_blocks * c.sizes.raw_bytes);
    gpu_cache_to_device(&c);
    return c;
}

void gpu_cache_free(gpu_cache *c)
{
    gpu_free(c->cache.slots);
    gpu_free(c->cache.entries);
    gpu_free(c->cache.raw);
    gpu_free(c->cache.raw_used);
    gpu_free(c->cache.counters);
    gpu_free((void *)(uintptr_t)c->cache.windows);
    for (uint32_t e = 0; e < c->epochs; e++) {
        gaac_codec_destroy(c->codec[e]);
        gaac_windows_destroy(c->windows[e]);
    }
    free(c->slots);
    free(c->entries);
    free(c->raw);
    free(c->raw_used);
}

enum { ENTRY_EPOCH_SHIFT = 24 };
#define ENTRY_RAW UINT32_C(0x80000000)

void gpu_cache_clear(gpu_cache *c)
{
    memset(c->entries, 0, c->cache.blocks * c->cache.entry_stride * 4);
    memset(c->raw_used, 0, (c->cache.raw_blocks + 31) / 32 * 4);
}

bool gpu_cache_code(gpu_cache *c, uint32_t block, const gaac_kv_rows *rows, uint32_t epoch)
{
    uint32_t *entries = c->entries + block * c->cache.entry_stride;
    gaac_block_info info;
    assert_gaac(
        gaac_encode_block(c->codec[epoch], rows, c->slots + block * c->cache.slot_stride, entries, &info, &gpu_error));
    if (!info.coded) {
        gpu_cache_keep_raw(c, block, rows);
        return false;
    }
    for (size_t i = 0; i < c->sizes.entries_per_block; i++)
        entries[i] |= epoch << ENTRY_EPOCH_SHIFT;
    return true;
}

void gpu_cache_keep_raw(gpu_cache *c, uint32_t block, const gaac_kv_rows *rows)
{
    uint32_t index = 0;
    while (index < c->cache.raw_blocks && (c->raw_used[index / 32] >> index % 32 & 1) != 0)
        index++;
    assert_true(index < c->cache.raw_blocks);
    c->raw_used[index / 32] |= UINT32_C(1) << index % 32;
    gaac_rows_to_raw_block(&c->layout, rows, c->raw + index * c->sizes.raw_bytes);
    for (size_t i = 0; i < c->sizes.entries_per_block; i++)
        c->entries[block * c->cache.entry_stride + i] = ENTRY_RAW | index;
}

void gpu_cache_to_device(const gpu_cache *c)
{
    const gaac_cuda_cache *cache = &c->cache;
    gpu_write(cache->slots, c->slots, cache->blocks * cache->slot_stride);
    gpu_write(cache->entries, c->entries, cache->blocks * cache->entry_stride * 4);
    gpu_write(cache->raw, c->raw, cache->raw_blocks * c->sizes.raw_bytes);
    gpu_write(cache->raw_used, c->raw_used, (cache->raw_blocks + 31) / 32 * 4);
}

void gpu_cache_from_device(gpu_cache *c)
{
    const gaac_cuda_cache *cache = &c->cache;
    gpu_read(c->slots, cache->slots, cache->blocks * cache->slot_stride);
    gpu_read(c->entries, cache->entries, cache->blocks * cache->entry_stride * 4);
    gpu_read(c->raw, cache->raw, cache->raw_blocks * c->sizes.raw_bytes);
    gpu_read(c->raw_used, cache->raw_used, (cache->raw_blocks + 31) / 32 * 4);
}

void gpu_cache_values(const gpu_cache *c, uint32_t block, const gaac_kv_rows_out *rows)
{
    const uint32_t *entries = c->entries + block * c->cache.entry_stride;
    if ((entries[0] & ENTRY_RAW) == 0) {
        const uint32_t epoch = entries[0] >> ENTRY_EPOCH_SHIFT & 0x7f;
        assert_in_range(epoch, 0, c->epochs - 1);
        assert_gaac(
            gaac_decode_block(c->codec[epoch], c->slots + block * c->cache.slot_stride, entries, rows, &gpu_error));
        return;
    }
    assert_in_range(entries[0] & ~ENTRY_RAW, 0, c->cache.raw_blocks - 1);
    const uint8_t *raw = c->raw + (entries[0] & ~ENTRY_RAW) * c->sizes.raw_bytes;
    const gaac_shape *shape = &c->cache.shape;
    uint16_t *k_row = host_memory((size_t)shape->kv_heads * shape->head_dim_k * 2);
    uint16_t *v_row = host_memory((size_t)shape->kv_heads * shape->head_dim_v * 2);
    for (unsigned token = 0; token < GAAC_BLOCK_TOKENS; token++) {
        gaac_raw_block_read_row(&c->layout, GAAC_K, token, raw, k_row);
        gaac_raw_block_read_row(&c->layout, GAAC_V, token, raw, v_row);
        for (uint32_t head = 0; head < shape->kv_heads; head++) {
            memcpy(rows->k + token * rows->k_token_stride + head * rows->k_head_stride,
                   k_row + (size_t)head * shape->head_dim_k, shape->head_dim_k * 2);
            memcpy(rows->v + token * rows->v_token_stride + head * rows->v_head_stride,
                   v_row + (size_t)head * shape->head_dim_v, shape->head_dim_v * 2);
        }
    }
    free(k_row);
    free(v_row);
}

void shuffle(uint64_t *seed, int32_t *numbers, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t j = random_below(seed, i + 1);
        numbers[i] = numbers[j];
        numbers[j] = (int32_t)i;
    }
}

float float_of(uint16_t bits)
{
    const uint32_t word = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &word, sizeof value);
    return value;
}

uint16_t bits_of(float value)
{
    uint32_t word;
    memcpy(&word, &value, sizeof word);
    return (uint16_t)((word + 0x7fff + (word >> 16 & 1)) >> 16);
}
