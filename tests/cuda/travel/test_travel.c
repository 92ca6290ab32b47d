/* Slots from a GPU on the CPU: the blocks that a GPU encoded (golden/gpu-blocks.json) decode here to the values that
 * they were made from, and the CPU makes the same bytes of these. test_cuda_travel is the other direction. `test_travel
 * write FILE` makes blocks for that. */
#include "travel.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static travel_block blocks[TRAVEL_CASES];

static void slots_of_a_gpu_decode(void **state)
{
    (void)state;
    for (unsigned i = 0; i < TRAVEL_CASES; i++) {
        const travel_block *block = &blocks[i];
        gaac_codec *codec = travel_codec(block);
        const gaac_kv_rows rows = travel_rows(block);
        uint16_t *k = calloc(1, block->k.size), *v = calloc(1, block->v.size);
        const gaac_kv_rows_out out = {
            k, v, rows.k_token_stride, rows.k_head_stride, rows.v_token_stride, rows.v_head_stride};
        assert_int_equal(gaac_decode_block(codec, block->slot.bytes,
                                           (const uint32_t *)(const void *)block->entries.bytes, &out, NULL),
                         GAAC_OK);
        assert_memory_equal(k, block->k.bytes, block->k.size);
        assert_memory_equal(v, block->v.bytes, block->v.size);
        free(k);
        free(v);
        gaac_codec_destroy(codec);
    }
}

static void the_cpu_makes_the_same_slots(void **state)
{
    (void)state;
    for (unsigned i = 0; i < TRAVEL_CASES; i++) {
        const travel_block *block = &blocks[i];
        gaac_codec *codec = travel_codec(block);
        const gaac_kv_rows rows = travel_rows(block);
        uint8_t *slot = aligned_alloc(64, block->slot.size);
        uint32_t *entries = calloc(1, block->entries.size);
        gaac_block_info info;
        assert_int_equal(gaac_encode_block(codec, &rows, slot, entries, &info, NULL), GAAC_OK);
        assert_true(info.coded);
        assert_memory_equal(entries, block->entries.bytes, block->entries.size);
        assert_memory_equal(slot, block->slot.bytes, block->slot.size);
        free(slot);
        free(entries);
        gaac_codec_destroy(codec);
    }
}

static int write_blocks(const char *path)
{
    for (unsigned i = 0; i < TRAVEL_CASES; i++)
        blocks[i] = travel_make(i);
    travel_write(path, "CPU", blocks);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "write") == 0)
        return write_blocks(argv[2]);
    travel_read(argc == 2 ? argv[1] : GAAC_GPU_BLOCKS, blocks);
    const struct CMUnitTest tests[] = {cmocka_unit_test(slots_of_a_gpu_decode),
                                       cmocka_unit_test(the_cpu_makes_the_same_slots)};
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    for (unsigned i = 0; i < TRAVEL_CASES; i++)
        travel_free(&blocks[i]);
    return failed;
}
