/* Attention on caches of every make, at random: many KV heads, unequal head_dims, coded blocks beside raw ones, blocks
 * that were never or only half written, exceptions, NaN, infinite and subnormal values, workers in any order. Every
 * instruction set is held against the definition, and its coded result against its raw one bit for bit. */
#include "random_kv.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "attention/attention.h"
#include "cpu/cpu.h"

#include <math.h>

enum {
    CASES = 130,
    CODED = 0,
    RAW = 1,
    MAX_WORKERS = 9,
    GUARD = 5,                /* elements after each row of the output that must stay as they are */
    MOST_PRODUCTS = 12 << 20, /* of a case: what the definition, in double, does in a few hundredths of a second */
    UNTOUCHED = 0x5a
};

typedef enum mask_variant { NO_MASK, CAUSAL, WINDOW, ADDITIVE, ADDITIVE_PER_HEAD, MASK_VARIANTS } mask_variant;

typedef struct random_case {
    uint64_t seed;
    gaac_shape shape;
    uint32_t group, query_tokens;
    uint64_t cells;
    mask_variant mask;
    bool wild; /* NaN, infinite and huge values too */
    unsigned workers;
} random_case;

typedef struct fixture {
    random_case c;
    uint64_t state;
    gaac_cache *cache[2];
    float *q, *out[2], *expected, *tolerance, *slopes, *sinks;
    uint16_t *mask;
    size_t out_elements;
    unsigned order[MAX_WORKERS]; /* in which workers run */
    gaac_attention_args args;
} fixture;

/* What the caches of all cases held, so that the test notices when it no longer tests what it says. */
static gaac_cache_stats seen;

static void check(gaac_status status, const gaac_error *error)
{
    if (status != GAAC_OK)
        fail_msg("%s", error->message);
}

static float uniform(uint64_t *state)
{
    return (float)random_below(state, 1 << 20) / (1 << 19) - 1;
}

static bool one_in(uint64_t *state, unsigned n)
{
    return random_below(state, n) == 0;
}

/* ---- a case ----------------------------------------------------------------------------------- */

static uint32_t random_group(uint64_t *state)
{
    return one_in(state, 20) ? 40 : 1 + random_below(state, one_in(state, 2) ? 17 : 6);
}

static uint64_t random_cells(uint64_t *state)
{
    static const uint64_t edges[] = {0, 1, 15, 16, 17, 63, 64, 65, 127, 128, 129};
    if (one_in(state, 4))
        return edges[random_below(state, sizeof edges / sizeof *edges)];
    return one_in(state, 12) ? 5000 : random_below(state, one_in(state, 4) ? 1500 : 400);
}

/* Cuts query tokens, KV heads and cells down to what the definition can do in the time. */
static void limit_work(random_case *c)
{
    for (;;) {
        const uint64_t row = c->cells * (c->shape.head_dim_k + c->shape.head_dim_v);
        if (row * c->query_tokens * c->group * c->shape.kv_heads <= MOST_PRODUCTS)
            return;
        if (c->query_tokens > 1)
            c->query_tokens /= 2;
        else if (c->group > 4)
            c->group /= 2;
        else if (c->shape.kv_heads > 5)
            c->shape.kv_heads--;
        else
            c->cells /= 2;
    }
}

static random_case make_case(uint64_t seed)
{
    uint64_t r = seed;
    random_case c = {
        .seed = seed,
        .shape = {1 + random_below(&r, 9), 16 * (1 + random_below(&r, 16)), 16 * (1 + random_below(&r, 16))},
        .group = random_group(&r),
        .query_tokens = 1 + random_below(&r, one_in(&r, 3) ? 200 : 4),
        .cells = random_cells(&r),
        .mask = (mask_variant)random_below(&r, MASK_VARIANTS),
        .wild = one_in(&r, 3),
        .workers = 1 + random_below(&r, MAX_WORKERS),
    };
    if (one_in(&r, 2))
        c.shape.head_dim_v = c.shape.head_dim_k;
    limit_work(&c);
    return c;
}

/* ---- what the caches hold --------------------------------------------------------------------- */

