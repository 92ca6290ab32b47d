/* The writing side of the CUDA library against the CPU's: every byte of slots and raw blocks, entries, counters, and
 * which raw blocks are in use. */
#include "fixture.h"

enum { BLOCK = GAAC_BLOCK_TOKENS, EPOCH_SHIFT = 24 };
#define RAW_BIT UINT32_C(0x80000000)

static const gaac_shape shapes[] = {
    {1, 64, 64},   {2, 64, 64},    {8, 128, 128}, {3, 80, 80},   {2, 96, 96},   {5, 112, 112}, {3, 192, 192},
    {2, 256, 256}, {17, 128, 128}, {4, 192, 128}, {2, 128, 192}, {3, 576, 512}, {3, 80, 112},  {40, 64, 16},
};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

/* ---- what a block should be ------------------------------------------------------------------ */

/* A block as the test knows it. */
typedef struct model_block {
    uint16_t *k, *v; /* [16][heads][head_dim] */
    unsigned tokens; /* 0: empty */
    int epoch;       /* -1: raw */
    bool unknown;    /* tokens that were lost */
} model_block;

/* A cache and what it should hold. */
typedef struct bench {
    gpu_cache c;
    model_block *blocks;
    size_t k_row, v_row;
    gaac_cuda_counters expected;
    uint8_t *slot, *raw;
    uint32_t *entries;
    uint64_t seed;
} bench;

static gaac_kv_rows model_rows(const bench *b, uint32_t block)
{
    const gaac_shape *shape = &b->c.cache.shape;
    return (gaac_kv_rows){b->blocks[block].k, b->blocks[block].v, b->k_row,
                          shape->head_dim_k,  b->v_row,           shape->head_dim_v};
}

/* Slots that are further apart, on both sides; what they held is gone. */
static void set_slot_stride(bench *b, size_t stride)
{
    gpu_cache *c = &b->c;
    c->cache.slot_stride = stride;
    gpu_free(c->cache.slots);
    free(c->slots);
    free(b->slot);
    c->cache.slots = gpu_allocate(c->cache.blocks * stride);
    c->slots = aligned_alloc(64, c->cache.blocks * stride);
    b->slot = aligned_alloc(64, stride);
    assert_true(c->slots != NULL && b->slot != NULL);
}

/* Windows stay; the pool gets another capacity (not 0), so that more or fewer blocks fit. */
static void set_pool(bench *b, uint32_t pool_bytes)
{
    b->c.cache.pool_bytes = pool_bytes;
    assert_gaac(gaac_cuda_get_sizes(&b->c.cache.shape, pool_bytes, &b->c.sizes, &gpu_error));
    for (uint32_t e = 0; e < b->c.epochs; e++) {
        const gaac_codec_config config = {b->c.cache.shape, GAAC_SCHEME_PRODUCTION, b->c.windows[e], pool_bytes, NULL};
        gaac_codec_destroy(b->c.codec[e]);
        assert_gaac(gaac_codec_create(&b->c.codec[e], &config, &gpu_error));
    }
    if (b->c.sizes.slot_bytes > b->c.cache.slot_stride)
        set_slot_stride(b, b->c.sizes.slot_bytes);
}

static bench make_bench(uint64_t seed, gaac_shape shape, uint32_t blocks, uint32_t raw_blocks, uint32_t epochs)
{
    bench b = {.seed = seed};
    b.c = gpu_cache_make(&b.seed, shape, blocks, raw_blocks, epochs);
    b.k_row = (size_t)shape.kv_heads * shape.head_dim_k;
    b.v_row = (size_t)shape.kv_heads * shape.head_dim_v;
    b.blocks = calloc(blocks, sizeof *b.blocks);
    assert_non_null(b.blocks);
    for (uint32_t i = 0; i < blocks; i++) {
        b.blocks[i].k = calloc(BLOCK * b.k_row, 2);
        b.blocks[i].v = calloc(BLOCK * b.v_row, 2);
        assert_true(b.blocks[i].k != NULL && b.blocks[i].v != NULL);
    }
    b.slot = aligned_alloc(64, b.c.cache.slot_stride);
    b.raw = aligned_alloc(64, b.c.sizes.raw_bytes);
    b.entries = calloc(b.c.cache.entry_stride, 4);
    assert_true(b.slot != NULL && b.raw != NULL && b.entries != NULL);
    return b;
}

