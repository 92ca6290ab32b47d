/* gaac_cuda_decode and gaac_cuda_expand against blocks that the CPU library made and reads back: every byte of the
 * destination, also those that must stay as they are. */
#include "fixture.h"

enum { BLOCKS = 24 };

static uint64_t seed = 0xdec0de;

/* One tensor of rows on the device, with what it must come to on the host. Elements, gaps and margins alike start with
 * bits at random. */
typedef struct tensor {
    size_t elements, origin, token_stride, head_stride;
    uint16_t *expected, *device;
} tensor;

static tensor tensor_make(size_t rows, uint32_t heads, uint32_t head_dim, bool head_major, size_t gap, size_t origin)
{
    tensor t = {.origin = origin};
    t.head_stride = head_major ? rows * (head_dim + gap) : head_dim + gap;
    t.token_stride = head_major ? head_dim + gap : heads * t.head_stride + gap;
    t.elements = origin + rows * heads * (head_dim + gap) + rows * gap + 64;
    t.expected = malloc(t.elements * 2);
    assert_non_null(t.expected);
    for (size_t i = 0; i < t.elements; i++)
        t.expected[i] = (uint16_t)random_u64(&seed);
    t.device = gpu_upload(t.expected, t.elements * 2);
    return t;
}

static void tensor_check(tensor *t)
{
    uint16_t *got = malloc(t->elements * 2);
    assert_non_null(got);
    gpu_read(got, t->device, t->elements * 2);
    for (size_t i = 0; i < t->elements; i++)
        if (got[i] != t->expected[i])
            fail_msg("element %zu of %zu (strides %zu, %zu, origin %zu): %04x instead of %04x", i, t->elements,
                     t->token_stride, t->head_stride, t->origin, got[i], t->expected[i]);
    free(got);
    free(t->expected);
    gpu_free(t->device);
}

static void tensor_put(tensor *t, const uint16_t *rows, unsigned token, size_t offset, uint32_t heads,
                       uint32_t head_dim)
{
    for (uint32_t head = 0; head < heads; head++)
        memcpy(t->expected + t->origin + offset + head * t->head_stride,
               rows + ((size_t)token * heads + head) * head_dim, head_dim * 2);
}

/* Values of a model's KV with `outliers` elements of any bits in a block. */
static kv random_values(gaac_shape shape, size_t tokens, unsigned outliers)
{
    kv values = kv_random(&seed, RANDOM_KV, shape, tokens);
    for (size_t i = 0; i < outliers * (tokens / GAAC_BLOCK_TOKENS); i++) {
        values.k[random_u64(&seed) % (tokens * values.k_row)] = (uint16_t)random_u64(&seed);
        values.v[random_u64(&seed) % (tokens * values.v_row)] = (uint16_t)random_u64(&seed);
    }
    return values;
}

/* A cache of blocks of every make; block 0 stays empty. */
static gpu_cache random_cache(gaac_shape shape)
{
    gpu_cache c = gpu_cache_make(&seed, shape, BLOCKS, BLOCKS, 2);
    unsigned coded = 0, exceptions = 0;
    for (uint32_t block = 1; block < BLOCKS; block++) {
        const random_kind kinds[] = {RANDOM_BITS, RANDOM_SPECIAL, RANDOM_ZEROS};
        kv values = block % 5 == 0 ? kv_random(&seed, kinds[random_below(&seed, 3)], shape, GAAC_BLOCK_TOKENS)
                                   : random_values(shape, GAAC_BLOCK_TOKENS, block % 4 * 2);
        if (block % 7 == 0) {
            gpu_cache_keep_raw(&c, block, &values.rows);
        } else {
            const bool fits = gpu_cache_code(&c, block, &values.rows, block & 1);
            coded += fits;
            for (size_t i = 0; fits && i < c.sizes.entries_per_block; i++)
                exceptions += gaac_entry_exceptions(c.entries[block * c.cache.entry_stride + i]) != 0;
        }
        kv_free(&values);
    }
    gpu_cache_to_device(&c);
    /* Whether the test tests. */
    assert_in_range(coded, BLOCKS / 2, BLOCKS - 2);
    assert_int_not_equal(exceptions, 0);
    return c;
}

