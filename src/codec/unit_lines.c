/* Line order: the plain C definition. */
#include "codec/unit.h"

static void fragments_to_lines(gaac_part part, unsigned fragments, const uint16_t *in, uint16_t *lines)
{
    for (unsigned f = 0; f < fragments; f++) {
        for (unsigned position = 0; position < GAAC_LANES; position++) {
            for (unsigned r = 0; r < 4; r++) {
                for (unsigned hi = 0; hi < 2; hi++)
                    lines[gaac_line_index(part, f, position, r, hi)] =
                        in[f * GAAC_FRAGMENT_ELEMENTS + position * 8 + r * 2 + hi];
            }
        }
    }
}

void gaac_k_fragments_to_lines_c(unsigned fragments, const uint16_t *in, uint16_t *lines)
{
    fragments_to_lines(GAAC_K, fragments, in, lines);
}

void gaac_v_fragments_to_lines_c(unsigned fragments, const uint16_t *in, uint16_t *lines)
{
    fragments_to_lines(GAAC_V, fragments, in, lines);
}

void gaac_decode_k_lines_c(unsigned hv, const uint8_t *fixed, const gaac_unit_tags *tags, gaac_base_words bases,
                           uint16_t *lines, const gaac_ahead *ahead)
{
    _Alignas(64) uint16_t fragments[GAAC_MAX_HV * GAAC_HALF_CHANNELS * GAAC_BLOCK_TOKENS];
    gaac_decode_k_c(hv, fixed, tags, bases, fragments, ahead);
    fragments_to_lines(GAAC_K, 4 * hv, fragments, lines);
}

void gaac_decode_v_lines_c(unsigned hv, const uint8_t *fixed, const gaac_unit_tags *tags, gaac_base_words bases,
                           uint16_t *lines, const gaac_ahead *ahead)
{
    _Alignas(64) uint16_t fragments[GAAC_MAX_HV * GAAC_HALF_CHANNELS * GAAC_BLOCK_TOKENS];
    gaac_decode_v_c(hv, fixed, tags, bases, fragments, ahead);
    fragments_to_lines(GAAC_V, 4 * hv, fragments, lines);
}
