/* Exponent windows: choosing them on a histogram, and their table. */
#include "base/base.h"
#include "codec/codec_internal.h"

#include <string.h>

/* Elements outside both windows cost an indexed exception and, in numbers, the whole block: 10 times an
 * element that merely needs the wide window (measured flat between 10 and 30; docs/format.md). */
static const double default_exception_weight = 10;

const char *gaac_scheme_name(gaac_scheme scheme)
{
    switch (scheme) {
    case GAAC_SCHEME_PRODUCTION:
        return "production";
    case GAAC_SCHEME_PAPER:
        return "paper";
    case GAAC_SCHEME_PAPER_4_RAW:
        return "paper-4-raw";
    case GAAC_SCHEME_PAPER_2_3_4_RAW:
        return "paper-2-3-4-raw";
    }
    return NULL;
}

/* Tables of K and V bases that a scheme has: V's production bases come twice, one for each parity. */
static size_t table_copies(gaac_scheme scheme, gaac_part part)
{
    switch (scheme) {
    case GAAC_SCHEME_PRODUCTION:
        return part == GAAC_K ? 1 : 2;
    case GAAC_SCHEME_PAPER:
        return 2;
    case GAAC_SCHEME_PAPER_4_RAW:
        return 1;
    case GAAC_SCHEME_PAPER_2_3_4_RAW:
        return 3;
    }
    return 0;
}

size_t gaac_windows_table_bytes(const gaac_shape *shape, gaac_scheme scheme)
{
    return shape->kv_heads *
           (table_copies(scheme, GAAC_K) * shape->head_dim_k + table_copies(scheme, GAAC_V) * shape->head_dim_v);
}

static gaac_windows *allocate_windows(const gaac_shape *shape, gaac_scheme scheme, const gaac_allocator *allocator)
{
    const gaac_allocator hook = gaac_allocator_or_default(allocator);
    const size_t bytes = gaac_windows_table_bytes(shape, scheme);
    gaac_windows *windows = gaac_calloc(&hook, sizeof *windows + bytes);
    if (windows != NULL) {
        windows->allocator = hook;
        windows->shape = *shape;
        windows->scheme = scheme;
        windows->bytes = bytes;
    }
    return windows;
}

void gaac_windows_destroy(gaac_windows *windows)
{
    if (windows != NULL) {
        const gaac_allocator hook = windows->allocator;
        gaac_free(&hook, windows, sizeof *windows + windows->bytes);
    }
}

const uint8_t *gaac_windows_table(const gaac_windows *windows, size_t *bytes)
{
    if (bytes != NULL)
        *bytes = windows->bytes;
    return windows->table;
}

/* The base that costs the least. wraps: the field round bit 31, whose base is even and whose window of 8
 * lies one lower. */
static uint8_t choose_base(const uint64_t counts[256], bool wraps, double weight)
{
    uint64_t before[257] = {0}; /* running sums: elements below an exponent */
    for (unsigned i = 0; i < 256; i++)
        before[i + 1] = before[i] + counts[i];
    const unsigned shift = gaac_window_shift(wraps), step = wraps ? 2 : 1;
    double best_cost = -1;
    unsigned best = 0;
    for (unsigned base = 0; base <= GAAC_WINDOW_MAX_BASE; base += step) {
        const uint64_t wide = before[base + 16] - before[base];
        const uint64_t narrow = before[base + shift + 8] - before[base + shift];
        const double cost = (double)(wide - narrow) + weight * (double)(before[256] - wide);
        if (best_cost < 0 || cost < best_cost) {
            best_cost = cost;
            best = base;
        }
    }
    return (uint8_t)best;
}

static void widen(const uint32_t *counts, uint64_t out[256])
{
    for (unsigned i = 0; i < 256; i++)
        out[i] += counts[i];
}

static void choose_production(const gaac_histogram *histogram, gaac_windows *windows, double weight)
{
    gaac_histogram *h = (gaac_histogram *)(uintptr_t)histogram; /* read only */
    const uint32_t heads = h->shape.kv_heads, k_dim = h->shape.head_dim_k, v_dim = h->shape.head_dim_v;
    uint8_t *k_table = windows->table, *v_table = k_table + (size_t)heads * k_dim;
    for (uint32_t head = 0; head < heads; head++) {
        for (uint32_t channel = 0; channel < k_dim; channel++) {
            uint64_t counts[256] = {0};
            widen(gaac_histogram_k(h, head, channel), counts);
            k_table[(size_t)head * k_dim + channel] = choose_base(counts, gaac_k_wraps(channel), weight);
        }
        for (uint32_t channel = 0; channel < v_dim; channel++)
            for (uint32_t parity = 0; parity < 2; parity++) {
                /* Even and odd tokens differ by chance only: both count, whichever base is chosen. */
                uint64_t counts[256] = {0};
                widen(gaac_histogram_v(h, 0, head, channel), counts);
                widen(gaac_histogram_v(h, 1, head, channel), counts);
                v_table[((size_t)parity * heads + head) * v_dim + channel] =
                    choose_base(counts, gaac_v_wraps(parity, channel), weight);
            }
    }
}

