/* Calibrating a layer: windows and the capacity of a slot's pool. */
#include "base/base.h"
#include "codec/codec_internal.h"
#include "cpu/cpu.h"

enum { GAAC_MIN_CALIBRATION_BLOCKS = 4 };

/* Windows on the blocks [0, blocks) of a source. */
static gaac_status windows_on(const gaac_layout *layout, const gaac_block_source *source, size_t blocks,
                              gaac_scheme scheme, uint8_t *scratch, const gaac_allocator *hook, gaac_windows **windows,
                              gaac_error *error)
{
    gaac_histogram *histogram = NULL;
    gaac_status status = gaac_histogram_create(&histogram, &layout->shape, hook, error);
    if (status != GAAC_OK)
        return status;
    for (size_t block = 0; block < blocks; block++)
        gaac_histogram_add_raw_block(histogram, layout, source->get(source->context, block, scratch));
    status = gaac_windows_choose(windows, histogram, scheme, 0, hook, error);
    gaac_histogram_destroy(histogram);
    return status;
}

/* Pool bytes that the blocks from `first` on need under these windows. */
static gaac_status measure_needs(const gaac_layout *layout, const gaac_block_source *source, size_t first,
                                 const gaac_windows *windows, uint8_t *scratch, const gaac_allocator *hook,
                                 uint32_t *needs, gaac_error *error)
{
    const gaac_codec_config config = {layout->shape, GAAC_SCHEME_PRODUCTION, windows, 0, hook};
    gaac_codec *codec = NULL;
    gaac_status status = gaac_codec_create(&codec, &config, error);
    if (status != GAAC_OK)
        return status;
    const size_t slot_bytes = codec->slot_bytes, entry_bytes = (size_t)codec->entry_count * sizeof(uint32_t) + 1;
    uint8_t *slot = gaac_calloc(hook, slot_bytes);
    uint32_t *entries = gaac_calloc(hook, entry_bytes);
    if (slot == NULL || entries == NULL)
        status = gaac_fail(error, GAAC_ERROR_OUT_OF_MEMORY, "no memory to measure the capacity of a slot");
    for (size_t block = first; status == GAAC_OK && block < source->blocks; block++) {
        gaac_block_info info;
        status =
            gaac_encode_raw_block(codec, source->get(source->context, block, scratch), slot, entries, &info, error);
        needs[block - first] = info.pool_bytes;
    }
    gaac_free(hook, slot, slot_bytes);
    gaac_free(hook, entries, entry_bytes);
    gaac_codec_destroy(codec);
    return status;
}

static gaac_status choose_capacity(const gaac_layout *layout, const gaac_block_source *source, uint8_t *scratch,
                                   const gaac_allocator *hook, uint32_t *pool_bytes, gaac_error *error)
{
    const size_t first = source->blocks / 4, count = source->blocks - first;
    gaac_windows *early = NULL;
    gaac_status status = windows_on(layout, source, first, GAAC_SCHEME_PRODUCTION, scratch, hook, &early, error);
    uint32_t *needs = gaac_calloc(hook, count * sizeof *needs);
    if (status == GAAC_OK && needs == NULL)
        status = gaac_fail(error, GAAC_ERROR_OUT_OF_MEMORY, "no memory to measure the capacity of a slot");
    else if (status == GAAC_OK)
        status = measure_needs(layout, source, first, early, scratch, hook, needs, error);
    if (status == GAAC_OK)
        *pool_bytes = gaac_choose_pool_bytes(&layout->shape, needs, count);
    gaac_free(hook, needs, count * sizeof *needs);
    gaac_windows_destroy(early);
    return status;
}

gaac_status gaac_calibrate_blocks(const gaac_layout *layout, const gaac_block_source *source, gaac_scheme scheme,
                                  const gaac_allocator *allocator, gaac_windows **windows, uint32_t *pool_bytes,
                                  gaac_error *error)
{
    *windows = NULL;
    *pool_bytes = 0;
    if (source->blocks < GAAC_MIN_CALIBRATION_BLOCKS)
        return gaac_fail(error, GAAC_ERROR_INVALID_ARGUMENT,
                         "%zu tokens are too few to calibrate on; give at least %d, better 4096",
                         source->blocks * GAAC_BLOCK_TOKENS, GAAC_MIN_CALIBRATION_BLOCKS * GAAC_BLOCK_TOKENS);
    const gaac_allocator hook = gaac_allocator_or_default(allocator);
    uint8_t *scratch = gaac_calloc(&hook, layout->raw_bytes);
    if (scratch == NULL)
        return gaac_fail(error, GAAC_ERROR_OUT_OF_MEMORY, "no memory to calibrate");
    gaac_status status = GAAC_OK;
    if (scheme == GAAC_SCHEME_PRODUCTION)
        status = choose_capacity(layout, source, scratch, &hook, pool_bytes, error);
    if (status == GAAC_OK)
        status = windows_on(layout, source, source->blocks, scheme, scratch, &hook, windows, error);
    gaac_free(&hook, scratch, layout->raw_bytes);
    return status;
}

/* ---- on rows -------------------------------------------------------------------------------- */

typedef struct rows_source {
    const gaac_layout *layout;
    const gaac_kv_rows *rows;
} rows_source;

static const uint8_t *block_of_rows(void *context, size_t block, uint8_t *scratch)
{
    const rows_source *source = context;
    const gaac_kv_rows *rows = source->rows;
    const size_t token = block * GAAC_BLOCK_TOKENS;
    gaac_rows_to_raw_block(source->layout,
                           &(gaac_kv_rows){rows->k + token * rows->k_token_stride,
                                           rows->v + token * rows->v_token_stride, rows->k_token_stride,
                                           rows->k_head_stride, rows->v_token_stride, rows->v_head_stride},
                           scratch);
    return scratch;
}

gaac_status gaac_calibrate(const gaac_shape *shape, const gaac_kv_rows *rows, size_t tokens, gaac_scheme scheme,
                           const gaac_allocator *allocator, gaac_windows **windows, uint32_t *pool_bytes,
                           gaac_error *error)
{
    *windows = NULL;
    const gaac_status status = gaac_shape_check(shape, error);
    if (status != GAAC_OK)
        return status;
    gaac_layout layout;
    gaac_layout_init(&layout, shape);
    rows_source context = {&layout, rows};
    const gaac_block_source source = {block_of_rows, &context, tokens / GAAC_BLOCK_TOKENS};
    return gaac_calibrate_blocks(&layout, &source, scheme, allocator, windows, pool_bytes, error);
}
