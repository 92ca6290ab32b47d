/* Attention against its definition: shapes, masks, everything that bends a logit, damage in hidden and
 * visible cells, splits; coded cache against raw cache bit for bit; the thread pool. */
#include "random_kv.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "attention/attention.h"
#include "cache/view.h"
#include "cpu/cpu.h"

#include <math.h>

enum { CODED = 0, RAW = 1, GUARD = 5 };

typedef enum mask_variant {
    MASK_NONE,
    MASK_CAUSAL,
    MASK_WINDOW,
    MASK_RANDOM,   /* F16: biases, and -inf here and there */
    MASK_BLOCKS,   /* F16: 0 and -inf, whole blocks and whole rows hidden */
    MASK_PER_HEAD, /* F16, different for each head */
    MASK_VARIANTS
} mask_variant;

typedef struct test_case {
    gaac_shape shape;
    uint32_t group, query_tokens;
    uint64_t cells;
    mask_variant mask;
    float softcap;
    bool slopes, sinks;
    unsigned workers;
} test_case;

typedef struct fixture {
    test_case c;
    uint64_t state;
    gaac_cache *cache[2];
    uint16_t *rows[2]; /* what was written, by part */
    float *q, *out[2], *expected, *tolerance, *slopes, *sinks;
    uint16_t *mask;
    size_t out_elements;
    gaac_attention_args args;
} fixture;

static void check(gaac_status status, const gaac_error *error)
{
    if (status != GAAC_OK)
        fail_msg("%s", error->message);
}

static size_t row_of(const gaac_shape *shape, gaac_part part)
{
    return (size_t)shape->kv_heads * (part == GAAC_K ? shape->head_dim_k : shape->head_dim_v);
}

static gaac_cache *make_cache(const test_case *c, gaac_cache_mode mode)
{
    const gaac_cache_config config = {.shapes = &c->shape,
                                      .layers = 1,
                                      .sequences = 1,
                                      .tokens_per_sequence = c->cells + 1,
                                      .mode = mode,
                                      .calibration_tokens = 48};
    gaac_cache *cache = NULL;
    gaac_error error;
    check(gaac_cache_create(&cache, &config, &error), &error);
    return cache;
}

static void write_all(fixture *f)
{
    for (gaac_part part = GAAC_K; part <= GAAC_V; part++) {
        const size_t row = row_of(&f->c.shape, part);
        for (int which = 0; which < 2; which++) {
            gaac_error error;
            check(gaac_cache_write(f->cache[which], 0, part, 0, 0, NULL, f->c.cells, f->rows[part], row, &error),
                  &error);
        }
    }
}

static float uniform(uint64_t *state)
{
    return (float)random_below(state, 1 << 20) / (1 << 19) - 1;
}

static uint16_t random_bias(uint64_t *state)
{
    const uint16_t sign = (uint16_t)(random_below(state, 2) << 15);
    return random_below(state, 4) == 0 ? sign : (uint16_t)(sign | random_below(state, 0x4400)); /* up to 4 */
}

static void fill_mask(fixture *f)
{
    const test_case *c = &f->c;
    const uint32_t heads = c->shape.kv_heads * c->group;
    const size_t rows = (size_t)c->query_tokens * heads, stride = c->cells + 3;
    f->mask = malloc((rows * stride + 1) * sizeof *f->mask);
    for (size_t row = 0; row < rows; row++) {
        const bool dark_row = random_below(&f->state, 4) == 0;
        bool dark_block = false;
        for (uint64_t cell = 0; cell < stride; cell++) {
            if (cell % GAAC_BLOCK_TOKENS == 0)
                dark_block = random_below(&f->state, 2) == 0;
            const bool hidden = c->mask == MASK_BLOCKS ? dark_row || dark_block || random_below(&f->state, 8) == 0
                                                       : random_below(&f->state, 3) == 0;
            const uint16_t bias = c->mask == MASK_BLOCKS ? 0 : random_bias(&f->state);
            f->mask[row * stride + cell] = hidden ? 0xfc00 : bias;
        }
    }
    f->args.mask_kind = GAAC_MASK_ADDITIVE_F16;
    f->args.mask = f->mask;
    f->args.mask_head_stride = c->mask == MASK_PER_HEAD ? stride : 0;
    f->args.mask_token_stride = c->mask == MASK_PER_HEAD ? stride * heads : stride;
}

