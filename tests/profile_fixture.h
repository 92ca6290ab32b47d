/* Small profiles for tests. */
#ifndef GAAC_TESTS_PROFILE_FIXTURE_H
#define GAAC_TESTS_PROFILE_FIXTURE_H

#include "codec/profile_internal.h"
#include "gaac/profile.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Two layers with a gap between their numbers, K and V different in one. */
enum { FIXTURE_LAYERS = 2 };
static const gaac_shape fixture_shapes[FIXTURE_LAYERS] = {{1, 16, 16}, {2, 16, 32}};
static const uint32_t fixture_indices[FIXTURE_LAYERS] = {0, 3};
static const uint32_t fixture_pools[FIXTURE_LAYERS] = {128, 65536};

static const gaac_profile_info fixture_info = {
    .model_name = "A model",
    .model_hash = "sha256:00ff",
    .rope_base = 10000,
    .rope_scaling = "linear:4",
    .text = "a-text.txt",
    .tokens = 2048,
    .date = "2025-01-31T12:00:00Z",
};

/* Even bases up to 240 are in range for every scheme and channel. */
static inline gaac_windows *fixture_windows(const gaac_shape *shape, gaac_scheme scheme)
{
    const size_t bytes = gaac_windows_table_bytes(shape, scheme);
    uint8_t *table = malloc(bytes);
    gaac_windows *windows;
    assert_non_null(table);
    for (size_t i = 0; i < bytes; i++)
        table[i] = (uint8_t)(i * 34 % 242);
    assert_int_equal(gaac_windows_from_table(&windows, shape, scheme, table, bytes, NULL, NULL), GAAC_OK);
    free(table);
    return windows;
}

/* GAAC_OK and a profile, or the first failure and NULL. */
static inline gaac_status fixture_make(gaac_profile **profile, const gaac_profile_info *info,
                                       const gaac_allocator *allocator)
{
    gaac_status status = gaac_profile_create(profile, info, allocator, NULL);
    for (unsigned i = 0; i < FIXTURE_LAYERS && status == GAAC_OK; i++) {
        gaac_windows *windows = fixture_windows(&fixture_shapes[i], info->scheme);
        const gaac_profile_layer layer = {fixture_shapes[i], windows, fixture_pools[i], fixture_indices[i]};
        status = gaac_profile_add_layer(*profile, &layer, NULL);
        gaac_windows_destroy(windows);
    }
    if (status != GAAC_OK) {
        gaac_profile_destroy(*profile);
        *profile = NULL;
    }
    return status;
}

/* The fixture as a file's bytes, from malloc. */
static inline uint8_t *fixture_bytes(const gaac_profile_info *info, size_t *size)
{
    gaac_profile *profile;
    uint8_t *bytes;
    assert_int_equal(fixture_make(&profile, info, NULL), GAAC_OK);
    assert_int_equal(gaac_profile_serialize(profile, &bytes, size, NULL), GAAC_OK);
    gaac_profile_destroy(profile);
    return bytes;
}

#endif