static void free_bench(bench *b)
{
    for (uint32_t i = 0; i < b->c.cache.blocks; i++) {
        free(b->blocks[i].k);
        free(b->blocks[i].v);
    }
    free(b->blocks);
    free(b->slot);
    free(b->raw);
    free(b->entries);
    gpu_cache_free(&b->c);
}

/* Encodes a complete block of the model into b->slot and b->entries; false: it stays raw. */
static bool encode_model(bench *b, uint32_t block, uint32_t epoch, gaac_block_info *info)
{
    const gaac_kv_rows rows = model_rows(b, block);
    assert_gaac(gaac_encode_block(b->c.codec[epoch], &rows, b->slot, b->entries, info, &gpu_error));
    return info->coded;
}

/* The model's block is complete: what the library should make of it. */
static void close_model(bench *b, uint32_t block, uint32_t epoch)
{
    gaac_block_info info;
    if (!encode_model(b, block, epoch, &info)) {
        b->blocks[block].epoch = -1;
        b->expected.fallbacks++;
        return;
    }
    b->blocks[block].epoch = (int)epoch;
    b->expected.encoded++;
    b->expected.pool_bytes += info.pool_bytes;
    b->expected.exceptions += info.exceptions;
    b->expected.stored_n += info.groups_by_mode[1];
}

static void check_raw(bench *b, uint32_t block, const uint8_t *raw)
{
    const model_block *m = &b->blocks[block];
    if (m->tokens == BLOCK) {
        const gaac_kv_rows rows = model_rows(b, block);
        gaac_rows_to_raw_block(&b->c.layout, &rows, b->raw);
        assert_memory_equal(raw, b->raw, b->c.sizes.raw_bytes);
        return;
    }
    uint16_t *row = malloc((b->k_row > b->v_row ? b->k_row : b->v_row) * 2);
    assert_non_null(row);
    for (unsigned token = 0; token < m->tokens; token++) {
        gaac_raw_block_read_row(&b->c.layout, GAAC_K, token, raw, row);
        assert_memory_equal(row, m->k + token * b->k_row, b->k_row * 2);
        gaac_raw_block_read_row(&b->c.layout, GAAC_V, token, raw, row);
        assert_memory_equal(row, m->v + token * b->v_row, b->v_row * 2);
    }
    free(row);
}

/* One block of the host's copy against the model. Notes its raw block in `used`. */
static void check_block(bench *b, uint32_t block, uint32_t *used)
{
    const gpu_cache *c = &b->c;
    const model_block *m = &b->blocks[block];
    const uint32_t *entries = c->entries + block * c->cache.entry_stride;
    for (size_t i = c->sizes.entries_per_block; i < c->cache.entry_stride; i++)
        assert_int_equal(entries[i], 0);
    if (m->tokens == 0 || m->epoch < 0) {
        for (size_t i = 1; i < c->sizes.entries_per_block; i++)
            assert_int_equal(entries[i], entries[0]);
        if (m->tokens == 0) {
            assert_int_equal(entries[0], 0);
            return;
        }
        const uint32_t index = entries[0] & ~RAW_BIT;
        assert_true((entries[0] & RAW_BIT) != 0 && index < c->cache.raw_blocks);
        assert_int_equal(used[index / 32] >> index % 32 & 1, 0);
        used[index / 32] |= UINT32_C(1) << index % 32;
        check_raw(b, block, c->raw + index * c->sizes.raw_bytes);
        return;
    }
    gaac_block_info info;
    assert_true(encode_model(b, block, (uint32_t)m->epoch, &info));
    for (size_t i = 0; i < c->sizes.entries_per_block; i++)
        assert_int_equal(entries[i], b->entries[i] | (uint32_t)m->epoch << EPOCH_SHIFT);
    assert_memory_equal(c->slots + block * c->cache.slot_stride, b->slot, c->sizes.slot_bytes);
}

/* The whole cache against the model, raw blocks in use and counters too. */
static void check_cache_now(bench *b)
{
    gpu_cache *c = &b->c;
    gpu_cache_from_device(c);
    const size_t words = (c->cache.raw_blocks + 31) / 32;
    uint32_t *used = calloc(words, 4);
    assert_non_null(used);
    for (uint32_t block = 0; block < c->cache.blocks; block++)
        check_block(b, block, used);
    assert_memory_equal(used, c->raw_used, words * 4);
    free(used);
    gaac_cuda_counters counters;
    gpu_read(&counters, c->cache.counters, sizeof counters);
    assert_memory_equal(&counters, &b->expected, sizeof counters);
}