static bool is_empty(const gpu_cache *c, int32_t block)
{
    return block < 0 || c->entries[(size_t)block * c->cache.entry_stride] == 0;
}

/* Dense values of a block, from the CPU. */
static kv block_values(const gpu_cache *c, int32_t block)
{
    kv values = kv_random(&seed, RANDOM_ZEROS, c->cache.shape, GAAC_BLOCK_TOKENS);
    const gaac_kv_rows_out out = {
        values.k, values.v, values.k_row, c->cache.shape.head_dim_k, values.v_row, c->cache.shape.head_dim_v};
    gpu_cache_values(c, (uint32_t)block, &out);
    return values;
}

/* Strides and places of a destination. */
typedef struct placing {
    bool head_major;
    size_t gap, origin;
} placing;

static const placing placings[] = {
    {false, 0, 0}, {true, 0, 8}, {false, 8, 16}, {false, 3, 5}, {true, 1, 1}, {false, 4, 0},
};

static gaac_kv_rows_out rows_of(const tensor *k, const tensor *v, bool want_k, bool want_v)
{
    return (gaac_kv_rows_out){want_k ? k->device + k->origin : NULL,
                              want_v ? v->device + v->origin : NULL,
                              k->token_stride,
                              k->head_stride,
                              v->token_stride,
                              v->head_stride};
}

/* which: bit 0 K, bit 1 V. offsets: 0 none, 1 K's for both, 2 both. */
static void check_decode(const gpu_cache *c, placing place, unsigned which, unsigned offsets)
{
    const gaac_shape *shape = &c->cache.shape;
    int32_t order[BLOCKS], blocks[BLOCKS], rows[BLOCKS];
    shuffle(&seed, order, BLOCKS);
    shuffle(&seed, rows, BLOCKS);
    const uint32_t count = 1 + random_below(&seed, BLOCKS);
    int64_t k_offsets[BLOCKS], v_offsets[BLOCKS];
    tensor k = tensor_make((size_t)BLOCKS * GAAC_BLOCK_TOKENS, shape->kv_heads, shape->head_dim_k, place.head_major,
                           place.gap, place.origin);
    tensor v = tensor_make((size_t)BLOCKS * GAAC_BLOCK_TOKENS, shape->kv_heads, shape->head_dim_v, place.head_major,
                           place.gap, place.origin);
    if (offsets == 1) /* K's serve V: the same strides, so the wider's */
        assert_int_equal(shape->head_dim_k, shape->head_dim_v);
    for (uint32_t i = 0; i < count; i++) {
        blocks[i] = random_below(&seed, 6) == 0 ? -1 - (int32_t)random_below(&seed, 3) : order[i];
        const size_t row = (size_t)(offsets > 0 ? rows[i] : (int32_t)i) * GAAC_BLOCK_TOKENS;
        k_offsets[i] = (int64_t)(row * k.token_stride);
        v_offsets[i] = (int64_t)(row * v.token_stride);
        if (is_empty(c, blocks[i]))
            continue;
        kv values = block_values(c, blocks[i]);
        for (unsigned token = 0; token < GAAC_BLOCK_TOKENS; token++) {
            if (which & 1)
                tensor_put(&k, values.k, token, (row + token) * k.token_stride, shape->kv_heads, shape->head_dim_k);
            if (which & 2)
                tensor_put(&v, values.v, token, (row + token) * v.token_stride, shape->kv_heads, shape->head_dim_v);
        }
        kv_free(&values);
    }
    int32_t *device_blocks = gpu_upload(blocks, count * sizeof *blocks);
    int64_t *device_k = gpu_upload(k_offsets, count * sizeof *k_offsets);
    int64_t *device_v = gpu_upload(v_offsets, count * sizeof *v_offsets);
    const gaac_cuda_decode_args args = {.rows = rows_of(&k, &v, which & 1, which & 2),
                                        .k_offsets = offsets > 0 ? device_k : NULL,
                                        .v_offsets = offsets > 1 ? device_v : NULL,
                                        .blocks = device_blocks,
                                        .count = count};
    assert_gaac(gaac_cuda_decode(gpu, &c->cache, &args, NULL, &gpu_error));
    tensor_check(&k);
    tensor_check(&v);
    gpu_free(device_blocks);
    gpu_free(device_k);
    gpu_free(device_v);
}

