/* Between the files of the codec's checks. */
#ifndef GAAC_TESTS_HARNESS_CHECK_CODEC_H
#define GAAC_TESTS_HARNESS_CHECK_CODEC_H

#include "codec_inputs.h"

/* Shapes of kernels that work on a unit: hv 1, 2 with K, V, both. */
enum { UNIT_SHAPES = 6 };
static inline unsigned shape_hv(unsigned shape)
{
    return shape / 3 + 1;
}
static inline unsigned shape_parts(unsigned shape)
{
    return shape % 3 + 1;
}
static inline size_t shape_bf16_bytes(unsigned shape)
{
    return (size_t)shape_hv(shape) * MAX_PART_ELEMENTS * (shape_parts(shape) == 3 ? 2 : 1);
}
void describe_unit(unsigned shape, char *text, size_t bytes);

/* check_far.c: rows whose offsets pass 32 bits, for so many shapes. */
enum { FAR_SHAPES = 3 };
void describe_far(unsigned shape, char *text, size_t bytes);
void check_far_k_to_fragments(harness *h, unsigned shape);
void check_far_v_to_fragments(harness *h, unsigned shape);
void check_far_k_to_rows(harness *h, unsigned shape);
void check_far_v_to_rows(harness *h, unsigned shape);

/* check_encode.c */
void check_encode(harness *h, unsigned shape);
void bench_encode(harness *h, const harness_tables *tables, unsigned shape);

#endif