/* ---- rows on the device ---------------------------------------------------------------------- */

/* Rows of the model's kind on the device, now and then where loads of 16 bytes are impossible. */
typedef struct device_rows {
    kv host;
    void *k, *v;
    gaac_kv_rows rows;
} device_rows;

/* Copies dense rows to rows that are `stride` elements apart and begin at `shift`. */
static void *spread(const uint16_t *dense, size_t tokens, size_t row, size_t stride, size_t shift)
{
    uint16_t *host = calloc(tokens * stride + shift + 1, 2);
    assert_non_null(host);
    for (size_t i = 0; i < tokens; i++)
        memcpy(host + shift + i * stride, dense + i * row, row * 2);
    void *device = gpu_upload(host, (tokens * stride + shift) * 2);
    free(host);
    return device;
}

static device_rows make_rows(bench *b, random_kind kind, size_t tokens)
{
    device_rows r = {.host = kv_random(&b->seed, kind, b->c.cache.shape, tokens > 0 ? tokens : 1)};
    static const unsigned gaps[] = {0, 0, 8, 1, 64};
    const size_t gap = gaps[random_below(&b->seed, 5)], shift = random_below(&b->seed, 4) == 0 ? 3 : 0;
    r.k = spread(r.host.k, r.host.tokens, b->k_row, b->k_row + gap, shift);
    r.v = spread(r.host.v, r.host.tokens, b->v_row, b->v_row + gap, 0);
    r.rows =
        (gaac_kv_rows){(uint16_t *)r.k + shift,    r.v, b->k_row + gap, b->c.cache.shape.head_dim_k, b->v_row + gap,
                       b->c.cache.shape.head_dim_v};
    return r;
}

static void free_rows(device_rows *r)
{
    kv_free(&r->host);
    gpu_free(r->k);
    gpu_free(r->v);
}

static void copy_token(bench *b, uint32_t block, unsigned token, const device_rows *r, size_t row)
{
    memcpy(b->blocks[block].k + token * b->k_row, r->host.k + row * b->k_row, b->k_row * 2);
    memcpy(b->blocks[block].v + token * b->v_row, r->host.v + row * b->v_row, b->v_row * 2);
}

/* ---- calls, on the device and on the model --------------------------------------------------- */

/* Whole blocks from rows, some of the list negative; row blocks are taken in another order than they lie. */
static void encode_rows(bench *b, random_kind kind, const int32_t *blocks, uint32_t count, uint32_t epoch,
                        bool keep_raw)
{
    device_rows r = make_rows(b, kind, (size_t)count * BLOCK);
    int32_t *order = host_memory(count * sizeof *order);
    int64_t *offsets = host_memory(2 * (size_t)count * sizeof *offsets);
    shuffle(&b->seed, order, count);
    const bool both = r.rows.k_token_stride != r.rows.v_token_stride || random_below(&b->seed, 2) == 0;
    for (uint32_t i = 0; i < count; i++) {
        offsets[i] = order[i] * (int64_t)BLOCK * (int64_t)r.rows.k_token_stride;
        offsets[count + i] = order[i] * (int64_t)BLOCK * (int64_t)r.rows.v_token_stride;
    }
    int32_t *device_blocks = gpu_upload(blocks, count * sizeof *blocks);
    int64_t *device_offsets = gpu_upload(offsets, 2 * (size_t)count * sizeof *offsets);
    const gaac_cuda_encode_args args = {
        r.rows, device_offsets, both ? device_offsets + count : NULL, device_blocks, count, epoch, keep_raw};
    assert_gaac(gaac_cuda_encode(gpu, &b->c.cache, &args, NULL, &gpu_error));
    for (uint32_t i = 0; i < count; i++) {
        if (blocks[i] < 0)
            continue;
        model_block *m = &b->blocks[blocks[i]];
        for (unsigned token = 0; token < BLOCK; token++)
            copy_token(b, (uint32_t)blocks[i], token, &r, (size_t)order[i] * BLOCK + token);
        m->tokens = BLOCK;
        m->epoch = -1;
        if (!keep_raw)
            close_model(b, (uint32_t)blocks[i], epoch);
    }
    assert_cuda(cudaDeviceSynchronize());
    free_rows(&r);
    free(order);
    free(offsets);
    gpu_free(device_blocks);
    gpu_free(device_offsets);
}