gaac_status gaac_windows_choose(gaac_windows **windows, const gaac_histogram *histogram, gaac_scheme scheme,
                                double exception_weight, const gaac_allocator *allocator, gaac_error *error)
{
    *windows = NULL;
    if (gaac_scheme_name(scheme) == NULL)
        return gaac_fail(error, GAAC_ERROR_INVALID_ARGUMENT, "there is no scheme %d", (int)scheme);
    if (!(exception_weight >= 0))
        return gaac_fail(error, GAAC_ERROR_INVALID_ARGUMENT, "the exception weight must not be negative");
    if (histogram->tokens == 0)
        return gaac_fail(error, GAAC_ERROR_INVALID_ARGUMENT, "the histogram is empty: count some tokens first");
    gaac_windows *made = allocate_windows(&histogram->shape, scheme, allocator);
    if (made == NULL)
        return gaac_fail(error, GAAC_ERROR_OUT_OF_MEMORY, "no memory for a table of windows");
    if (scheme == GAAC_SCHEME_PRODUCTION)
        choose_production(histogram, made, exception_weight > 0 ? exception_weight : default_exception_weight);
    else
        gaac_paper_choose_windows(histogram, made);
    *windows = made;
    return GAAC_OK;
}

static gaac_status check_production(const gaac_windows *windows, gaac_error *error)
{
    const uint32_t heads = windows->shape.kv_heads, k_dim = windows->shape.head_dim_k;
    const uint32_t v_dim = windows->shape.head_dim_v;
    const size_t k_bases = (size_t)heads * k_dim;
    for (size_t i = 0; i < windows->bytes; i++) {
        const bool wraps =
            i < k_bases ? gaac_k_wraps((unsigned)(i % k_dim))
                        : gaac_v_wraps((i - k_bases) / ((size_t)heads * v_dim) != 0, (unsigned)((i - k_bases) % v_dim));
        if (windows->table[i] > GAAC_WINDOW_MAX_BASE || (wraps && windows->table[i] % 2 != 0))
            return gaac_fail(error, GAAC_ERROR_CORRUPT, "window base %u at %zu of the table is out of range",
                             windows->table[i], i);
    }
    return GAAC_OK;
}

/* A window of 4, 8 or 16 exponents must end at 255. */
static gaac_status check_paper(const gaac_windows *windows, gaac_error *error)
{
    const size_t one = (size_t)windows->shape.kv_heads * (windows->shape.head_dim_k + windows->shape.head_dim_v);
    const size_t copies = windows->bytes / one;
    for (size_t i = 0; i < windows->bytes; i++) {
        const unsigned width = 16u >> (copies - 1 - i / one);
        if (windows->table[i] + width > 256)
            return gaac_fail(error, GAAC_ERROR_CORRUPT, "window base %u at %zu of the table is out of range",
                             windows->table[i], i);
    }
    return GAAC_OK;
}

gaac_status gaac_windows_from_table(gaac_windows **windows, const gaac_shape *shape, gaac_scheme scheme,
                                    const uint8_t *table, size_t bytes, const gaac_allocator *allocator,
                                    gaac_error *error)
{
    *windows = NULL;
    gaac_status status = gaac_shape_check(shape, error);
    if (status != GAAC_OK)
        return status;
    if (gaac_scheme_name(scheme) == NULL)
        return gaac_fail(error, GAAC_ERROR_INVALID_ARGUMENT, "there is no scheme %d", (int)scheme);
    if (bytes != gaac_windows_table_bytes(shape, scheme))
        return gaac_fail(error, GAAC_ERROR_CORRUPT, "a window table of this shape has %zu bytes, this one %zu",
                         gaac_windows_table_bytes(shape, scheme), bytes);
    gaac_windows *made = allocate_windows(shape, scheme, allocator);
    if (made == NULL)
        return gaac_fail(error, GAAC_ERROR_OUT_OF_MEMORY, "no memory for a table of windows");
    memcpy(made->table, table, bytes);
    status = scheme == GAAC_SCHEME_PRODUCTION ? check_production(made, error) : check_paper(made, error);
    if (status != GAAC_OK) {
        gaac_windows_destroy(made);
        return status;
    }
    *windows = made;
    return GAAC_OK;
}
