/* Check and benchmark of the encoder. */
#include "check_codec.h"

#include <string.h>

enum { MAX_CAPACITY = 4096 + 64, BENCH_UNITS = 32, FRESH = 0x77 };

/* A unit's inputs and one side's outputs; parts that the unit lacks are NULL. */
typedef struct unit {
    unsigned hv, parts;
    uint32_t *bases[2];
    uint16_t *fragments[2];
} unit;

typedef struct outputs {
    uint8_t *fixed[2];
    uint8_t *variable;
    gaac_unit_info info;
    bool fits;
} outputs;

static void encode(gaac_encode_unit_fn *function, const unit *u, uint32_t capacity, outputs *out)
{
    memset(&out->info, 0, sizeof out->info);
    out->fits = function(u->hv, u->parts, u->fragments[0], u->fragments[1], u->bases[0], u->bases[1], out->fixed[0],
                         out->fixed[1], out->variable, capacity, &out->info);
}

static void make_memory(harness *h, unsigned hv, unsigned parts, unit *u, outputs *out)
{
    *u = (unit){.hv = hv, .parts = parts};
    for (unsigned part = 0; part < 2; part++) {
        if ((parts >> part & 1) == 0) {
            out->fixed[part] = NULL;
            continue;
        }
        u->bases[part] = harness_memory(h, hv * MAX_PART_WORDS * 2);
        u->fragments[part] = harness_memory(h, (size_t)hv * MAX_PART_ELEMENTS);
        out->fixed[part] = harness_memory(h, (size_t)hv * GAAC_PART_FIXED_BYTES);
    }
    out->variable = harness_memory(h, MAX_CAPACITY);
}

static void draw_unit(harness *h, unit *u, unsigned round)
{
    /* mostly one kind for the whole unit, so that extremes meet; sometimes K and V differ */
    const bool mixed = harness_below(h, 4) == 0;
    inputs_kind kind = (inputs_kind)harness_below(h, INPUTS_KINDS);
    for (unsigned part = 0; part < 2; part++) {
        if ((u->parts >> part & 1) == 0)
            continue;
        inputs_bases(h, u->hv, u->bases[part]);
        inputs_elements(h, (gaac_part)part, u->hv, kind, round, u->bases[part], u->fragments[part]);
        if (mixed)
            kind = (inputs_kind)harness_below(h, INPUTS_KINDS);
    }
}

static uint32_t draw_capacity(harness *h, uint32_t needed)
{
    switch (harness_below(h, 6)) {
    case 0:
        return needed >= 16 && needed <= MAX_CAPACITY ? needed - 16 : 0;
    case 1:
        return needed - 1 < MAX_CAPACITY ? needed - 1 : 0;
    case 2:
        return 16 * harness_below(h, MAX_CAPACITY / 16);
    case 3:
        return harness_below(h, 3) == 0 ? 0 : MAX_CAPACITY;
    default:
        return needed <= MAX_CAPACITY ? needed : MAX_CAPACITY;
    }
}

static void compare(harness *h, const unit *u, const outputs *expected, const outputs *actual, uint32_t capacity)
{
    if (actual->fits != expected->fits)
        harness_fail(h, "capacity %u: returns %d, expected %d", capacity, actual->fits, expected->fits);
    harness_equal(h, "info", &expected->info, &actual->info, sizeof actual->info);
    if (!expected->fits || !actual->fits)
        return;
    for (unsigned part = 0; part < 2; part++)
        if ((u->parts >> part & 1) != 0)
            harness_equal(h, part == 0 ? "fixed part of K" : "fixed part of V", expected->fixed[part],
                          actual->fixed[part], (size_t)u->hv * GAAC_PART_FIXED_BYTES);
    /* what follows the unit in the pool belongs to others, capacity or not */
    harness_equal(h, "variable part", expected->variable, actual->variable, capacity);
}

void check_encode(harness *h, unsigned shape)
{
    unit u;
    outputs actual, expected;
    uint8_t fixed[2][GAAC_MAX_HV * GAAC_PART_FIXED_BYTES], variable[MAX_CAPACITY];
    make_memory(h, shape_hv(shape), shape_parts(shape), &u, &actual);
    expected = (outputs){.fixed = {fixed[0], fixed[1]}, .variable = variable};
    for (unsigned round = 0; round < h->rounds; round++) {
        draw_unit(h, &u, round);
        encode(h->definition->codec.encode_unit, &u, MAX_CAPACITY, &expected);
        const uint32_t capacity = draw_capacity(h, expected.info.bytes);
        actual.variable = harness_resize(h, actual.variable, capacity);
        memset(actual.variable, FRESH, capacity);
        memset(variable, FRESH, sizeof variable);
        encode(h->definition->codec.encode_unit, &u, capacity, &expected);
        encode(h->tables->codec.encode_unit, &u, capacity, &actual);
        compare(h, &u, &expected, &actual, capacity);
        harness_guards(h, "encode_unit");
    }
}

/* Typical units, encoded one after the other into the same place. */
typedef struct encode_bench {
    gaac_encode_unit_fn *function;
    unit units[BENCH_UNITS];
    outputs out;
} encode_bench;

static void run_encode(void *context)
{
    encode_bench *bench = context;
    for (unsigned i = 0; i < BENCH_UNITS; i++)
        encode(bench->function, &bench->units[i], MAX_CAPACITY, &bench->out);
}

void bench_encode(harness *h, const harness_tables *tables, unsigned shape)
{
    encode_bench bench = {.function = tables->codec.encode_unit};
    const unsigned hv = shape_hv(shape), parts = shape_parts(shape);
    for (unsigned i = 0; i < BENCH_UNITS; i++) {
        unit *u = &bench.units[i];
        make_memory(h, hv, parts, u, &bench.out);
        for (unsigned part = 0; part < 2; part++) {
            if ((parts >> part & 1) == 0)
                continue;
            inputs_bases(h, hv, u->bases[part]);
            inputs_elements(h, (gaac_part)part, hv, INPUTS_TYPICAL, 0, u->bases[part], u->fragments[part]);
        }
    }
    harness_time(h, run_encode, &bench, BENCH_UNITS, shape_bf16_bytes(shape));
}