/* Complete blocks from what they hold. */
static void encode_own(bench *b, const int32_t *blocks, uint32_t count, uint32_t epoch)
{
    int32_t *device_blocks = gpu_upload(blocks, count * sizeof *blocks);
    const gaac_cuda_encode_args args = {.blocks = device_blocks, .count = count, .epoch = epoch};
    assert_gaac(gaac_cuda_encode(gpu, &b->c.cache, &args, NULL, &gpu_error));
    for (uint32_t i = 0; i < count; i++)
        if (blocks[i] >= 0 && b->blocks[blocks[i]].tokens == BLOCK && b->blocks[blocks[i]].epoch != (int)epoch)
            close_model(b, (uint32_t)blocks[i], epoch);
    assert_cuda(cudaDeviceSynchronize());
    gpu_free(device_blocks);
}

static void release(bench *b, const int32_t *blocks, uint32_t count)
{
    int32_t *device_blocks = gpu_upload(blocks, count * sizeof *blocks);
    assert_gaac(gaac_cuda_release_blocks(gpu, &b->c.cache, device_blocks, count, NULL, &gpu_error));
    for (uint32_t i = 0; i < count; i++)
        if (blocks[i] >= 0)
            b->blocks[blocks[i]].tokens = 0;
    assert_cuda(cudaDeviceSynchronize());
    gpu_free(device_blocks);
}

static void copy(bench *b, const int32_t *from, const int32_t *to, uint32_t count)
{
    int32_t *device_from = gpu_upload(from, count * sizeof *from), *device_to = gpu_upload(to, count * sizeof *to);
    assert_gaac(gaac_cuda_copy_blocks(gpu, &b->c.cache, device_from, device_to, count, NULL, &gpu_error));
    for (uint32_t i = 0; i < count; i++) {
        if (from[i] < 0 || to[i] < 0)
            continue;
        model_block *target = &b->blocks[to[i]];
        const model_block *source = &b->blocks[from[i]];
        memcpy(target->k, source->k, BLOCK * b->k_row * 2);
        memcpy(target->v, source->v, BLOCK * b->v_row * 2);
        target->tokens = source->tokens;
        target->epoch = source->epoch;
    }
    assert_cuda(cudaDeviceSynchronize());
    gpu_free(device_from);
    gpu_free(device_to);
}

/* Sequences that tokens are appended to. */
typedef struct sequences {
    uint32_t count, table_blocks;
    int32_t *table;   /* [count][table_blocks] */
    int32_t *lengths; /* before the call */
    int32_t *added;   /* rows of the call; lengths fall back first by */
    int32_t *dropped;
} sequences;

static sequences make_sequences(uint32_t count, uint32_t table_blocks)
{
    sequences s = {
        count,           table_blocks, calloc((size_t)count * table_blocks, 4), calloc(count, 4), calloc(count, 4),
        calloc(count, 4)};
    assert_true(s.table != NULL && s.lengths != NULL && s.added != NULL && s.dropped != NULL);
    return s;
}

static void free_sequences(sequences *s)
{
    free(s->table);
    free(s->lengths);
    free(s->added);
    free(s->dropped);
}

/* What an append does to one block of the model: rows from `row` on become its tokens first .. last - 1. */
static void append_to_model(bench *b, uint32_t block, unsigned first, unsigned last, const device_rows *r, size_t row,
                            uint32_t epoch, bool keep_raw)
{
    model_block *m = &b->blocks[block];
    if (m->tokens == 0 && first > 0) {
        memset(m->k, 0, BLOCK * b->k_row * 2);
        memset(m->v, 0, BLOCK * b->v_row * 2);
    }
    if (m->tokens > 0 && m->epoch >= 0 && first > 0)
        b->expected.reopened++;
    for (unsigned token = first; token < last; token++)
        copy_token(b, block, token, r, row + token - first);
    m->tokens = last;
    m->epoch = -1;
    if (last == BLOCK && !keep_raw)
        close_model(b, block, epoch);
}

