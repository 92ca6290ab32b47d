/* Golden blocks: JSON files in tests/format/golden that pin the format's bytes. */
#ifndef GAAC_TESTS_GOLDEN_H
#define GAAC_TESTS_GOLDEN_H

#include "random_kv.h"

#include "gaac/codec.h"

/* The cases. Each is a shape and how its values are drawn; the seed is the case's number + 1. */
typedef struct golden_case {
    const char *name;
    gaac_shape shape;
    random_kind kind;
} golden_case;

static const golden_case golden_cases[] = {
    {"d64", {1, 64, 64}, RANDOM_KV},
    {"d128-two-heads", {2, 128, 128}, RANDOM_KV},
    {"d128-exceptions", {1, 128, 128}, RANDOM_OUTLIERS},
    {"d112-remainder", {1, 112, 112}, RANDOM_KV},
    {"k64-v128", {1, 64, 128}, RANDOM_OUTLIERS},
};
enum { GOLDEN_CASES = sizeof golden_cases / sizeof golden_cases[0] };

#endif