/* Cells of sequences whose blocks are shuffled over the cache. */
static void check_expand(const gpu_cache *c, placing place, unsigned which, bool from_zero)
{
    enum { SEQUENCES = 5, STRIDE = BLOCKS + 3 };
    const gaac_shape *shape = &c->cache.shape;
    int32_t table[SEQUENCES * STRIDE], order[BLOCKS], first[SEQUENCES], lengths[SEQUENCES];
    int64_t row_start[SEQUENCES];
    uint32_t max_tokens = 0;
    size_t rows = 0;
    for (unsigned s = 0; s < SEQUENCES; s++) {
        shuffle(&seed, order, BLOCKS);
        for (unsigned i = 0; i < STRIDE; i++)
            table[s * STRIDE + i] = i < BLOCKS && random_below(&seed, 9) > 0 ? order[i] : -1;
        lengths[s] = (int32_t)random_below(&seed, BLOCKS * GAAC_BLOCK_TOKENS + 1) - (s == 3 ? BLOCKS * 16 : 0);
        first[s] = lengths[s] > 0 && !from_zero ? (int32_t)random_below(&seed, (unsigned)lengths[s] + 1) : 0;
        const uint32_t cells = lengths[s] > first[s] ? (uint32_t)(lengths[s] - first[s]) : 0;
        max_tokens = cells > max_tokens ? cells : max_tokens;
        rows += random_below(&seed, 3); /* rows between sequences stay as they are */
        row_start[s] = (int64_t)rows;
        rows += cells;
    }
    tensor k = tensor_make(rows + 1, shape->kv_heads, shape->head_dim_k, place.head_major, place.gap, place.origin);
    tensor v = tensor_make(rows + 1, shape->kv_heads, shape->head_dim_v, place.head_major, place.gap, place.origin);
    for (unsigned s = 0; s < SEQUENCES; s++)
        for (int32_t block = 0; block * GAAC_BLOCK_TOKENS < lengths[s]; block++) {
            const int32_t physical = table[s * STRIDE + (unsigned)block];
            if (is_empty(c, physical))
                continue;
            kv values = block_values(c, physical);
            for (unsigned token = 0; token < GAAC_BLOCK_TOKENS; token++) {
                const int32_t cell = block * GAAC_BLOCK_TOKENS + (int32_t)token;
                if (cell < first[s] || cell >= lengths[s])
                    continue;
                const size_t row = (size_t)(row_start[s] + cell - first[s]);
                if (which & 1)
                    tensor_put(&k, values.k, token, row * k.token_stride, shape->kv_heads, shape->head_dim_k);
                if (which & 2)
                    tensor_put(&v, values.v, token, row * v.token_stride, shape->kv_heads, shape->head_dim_v);
            }
            kv_free(&values);
        }
    int32_t *device_table = gpu_upload(table, sizeof table), *device_first = gpu_upload(first, sizeof first);
    int32_t *device_lengths = gpu_upload(lengths, sizeof lengths);
    int64_t *device_start = gpu_upload(row_start, sizeof row_start);
    const gaac_cuda_expand_args args = {.rows = rows_of(&k, &v, which & 1, which & 2),
                                        .sequences = SEQUENCES,
                                        .max_tokens = max_tokens,
                                        .first = from_zero ? NULL : device_first,
                                        .lengths = device_lengths,
                                        .row_start = device_start,
                                        .block_table = device_table,
                                        .block_table_stride = STRIDE};
    assert_gaac(gaac_cuda_expand(gpu, &c->cache, &args, NULL, &gpu_error));
    tensor_check(&k);
    tensor_check(&v);
    gpu_free(device_table);
    gpu_free(device_first);
    gpu_free(device_lengths);
    gpu_free(device_start);
}

static const gaac_shape shapes[] = {
    {1, 64, 64},   {2, 128, 128}, {9, 64, 64},  {3, 80, 80},  {2, 96, 96},   {5, 112, 112}, {2, 192, 192},
    {1, 256, 256}, {4, 192, 128}, {3, 64, 128}, {2, 48, 128}, {2, 576, 512}, {7, 144, 80},  {1, 128, 16},
};