static void append_sequence_to_model(bench *b, const sequences *s, uint32_t i, const device_rows *r, size_t row,
                                     uint32_t epoch, bool keep_raw)
{
    const int32_t start = s->lengths[i] - s->dropped[i], end = start + s->added[i];
    for (int32_t cell = start; cell < end;) {
        const int32_t index = cell / BLOCK, next = (index + 1) * BLOCK < end ? (index + 1) * BLOCK : end;
        const int32_t block = s->table[i * s->table_blocks + (uint32_t)index];
        if (block >= 0)
            append_to_model(b, (uint32_t)block, (unsigned)(cell % BLOCK), (unsigned)(next - index * BLOCK), r,
                            row + (size_t)(cell - start), epoch, keep_raw);
        cell = next;
    }
}

/* Appends s->added tokens to each sequence after dropping s->dropped. one_each: without query_start. */
static void append(bench *b, sequences *s, random_kind kind, uint32_t epoch, bool keep_raw, bool one_each)
{
    int32_t *starts = host_memory((s->count + 1) * 4), *lengths = host_memory(s->count * 4);
    for (uint32_t i = 0; i < s->count; i++) {
        starts[i + 1] = starts[i] + (one_each ? 1 : s->added[i]);
        /* Nobody looks at the length of a sequence without rows; where each has one, 0 skips it. */
        lengths[i] = s->added[i] > 0 ? s->lengths[i] - s->dropped[i] + s->added[i] : one_each ? 0 : 1 << 30;
    }
    const uint32_t tokens = (uint32_t)starts[s->count];
    /* What the call is told is an upper bound; with the last, another kernel does the work. */
    static const uint32_t spare[] = {0, 100, 5000};
    device_rows r = make_rows(b, kind, tokens);
    int32_t *device_starts = gpu_upload(starts, (s->count + 1) * 4),
            *device_lengths = gpu_upload(lengths, s->count * 4);
    int32_t *device_table = gpu_upload(s->table, (size_t)s->count * s->table_blocks * 4);
    const gaac_cuda_append_args args = {.rows = r.rows,
                                        .sequences = s->count,
                                        .tokens = tokens + spare[random_below(&b->seed, 3)],
                                        .query_start = one_each ? NULL : device_starts,
                                        .lengths = device_lengths,
                                        .block_table = device_table,
                                        .block_table_stride = s->table_blocks,
                                        .epoch = epoch,
                                        .keep_raw = keep_raw};
    assert_gaac(gaac_cuda_append(gpu, &b->c.cache, &args, NULL, &gpu_error));
    for (uint32_t i = 0; i < s->count; i++) {
        append_sequence_to_model(b, s, i, &r, (size_t)starts[i], epoch, keep_raw);
        s->lengths[i] += s->added[i] - s->dropped[i];
    }
    assert_cuda(cudaDeviceSynchronize());
    free_rows(&r);
    free(starts);
    free(lengths);
    gpu_free(device_starts);
    gpu_free(device_lengths);
    gpu_free(device_table);
}

/* ---- tests ----------------------------------------------------------------------------------- */

/* Every kind of values, every shape: bytes are the CPU's. */
static void test_encode(void **state)
{
    (void)state;
    for (unsigned i = 0; i < SHAPES; i++) {
        const uint32_t count = gpu_small() ? 3 : 12;
        bench b = make_bench(100 + i, shapes[i], count + 4, count + 4, 2);
        int32_t *blocks = calloc(count + 4, sizeof *blocks);
        assert_non_null(blocks);
        for (int kind = 0; kind < RANDOM_KINDS; kind++) {
            shuffle(&b.seed, blocks, count + 4);
            blocks[count / 2] = -1;
            encode_rows(&b, (random_kind)kind, blocks, count, (uint32_t)kind % 2, false);
            check_cache_now(&b);
        }
        assert_true(b.expected.encoded > 0 && b.expected.fallbacks > 0);
        free(blocks);
        free_bench(&b);
    }
}

