/* Inputs of the codec's kernels, biased to the corners. */
#ifndef GAAC_TESTS_HARNESS_CODEC_INPUTS_H
#define GAAC_TESTS_HARNESS_CODEC_INPUTS_H

#include "harness.h"

enum {
    MAX_PART_ELEMENTS = 2048, /* of a part with hv 2 */
    MAX_PART_WORDS = 512,
};

/* What the elements of a part look like. */
typedef enum inputs_kind {
    INPUTS_TYPICAL = 0, /* as real KV: 12% of the groups 4-bit, 0.3 exceptions in 2048 elements */
    INPUTS_EDGES,       /* exponents at the edges of both windows */
    INPUTS_NARROW,      /* every group 3-bit */
    INPUTS_WIDE,        /* every group 4-bit */
    INPUTS_RANDOM,      /* any bits: almost all elements are exceptions */
    INPUTS_SPECIAL,     /* zeros, subnormals, infinities, NaNs */
    INPUTS_PATTERNS,    /* all 65,536 BF16 patterns, a part's elements a time */
    INPUTS_KINDS
} inputs_kind;

/* Base words of a part: hv * 256, b4 up to 240, even in the field B.hi. */
void inputs_bases(harness *h, unsigned hv, uint32_t *bases);

/* Elements of a part in fragment order, hv * 1024. `round` chooses the patterns of INPUTS_PATTERNS. */
void inputs_elements(harness *h, gaac_part part, unsigned hv, inputs_kind kind, unsigned round, const uint32_t *bases,
                     uint16_t *fragments);

/* A variable part of `bytes` bytes with random tags of any density. The tags' stored bytes may need less,
 * the same or more than that. */
void inputs_variable(harness *h, unsigned hv, unsigned parts, uint8_t *variable, uint32_t bytes);

/* The N bytes that the tags of a variable part announce. */
uint32_t inputs_stored(unsigned hv, const uint8_t *variable);

#endif
