/* Checks and benchmarks of the attention kernels. They sum in F32 in an order of their own, so they are
 * compared with the definition within what two orders of rounding can differ by; which row shares a call
 * with which may not change a bit. */
#include "harness.h"

#include "attention/kernels.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    STEP = GAAC_STEP_TOKENS,
    MAX_FRAGMENTS = GAAC_UNIT_MAX_FRAGMENTS,
    MAX_CHANNELS = MAX_FRAGMENTS * GAAC_FRAGMENT_CHANNELS,
    MAX_ROWS = 24,
    ROW_KINDS = 10,
    BENCH_STEPS = 8 /* 64 KB of K or V at 128 channels: the second-level cache, not the first */
};

static const unsigned row_counts[ROW_KINDS] = {1, 2, 3, 4, 5, 6, 7, 8, 13, MAX_ROWS};
static const double U = 0x1p-24;

static unsigned shape_fragments(unsigned shape)
{
    return shape % MAX_FRAGMENTS + 1;
}
static unsigned shape_rows(unsigned shape)
{
    return row_counts[shape / MAX_FRAGMENTS];
}

static void describe(unsigned shape, char *text, size_t bytes)
{
    snprintf(text, bytes, "%uch_%urows", shape_fragments(shape) * GAAC_FRAGMENT_CHANNELS, shape_rows(shape));
}

static float uniform(harness *h)
{
    return (float)harness_below(h, 1u << 24) / (1 << 23) - 1;
}

/* The tiles of a step, in memory of their own so that reading past one faults or shows. */
typedef struct step_data {
    gaac_step_tiles tiles;
    uint16_t *memory[GAAC_STEP_TILES];
    uint16_t *lines; /* room for the same in line order */
} step_data;

static void make_step(harness *h, unsigned fragments, step_data *data)
{
    const size_t bytes = (size_t)fragments * GAAC_FRAGMENT_BYTES;
    for (unsigned i = 0; i < GAAC_STEP_TILES; i++) {
        data->memory[i] = harness_memory(h, bytes);
        data->tiles.tile[i] = data->memory[i];
        data->tiles.ahead[i] = (const uint8_t *)data->memory[i];
    }
    data->tiles.ahead_lines = (unsigned)(bytes / 64);
    data->tiles.lines = false;
    data->lines = harness_memory(h, GAAC_STEP_TILES * bytes);
}

/* The step's tiles in line order. */
static gaac_step_tiles in_lines(const step_data *data, gaac_part part, unsigned fragments)
{
    gaac_step_tiles tiles = data->tiles;
    const size_t tile = (size_t)fragments * GAAC_FRAGMENT_ELEMENTS;
    tiles.lines = true;
    for (unsigned i = 0; i < GAAC_STEP_TILES; i++) {
        uint16_t *out = part == GAAC_K
                            ? data->lines + i * tile
                            : data->lines + i / 2 * 2 * tile + i % 2 * GAAC_V_FRAGMENT_LINES / 2 * GAAC_LINE_ELEMENTS;
        (part == GAAC_K ? gaac_k_fragments_to_lines_c : gaac_v_fragments_to_lines_c)(fragments, data->memory[i], out);
        tiles.tile[i] = out;
    }
    return tiles;
}

/* Values of many sizes; now and then a NaN, an infinity, a zero. Exponents stay where no sum overflows. */
static void draw_step(harness *h, unsigned fragments, step_data *data)
{
    static const uint16_t special[] = {0x7fc0, 0xff81, 0x7f80, 0xff80, 0, 0x8000, 0x0001};
    const bool specials = harness_below(h, 4) == 0;
    for (unsigned i = 0; i < GAAC_STEP_TILES; i++) {
        for (unsigned j = 0; j < fragments * GAAC_FRAGMENT_ELEMENTS; j++) {
            const uint64_t bits = harness_random(h);
            data->memory[i][j] = (uint16_t)((bits & 0x807f) | (100 + (bits >> 32) % 40) << 7);
            if (specials && harness_below(h, 200) == 0)
                data->memory[i][j] = special[harness_below(h, sizeof special / sizeof *special)];
        }
    }
    data->tiles.ahead_lines = harness_below(h, fragments * 8 + 1);
}