/* Pools around what blocks need, so that some just fit and some just don't. */
static void test_small_pools(void **state)
{
    (void)state;
    for (unsigned i = 0; i < SHAPES; i += 2) {
        const uint32_t count = gpu_small() ? 4 : 16;
        bench b = make_bench(200 + i, shapes[i], count, count, 1);
        const uint32_t most = b.c.cache.pool_bytes;
        int32_t *blocks = calloc(count, sizeof *blocks);
        assert_non_null(blocks);
        for (uint32_t step = 0; step < 4 && step * 128 < most; step++) {
            set_pool(&b, most - 128 * step);
            shuffle(&b.seed, blocks, count);
            encode_rows(&b, step % 2 == 0 ? RANDOM_KV : RANDOM_OUTLIERS, blocks, count, 0, false);
            check_cache_now(&b);
        }
        free(blocks);
        free_bench(&b);
    }
}

/* Blocks with exceptions around the limit: room for them, and too many for what shared memory keeps of a unit. */
static void test_many_exceptions(void **state)
{
    (void)state;
    const gaac_shape shape = {8, 128, 128};
    bench b = make_bench(300, shape, 24, 24, 1);
    set_pool(&b, (b.c.layout.max_pool_bytes + 127) / 128 * 128);
    int32_t blocks[24];
    shuffle(&b.seed, blocks, 24);
    device_rows r = make_rows(&b, RANDOM_KV, 24 * BLOCK);
    for (uint32_t i = 0; i < 24; i++) {
        /* All in one head, so that one unit has more than its share. */
        const uint32_t exceptions = 8 * 4 * 8 - 12 + i;
        for (uint32_t e = 0; e < exceptions; e++)
            r.host.k[(i * BLOCK + e % BLOCK) * b.k_row + 128 * (i % 8) + e / BLOCK] = 0x7f80;
    }
    gpu_free(r.k);
    gpu_free(r.v);
    r.k = gpu_upload(r.host.k, 24 * BLOCK * b.k_row * 2);
    r.v = gpu_upload(r.host.v, 24 * BLOCK * b.v_row * 2);
    int64_t offsets[24];
    for (uint32_t i = 0; i < 24; i++)
        offsets[i] = (int64_t)(i * BLOCK * b.k_row);
    int64_t *device_offsets = gpu_upload(offsets, sizeof offsets);
    int32_t *device_blocks = gpu_upload(blocks, sizeof blocks);
    const gaac_kv_rows rows = {r.k, r.v, b.k_row, 128, b.v_row, 128};
    const gaac_cuda_encode_args args = {rows, device_offsets, NULL, device_blocks, 24, 0, false};
    assert_gaac(gaac_cuda_encode(gpu, &b.c.cache, &args, NULL, &gpu_error));
    for (uint32_t i = 0; i < 24; i++) {
        for (unsigned token = 0; token < BLOCK; token++)
            copy_token(&b, (uint32_t)blocks[i], token, &r, i * BLOCK + token);
        b.blocks[blocks[i]].tokens = BLOCK;
        close_model(&b, (uint32_t)blocks[i], 0);
    }
    check_cache_now(&b);
    assert_true(b.expected.encoded > 0 && b.expected.fallbacks > 0);
    gpu_free(device_offsets);
    gpu_free(device_blocks);
    free_rows(&r);
    free_bench(&b);
}

/* keep_raw, then each block's own values; then another epoch. */
static void test_own_values(void **state)
{
    (void)state;
    for (unsigned i = 0; i < SHAPES; i++) {
        bench b = make_bench(400 + i, shapes[i], 6, 6, 3);
        int32_t blocks[6];
        shuffle(&b.seed, blocks, 6);
        encode_rows(&b, RANDOM_OUTLIERS, blocks, 3, 0, true);
        encode_rows(&b, RANDOM_KV, blocks + 3, 2, 0, true);
        check_cache_now(&b);
        blocks[1] = -1;
        encode_own(&b, blocks, 6, 0); /* the last is empty */
        check_cache_now(&b);
        encode_own(&b, blocks, 6, 0); /* nothing to do */
        check_cache_now(&b);
        encode_own(&b, blocks, 6, 1);
        check_cache_now(&b);
        free_bench(&b);
    }
}

/* Chunk sizes that meet block boundaries every way. */
static int32_t draw_added(bench *b)
{
    static const int32_t sizes[] = {0, 1, 1, 1, 15, 16, 17, 32, 3, 40};
    return sizes[random_below(&b->seed, 10)];
}

