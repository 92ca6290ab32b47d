/* Histograms and windows against those of the CPU library: every count, every byte. */
#include "fixture.h"

static uint64_t seed = 0xca11b;

static const gaac_shape shapes[] = {
    {1, 64, 64},   {2, 128, 128}, {9, 64, 64},  {3, 80, 80},   {2, 112, 112},
    {1, 256, 256}, {4, 192, 128}, {2, 48, 128}, {2, 576, 512},
};

static size_t shape_count(void)
{
    return gpu_small() ? 3 : sizeof shapes / sizeof shapes[0];
}

static gaac_cuda_sizes sizes_of(const gaac_shape *shape)
{
    gaac_cuda_sizes sizes;
    assert_gaac(gaac_cuda_get_sizes(shape, 128, &sizes, &gpu_error));
    return sizes;
}

/* counts: on the device. The same as the CPU's, as long as both begin with `before` in each count. */
static void assert_counts(const gaac_histogram *histogram, const uint32_t *counts, size_t n, uint32_t before)
{
    uint32_t *got = malloc(n * sizeof *got);
    assert_non_null(got);
    assert_int_equal(n, histogram->k_counters + histogram->v_counters);
    gpu_read(got, counts, n * sizeof *got);
    for (size_t i = 0; i < n; i++)
        if (got[i] - before != histogram->counts[i])
            fail_msg("count %zu (channel %zu, exponent %zu) is %u instead of %u", i, i / 256, i % 256, got[i] - before,
                     histogram->counts[i]);
    free(got);
}

/* Rows on the device as some engines have them: head by head, with gaps. */
static uint16_t *spread(const uint16_t *dense, size_t tokens, uint32_t heads, uint32_t head_dim, size_t gap,
                        size_t *token_stride, size_t *head_stride)
{
    *token_stride = head_dim + gap;
    *head_stride = tokens * *token_stride + gap;
    const size_t elements = heads * *head_stride;
    uint16_t *host = calloc(elements, 2);
    assert_non_null(host);
    for (size_t token = 0; token < tokens; token++)
        for (uint32_t head = 0; head < heads; head++)
            memcpy(host + token * *token_stride + head * *head_stride, dense + (token * heads + head) * head_dim,
                   head_dim * 2);
    uint16_t *device = gpu_upload(host, elements * 2);
    free(host);
    return device;
}

static void test_rows(void **state)
{
    (void)state;
    static const size_t lengths[] = {1, 2, 7, 16, 333, 2600};
    for (size_t i = 0; i < shape_count(); i++) {
        const gaac_shape shape = shapes[i];
        const size_t n = sizes_of(&shape).histogram_counts;
        uint32_t *counts = gpu_allocate(n * sizeof *counts);
        gaac_histogram *histogram;
        assert_gaac(gaac_histogram_create(&histogram, &shape, NULL, &gpu_error));
        for (size_t l = 0; l < sizeof lengths / sizeof lengths[0] - (gpu_small() ? 1 : 0); l++) {
            kv values = kv_random(&seed, (random_kind)(l % RANDOM_KINDS), shape, lengths[l]);
            assert_gaac(gaac_histogram_add(histogram, &values.rows, lengths[l], &gpu_error));
            gaac_kv_rows rows;
            const size_t gap = l % 2 * 3;
            uint16_t *k = spread(values.k, lengths[l], shape.kv_heads, shape.head_dim_k, gap, &rows.k_token_stride,
                                 &rows.k_head_stride);
            uint16_t *v = spread(values.v, lengths[l], shape.kv_heads, shape.head_dim_v, gap, &rows.v_token_stride,
                                 &rows.v_head_stride);
            rows.k = k;
            rows.v = v;
            assert_gaac(gaac_cuda_histogram_add(gpu, &shape, &rows, (uint32_t)lengths[l], counts, NULL, &gpu_error));
            assert_counts(histogram, counts, n, 0);
            gpu_free(k);
            gpu_free(v);
            kv_free(&values);
        }
        gaac_histogram_destroy(histogram);
        gpu_free(counts);
    }
}