static bool near(float actual, float expected, double tolerance)
{
    if (isnan(expected) || isinf(expected))
        return isnan(expected) ? isnan(actual) : actual == expected;
    return fabs((double)actual - expected) <= tolerance;
}

static bool same_bits(float a, float b)
{
    uint32_t x, y;
    memcpy(&x, &a, sizeof x);
    memcpy(&y, &b, sizeof y);
    return x == y || (isnan(a) && isnan(b));
}

/* ---- scores ----------------------------------------------------------------------------------- */

typedef struct score_data {
    step_data step;
    unsigned fragments, rows;
    size_t channels, q_stride; /* of a row; from row to row */
    float *q, *scores;
} score_data;

static void make_scores(harness *h, unsigned shape, score_data *d)
{
    d->fragments = shape_fragments(shape);
    d->rows = shape_rows(shape);
    d->channels = (size_t)d->fragments * GAAC_FRAGMENT_CHANNELS;
    d->q_stride = d->channels + 16 * (shape % 3);
    make_step(h, d->fragments, &d->step);
    d->q = harness_memory(h, d->rows * d->q_stride * sizeof *d->q);
    d->scores = harness_memory(h, (size_t)d->rows * STEP * sizeof *d->scores);
}

/* Element of a K tile that channel number i of a prepared row meets. */
static float k_value(const score_data *d, unsigned token, unsigned i)
{
    const unsigned f = i / GAAC_FRAGMENT_CHANNELS, t = i / 4 % 4;
    const unsigned channel = 4 * d->fragments * t + 4 * f + i % 4;
    return gaac_bf16_to_float(
        d->step.tiles.tile[token / GAAC_BLOCK_TOKENS][gaac_k_index(d->fragments, token % GAAC_BLOCK_TOKENS, channel)]);
}

static double score_size(const score_data *d, unsigned row, unsigned token)
{
    double size = 0;
    for (unsigned i = 0; i < d->channels; i++)
        size += fabs((double)d->q[row * d->q_stride + i] * k_value(d, token, i));
    return size;
}

static void compare_scores(harness *h, const score_data *d, const float *before, const float *expected)
{
    for (unsigned i = 0; i < d->rows * STEP; i++) {
        /* Each side rounds once a product and once for what was there. */
        const double size = score_size(d, i / STEP, i % STEP) + fabs((double)before[i]);
        if (!near(d->scores[i], expected[i], 2 * (double)(d->channels + 1) * U * size + STEP * 0x1p-126)) {
            harness_fail(h, "row %u, token %u: %g, expected %g", i / STEP, i % STEP, (double)d->scores[i],
                         (double)expected[i]);
            return;
        }
    }
}