static void test_shapes(void **state)
{
    (void)state;
    const size_t count = gpu_small() ? 5 : sizeof shapes / sizeof shapes[0];
    for (size_t i = 0; i < count; i++) {
        gpu_cache c = random_cache(shapes[i]);
        for (size_t p = 0; p < sizeof placings / sizeof placings[0]; p++) {
            const bool same = shapes[i].head_dim_k == shapes[i].head_dim_v;
            check_decode(&c, placings[p], 1 + (unsigned)(p + 2) % 3, same ? (unsigned)p % 3 : 2 * ((unsigned)p % 2));
            check_decode(&c, placings[p], 3, 2);
            check_expand(&c, placings[p], 1 + (unsigned)(p + 2) % 3, p % 2 != 0);
            check_expand(&c, placings[p], 3, false);
        }
        gpu_cache_free(&c);
    }
}

/* Every one of the 65,536 patterns comes back: most of them as exceptions. */
static void test_patterns(void **state)
{
    (void)state;
    const gaac_shape shape = {4, 128, 128};
    enum { PER_BLOCK = 4 * 4 * 6, PATTERNS = 65536 };
    gpu_cache c = gpu_cache_make(&seed, shape, PATTERNS / PER_BLOCK + 1, 64, 1);
    uint32_t next = 0, used = 0;
    int32_t *blocks = malloc(c.cache.blocks * sizeof *blocks);
    assert_non_null(blocks);
    const uint32_t wanted = gpu_small() ? PATTERNS / 16 : PATTERNS;
    for (; next < wanted; used++) {
        kv values = random_values(shape, GAAC_BLOCK_TOKENS, 0);
        for (unsigned i = 0; i < PER_BLOCK && next < wanted; i++, next++) {
            uint16_t *to = i & 1 ? values.k : values.v; /* different places: the lanes of both parts get some */
            to[(i * 331u + used * 17u) % (GAAC_BLOCK_TOKENS * values.k_row)] = (uint16_t)(next * 40503u);
        }
        blocks[used] = (int32_t)used;
        assert_true(gpu_cache_code(&c, used, &values.rows, 0));
        kv_free(&values);
    }
    gpu_cache_to_device(&c);
    const size_t row = (size_t)shape.kv_heads * shape.head_dim_k, elements = used * GAAC_BLOCK_TOKENS * row;
    uint16_t *expected = malloc(2 * elements * 2), *got = malloc(2 * elements * 2),
             *device = gpu_allocate(2 * elements * 2);
    assert_true(expected != NULL && got != NULL);
    for (uint32_t i = 0; i < used; i++) {
        const gaac_kv_rows_out out = {expected + i * GAAC_BLOCK_TOKENS * row,
                                      expected + elements + i * GAAC_BLOCK_TOKENS * row,
                                      row,
                                      shape.head_dim_k,
                                      row,
                                      shape.head_dim_v};
        gpu_cache_values(&c, i, &out);
    }
    int32_t *device_blocks = gpu_upload(blocks, used * sizeof *blocks);
    const gaac_cuda_decode_args args = {
        .rows = {device, device + elements, row, shape.head_dim_k, row, shape.head_dim_v},
        .blocks = device_blocks,
        .count = used};
    assert_gaac(gaac_cuda_decode(gpu, &c.cache, &args, NULL, &gpu_error));
    gpu_read(got, device, 2 * elements * 2);
    assert_memory_equal(got, expected, 2 * elements * 2);
    free(expected);
    free(got);
    free(blocks);
    gpu_free(device);
    gpu_free(device_blocks);
    gpu_cache_free(&c);
}