/* The largest values only in V: in K they would make logits overflow F32 where double doesn't. */
static void fill_wild(uint64_t *state, gaac_part part, uint16_t *rows, size_t count)
{
    static const uint16_t values[] = {0x7fc0, 0xff81, 0x7f80, 0xff80, 0x0001, 0x8001, 0x007f, 0x0080, 0x7f7f, 0xff7f};
    const unsigned kinds = sizeof values / sizeof *values - (part == GAAC_K ? 2 : 0);
    for (unsigned n = 1 + random_below(state, 3); n > 0 && count > 0; n--)
        rows[random_below(state, (unsigned)count)] = values[random_below(state, kinds)];
}

/* K or V of a block. The first blocks are ordinary: calibration learns from them. */
static void fill_block(fixture *f, gaac_part part, uint64_t block, uint16_t *rows, size_t row)
{
    const size_t count = GAAC_BLOCK_TOKENS * row;
    const unsigned kind = block < 4 ? 0 : random_below(&f->state, 8);
    random_fill(&f->state, kind == 1 ? RANDOM_ZEROS : RANDOM_KV, rows, count, (unsigned)row);
    for (size_t i = 0; kind == 2 && i < count; i++) /* exponents without a pattern: stays raw */
        rows[i] = (uint16_t)((random_u64(&f->state) & 0x807f) | (64 + random_below(&f->state, 64)) << 7);
    for (size_t i = random_below(&f->state, 90); kind >= 5 && i < count; i += 100 + random_below(&f->state, 300))
        rows[i] = (uint16_t)((rows[i] & 0x807f) | random_below(&f->state, 130) << 7); /* exceptions */
    if (f->c.wild && one_in(&f->state, 5))
        fill_wild(&f->state, part, rows, count);
}

static void write_rows(fixture *f, gaac_part part, uint64_t first, size_t count, const uint16_t *rows, size_t row)
{
    for (int which = 0; which < 2; which++) {
        gaac_error error;
        check(gaac_cache_write(f->cache[which], 0, part, 0, first, NULL, count, rows, row, &error), &error);
    }
}

static void write_blocks(fixture *f)
{
    const gaac_shape *shape = &f->c.shape;
    const size_t most = (size_t)shape->kv_heads * GAAC_MAX_HEAD_DIM;
    uint16_t *rows = malloc(GAAC_BLOCK_TOKENS * most * sizeof *rows);
    for (uint64_t first = 0; first < f->c.cells; first += GAAC_BLOCK_TOKENS) {
        const bool hole = one_in(&f->state, 20), half = one_in(&f->state, 20);
        /* As many as there are cells, or some beyond them, which must not matter. */
        const size_t count = f->c.cells - first < GAAC_BLOCK_TOKENS && one_in(&f->state, 2)
                                 ? (size_t)(f->c.cells - first)
                                 : GAAC_BLOCK_TOKENS;
        for (gaac_part part = GAAC_K; part <= GAAC_V && !hole; part++) {
            const size_t row = (size_t)shape->kv_heads * (part == GAAC_K ? shape->head_dim_k : shape->head_dim_v);
            fill_block(f, part, first / GAAC_BLOCK_TOKENS, rows, row);
            write_rows(f, part, first, half ? 1 + count / 2 : count, rows, row);
            if (one_in(&f->state, 30)) /* reopens it, or leaves it as it is */
                write_rows(f, part, first, 1, rows, row);
        }
    }
    free(rows);
}

static void make_caches(fixture *f)
{
    for (int which = 0; which < 2; which++) {
        const gaac_cache_config config = {.shapes = &f->c.shape,
                                          .layers = 1,
                                          .sequences = 1,
                                          .tokens_per_sequence = f->c.cells + 1,
                                          .mode = which == RAW ? GAAC_CACHE_RAW : GAAC_CACHE_CODED,
                                          .calibration_tokens = 48};
        gaac_error error;
        check(gaac_cache_create(&f->cache[which], &config, &error), &error);
    }
    write_blocks(f);
}