static void check_score(harness *h, unsigned shape)
{
    score_data d;
    static float before[MAX_ROWS * STEP], expected[MAX_ROWS * STEP];
    float *one = harness_memory(h, STEP * sizeof *one);
    make_scores(h, shape, &d);
    const size_t bytes = (size_t)d.rows * STEP * sizeof(float);
    for (unsigned round = 0; round < 1 + h->rounds / 40; round++) {
        const bool accumulate = harness_below(h, 2) != 0;
        draw_step(h, d.fragments, &d.step);
        for (size_t i = 0; i < d.rows * d.q_stride; i++)
            d.q[i] = gaac_bf16_to_float(gaac_float_to_bf16(uniform(h)));
        for (unsigned i = 0; i < d.rows * STEP; i++)
            before[i] = accumulate ? uniform(h) : 0;
        memcpy(expected, before, bytes);
        memcpy(d.scores, before, bytes);
        h->definition->attention.score(d.fragments, &d.step.tiles, d.rows, d.q, d.q_stride, expected, accumulate);
        h->tables->attention.score(d.fragments, &d.step.tiles, d.rows, d.q, d.q_stride, d.scores, accumulate);
        compare_scores(h, &d, before, expected);
        harness_guards(h, "score");
        const unsigned row = harness_below(h, d.rows);
        memcpy(one, before + (size_t)row * STEP, STEP * sizeof *one);
        h->tables->attention.score(d.fragments, &d.step.tiles, 1, d.q + row * d.q_stride, d.q_stride, one, accumulate);
        for (unsigned i = 0; i < STEP; i++) {
            if (!same_bits(one[i], d.scores[(size_t)row * STEP + i]))
                harness_fail(h, "row %u, token %u: other bits when alone", row, i);
        }
        if (h->tables->attention.takes_lines && d.fragments % 4 == 0) {
            const gaac_step_tiles lines = in_lines(&d.step, GAAC_K, d.fragments);
            memcpy(expected, d.scores, bytes);
            memcpy(d.scores, before, bytes);
            h->tables->attention.score(d.fragments, &lines, d.rows, d.q, d.q_stride, d.scores, accumulate);
            for (unsigned i = 0; i < d.rows * STEP; i++) {
                if (!same_bits(expected[i], d.scores[i]))
                    harness_fail(h, "score %u: other bits from lines", i);
            }
            harness_guards(h, "score of lines");
        }
    }
}

/* ---- weights ---------------------------------------------------------------------------------- */

typedef struct weigh_data {
    step_data step;
    unsigned fragments, rows;
    size_t stride; /* of acc */
    float *weights, *factors, *acc;
} weigh_data;

static void make_weights(harness *h, unsigned shape, weigh_data *d)
{
    d->fragments = shape_fragments(shape);
    d->rows = shape_rows(shape);
    d->stride = (size_t)d->fragments * GAAC_FRAGMENT_CHANNELS + 16 * (shape % 3);
    make_step(h, d->fragments, &d->step);
    d->weights = harness_memory(h, (size_t)d->rows * STEP * sizeof(float));
    d->factors = harness_memory(h, d->rows * sizeof(float));
    d->acc = harness_memory(h, d->rows * d->stride * sizeof(float));
}

/* Channel of the unit that accumulator i of a row is. */
static unsigned acc_channel(const gaac_attention_kernels *kernels, unsigned fragments, unsigned i)
{
    const unsigned f = i / GAAC_FRAGMENT_CHANNELS, place = kernels->v_order[i % GAAC_FRAGMENT_CHANNELS];
    return 2 * fragments * (place >> 1) + 2 * f + (place & 1);
}

/* A row by channel, the definition's way: exact sum and the size of its terms. */
static void weigh_exactly(const weigh_data *d, unsigned row, unsigned channel, float before, double *sum, double *size)
{
    *sum = (double)before * d->factors[row];
    *size = fabs(*sum);
    for (unsigned token = 0; token < STEP; token++) {
        const uint16_t *tile = d->step.tiles.tile[token / GAAC_BLOCK_TOKENS];
        const float v = gaac_bf16_to_float(tile[gaac_v_index(d->fragments, token % GAAC_BLOCK_TOKENS, channel)]);
        const double term = (double)d->weights[(size_t)row * STEP + token] * v;
        *sum += term;
        *size += fabs(term);
    }
}

static void compare_weighed(harness *h, const weigh_data *d, const float *before)
{
    for (unsigned row = 0; row < d->rows; row++) {
        for (unsigned i = 0; i < d->stride; i++) {
            const size_t at = row * d->stride + i;
            double sum = before[at], size = 0;
            if (i < d->fragments * GAAC_FRAGMENT_CHANNELS)
                weigh_exactly(d, row, acc_channel(&h->tables->attention, d->fragments, i), before[at], &sum, &size);
            /* One rounding a term, one for the factor's product; subnormal numbers may count as zeros. */
            const double relative = (STEP + 2) * U + h->tables->attention.weight_error;
            if (!near(d->acc[at], (float)sum, relative * size + STEP * 0x1p-126)) {
                harness_fail(h, "row %u, accumulator %u: %g, expected %g", row, i, (double)d->acc[at], sum);
                return;
            }
        }
    }
}