static void fill_queries(fixture *f)
{
    const test_case *c = &f->c;
    const uint32_t heads = c->shape.kv_heads * c->group;
    f->args = (gaac_attention_args){
        .cells = c->cells,
        .query_tokens = c->query_tokens,
        .query_heads = heads,
        .q_head_stride = c->shape.head_dim_k + 1,
        .q_token_stride = (size_t)heads * (c->shape.head_dim_k + 1),
        .out_head_stride = c->shape.head_dim_v + GUARD,
        .out_token_stride = (size_t)heads * (c->shape.head_dim_v + GUARD),
        .scale = 1 / sqrtf((float)c->shape.head_dim_k),
        .softcap = c->softcap,
    };
    const size_t q_elements = f->args.q_token_stride * c->query_tokens;
    f->out_elements = f->args.out_token_stride * c->query_tokens;
    f->q = malloc((q_elements + 1) * sizeof(float));
    for (size_t i = 0; i < q_elements; i++)
        f->q[i] = 2 * uniform(&f->state);
    for (int which = 0; which < 2; which++)
        f->out[which] = malloc((f->out_elements + 1) * sizeof(float));
    f->expected = malloc((f->out_elements + 1) * sizeof(float));
    f->tolerance = calloc(f->out_elements + 1, sizeof(float));
    f->slopes = malloc(heads * sizeof(float));
    f->sinks = malloc(heads * sizeof(float));
    for (uint32_t h = 0; h < heads; h++) {
        f->slopes[h] = exp2f(-(float)h / 2);
        f->sinks[h] = 8 * uniform(&f->state); /* below and above the logits */
    }
    f->args.q = f->q;
    f->args.slopes = c->slopes ? f->slopes : NULL;
    f->args.sinks = c->sinks ? f->sinks : NULL;
}

static void set_up(fixture *f, const test_case *c, uint64_t seed)
{
    *f = (fixture){.c = *c, .state = seed * 2 + 1};
    for (int which = 0; which < 2; which++)
        f->cache[which] = make_cache(c, which == RAW ? GAAC_CACHE_RAW : GAAC_CACHE_CODED);
    for (gaac_part part = GAAC_K; part <= GAAC_V; part++) {
        const size_t row = row_of(&c->shape, part);
        f->rows[part] = malloc((row * c->cells + 1) * sizeof(uint16_t));
        random_fill(&f->state, RANDOM_KV, f->rows[part], row * c->cells, (unsigned)row);
    }
    write_all(f);
    fill_queries(f);
    if (c->mask >= MASK_RANDOM)
        fill_mask(f);
    else if (c->mask != MASK_NONE) {
        f->args.mask_kind = GAAC_MASK_CAUSAL;
        f->args.causal_first = c->cells > c->query_tokens ? c->cells - c->query_tokens : 0;
        f->args.window = c->mask == MASK_WINDOW ? 37 : 0;
    }
}

static void tear_down(fixture *f)
{
    for (int which = 0; which < 2; which++) {
        gaac_cache_destroy(f->cache[which]);
        free(f->out[which]);
        free(f->rows[which]);
    }
    free(f->q);
    free(f->expected);
    free(f->tolerance);
    free(f->slopes);
    free(f->sinks);
    free(f->mask);
}

/* Runs worker after worker, last first: another order than any pool's. */
static void run_backwards(void *user, gaac_task *task, void *context, unsigned workers)
{
    (void)user;
    while (workers-- > 0)
        task(context, workers);
}

static void run(fixture *f, gaac_isa isa, int which, const gaac_executor *executor)
{
    gaac_codec_kernels codec;
    gaac_attention_kernels attention;
    gaac_error error;
    gaac_cpu_tables(isa, &codec, &attention);
    memset(f->out[which], 0x5a, f->out_elements * sizeof(float));
    f->args.out = f->out[which];
    check(gaac_attention_with(&codec, &attention, f->cache[which], &f->args, executor, &error), &error);
}

static bool close_enough(float actual, float expected, float tolerance)
{
    if (isnan(expected))
        return isnan(actual);
    if (isinf(expected))
        return actual == expected;
    return isfinite(tolerance) && fabsf(actual - expected) <= tolerance;
}

