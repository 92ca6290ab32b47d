/* Pools and huge pages: where units' pages went back one by one, the system must not fill the holes again. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cache/pool.h"

enum { UNIT_BYTES = 16 << 10, UNITS = 6400, ALL_BYTES = UNITS * UNIT_BYTES };

/* Bytes of the pool's first ALL_BYTES that the system may put huge pages behind, by what it says of our mappings. */
static size_t welcome_to_huge_pages(const gaac_pool *pool)
{
    const uintptr_t first = (uintptr_t)pool->base, end = first + ALL_BYTES;
    uintptr_t from = 0, to = 0;
    size_t bytes = 0;
    char line[512];
    FILE *file = fopen("/proc/self/smaps", "r");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        char *rest;
        const uintptr_t start = strtoul(line, &rest, 16);
        if (rest != line && *rest == '-') {
            from = start > first ? start : first;
            to = strtoul(rest + 1, NULL, 16);
            to = to < end ? to : end;
        } else if (strncmp(line, "VmFlags:", 8) == 0 && strstr(line, " hg") != NULL && from < to) {
            bytes += to - from;
        }
    }
    if (file != NULL)
        fclose(file);
    return bytes;
}

static void take_all(gaac_pool *pool)
{
    for (unsigned i = 0; i < UNITS; i++) {
        uint32_t unit;
        gaac_error error;
        assert_int_equal(gaac_pool_take(pool, GAAC_TAKE_NEW, &unit, &error), GAAC_OK);
        assert_true(unit < UNITS);
        *gaac_pool_unit(pool, unit) = 1;
    }
}

static void holes_stay_holes(void **state)
{
    (void)state;
    const gaac_allocator allocator = gaac_allocator_or_default(NULL);
    gaac_budget budget = {0};
    gaac_pool pool;
    gaac_error error;
    assert_int_equal(gaac_pool_init(&pool, UNIT_BYTES, 2 * UNITS, &budget, &allocator, &error), GAAC_OK);
    take_all(&pool);
    const size_t full = welcome_to_huge_pages(&pool);
    if (full == 0) { /* a system without them */
        gaac_pool_free(&pool);
        skip();
    }
    assert_true(full > ALL_BYTES / 2);

    for (uint32_t unit = 0; unit < UNITS; unit++)
        if (unit % 8 != 0)
            gaac_pool_give(&pool, unit);
    assert_true(budget.resident < ALL_BYTES / 4);
    assert_int_equal(welcome_to_huge_pages(&pool), 0);

    for (uint32_t unit = 0; unit < UNITS; unit += 8) /* empty: it starts anew */
        gaac_pool_give(&pool, unit);
    assert_int_equal(budget.used, 0);
    assert_int_equal(budget.resident, 0);
    assert_int_equal(welcome_to_huge_pages(&pool), full);
    take_all(&pool);
    assert_int_equal(welcome_to_huge_pages(&pool), full);
    gaac_pool_free(&pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(holes_stay_holes),
    };
    return cmocka_run_group_tests_name("pool", tests, NULL, NULL);
}