/* 0, any number below 1, or one of few bits: kernels may split weights, and then a part is 0. */
static float draw_weight(harness *h)
{
    const float any = (uniform(h) + 1) / 2;
    const unsigned kind = harness_below(h, 4);
    return kind == 0 ? 0 : kind == 1 ? gaac_bf16_to_float(gaac_float_to_bf16(any)) : any;
}

static void check_weigh(harness *h, unsigned shape)
{
    weigh_data d;
    make_weights(h, shape, &d);
    static float before[MAX_ROWS * (MAX_CHANNELS + 32)];
    const size_t row_bytes = (size_t)d.fragments * GAAC_FRAGMENT_CHANNELS * sizeof(float);
    float *one = harness_memory(h, row_bytes);
    for (unsigned round = 0; round < 1 + h->rounds / 40; round++) {
        draw_step(h, d.fragments, &d.step);
        for (unsigned i = 0; i < d.rows * STEP; i++)
            d.weights[i] = draw_weight(h);
        for (unsigned i = 0; i < d.rows; i++)
            d.factors[i] = harness_below(h, 2) != 0 ? 1 : (uniform(h) + 1) / 2;
        for (size_t i = 0; i < d.rows * d.stride; i++)
            before[i] = d.acc[i] = uniform(h);
        h->tables->attention.weigh(d.fragments, &d.step.tiles, d.rows, d.weights, d.factors, d.acc, d.stride);
        compare_weighed(h, &d, before);
        harness_guards(h, "weigh");
        const unsigned row = harness_below(h, d.rows);
        memcpy(one, before + row * d.stride, row_bytes);
        h->tables->attention.weigh(d.fragments, &d.step.tiles, 1, d.weights + (size_t)row * STEP, d.factors + row, one,
                                   row_bytes / sizeof(float));
        for (size_t i = 0; i < row_bytes / sizeof(float); i++) {
            if (!same_bits(one[i], d.acc[row * d.stride + i]))
                harness_fail(h, "row %u, accumulator %zu: other bits when alone", row, i);
        }
        if (h->tables->attention.takes_lines && d.fragments % 4 == 0) {
            static float expected[MAX_ROWS * (MAX_CHANNELS + 32)];
            const gaac_step_tiles lines = in_lines(&d.step, GAAC_V, d.fragments);
            memcpy(expected, d.acc, d.rows * d.stride * sizeof(float));
            memcpy(d.acc, before, d.rows * d.stride * sizeof(float));
            h->tables->attention.weigh(d.fragments, &lines, d.rows, d.weights, d.factors, d.acc, d.stride);
            for (size_t i = 0; i < d.rows * d.stride; i++) {
                if (!same_bits(expected[i], d.acc[i]))
                    harness_fail(h, "accumulator %zu: other bits from lines", i);
            }
            harness_guards(h, "weigh of lines");
        }
    }
}

/* ---- softmax ---------------------------------------------------------------------------------- */

static void describe_softmax(unsigned shape, char *text, size_t bytes)
{
    snprintf(text, bytes, "%s%s", shape & 1 ? "bias" : "plain", shape & 2 ? "_cap" : "");
}

static uint64_t draw_visible(harness *h)
{
    switch (harness_below(h, 4)) {
    case 0:
        return UINT64_MAX;
    case 1:
        return harness_below(h, 4) == 0 ? 0 : UINT64_C(1) << harness_below(h, 64);
    case 2:
        return UINT64_MAX >> harness_below(h, 64);
    default:
        return harness_random(h);
    }
}

