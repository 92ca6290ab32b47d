/* Moving a part of a unit between rows and fragment order (the definition), and the table of
 * definitions. */
#include "codec/unit.h"

void gaac_k_rows_to_fragments_c(unsigned fragments, const uint16_t *rows, size_t stride, uint16_t *out)
{
    for (unsigned token = 0; token < GAAC_BLOCK_TOKENS; token++)
        for (unsigned channel = 0; channel < 16 * fragments; channel++)
            out[gaac_k_index(fragments, token, channel)] = rows[token * stride + channel];
}

void gaac_v_rows_to_fragments_c(unsigned fragments, const uint16_t *rows, size_t stride, uint16_t *out)
{
    for (unsigned token = 0; token < GAAC_BLOCK_TOKENS; token++)
        for (unsigned channel = 0; channel < 16 * fragments; channel++)
            out[gaac_v_index(fragments, token, channel)] = rows[token * stride + channel];
}

void gaac_k_fragments_to_rows_c(unsigned fragments, const uint16_t *in, uint16_t *rows, size_t stride)
{
    for (unsigned token = 0; token < GAAC_BLOCK_TOKENS; token++)
        for (unsigned channel = 0; channel < 16 * fragments; channel++)
            rows[token * stride + channel] = in[gaac_k_index(fragments, token, channel)];
}

void gaac_v_fragments_to_rows_c(unsigned fragments, const uint16_t *in, uint16_t *rows, size_t stride)
{
    for (unsigned token = 0; token < GAAC_BLOCK_TOKENS; token++)
        for (unsigned channel = 0; channel < 16 * fragments; channel++)
            rows[token * stride + channel] = in[gaac_v_index(fragments, token, channel)];
}

void gaac_codec_kernels_init_c(gaac_codec_kernels *kernels)
{
    *kernels = (gaac_codec_kernels){
        .expand_tags = gaac_expand_tags_c,
        .decode_part = {gaac_decode_k_c, gaac_decode_v_c},
        .decode_lines = {gaac_decode_k_lines_c, gaac_decode_v_lines_c},
        .fragments_to_lines = {gaac_k_fragments_to_lines_c, gaac_v_fragments_to_lines_c},
        .encode_unit = gaac_encode_unit_c,
        .rows_to_fragments = {gaac_k_rows_to_fragments_c, gaac_v_rows_to_fragments_c},
        .fragments_to_rows = {gaac_k_fragments_to_rows_c, gaac_v_fragments_to_rows_c},
    };
}