static void compare(const fixture *f, const float *out, const char *isa)
{
    const test_case *c = &f->c;
    for (size_t i = 0; i < f->out_elements; i++) {
        const size_t channel = i % f->args.out_head_stride;
        uint32_t bits;
        memcpy(&bits, &out[i], sizeof bits);
        if (channel >= c->shape.head_dim_v ? bits == 0x5a5a5a5a : close_enough(out[i], f->expected[i], f->tolerance[i]))
            continue;
        fail_msg("%s, %u heads x %u of %u/%u, %llu cells, mask %d, %u workers: query %zu, channel %zu is %g, not %g "
                 "+- %g",
                 isa, c->shape.kv_heads, c->group, c->shape.head_dim_k, c->shape.head_dim_v,
                 (unsigned long long)c->cells, (int)c->mask, c->workers, i / f->args.out_head_stride, channel,
                 (double)out[i], (double)f->expected[i], (double)f->tolerance[i]);
    }
}

static void make_expected(fixture *f)
{
    gaac_error error;
    f->args.out = f->expected;
    check(gaac_attention_reference(f->cache[RAW], &f->args, f->tolerance, &error), &error);
}

static void assert_same_bits(const fixture *f, const float *a, const float *b)
{
    if (f->out_elements != 0)
        assert_memory_equal(a, b, f->out_elements * sizeof(float));
}

/* The check of one case: every instruction set, coded and raw, against the reference and each other. */
static void check_fixture(fixture *f)
{
    const gaac_executor executor = {run_backwards, NULL, f->c.workers};
    make_expected(f);
    for (int isa = 0; isa < GAAC_ISA_COUNT; isa++) {
        if (!gaac_isa_supported((gaac_isa)isa))
            continue;
        run(f, (gaac_isa)isa, RAW, &executor);
        compare(f, f->out[RAW], gaac_isa_name((gaac_isa)isa));
        run(f, (gaac_isa)isa, CODED, &executor);
        assert_same_bits(f, f->out[CODED], f->out[RAW]);
    }
}

static void check_case(const test_case *c, uint64_t seed)
{
    fixture f;
    set_up(&f, c, seed);
    check_fixture(&f);
    tear_down(&f);
}

static void head_dims(void **state)
{
    static const uint32_t dims[] = {16, 32, 48, 64, 80, 96, 112, 128, 192, 256, 272};
    (void)state;
    for (size_t i = 0; i < sizeof dims / sizeof *dims; i++) {
        for (uint32_t group = 1; group <= 5; group += 4) {
            const test_case c = {
                .shape = {2, dims[i], dims[i]}, .group = group, .query_tokens = 1, .cells = 150, .workers = 1};
            check_case(&c, i);
        }
    }
}

static void different_dims(void **state)
{
    static const uint32_t dims[][2] = {{192, 128}, {64, 128}, {16, 80}, {96, 64}, {128, 48}, {576, 512}};
    (void)state;
    for (size_t i = 0; i < sizeof dims / sizeof *dims; i++) {
        const test_case c = {.shape = {1, dims[i][0], dims[i][1]},
                             .group = 3,
                             .query_tokens = 2,
                             .cells = 100,
                             .mask = MASK_CAUSAL,
                             .workers = 2};
        check_case(&c, i);
    }
}

static void groups_and_batches(void **state)
{
    static const uint32_t groups[] = {1, 2, 3, 4, 5, 6, 7, 8, 16, 128};
    static const uint32_t tokens[] = {1, 2, 5, 33};
    (void)state;
    for (size_t g = 0; g < sizeof groups / sizeof *groups; g++) {
        for (size_t t = 0; t < sizeof tokens / sizeof *tokens; t++) {
            if (groups[g] * tokens[t] > 600)
                continue;
            const test_case c = {.shape = {2, 64, 64},
                                 .group = groups[g],
                                 .query_tokens = tokens[t],
                                 .cells = 130,
                                 .mask = MASK_CAUSAL,
                                 .workers = 3};
            check_case(&c, g * 8 + t);
        }
    }
}