static void draw_softmax(harness *h, float *scores, uint16_t *bias, gaac_softmax_state *state)
{
    static const float special[] = {NAN, INFINITY, -INFINITY, 0};
    const float range = (float)(1u << harness_below(h, 10));
    const bool specials = harness_below(h, 4) == 0;
    for (unsigned i = 0; i < STEP; i++) {
        scores[i] = range * uniform(h);
        if (specials && harness_below(h, 20) == 0)
            scores[i] = special[harness_below(h, 4)];
        bias[i] = (uint16_t)(harness_below(h, 0x4c00) | harness_below(h, 2) << 15);
    }
    const bool fresh = harness_below(h, 3) == 0;
    *state = fresh ? (gaac_softmax_state){-INFINITY, 0}
                   : (gaac_softmax_state){range * uniform(h), 1 + 99 * (uniform(h) + 1)};
}

/* How far two sets' logits may be apart: their roundings of numbers up to `largest`, and tanh's error. */
static double logit_error(const float *scores, uint64_t visible, const gaac_logit_params *params, float max)
{
    double largest = isfinite(max) ? fabs((double)max) : 0;
    for (unsigned i = 0; i < STEP; i++) {
        const double s = fabs((double)scores[i] * params->scale);
        if (visible >> i & 1 && isfinite(s) && s > largest)
            largest = s;
    }
    return 8 * U * (largest + 32) + 0x1p-21 * params->softcap; /* biases are below 16, slopes 2 */
}

static void compare_softmax(harness *h, const float *expected, const float *actual, double relative)
{
    for (unsigned i = 0; i < STEP; i++) {
        /* Below the smallest normal number a set may flush to zero. */
        if (!near(actual[i], expected[i], relative * fabs((double)expected[i]) + 0x1p-125)) {
            harness_fail(h, "weight %u: %g, expected %g", i, (double)actual[i], (double)expected[i]);
            return;
        }
    }
}

static void check_softmax(harness *h, unsigned shape)
{
    float *scores = harness_memory(h, STEP * sizeof *scores), expected[STEP];
    uint16_t *bias = harness_memory(h, STEP * sizeof *bias);
    for (unsigned round = 0; round < 4 * h->rounds; round++) {
        gaac_softmax_state state, expected_state;
        const gaac_logit_params params = {0.1f + uniform(h) / 20, shape & 2 ? 30.0f : 0, 1 + uniform(h)};
        const uint64_t visible = draw_visible(h);
        draw_softmax(h, scores, bias, &state);
        expected_state = state;
        memcpy(expected, scores, sizeof expected);
        const double relative = logit_error(scores, visible, &params, state.max) + 0x1p-21;
        const uint16_t *used = shape & 1 ? bias : NULL;
        const float factor = h->definition->attention.softmax(expected, visible, used, &params, &expected_state);
        const float actual = h->tables->attention.softmax(scores, visible, used, &params, &state);
        compare_softmax(h, expected, scores, relative);
        if (!near(actual, factor, relative * fabs((double)factor) + 0x1p-125))
            harness_fail(h, "factor %g, expected %g", (double)actual, (double)factor);
        if (!near(state.max, expected_state.max, relative))
            harness_fail(h, "maximum %g, expected %g", (double)state.max, (double)expected_state.max);
        if (!near(state.sum, expected_state.sum, (relative + STEP * U) * fabs((double)expected_state.sum) + 0x1p-119))
            harness_fail(h, "sum %g, expected %g", (double)state.sum, (double)expected_state.sum);
        harness_guards(h, "softmax");
    }
}

/* ---- benchmarks ------------------------------------------------------------------------------- */

typedef struct bench_data {
    const gaac_attention_kernels *kernels;
    step_data steps[BENCH_STEPS];
    score_data score;
    weigh_data weigh;
    uint16_t *bias;
    gaac_logit_params params;
} bench_data;

