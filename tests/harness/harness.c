/* The walk over families, entries, shapes and instruction sets. */
#include "harness_internal.h"

#include <stdarg.h>
#include <string.h>
#include <time.h>

static const harness_family *const families[] = {&harness_codec, &harness_attention};

enum {
    DEFAULT_ROUNDS = 400,
    FAILURES_SHOWN = 5,  /* of an (entry, shape, set) */
    BENCH_REPEATS = 5,   /* turns that the definition and the version under test take */
    BENCH_PASSES = 7,    /* timed stretches a turn: the fastest counts */
    STRETCH_NS = 1000000 /* at least: clock_gettime costs some 50 ns, an interrupt hits one stretch in ten */
};
#define DEFAULT_SEED UINT64_C(0x6761616300000001)

void harness_fail(harness *h, const char *format, ...)
{
    char message[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    if (h->failures++ < FAILURES_SHOWN)
        fprintf(h->out, "FAIL %s: %s (seed 0x%llx)\n", h->label, message, (unsigned long long)h->seed);
}

bool harness_equal(harness *h, const char *what, const void *expected, const void *actual, size_t bytes)
{
    const uint8_t *e = expected, *a = actual;
    if (memcmp(e, a, bytes) == 0)
        return true;
    size_t first = 0, different = 0;
    for (size_t i = bytes; i-- > 0;) {
        if (e[i] != a[i]) {
            first = i;
            different++;
        }
    }
    harness_fail(h, "%s: %zu of %zu bytes differ, first at %zu: 0x%02x, expected 0x%02x", what, different, bytes, first,
                 a[first], e[first]);
    return false;
}

static double now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return 1e9 * (double)time.tv_sec + (double)time.tv_nsec;
}

void harness_time(harness *h, void (*run)(void *context), void *context, unsigned calls, size_t bf16_bytes)
{
    run(context);
    for (unsigned pass = 0; pass < BENCH_PASSES; pass++) {
        const double start = now_ns();
        double elapsed = 0;
        unsigned runs = 0;
        while (elapsed < STRETCH_NS) {
            run(context);
            runs++;
            elapsed = now_ns() - start;
        }
        const double call = elapsed / runs / calls;
        if (h->best_ns == 0 || call < h->best_ns)
            h->best_ns = call;
    }
    h->call_bytes = bf16_bytes;
}

/* Whether the set brings its own version of the entry. */
static bool has_own(const harness_entry *entry, const harness_tables *tables)
{
    /* NULL: what the set has no use for */
    return entry->function(&tables[0]) != NULL && entry->function(&tables[0]) != entry->function(&tables[-1]);
}

static void bench_entry(harness *h, const harness_entry *entry, unsigned shape)
{
    double best[2] = {0, 0};
    const harness_tables *sides[2] = {h->definition, h->tables};
    for (unsigned repeat = 0; repeat < BENCH_REPEATS; repeat++) {
        for (unsigned side = 0; side < 2; side++) {
            h->best_ns = best[side];
            h->state = h->seed; /* the same data for both */
            entry->bench(h, sides[side], shape);
            best[side] = h->best_ns;
            harness_release_memory(h);
        }
    }
    fprintf(h->out, "time %-44s %9.1f ns %8.2f GB/s  c %9.1f ns  ratio %6.1f\n", h->label, best[1],
            (double)h->call_bytes / best[1], best[0], best[0] / best[1]);
}

/* Returns whether the entry failed. */
static bool run_entry(harness *h, const harness_options *options, const harness_entry *entry, unsigned shape)
{
    h->failures = 0;
    h->state = h->seed;
    entry->check(h, shape);
    harness_guards(h, "a call");
    harness_release_memory(h);
    if (h->failures > 0) {
        fprintf(h->out, "FAIL %s: %u failures\n", h->label, h->failures);
        return true;
    }
    if (!options->quiet)
        fprintf(h->out, "ok   %s\n", h->label);
    if (options->bench && entry->bench != NULL)
        bench_entry(h, entry, shape);
    fflush(h->out);
    return false;
}

/* Fills tables[] with the machine's sets, plain C first; returns their number. */
static unsigned list_tables(harness_tables *tables)
{
    unsigned count = 0;
    for (unsigned isa = 0; isa < GAAC_ISA_COUNT; isa++) {
        if (!gaac_isa_supported((gaac_isa)isa))
            continue;
        tables[count].isa = (gaac_isa)isa;
        gaac_cpu_tables((gaac_isa)isa, &tables[count].codec, &tables[count].attention);
        count++;
    }
    return count;
}

const char *volatile harness_running = "";

static unsigned run_set(harness *h, const harness_options *options, unsigned *checked)
{
    unsigned failed = 0;
    gaac_kernel_context before;
    if (h->tables->attention.enter != NULL)
        h->tables->attention.enter(&before);
    for (unsigned f = 0; f < sizeof families / sizeof families[0]; f++) {
        for (unsigned e = 0; e < families[f]->count; e++) {
            const harness_entry *entry = &families[f]->entries[e];
            if (!has_own(entry, h->tables))
                continue;
            for (unsigned shape = 0; shape < entry->shapes; shape++) {
                char name[64], label[160];
                entry->describe(shape, name, sizeof name);
                snprintf(label, sizeof label, "%s.%s/%s %s", families[f]->name, entry->name, name,
                         gaac_isa_name(h->tables->isa));
                if (options->filter != NULL && strstr(label, options->filter) == NULL)
                    continue;
                harness_running = h->label = label;
                failed += run_entry(h, options, entry, shape);
                ++*checked;
            }
        }
    }
    if (h->tables->attention.leave != NULL)
        h->tables->attention.leave(&before);
    harness_running = h->label = "";
    return failed;
}

unsigned harness_run_sets(const harness_options *options, const harness_tables *tables, unsigned sets, FILE *out,
                          unsigned *checked)
{
    unsigned failed = 0, total = 0;
    harness h = {
        .definition = &tables[0],
        .rounds = options->rounds > 0 ? options->rounds : DEFAULT_ROUNDS,
        .seed = options->seed != 0 ? options->seed : DEFAULT_SEED,
        .out = out,
        .label = "",
    };
    for (unsigned set = 1; set < sets; set++) {
        h.tables = &tables[set];
        failed += run_set(&h, options, &total);
    }
    if (checked != NULL)
        *checked = total;
    return failed;
}

unsigned harness_run(const harness_options *options, FILE *out, unsigned *checked)
{
    harness_tables tables[GAAC_ISA_COUNT];
    const unsigned sets = list_tables(tables);
    return harness_run_sets(options, tables, sets, out, checked);
}