static void draw_step(bench *b, sequences *s, bool one_each)
{
    for (uint32_t i = 0; i < s->count; i++) {
        const int32_t capacity = (int32_t)s->table_blocks * BLOCK;
        s->dropped[i] = 0;
        s->added[i] = one_each ? (random_below(&b->seed, 5) > 0) : draw_added(b);
        if (s->lengths[i] > 0 && random_below(&b->seed, 4) == 0)
            s->dropped[i] = (int32_t)random_below(&b->seed, (unsigned)(s->lengths[i] < 40 ? s->lengths[i] : 40)) + 1;
        if (s->added[i] == 0)
            s->dropped[i] = 0;
        if (s->lengths[i] - s->dropped[i] + s->added[i] > capacity)
            s->dropped[i] = s->lengths[i]; /* begins anew */
    }
}

/* A few calls of other kinds between appends. Blocks from `spare` on belong to no sequence. */
static void disturb(bench *b, uint32_t spare)
{
    const uint32_t blocks = b->c.cache.blocks;
    int32_t *list = calloc(blocks, sizeof *list);
    assert_non_null(list);
    shuffle(&b->seed, list, blocks);
    if (random_below(&b->seed, 2) == 0) {
        int32_t from[2] = {(int32_t)random_below(&b->seed, spare), -1};
        int32_t to[2] = {(int32_t)(spare + random_below(&b->seed, blocks - spare)), 0};
        copy(b, from, to, 2);
        check_cache_now(b);
    }
    if (random_below(&b->seed, 3) == 0) {
        /* Open blocks must not be listed. */
        uint32_t count = 0;
        for (uint32_t i = 0; i < blocks; i++)
            if (b->blocks[list[i]].tokens == 0 || b->blocks[list[i]].tokens == BLOCK)
                list[count++] = list[i];
        encode_own(b, list, count / 2, random_below(&b->seed, b->c.epochs));
        check_cache_now(b);
    } else if (random_below(&b->seed, 3) == 0) {
        const int32_t gone[2] = {(int32_t)(spare + random_below(&b->seed, blocks - spare)), -1};
        release(b, gone, 2);
        check_cache_now(b);
    }
    free(list);
}

static void random_appends(uint64_t seed, gaac_shape shape, uint32_t count, unsigned steps)
{
    const uint32_t table_blocks = 5, spare = count * table_blocks, blocks = spare + 4;
    bench b = make_bench(seed, shape, blocks, blocks + 3, 2);
    if (random_below(&b.seed, 2) == 0)
        set_pool(&b, b.c.cache.pool_bytes - (b.c.cache.pool_bytes > 128 ? 128 : 0));
    sequences s = make_sequences(count, table_blocks);
    shuffle(&b.seed, s.table, spare);
    if (count > 2)
        s.table[table_blocks + 1] = -1;
    for (unsigned step = 0; step < steps; step++) {
        const bool one_each = random_below(&b.seed, 3) == 0;
        draw_step(&b, &s, one_each);
        append(&b, &s, random_below(&b.seed, 3) == 0 ? RANDOM_OUTLIERS : RANDOM_KV, random_below(&b.seed, 2),
               random_below(&b.seed, 6) == 0, one_each);
        check_cache_now(&b);
        disturb(&b, spare);
    }
    assert_true(b.expected.lost == 0);
    for (uint32_t i = 0; i < spare; i++)
        if (s.table[i] < 0)
            s.table[i] = 0;
    int32_t *all = calloc(blocks, sizeof *all);
    assert_non_null(all);
    shuffle(&b.seed, all, blocks);
    release(&b, all, blocks);
    check_cache_now(&b);
    free(all);
    free_sequences(&s);
    free_bench(&b);
}

static void test_append(void **state)
{
    (void)state;
    for (unsigned i = 0; i < SHAPES; i++)
        random_appends(500 + i, shapes[i], 1 + i % 4 * 3, gpu_small() ? 6 : 40);
}

/* As many sequences as a large batch has. */
static void test_many_sequences(void **state)
{
    (void)state;
    random_appends(600, (gaac_shape){1, 64, 64}, gpu_small() ? 70 : 1100, gpu_small() ? 2 : 5);
}