/* The captured calls replay on what the memory then holds. */
static void test_graph(void **state)
{
    (void)state;
#ifndef GAAC_TEST_NO_GRAPHS
    const gaac_shape shape = {2, 128, 128};
    gpu_cache c = random_cache(shape);
    const size_t row = (size_t)shape.kv_heads * shape.head_dim_k, elements = GAAC_BLOCK_TOKENS * row;
    uint16_t *device = gpu_allocate(2 * elements * 2), *got = malloc(2 * elements * 2);
    assert_non_null(got);
    int32_t block = 1, *device_block = gpu_upload(&block, sizeof block);
    const gaac_cuda_decode_args args = {
        .rows = {device, device + elements, row, shape.head_dim_k, row, shape.head_dim_v},
        .blocks = device_block,
        .count = 1};
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    assert_cuda(cudaStreamCreate(&stream));
    assert_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    assert_gaac(gaac_cuda_decode(gpu, &c.cache, &args, stream, &gpu_error));
    assert_cuda(cudaStreamEndCapture(stream, &graph));
    assert_cuda(cudaGraphInstantiate(&executable, graph, 0));
    for (block = 1; block < 4; block++) {
        gpu_write(device_block, &block, sizeof block);
        assert_cuda(cudaGraphLaunch(executable, stream));
        gpu_read(got, device, 2 * elements * 2);
        kv values = block_values(&c, block);
        assert_memory_equal(got, values.k, elements * 2);
        assert_memory_equal(got + elements, values.v, elements * 2);
        kv_free(&values);
    }
    assert_cuda(cudaGraphExecDestroy(executable));
    assert_cuda(cudaGraphDestroy(graph));
    assert_cuda(cudaStreamDestroy(stream));
    free(got);
    gpu_free(device);
    gpu_free(device_block);
    gpu_cache_free(&c);
#endif
}

static void test_arguments(void **state)
{
    (void)state;
    const gaac_shape shape = {1, 64, 64};
    gpu_cache c = gpu_cache_make(&seed, shape, 2, 2, 1);
    uint16_t *device = gpu_allocate(4096);
    int32_t *blocks = gpu_allocate(64);
    int64_t *starts = gpu_allocate(64);
    gaac_cuda_decode_args decode = {.rows = {device, device, 64, 64, 64, 64}, .blocks = blocks, .count = 0};
    assert_int_equal(gaac_cuda_decode(gpu, &c.cache, &decode, NULL, &gpu_error), GAAC_OK);
    decode.count = 1;
    decode.blocks = NULL;
    assert_int_equal(gaac_cuda_decode(gpu, &c.cache, &decode, NULL, NULL), GAAC_ERROR_INVALID_ARGUMENT);
    decode.blocks = blocks;
    decode.rows.k = decode.rows.v = NULL;
    assert_int_equal(gaac_cuda_decode(gpu, &c.cache, &decode, NULL, &gpu_error), GAAC_ERROR_INVALID_ARGUMENT);
    decode.rows.v = (uint16_t *)(void *)((uint8_t *)device + 1);
    assert_int_equal(gaac_cuda_decode(gpu, &c.cache, &decode, NULL, &gpu_error), GAAC_ERROR_INVALID_ARGUMENT);
    decode.rows.v = device;
    gaac_cuda_cache bad = c.cache;
    bad.slot_stride = 64;
    assert_int_equal(gaac_cuda_decode(gpu, &bad, &decode, NULL, &gpu_error), GAAC_ERROR_INVALID_ARGUMENT);
    assert_int_equal(gaac_cuda_decode(NULL, &c.cache, &decode, NULL, &gpu_error), GAAC_ERROR_INVALID_ARGUMENT);
    gaac_cuda_expand_args expand = {.rows = {device, device, 64, 64, 64, 64},
                                    .sequences = 1,
                                    .max_tokens = 16,
                                    .lengths = blocks,
                                    .row_start = starts,
                                    .block_table = blocks};
    assert_int_equal(gaac_cuda_expand(gpu, &c.cache, &expand, NULL, &gpu_error), GAAC_OK);
    expand.row_start = NULL;
    assert_int_equal(gaac_cuda_expand(gpu, &c.cache, &expand, NULL, &gpu_error), GAAC_ERROR_INVALID_ARGUMENT);
    expand.row_start = starts;
    expand.max_tokens = UINT32_MAX;
    expand.sequences = UINT32_MAX;
    assert_int_equal(gaac_cuda_expand(gpu, &c.cache, &expand, NULL, &gpu_error), GAAC_ERROR_INVALID_ARGUMENT);
    gpu_free(device);
    gpu_free(blocks);
    gpu_free(starts);
    gpu_cache_free(&c);
}

int main(void)
{
    gpu_start();
    gpu_pool_room = 2048; /* for blocks with exceptions */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_arguments),
        cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_patterns),
        cmocka_unit_test(test_graph),
    };
    return gpu_stop(cmocka_run_group_tests(tests, NULL, NULL));
}