static void cell_counts(void **state)
{
    static const uint64_t cells[] = {0, 1, 15, 16, 17, 63, 64, 65, 128, 1000};
    static const unsigned workers[] = {1, 2, 3, 5};
    (void)state;
    for (size_t i = 0; i < sizeof cells / sizeof *cells; i++) {
        for (size_t w = 0; w < sizeof workers / sizeof *workers; w++) {
            for (mask_variant mask = MASK_NONE; mask < MASK_VARIANTS; mask++) {
                const test_case c = {.shape = {3, 64, 64},
                                     .group = 3,
                                     .query_tokens = 1 + (uint32_t)w,
                                     .cells = cells[i],
                                     .mask = mask,
                                     .workers = workers[w]};
                check_case(&c, i * 8 + w);
            }
        }
    }
}

static void long_prefill(void **state)
{
    (void)state;
    for (mask_variant mask = MASK_NONE; mask < MASK_VARIANTS; mask++) {
        const test_case c = {
            .shape = {1, 64, 64}, .group = 3, .query_tokens = 100, .cells = 333, .mask = mask, .workers = 2};
        check_case(&c, 77 + (uint64_t)mask);
    }
}

static void bent_logits(void **state)
{
    (void)state;
    for (unsigned bits = 0; bits < 8; bits++) {
        for (mask_variant mask = MASK_NONE; mask < MASK_VARIANTS; mask++) {
            const test_case c = {.shape = {2, 80, 64},
                                 .group = 2,
                                 .query_tokens = 3,
                                 .cells = 90,
                                 .mask = mask,
                                 .softcap = bits & 1 ? 20.0f : 0,
                                 .slopes = (bits & 2) != 0,
                                 .sinks = (bits & 4) != 0,
                                 .workers = 1 + bits % 3};
            check_case(&c, bits);
        }
    }
}

/* Logits of both signs far beyond what exp can hold, so that the running maximum matters. */
static void large_logits(void **state)
{
    (void)state;
    const test_case c = {
        .shape = {1, 64, 64}, .group = 4, .query_tokens = 2, .cells = 400, .mask = MASK_CAUSAL, .workers = 2};
    fixture f;
    set_up(&f, &c, 5);
    f.args.scale = 40;
    check_fixture(&f);
    tear_down(&f);
}

/* Puts `value` into one element of a cell's K or V, in both caches. */
static void poison(fixture *f, gaac_part part, uint64_t cell, size_t element, uint16_t value)
{
    const size_t row = row_of(&f->c.shape, part);
    f->rows[part][cell * row + element] = value;
    for (int which = 0; which < 2; which++) {
        gaac_error error;
        check(gaac_cache_write(f->cache[which], 0, part, 0, cell, NULL, 1, f->rows[part] + cell * row, row, &error),
              &error);
    }
}

/* NaN and infinities in cells, every one of which some query sees and some other doesn't. */
static void damage_under(mask_variant mask, uint32_t tokens)
{
    static const uint16_t values[] = {0x7fc0, 0xff81, 0x7f80, 0xff80};
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        for (gaac_part part = GAAC_K; part <= GAAC_V; part++) {
            const test_case c = {
                .shape = {1, 64, 80}, .group = 3, .query_tokens = tokens, .cells = 140, .mask = mask, .workers = 2};
            fixture f;
            set_up(&f, &c, i);
            /* An infinite key makes a logit of either sign: of them all only NaN can come out when it is +,
             * and the reference's tolerance is endless when it is -. Queries of one sign avoid that. */
            for (size_t j = 0; part == GAAC_K && j < f.args.q_token_stride * tokens; j++)
                f.q[j] = values[i] & 0x8000 ? -fabsf(f.q[j]) : fabsf(f.q[j]);
            poison(&f, part, 138, 7, values[i]);
            poison(&f, part, 77, 70 % (part == GAAC_K ? 64 : 80), values[i]);
            check_fixture(&f);
            tear_down(&f);
        }
    }
}

static void damage_in_cells(void **state)
{
    (void)state;
    damage_under(MASK_NONE, 1);
    damage_under(MASK_CAUSAL, 70);
    damage_under(MASK_WINDOW, 70);
    damage_under(MASK_RANDOM, 3);
    damage_under(MASK_BLOCKS, 20);
    damage_under(MASK_PER_HEAD, 3);
}

/* Cells at and after args.cells are in the cache but not for us. */
static void damage_after_the_end(void **state)
{
    (void)state;
    const test_case c = {.shape = {2, 64, 64}, .group = 3, .query_tokens = 2, .cells = 140, .workers = 2};
    fixture f;
    set_up(&f, &c, 3);
    poison(&f, GAAC_K, 135, 3, 0x7fc0);
    poison(&f, GAAC_V, 136, 5, 0x7f80);
    f.args.cells = 135;
    check_fixture(&f);
    for (size_t i = 0; i < f.out_elements; i++)
        assert_true(i % f.args.out_head_stride >= 64 || isfinite(f.out[CODED][i]));
    tear_down(&f);
}