static void add_to_seen(const fixture *f)
{
    gaac_cache_stats stats;
    gaac_error error;
    check(gaac_cache_get_stats(f->cache[CODED], GAAC_ALL_LAYERS, &stats, &error), &error);
    seen.blocks_coded += stats.blocks_coded;
    seen.blocks_raw += stats.blocks_raw;
    seen.blocks_waiting += stats.blocks_waiting;
    seen.blocks_open += stats.blocks_open;
    seen.exceptions += stats.exceptions;
    check(gaac_cache_get_stats(f->cache[RAW], GAAC_ALL_LAYERS, &stats, &error), &error);
    assert_int_equal(stats.blocks_coded, 0);
}

/* ---- queries and masks ------------------------------------------------------------------------ */

static void fill_mask(fixture *f, uint32_t heads)
{
    const bool per_head = f->c.mask == ADDITIVE_PER_HEAD;
    const size_t rows = (size_t)f->c.query_tokens * (per_head ? heads : 1), stride = f->c.cells + 3;
    const bool biased = one_in(&f->state, 2);
    const unsigned dark = 1 + random_below(&f->state, 6);
    f->mask = malloc((rows * stride + 1) * sizeof *f->mask);
    for (size_t row = 0; row < rows; row++) {
        const bool dark_row = one_in(&f->state, 6);
        bool dark_block = false;
        for (uint64_t cell = 0; cell < stride; cell++) {
            if (cell % GAAC_BLOCK_TOKENS == 0)
                dark_block = one_in(&f->state, dark);
            const bool hidden = dark_row || dark_block || one_in(&f->state, 8);
            const uint16_t bias = (uint16_t)(random_below(&f->state, 2) << 15 | random_below(&f->state, 0x4400));
            f->mask[row * stride + cell] = hidden ? 0xfc00 : biased ? bias : 0;
        }
    }
    f->args.mask_kind = GAAC_MASK_ADDITIVE_F16;
    f->args.mask = f->mask;
    f->args.mask_head_stride = per_head ? stride : 0;
    f->args.mask_token_stride = per_head ? stride * heads : stride;
}

static float *random_floats(uint64_t *state, size_t count, float size)
{
    float *values = malloc((count + 1) * sizeof *values);
    for (size_t i = 0; i < count; i++)
        values[i] = size * uniform(state);
    return values;
}

static void fill_queries(fixture *f)
{
    const random_case *c = &f->c;
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
        .softcap = one_in(&f->state, 4) ? 20.0f : 0,
    };
    f->out_elements = f->args.out_token_stride * c->query_tokens;
    f->q = random_floats(&f->state, f->args.q_token_stride * c->query_tokens, 2);
    f->slopes = random_floats(&f->state, heads, 1);
    f->sinks = random_floats(&f->state, heads, 8);
    for (int which = 0; which < 2; which++)
        f->out[which] = malloc((f->out_elements + 1) * sizeof(float));
    f->expected = malloc((f->out_elements + 1) * sizeof(float));
    f->tolerance = calloc(f->out_elements + 1, sizeof(float));
    f->args.q = f->q;
    f->args.slopes = one_in(&f->state, 4) ? f->slopes : NULL;
    f->args.sinks = one_in(&f->state, 4) ? f->sinks : NULL;
    if (c->mask >= ADDITIVE)
        fill_mask(f, heads);
    else if (c->mask != NO_MASK) {
        f->args.mask_kind = GAAC_MASK_CAUSAL;
        f->args.causal_first = c->cells > c->query_tokens ? c->cells - c->query_tokens : 0;
        f->args.window = c->mask == WINDOW ? 1 + random_below(&f->state, 200) : 0;
    }
}

static void set_up(fixture *f, const random_case *c)
{
    *f = (fixture){.c = *c, .state = c->seed ^ UINT64_C(0x9e3779b97f4a7c15)};
    make_caches(f);
    add_to_seen(f);
    fill_queries(f);
    for (unsigned i = 0; i < MAX_WORKERS; i++) {
        const unsigned j = random_below(&f->state, i + 1);
        f->order[i] = f->order[j];
        f->order[j] = i;
    }
}