static void test_blocks(void **state)
{
    (void)state;
    enum { BLOCKS = 20 };
    for (size_t i = 0; i < shape_count(); i++) {
        const gaac_shape shape = shapes[i];
        gpu_cache c = gpu_cache_make(&seed, shape, BLOCKS, BLOCKS, 2);
        gaac_histogram *histogram;
        assert_gaac(gaac_histogram_create(&histogram, &shape, NULL, &gpu_error));
        int32_t blocks[BLOCKS + 3];
        unsigned coded = 0;
        for (uint32_t block = 1; block < BLOCKS; block++) { /* block 0 is empty */
            kv values = kv_random(&seed, block % 6 == 0 ? (random_kind)(block / 6 % RANDOM_KINDS) : RANDOM_KV, shape,
                                  GAAC_BLOCK_TOKENS);
            if (block % 6 != 0 && !gpu_small()) { /* an exception */
                values.k[random_u64(&seed) % (GAAC_BLOCK_TOKENS * values.k_row)] ^= 0x4000;
                values.v[random_u64(&seed) % (GAAC_BLOCK_TOKENS * values.v_row)] ^= 0x4000;
            }
            if (block % 5 == 0)
                gpu_cache_keep_raw(&c, block, &values.rows);
            else
                coded += gpu_cache_code(&c, block, &values.rows, block & 1);
            if (block % 7 != 0) /* not listed */
                assert_gaac(gaac_histogram_add(histogram, &values.rows, GAAC_BLOCK_TOKENS, &gpu_error));
            kv_free(&values);
        }
        assert_in_range(coded, BLOCKS / 2, BLOCKS);
        gpu_cache_to_device(&c);
        uint32_t count = 0;
        for (int32_t block = BLOCKS - 1; block >= 0; block--)
            if (block % 7 != 0 || block == 0)
                blocks[count++] = block;
        blocks[count++] = -1;
        blocks[count++] = INT32_MIN;
        int32_t *device_blocks = gpu_upload(blocks, count * sizeof *blocks);
        const uint32_t before = 5;
        uint32_t *host = malloc(c.sizes.histogram_counts * sizeof *host);
        assert_non_null(host);
        for (size_t k = 0; k < c.sizes.histogram_counts; k++)
            host[k] = before;
        uint32_t *counts = gpu_upload(host, c.sizes.histogram_counts * sizeof *host);
        assert_gaac(gaac_cuda_histogram_add_blocks(gpu, &c.cache, device_blocks, count, counts, NULL, &gpu_error));
        assert_counts(histogram, counts, c.sizes.histogram_counts, before);
        free(host);
        gpu_free(counts);
        gpu_free(device_blocks);
        gaac_histogram_destroy(histogram);
        gpu_cache_free(&c);
    }
}

/* Histograms of every sort: the windows and where costs are the same. */
static void fill_counts(gaac_histogram *h, unsigned sort)
{
    const size_t n = h->k_counters + h->v_counters;
    for (size_t i = 0; i < n; i++) {
        const uint64_t bits = random_u64(&seed);
        switch (sort) {
        case 0: /* as of KV */
            h->counts[i] = i % 256 > 90 && i % 256 < 130 ? (uint32_t)(bits % 1000) : 0;
            break;
        case 1: /* anything */
            h->counts[i] = (uint32_t)(bits % 50);
            break;
        case 2: /* few: many bases cost the same */
            h->counts[i] = bits % 97 == 0;
            break;
        case 3: /* large sums */
            h->counts[i] = (uint32_t)bits >> 4;
            break;
        default: /* at the ends */
            h->counts[i] = i % 256 < 3 || i % 256 > 250 ? (uint32_t)(bits % 9) : 0;
        }
    }
    h->tokens = 1;
}

static void test_choice(void **state)
{
    (void)state;
    static const double weights[] = {0, 10, 1, 0.3, 1e-9, 1e300};
    for (size_t i = 0; i < shape_count(); i++)
        for (unsigned sort = 0; sort < 5; sort++) {
            const gaac_shape shape = shapes[i];
            const gaac_cuda_sizes sizes = sizes_of(&shape);
            const double weight = weights[(i + sort) % (sizeof weights / sizeof weights[0])];
            gaac_histogram *histogram;
            gaac_windows *windows;
            assert_gaac(gaac_histogram_create(&histogram, &shape, NULL, &gpu_error));
            fill_counts(histogram, sort);
            assert_gaac(gaac_windows_choose(&windows, histogram, GAAC_SCHEME_PRODUCTION, weight, NULL, &gpu_error));
            size_t bytes;
            const uint8_t *expected = gaac_windows_table(windows, &bytes);
            assert_int_equal(bytes, sizes.window_table_bytes);
            uint32_t *counts = gpu_upload(histogram->counts, sizes.histogram_counts * sizeof *counts);
            uint8_t *table = gpu_allocate(bytes + 1), *got = malloc(bytes + 1);
            assert_non_null(got);
            assert_cuda(cudaMemset(table, 0x5a, bytes + 1));
            assert_gaac(gaac_cuda_choose_windows(gpu, &shape, counts, weight, table, NULL, &gpu_error));
            gpu_read(got, table, bytes + 1);
            assert_memory_equal(got, expected, bytes);
            assert_int_equal(got[bytes], 0x5a);
            free(got);
            gpu_free(table);
            gpu_free(counts);
            gaac_windows_destroy(windows);
            gaac_histogram_destroy(histogram);
        }
}

/* The words are those of the CPU's codec, without what repeats; from bases that are not allowed, those of allowed ones.
 */
