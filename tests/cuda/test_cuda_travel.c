/* Slots travel between machines: what a CPU encoded decodes on the GPU, and the GPU makes the same bytes of the same
 * values.
 *   test_cuda_travel                 the CPU's blocks are made here
 *   test_cuda_travel CPU.json GPU.json   they come from a file (test_travel write); the GPU's go to another, which
 *                                    becomes tests/cuda/golden/gpu-blocks.json */
#include "fixture.h"
#include "travel/travel.h"

static travel_block blocks[TRAVEL_CASES], made[TRAVEL_CASES];
static const char *out_path;

/* A cache of three blocks with a block's shape and windows. Block 1 is the one that is used. */
typedef struct travel_cache {
    gaac_cuda_cache cache;
    gaac_cuda_sizes sizes;
} travel_cache;

static travel_cache make_cache(const travel_block *block)
{
    travel_cache c = {
        .cache = {.shape = block->shape, .pool_bytes = block->pool_bytes, .blocks = 3, .raw_blocks = 3, .epochs = 1}};
    assert_gaac(gaac_cuda_get_sizes(&block->shape, block->pool_bytes, &c.sizes, &gpu_error));
    assert_int_equal(c.sizes.slot_bytes, block->slot.size);
    assert_int_equal(c.sizes.entries_per_block * 4, block->entries.size);
    assert_int_equal(c.sizes.window_table_bytes, block->windows.size);
    c.cache.slot_stride = c.sizes.slot_bytes;
    c.cache.entry_stride = (c.sizes.entries_per_block + 1) / 2 * 2;
    c.cache.slots = gpu_allocate(3 * c.cache.slot_stride);
    assert_cuda(cudaMemset(c.cache.slots, 0xff, 3 * c.cache.slot_stride));
    c.cache.entries = gpu_allocate(3 * c.cache.entry_stride * 4);
    c.cache.raw = gpu_allocate(3 * c.sizes.raw_bytes);
    c.cache.raw_used = gpu_allocate(4);
    c.cache.counters = gpu_allocate(sizeof *c.cache.counters);
    void *windows = gpu_allocate(c.sizes.window_bytes);
    uint8_t *table = gpu_upload(block->windows.bytes, block->windows.size);
    assert_gaac(gaac_cuda_set_windows(gpu, &block->shape, table, windows, NULL, &gpu_error));
    assert_cuda(cudaDeviceSynchronize());
    gpu_free(table);
    c.cache.windows = windows;
    return c;
}

static void free_cache(travel_cache *c)
{
    gpu_free(c->cache.slots);
    gpu_free(c->cache.entries);
    gpu_free(c->cache.raw);
    gpu_free(c->cache.raw_used);
    gpu_free(c->cache.counters);
    gpu_free((void *)(uintptr_t)c->cache.windows);
}

static void slots_of_a_cpu_decode(void **state)
{
    (void)state;
    for (unsigned i = 0; i < TRAVEL_CASES; i++) {
        const travel_block *block = &blocks[i];
        travel_cache c = make_cache(block);
        gpu_write((uint8_t *)c.cache.slots + c.cache.slot_stride, block->slot.bytes, block->slot.size);
        gpu_write(c.cache.entries + c.cache.entry_stride, block->entries.bytes, block->entries.size);
        const int32_t number = 1;
        int32_t *list = gpu_upload(&number, sizeof number);
        const gaac_kv_rows rows = travel_rows(block);
        uint16_t *k = gpu_allocate(block->k.size), *v = gpu_allocate(block->v.size);
        const gaac_cuda_decode_args args = {
            .rows = {k, v, rows.k_token_stride, rows.k_head_stride, rows.v_token_stride, rows.v_head_stride},
            .blocks = list,
            .count = 1};
        assert_gaac(gaac_cuda_decode(gpu, &c.cache, &args, NULL, &gpu_error));
        uint8_t *k_host = host_memory(block->k.size), *v_host = host_memory(block->v.size);
        gpu_read(k_host, k, block->k.size);
        gpu_read(v_host, v, block->v.size);
        assert_memory_equal(k_host, block->k.bytes, block->k.size);
        assert_memory_equal(v_host, block->v.bytes, block->v.size);
        free(k_host);
        free(v_host);
        gpu_free(k);
        gpu_free(v);
        gpu_free(list);
        free_cache(&c);
    }
}

/* What the GPU makes of a block's values. */
static travel_block encode(const travel_block *block)
{
    travel_cache c = make_cache(block);
    const int32_t number = 1;
    const int64_t offset = 0;
    int32_t *list = gpu_upload(&number, sizeof number);
    int64_t *offsets = gpu_upload(&offset, sizeof offset);
    gaac_kv_rows rows = travel_rows(block);
    uint16_t *k = gpu_upload(block->k.bytes, block->k.size), *v = gpu_upload(block->v.bytes, block->v.size);
    rows.k = k;
    rows.v = v;
    const gaac_cuda_encode_args args = {.rows = rows, .k_offsets = offsets, .blocks = list, .count = 1};
    assert_gaac(gaac_cuda_encode(gpu, &c.cache, &args, NULL, &gpu_error));
    travel_block gpus = *block;
    gpus.slot.bytes = host_memory(block->slot.size);
    gpus.entries.bytes = host_memory(block->entries.size);
    gpu_read(gpus.slot.bytes, (uint8_t *)c.cache.slots + c.cache.slot_stride, block->slot.size);
    gpu_read(gpus.entries.bytes, c.cache.entries + c.cache.entry_stride, block->entries.size);
    gpu_free(k);
    gpu_free(v);
    gpu_free(list);
    gpu_free(offsets);
    free_cache(&c);
    return gpus;
}

static void the_gpu_makes_the_same_slots(void **state)
{
    (void)state;
    for (unsigned i = 0; i < TRAVEL_CASES; i++)
        made[i] = encode(&blocks[i]);
    if (out_path != NULL) {
        struct cudaDeviceProp properties;
        assert_cuda(cudaGetDeviceProperties(&properties, 0));
        travel_write(out_path, properties.name, made);
    }
    for (unsigned i = 0; i < TRAVEL_CASES; i++) {
        assert_memory_equal(made[i].entries.bytes, blocks[i].entries.bytes, blocks[i].entries.size);
        assert_memory_equal(made[i].slot.bytes, blocks[i].slot.bytes, blocks[i].slot.size);
        free(made[i].slot.bytes);
        free(made[i].entries.bytes);
    }
}

int main(int argc, char **argv)
{
    gpu_start();
    if (argc == 3)
        travel_read(argv[1], blocks);
    for (unsigned i = 0; argc != 3 && i < TRAVEL_CASES; i++)
        blocks[i] = travel_make(i);
    out_path = argc == 3 ? argv[2] : NULL;
    const struct CMUnitTest tests[] = {cmocka_unit_test(slots_of_a_cpu_decode),
                                       cmocka_unit_test(the_gpu_makes_the_same_slots)};
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    for (unsigned i = 0; i < TRAVEL_CASES; i++)
        travel_free(&blocks[i]);
    return gpu_stop(failed);
}