static void tear_down(fixture *f)
{
    for (int which = 0; which < 2; which++) {
        gaac_cache_destroy(f->cache[which]);
        free(f->out[which]);
    }
    free(f->q);
    free(f->expected);
    free(f->tolerance);
    free(f->slopes);
    free(f->sinks);
    free(f->mask);
}

/* ---- the check -------------------------------------------------------------------------------- */

/* Worker after worker, in the case's order: the first that comes does all tasks. */
static void run_in_order(void *user, gaac_task *task, void *context, unsigned workers)
{
    const fixture *f = user;
    for (unsigned i = 0; i < MAX_WORKERS; i++) {
        if (f->order[i] < workers)
            task(context, f->order[i]);
    }
}

static void run(fixture *f, gaac_isa isa, int which)
{
    const gaac_executor executor = {run_in_order, f, f->c.workers};
    gaac_codec_kernels codec;
    gaac_attention_kernels attention;
    gaac_error error;
    gaac_cpu_tables(isa, &codec, &attention);
    memset(f->out[which], UNTOUCHED, f->out_elements * sizeof(float));
    f->args.out = f->out[which];
    check(gaac_attention_with(&codec, &attention, f->cache[which], &f->args, &executor, &error), &error);
}

/* Huge values may overflow F32 on the way where double doesn't: then the result says nothing. Where a weight too small
 * for F32 meets infinity, NaN is as good. */
static bool close_enough(float actual, float expected, float tolerance)
{
    if (isnan(expected))
        return isnan(actual);
    if (isinf(expected))
        return !isfinite(actual);
    return !(tolerance < 1e30f) || fabsf(actual - expected) <= tolerance;
}

static void compare(const fixture *f, const float *out, gaac_isa isa)
{
    const random_case *c = &f->c;
    for (size_t i = 0; i < f->out_elements; i++) {
        const size_t channel = i % f->args.out_head_stride;
        uint32_t bits;
        memcpy(&bits, &out[i], sizeof bits);
        if (channel >= c->shape.head_dim_v ? bits == UNTOUCHED * 0x01010101u
                                           : close_enough(out[i], f->expected[i], f->tolerance[i]))
            continue;
        fail_msg("seed %#llx, %s: %u heads x %u of %u/%u, %u tokens, %llu cells, mask %d, %u workers: query %zu, "
                 "channel %zu is %g, not %g +- %g",
                 (unsigned long long)c->seed, gaac_isa_name(isa), c->shape.kv_heads, c->group, c->shape.head_dim_k,
                 c->shape.head_dim_v, c->query_tokens, (unsigned long long)c->cells, (int)c->mask, c->workers,
                 i / f->args.out_head_stride, channel, (double)out[i], (double)f->expected[i], (double)f->tolerance[i]);
    }
}

static void check_case(uint64_t seed)
{
    const random_case c = make_case(seed);
    fixture f;
    gaac_error error;
    set_up(&f, &c);
    f.args.out = f.expected;
    check(gaac_attention_reference(f.cache[RAW], &f.args, f.tolerance, &error), &error);
    for (int isa = 0; isa < GAAC_ISA_COUNT; isa++) {
        if (!gaac_isa_supported((gaac_isa)isa))
            continue;
        run(&f, (gaac_isa)isa, RAW);
        compare(&f, f.out[RAW], (gaac_isa)isa);
        run(&f, (gaac_isa)isa, CODED);
        if (memcmp(f.out[CODED], f.out[RAW], f.out_elements * sizeof(float)) != 0)
            fail_msg("seed %#llx, %s: coded is not raw", (unsigned long long)seed, gaac_isa_name((gaac_isa)isa));
    }
    tear_down(&f);
}

static void random_caches(void **state)
{
    uint64_t r = 20261130;
    (void)state;
    for (unsigned i = 0; i < CASES; i++)
        check_case(random_u64(&r));
    assert_true(seen.blocks_coded > 1000 && seen.blocks_raw > 100 && seen.blocks_waiting > 10 &&
                seen.blocks_open > 100 && seen.exceptions > 1000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_caches),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