static void run_score(void *context)
{
    const bench_data *b = context;
    for (unsigned i = 0; i < BENCH_STEPS; i++)
        b->kernels->score(b->score.fragments, &b->steps[i].tiles, b->score.rows, b->score.q, b->score.q_stride,
                          b->score.scores, false);
}

static void run_weigh(void *context)
{
    const bench_data *b = context;
    for (unsigned i = 0; i < BENCH_STEPS; i++)
        b->kernels->weigh(b->weigh.fragments, &b->steps[i].tiles, b->weigh.rows, b->weigh.weights, b->weigh.factors,
                          b->weigh.acc, b->weigh.stride);
}

static void run_softmax(void *context)
{
    const bench_data *b = context;
    gaac_softmax_state state = {-INFINITY, 0};
    for (unsigned i = 0; i < BENCH_STEPS; i++) /* scores become weights: as good as any */
        b->kernels->softmax(b->score.scores, UINT64_MAX, b->bias, &b->params, &state);
}

static void make_bench(harness *h, const harness_tables *tables, unsigned shape, bench_data *b)
{
    memset(b, 0, sizeof *b);
    b->kernels = &tables->attention;
    make_scores(h, shape, &b->score);
    make_weights(h, shape, &b->weigh);
    memset(b->score.q, 0, b->score.rows * b->score.q_stride * sizeof(float));
    memset(b->score.scores, 0, (size_t)b->score.rows * STEP * sizeof(float));
    memset(b->weigh.weights, 0, (size_t)b->weigh.rows * STEP * sizeof(float));
    memset(b->weigh.factors, 0, b->weigh.rows * sizeof(float));
    memset(b->weigh.acc, 0, b->weigh.rows * b->weigh.stride * sizeof(float));
    for (unsigned i = 0; i < BENCH_STEPS; i++) {
        make_step(h, b->score.fragments, &b->steps[i]);
        draw_step(h, b->score.fragments, &b->steps[i]);
    }
}

static void bench_score(harness *h, const harness_tables *tables, unsigned shape)
{
    bench_data b;
    make_bench(h, tables, shape, &b);
    harness_time(h, run_score, &b, BENCH_STEPS, (size_t)GAAC_STEP_TILES * b.score.fragments * GAAC_FRAGMENT_BYTES);
}

static void bench_weigh(harness *h, const harness_tables *tables, unsigned shape)
{
    bench_data b;
    make_bench(h, tables, shape, &b);
    harness_time(h, run_weigh, &b, BENCH_STEPS, (size_t)GAAC_STEP_TILES * b.weigh.fragments * GAAC_FRAGMENT_BYTES);
}

static void bench_softmax(harness *h, const harness_tables *tables, unsigned shape)
{
    bench_data b;
    make_bench(h, tables, 0, &b);
    uint16_t *bias = harness_memory(h, STEP * sizeof *bias);
    memset(bias, 0, STEP * sizeof *bias);
    b.bias = shape & 1 ? bias : NULL;
    b.params = (gaac_logit_params){0.1f, shape & 2 ? 30.0f : 0, 1};
    harness_time(h, run_softmax, &b, BENCH_STEPS, STEP * sizeof(uint16_t));
}

/* ---- the family ------------------------------------------------------------------------------- */

static harness_function *function_score(const harness_tables *t)
{
    return (harness_function *)t->attention.score;
}
static harness_function *function_weigh(const harness_tables *t)
{
    return (harness_function *)t->attention.weigh;
}
static harness_function *function_softmax(const harness_tables *t)
{
    return (harness_function *)t->attention.softmax;
}

static const harness_entry entries[] = {
    {"score", MAX_FRAGMENTS *ROW_KINDS, describe, function_score, check_score, bench_score},
    {"weigh", MAX_FRAGMENTS *ROW_KINDS, describe, function_weigh, check_weigh, bench_weigh},
    {"softmax", 4, describe_softmax, function_softmax, check_softmax, bench_softmax},
};

const harness_family harness_attention = {"attention", sizeof entries / sizeof *entries, entries};