/* A key that no query may see leaves no trace, whatever it is: same bits as with a harmless one. */
static void hidden_key_leaves_no_trace(void **state)
{
    (void)state;
    const test_case c = {
        .shape = {1, 128, 128}, .group = 2, .query_tokens = 1, .cells = 64, .mask = MASK_RANDOM, .workers = 1};
    fixture f;
    set_up(&f, &c, 9);
    f.mask[20] = 0xfc00;
    run(&f, GAAC_ISA_C, RAW, NULL);
    memcpy(f.expected, f.out[RAW], f.out_elements * sizeof(float));
    poison(&f, GAAC_K, 20, 100, 0x7fc0);
    poison(&f, GAAC_V, 20, 100, 0xff80);
    run(&f, GAAC_ISA_C, RAW, NULL);
    assert_same_bits(&f, f.out[RAW], f.expected);
    tear_down(&f);
}

static void blind_query_gets_zeros(void **state)
{
    (void)state;
    for (unsigned sinks = 0; sinks < 2; sinks++) {
        const test_case c = {.shape = {1, 64, 64},
                             .group = 2,
                             .query_tokens = 2,
                             .cells = 50,
                             .mask = MASK_RANDOM,
                             .sinks = sinks != 0,
                             .workers = 1};
        fixture f;
        set_up(&f, &c, 4);
        for (uint64_t cell = 0; cell < c.cells; cell++)
            f.mask[cell] = 0xfc00;
        check_fixture(&f);
        for (size_t i = 0; i < 64; i++)
            assert_true(f.out[CODED][i] == 0);
        tear_down(&f);
    }
}

/* `small` tokens by themselves, and as a part of `large`: the same bits. */
static void compare_batches(fixture *f, gaac_isa isa, uint32_t small, uint32_t large)
{
    f->args.query_tokens = large;
    f->args.q = f->q;
    f->args.causal_first = 160;
    run(f, isa, CODED, NULL);
    for (uint32_t token = 0; token + small <= large; token += 13) {
        f->args.query_tokens = small;
        f->args.q = f->q + token * f->args.q_token_stride;
        f->args.causal_first = 160 + token;
        run(f, isa, RAW, NULL);
        assert_memory_equal(f->out[RAW], f->out[CODED] + token * f->args.out_token_stride,
                            small * f->args.out_token_stride * sizeof(float));
    }
}

/* One row alone, in a small batch, and in a large one: the same bits, so speculative decoding and prefill
 * agree with decoding token by token - but for sets that take few rows another way, which agree on each side. */
static void batches_do_not_matter(void **state)
{
    (void)state;
    const test_case c = {
        .shape = {1, 80, 96}, .group = 3, .query_tokens = 40, .cells = 200, .mask = MASK_CAUSAL, .workers = 1};
    fixture f;
    set_up(&f, &c, 6);
    for (int isa = 0; isa < GAAC_ISA_COUNT; isa++) {
        if (!gaac_isa_supported((gaac_isa)isa))
            continue;
        gaac_codec_kernels codec;
        gaac_attention_kernels attention;
        gaac_cpu_tables((gaac_isa)isa, &codec, &attention);
        const uint32_t few = attention.few_rows / c.group; /* tokens */
        if (few > 1)
            compare_batches(&f, (gaac_isa)isa, 1, few);
        compare_batches(&f, (gaac_isa)isa, few + 1, 40);
    }
    tear_down(&f);
}

static void pool_and_order_agree(void **state)
{
    (void)state;
    for (unsigned workers = 1; workers <= 5; workers++) {
        const test_case c = {.shape = {3, 64, 64},
                             .group = 3,
                             .query_tokens = 2,
                             .cells = 1000,
                             .mask = MASK_CAUSAL,
                             .workers = workers};
        fixture f;
        gaac_thread_pool *pool = NULL;
        gaac_error error;
        set_up(&f, &c, workers);
        check(gaac_thread_pool_create(&pool, workers, NULL, &error), &error);
        const gaac_executor backwards = {run_backwards, NULL, workers}, pooled = gaac_thread_pool_executor(pool);
        assert_int_equal(pooled.workers, workers);
        run(&f, GAAC_ISA_C, RAW, &backwards);
        for (unsigned i = 0; i < 5; i++) {
            run(&f, GAAC_ISA_C, CODED, &pooled);
            assert_same_bits(&f, f.out[CODED], f.out[RAW]);
        }
        gaac_thread_pool_destroy(pool);
        tear_down(&f);
    }
}

