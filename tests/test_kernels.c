/* Every kernel of every instruction set of this machine against the plain C definition, through the harness; and
 * the harness against kernels that are broken on purpose. */
#include "harness/harness.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void kernels_equal_the_definition(void **state)
{
    (void)state;
    const harness_options options = {.quiet = true};
    unsigned checked;
    if (!gaac_isa_supported(GAAC_ISA_AVX2) && !gaac_isa_supported(GAAC_ISA_NEON)) {
        print_message("skipped: this machine has plain C only\n");
        skip();
    }
    assert_int_equal(harness_run(&options, stdout, &checked), 0);
    assert_true(checked > 0);
}

/* ---- kernels with one fault each ---------------------------------------------------------------- */

static bool expand_forgets_a_correction(unsigned hv, unsigned parts, const uint8_t *variable, uint32_t bytes,
                                        gaac_unit_tags *tags)
{
    const bool ok = gaac_expand_tags_c(hv, parts, variable, bytes, tags);
    if (ok)
        tags->correction[parts == GAAC_HAS_K ? 0 : 1][hv - 1][31] &= ~UINT32_C(1);
    return ok;
}

static bool expand_accepts_one_byte_short(unsigned hv, unsigned parts, const uint8_t *variable, uint32_t bytes,
                                          gaac_unit_tags *tags)
{
    gaac_unit_tags longer;
    uint8_t copy[4096 + 1] = {0};
    memcpy(copy, variable, bytes);
    if (!gaac_expand_tags_c(hv, parts, copy, bytes + 1, &longer))
        return false;
    *tags = longer;
    return true;
}

static void decode_changes_one_bit(unsigned hv, const uint8_t *fixed, const gaac_unit_tags *tags, gaac_base_words bases,
                                   uint16_t *fragments, const gaac_ahead *ahead)
{
    gaac_decode_k_c(hv, fixed, tags, bases, fragments, ahead);
    fragments[1024 * hv - 1] ^= fragments[0] == 0x1234 ? 0 : 0x80;
}

static bool encode_writes_before_its_output(unsigned hv, unsigned parts, const uint16_t *k_fragments,
                                            const uint16_t *v_fragments, gaac_base_words k_bases,
                                            gaac_base_words v_bases, uint8_t *k_fixed, uint8_t *v_fixed,
                                            uint8_t *variable, uint32_t capacity, gaac_unit_info *info)
{
    const bool fits = gaac_encode_unit_c(hv, parts, k_fragments, v_fragments, k_bases, v_bases, k_fixed, v_fixed,
                                         variable, capacity, info);
    /* the guard in front of memory that ends at a page's end */
    if (capacity >= 64 && variable != NULL)
        variable[-1] ^= (uint8_t)(info->bytes == capacity);
    return fits;
}

static bool encode_writes_behind_the_unit(unsigned hv, unsigned parts, const uint16_t *k_fragments,
                                          const uint16_t *v_fragments, gaac_base_words k_bases, gaac_base_words v_bases,
                                          uint8_t *k_fixed, uint8_t *v_fixed, uint8_t *variable, uint32_t capacity,
                                          gaac_unit_info *info)
{
    const bool fits = gaac_encode_unit_c(hv, parts, k_fragments, v_fragments, k_bases, v_bases, k_fixed, v_fixed,
                                         variable, capacity, info);
    if (fits && capacity > info->bytes)
        variable[info->bytes] = 0;
    return fits;
}

static bool encode_wants_one_byte_more(unsigned hv, unsigned parts, const uint16_t *k_fragments,
                                       const uint16_t *v_fragments, gaac_base_words k_bases, gaac_base_words v_bases,
                                       uint8_t *k_fixed, uint8_t *v_fixed, uint8_t *variable, uint32_t capacity,
                                       gaac_unit_info *info)
{
    return gaac_encode_unit_c(hv, parts, k_fragments, v_fragments, k_bases, v_bases, k_fixed, v_fixed, variable,
                              capacity > 0 ? capacity - 1 : 0, info);
}

static void rows_touch_the_gap(unsigned fragments, const uint16_t *in, uint16_t *rows, size_t stride)
{
    gaac_v_fragments_to_rows_c(fragments, in, rows, stride);
    if (stride > (size_t)16 * fragments)
        rows[(size_t)16 * fragments] = 0;
}

static void rows_have_32_bit_offsets(unsigned fragments, const uint16_t *rows, size_t stride, uint16_t *out)
{
    for (unsigned token = 0; token < GAAC_BLOCK_TOKENS; token++)
        for (unsigned channel = 0; channel < 16 * fragments; channel++)
            out[gaac_k_index(fragments, token, channel)] = rows[token * (uint32_t)stride + channel];
}

/* How many (entry, shape) pairs of a set fail, with failures not shown. */
static unsigned failures_of(const harness_tables sets[2])
{
    const harness_options options = {.quiet = true, .rounds = 60};
    FILE *nowhere = fopen("/dev/null", "w");
    assert_non_null(nowhere);
    const unsigned failed = harness_run_sets(&options, sets, 2, nowhere, NULL);
    fclose(nowhere);
    return failed;
}

static void harness_finds_faults(void **state)
{
    (void)state;
    harness_tables good;
    good.isa = GAAC_ISA_C;
    gaac_cpu_tables(GAAC_ISA_C, &good.codec, &good.attention);
    harness_tables sets[2] = {good, good};
    assert_int_equal(failures_of(sets), 0);

    sets[1].codec.expand_tags = expand_forgets_a_correction;
    assert_int_equal(failures_of(sets), 6);
    sets[1].codec.expand_tags = expand_accepts_one_byte_short;
    assert_int_equal(failures_of(sets), 6);
    sets[1] = good;
    sets[1].codec.decode_part[GAAC_K] = decode_changes_one_bit;
    assert_int_equal(failures_of(sets), 4); /* decode_k and read_unit */
    sets[1] = good;
    sets[1].codec.encode_unit = encode_writes_before_its_output;
    assert_int_equal(failures_of(sets), 6);
    sets[1].codec.encode_unit = encode_writes_behind_the_unit;
    assert_int_equal(failures_of(sets), 6);
    sets[1].codec.encode_unit = encode_wants_one_byte_more;
    assert_int_equal(failures_of(sets), 6);
    sets[1] = good;
    sets[1].codec.fragments_to_rows[GAAC_V] = rows_touch_the_gap;
    assert_int_equal(failures_of(sets), 8 + 3); /* rows near and far */
    sets[1] = good;
    sets[1].codec.rows_to_fragments[GAAC_K] = rows_have_32_bit_offsets;
    assert_int_equal(failures_of(sets), 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kernels_equal_the_definition),
        cmocka_unit_test(harness_finds_faults),
    };
    return cmocka_run_group_tests_name("kernels", tests, NULL, NULL);
}