/* Raw memory that runs out: as many blocks are lost as find none, and nothing else. */
static void test_exhaustion(void **state)
{
    (void)state;
    enum { SEQUENCES = 40, RAW = 33 };
    bench b = make_bench(700, (gaac_shape){2, 64, 64}, SEQUENCES, RAW, 1);
    sequences s = make_sequences(SEQUENCES, 1);
    for (uint32_t i = 0; i < SEQUENCES; i++) {
        s.table[i] = (int32_t)i;
        s.added[i] = 1;
    }
    for (unsigned round = 0; round < 2; round++) { /* those that have a raw block keep it */
        append(&b, &s, RANDOM_KV, 0, false, true);
        gpu_cache_from_device(&b.c);
        unsigned raw = 0;
        for (uint32_t i = 0; i < SEQUENCES; i++) {
            if (b.c.entries[i * b.c.cache.entry_stride] != 0)
                raw++;
            else
                b.blocks[i].tokens = 0;
        }
        assert_int_equal(raw, RAW);
        b.expected.lost += SEQUENCES - RAW;
        check_cache_now(&b);
    }
    /* Blocks of 16 rows need none. */
    for (uint32_t i = 0; i < SEQUENCES; i++) {
        s.dropped[i] = 2;
        s.added[i] = BLOCK;
    }
    append(&b, &s, RANDOM_KV, 0, false, false);
    if (b.expected.fallbacks == 0)
        check_cache_now(&b);
    free_sequences(&s);
    free_bench(&b);
}

static void test_refusals(void **state)
{
    (void)state;
    bench b = make_bench(800, (gaac_shape){1, 64, 64}, 2, 2, 1);
    const gaac_cuda_cache *cache = &b.c.cache;
    uint16_t *values = gpu_allocate(2 * BLOCK * 64 * 2);
    int32_t *numbers = gpu_allocate(64);
    const gaac_kv_rows rows = {values, values, 64, 64, 64, 64};
    const gaac_cuda_append_args good = {
        .rows = rows, .sequences = 1, .tokens = 1, .lengths = numbers, .block_table = numbers, .block_table_stride = 1};
    assert_gaac(gaac_cuda_append(gpu, cache, &good, NULL, &gpu_error));
    gaac_cuda_append_args bad = good;
    bad.rows.v = NULL;
    assert_int_equal(gaac_cuda_append(gpu, cache, &bad, NULL, &gpu_error), GAAC_ERROR_INVALID_ARGUMENT);
    bad = good;
    bad.epoch = 1;
    assert_int_equal(gaac_cuda_append(gpu, cache, &bad, NULL, &gpu_error), GAAC_ERROR_INVALID_ARGUMENT);
    bad = good;
    bad.lengths = NULL;
    assert_int_equal(gaac_cuda_append(gpu, cache, &bad, NULL, NULL), GAAC_ERROR_INVALID_ARGUMENT);
    bad = good;
    bad.block_table = NULL;
    assert_int_equal(gaac_cuda_append(gpu, cache, &bad, NULL, &gpu_error), GAAC_ERROR_INVALID_ARGUMENT);
    bad = good;
    bad.tokens = 0;
    assert_gaac(gaac_cuda_append(gpu, cache, &bad, NULL, &gpu_error));
    gaac_cuda_encode_args list = {.rows = rows, .blocks = numbers, .count = 1};
    assert_int_equal(gaac_cuda_encode(gpu, cache, &list, NULL, &gpu_error), GAAC_ERROR_INVALID_ARGUMENT);
    list = (gaac_cuda_encode_args){.blocks = numbers, .count = 1, .keep_raw = true};
    assert_int_equal(gaac_cuda_encode(gpu, cache, &list, NULL, &gpu_error), GAAC_ERROR_INVALID_ARGUMENT);
    assert_int_equal(gaac_cuda_copy_blocks(gpu, cache, numbers, NULL, 1, NULL, &gpu_error),
                     GAAC_ERROR_INVALID_ARGUMENT);
    assert_int_equal(gaac_cuda_release_blocks(gpu, NULL, numbers, 1, NULL, &gpu_error), GAAC_ERROR_INVALID_ARGUMENT);
    gpu_free(values);
    gpu_free(numbers);
    check_cache_now(&b);
    free_bench(&b);
}

int main(void)
{
    gpu_start();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_encode),     cmocka_unit_test(test_small_pools), cmocka_unit_test(test_many_exceptions),
        cmocka_unit_test(test_own_values), cmocka_unit_test(test_append),      cmocka_unit_test(test_many_sequences),
        cmocka_unit_test(test_exhaustion), cmocka_unit_test(test_refusals),
    };
    return gpu_stop(cmocka_run_group_tests(tests, NULL, NULL));
}