static void random_cases(void **state)
{
    (void)state;
    uint64_t r = 20261;
    for (unsigned i = 0; i < 120; i++) {
        const test_case c = {
            .shape = {1 + random_below(&r, 3), 16 * (1 + random_below(&r, 14)), 16 * (1 + random_below(&r, 14))},
            .group = 1 + random_below(&r, 9),
            .query_tokens = 1 + random_below(&r, random_below(&r, 3) == 0 ? 40 : 3),
            .cells = random_below(&r, 260),
            .mask = (mask_variant)random_below(&r, MASK_VARIANTS),
            .softcap = random_below(&r, 4) == 0 ? 10.0f : 0,
            .slopes = random_below(&r, 4) == 0,
            .sinks = random_below(&r, 4) == 0,
            .workers = 1 + random_below(&r, 4),
        };
        check_case(&c, random_u64(&r));
    }
}

static void wrong_arguments(void **state)
{
    (void)state;
    const test_case c = {.shape = {2, 64, 64}, .group = 2, .query_tokens = 1, .cells = 20, .workers = 1};
    fixture f;
    gaac_error error;
    set_up(&f, &c, 1);
    f.args.out = f.out[RAW];
#define REFUSED(change)                                                                                                \
    do {                                                                                                               \
        gaac_attention_args args = f.args;                                                                             \
        args.change;                                                                                                   \
        error.message[0] = 0;                                                                                          \
        assert_int_equal(gaac_attention(f.cache[CODED], &args, NULL, &error), GAAC_ERROR_INVALID_ARGUMENT);            \
        assert_true(strlen(error.message) > 10);                                                                       \
        assert_int_equal(gaac_attention(f.cache[CODED], &args, NULL, NULL), GAAC_ERROR_INVALID_ARGUMENT);              \
    } while (0)
    REFUSED(layer = 1);
    REFUSED(sequence = 1);
    REFUSED(cells = 33);
    REFUSED(query_heads = 3);
    REFUSED(query_heads = 0);
    REFUSED(q = NULL);
    REFUSED(out = NULL);
    REFUSED(mask_kind = GAAC_MASK_ADDITIVE_F16);
    REFUSED(mask_kind = (gaac_mask_kind)7);
#undef REFUSED
    assert_int_equal(gaac_attention(NULL, &f.args, NULL, &error), GAAC_ERROR_INVALID_ARGUMENT);
    assert_int_equal(gaac_attention(f.cache[CODED], NULL, NULL, &error), GAAC_ERROR_INVALID_ARGUMENT);
    gaac_attention_args none = f.args;
    none.query_tokens = 0;
    none.q = NULL;
    none.out = NULL;
    assert_int_equal(gaac_attention(f.cache[CODED], &none, NULL, &error), GAAC_OK);
    tear_down(&f);
}

/* A slot whose entry points outside its pool: an error, no crash. */
static void damaged_slot(void **state)
{
    (void)state;
    const test_case c = {.shape = {1, 64, 64}, .group = 1, .query_tokens = 1, .cells = 320, .workers = 1};
    fixture f;
    gaac_block_view view;
    gaac_error error;
    set_up(&f, &c, 2);
    f.args.out = f.out[CODED];
    gaac_cache_block(f.cache[CODED], 0, 0, 5, &view);
    assert_int_equal(view.class_, GAAC_BLOCK_CODED);
    *(uint32_t *)(uintptr_t)view.entries = gaac_entry_make(65520, 16, 0);
    assert_int_equal(gaac_attention(f.cache[CODED], &f.args, NULL, &error), GAAC_ERROR_CORRUPT);
    *(uint32_t *)(uintptr_t)view.entries = gaac_entry_make(0, 0, 0);
    assert_int_equal(gaac_attention(f.cache[CODED], &f.args, NULL, &error), GAAC_ERROR_CORRUPT);
    tear_down(&f);
}