static void test_set_windows(void **state)
{
    (void)state;
    for (size_t i = 0; i < shape_count(); i++) {
        const gaac_shape shape = shapes[i];
        const gaac_cuda_sizes sizes = sizes_of(&shape);
        gaac_layout layout;
        gaac_layout_init(&layout, &shape);
        uint8_t *wild = malloc(sizes.window_table_bytes), *table = malloc(sizes.window_table_bytes);
        uint8_t *words = malloc(sizes.window_bytes);
        assert_non_null(wild);
        assert_non_null(table);
        assert_non_null(words);
        const size_t k_bases = (size_t)shape.kv_heads * shape.head_dim_k;
        for (size_t b = 0; b < sizes.window_table_bytes; b++) {
            const size_t v = b - k_bases, v_bases = (size_t)shape.kv_heads * shape.head_dim_v;
            const bool wraps = b < k_bases ? gaac_k_wraps((unsigned)(b % shape.head_dim_k))
                                           : gaac_v_wraps(v >= v_bases, (unsigned)(v % shape.head_dim_v));
            wild[b] = (uint8_t)random_u64(&seed);
            const uint8_t cut = wild[b] > GAAC_WINDOW_MAX_BASE ? GAAC_WINDOW_MAX_BASE : wild[b];
            table[b] = (uint8_t)(wraps ? cut & ~1u : cut);
        }
        gaac_windows *windows;
        gaac_codec *codec;
        assert_gaac(gaac_windows_from_table(&windows, &shape, GAAC_SCHEME_PRODUCTION, table, sizes.window_table_bytes,
                                            NULL, &gpu_error));
        const gaac_codec_config config = {shape, GAAC_SCHEME_PRODUCTION, windows, 0, NULL};
        assert_gaac(gaac_codec_create(&codec, &config, &gpu_error));
        uint8_t *device_table = gpu_upload(wild, sizes.window_table_bytes);
        void *device_words = gpu_allocate(sizes.window_bytes);
        assert_gaac(gaac_cuda_set_windows(gpu, &shape, device_table, device_words, NULL, &gpu_error));
        gpu_read(words, device_words, sizes.window_bytes);
        const uint8_t *next = words;
        for (uint32_t head = 0; head < shape.kv_heads; head++)
            for (uint32_t u = 0; u < layout.units; u++)
                for (unsigned part = 0; part < 2; part++) {
                    const gaac_unit *unit = &layout.unit[u];
                    if (unit->hv == 0 || !(part == GAAC_K ? unit->has_k : unit->has_v))
                        continue;
                    const gaac_base_words bases = gaac_codec_bases(codec, head, unit, (gaac_part)part);
                    for (unsigned row = 0; row < (part == GAAC_K ? 4u : 8u); row++)
                        for (unsigned half = 0; half < unit->hv; half++)
                            for (unsigned j = 0; j < 4; j++, next += 4) {
                                const unsigned g = part == GAAC_K ? 5 : row, t = part == GAAC_K ? row : 2;
                                uint32_t word;
                                memcpy(&word, next, sizeof word);
                                assert_int_equal(word,
                                                 bases[gaac_word_offset(half, 2 * j + 1, gaac_position(g, t)) / 4]);
                            }
                }
        assert_in_range(words + sizes.window_bytes - next, 0, 127);
        gpu_free(device_table);
        gpu_free(device_words);
        gaac_codec_destroy(codec);
        gaac_windows_destroy(windows);
        free(wild);
        free(table);
        free(words);
    }
}

static void test_arguments(void **state)
{
    (void)state;
    const gaac_shape shape = {1, 64, 64}, odd = {1, 63, 64};
    uint8_t *device = gpu_allocate(1 << 20);
    uint32_t *counts = (uint32_t *)(void *)device;
    const gaac_kv_rows rows = {NULL, NULL, 64, 64, 64, 64};
    gaac_error *e = &gpu_error;
    assert_int_equal(gaac_cuda_set_windows(gpu, &odd, device, device, NULL, e), GAAC_ERROR_INVALID_ARGUMENT);
    assert_int_equal(gaac_cuda_set_windows(gpu, &shape, device, device + 64, NULL, e), GAAC_ERROR_INVALID_ARGUMENT);
    assert_int_equal(gaac_cuda_set_windows(gpu, &shape, NULL, device, NULL, e), GAAC_ERROR_INVALID_ARGUMENT);
    assert_int_equal(gaac_cuda_histogram_add(gpu, &shape, &rows, 0, counts, NULL, e), GAAC_OK);
    assert_int_equal(gaac_cuda_histogram_add(gpu, &shape, &rows, 1, counts, NULL, e), GAAC_ERROR_INVALID_ARGUMENT);
    assert_int_equal(gaac_cuda_histogram_add(gpu, &shape, &rows, 1, NULL, NULL, e), GAAC_ERROR_INVALID_ARGUMENT);
    assert_int_equal(gaac_cuda_choose_windows(gpu, &shape, counts, -1, device, NULL, e), GAAC_ERROR_INVALID_ARGUMENT);
    assert_int_equal(gaac_cuda_choose_windows(NULL, &shape, counts, 1, device, NULL, e), GAAC_ERROR_INVALID_ARGUMENT);
    gpu_free(device);
}

int main(void)
{
    gpu_start();
    gpu_pool_room = 256; /* for blocks with exceptions */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_arguments), cmocka_unit_test(test_set_windows), cmocka_unit_test(test_choice),
        cmocka_unit_test(test_rows),      cmocka_unit_test(test_blocks),
    };
    return gpu_stop(cmocka_run_group_tests(tests, NULL, NULL));
}