static void conversions(void **state)
{
    (void)state;
    static const struct {
        uint32_t bits;
        uint16_t bf16;
    } rounded[] = {{0x3f800000, 0x3f80}, {0x3f807fff, 0x3f80}, {0x3f808000, 0x3f80}, {0x3f808001, 0x3f81},
                   {0x3f818000, 0x3f82}, {0xbf818000, 0xbf82}, {0x7f7fffff, 0x7f80}, {0x7f800000, 0x7f80},
                   {0xff800000, 0xff80}, {0x7f800001, 0x7fc0}, {0xffffffff, 0xffff}, {0x80000000, 0x8000},
                   {0x00008000, 0x0000}, {0x00018000, 0x0002}, {0x00000001, 0x0000}};
    for (size_t i = 0; i < sizeof rounded / sizeof *rounded; i++) {
        float value;
        memcpy(&value, &rounded[i].bits, sizeof value);
        assert_int_equal(gaac_float_to_bf16(value), rounded[i].bf16);
    }
    static const struct {
        uint16_t bits;
        float value;
    } halves[] = {{0x0000, 0.0f},     {0x3c00, 1.0f},     {0xc000, -2.0f},         {0x3555, 0x1.554p-2f},
                  {0x7bff, 65504.0f}, {0x0001, 0x1p-24f}, {0x83ff, -0x1.ff8p-15f}, {0x0400, 0x1p-14f},
                  {0x7c00, INFINITY}, {0xfc00, -INFINITY}};
    for (size_t i = 0; i < sizeof halves / sizeof *halves; i++)
        assert_true(gaac_f16_to_float(halves[i].bits) == halves[i].value);
    assert_true(isnan(gaac_f16_to_float(0x7c01)) && isnan(gaac_f16_to_float(0xfe00)));
    assert_true(signbit(gaac_f16_to_float(0x8000)));
}

/* ---- thread pool ------------------------------------------------------------------------------ */

typedef struct tally {
    atomic_uint calls[64];
} tally;

static void count_call(void *context, unsigned worker)
{
    atomic_fetch_add(&((tally *)context)->calls[worker], 1);
}

static void pool_runs_each_worker_once(void **state)
{
    (void)state;
    for (unsigned size = 1; size <= 4; size++) {
        gaac_thread_pool *pool = NULL;
        gaac_error error;
        check(gaac_thread_pool_create(&pool, size, NULL, &error), &error);
        const gaac_executor executor = gaac_thread_pool_executor(pool);
        for (unsigned round = 0; round < 2000; round++) {
            const unsigned workers = 1 + round % 9; /* also more than the pool has */
            tally t = {{0}};
            executor.run(executor.user, count_call, &t, workers);
            for (unsigned i = 0; i < 64; i++)
                assert_int_equal(atomic_load(&t.calls[i]), i < workers);
        }
        gaac_thread_pool_destroy(pool);
    }
    gaac_thread_pool_destroy(NULL);
}

static void pool_refuses_nonsense(void **state)
{
    (void)state;
    gaac_thread_pool *pool = NULL;
    gaac_error error;
    assert_int_equal(gaac_thread_pool_create(&pool, 0, NULL, &error), GAAC_ERROR_INVALID_ARGUMENT);
    assert_int_equal(gaac_thread_pool_create(NULL, 1, NULL, &error), GAAC_ERROR_INVALID_ARGUMENT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(head_dims),
        cmocka_unit_test(different_dims),
        cmocka_unit_test(groups_and_batches),
        cmocka_unit_test(cell_counts),
        cmocka_unit_test(long_prefill),
        cmocka_unit_test(bent_logits),
        cmocka_unit_test(large_logits),
        cmocka_unit_test(damage_in_cells),
        cmocka_unit_test(damage_after_the_end),
        cmocka_unit_test(hidden_key_leaves_no_trace),
        cmocka_unit_test(blind_query_gets_zeros),
        cmocka_unit_test(batches_do_not_matter),
        cmocka_unit_test(pool_and_order_agree),
        cmocka_unit_test(random_cases),
        cmocka_unit_test(wrong_arguments),
        cmocka_unit_test(damaged_slot),
        cmocka_unit_test(conversions),
        cmocka_unit_test(pool_runs_each_worker_once),
        cmocka_unit_test(pool_refuses_nonsense),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
