/* gaac_decode_part_fn (or _lines_) out of an inlined decode_part(..., hv, fixed, tags, bases, out, ahead), which is
 * compiled for both numbers of halves. The arguments behind the name come first in the call. */
#ifndef GAAC_CPU_DECODER_H
#define GAAC_CPU_DECODER_H

#define DECODER(name, ...)                                                                                             \
    static void name(unsigned hv, const uint8_t *fixed, const gaac_unit_tags *tags, gaac_base_words bases,             \
                     uint16_t *out, const gaac_ahead *ahead)                                                           \
    {                                                                                                                  \
        if (hv == 2)                                                                                                   \
            decode_part(__VA_ARGS__, 2, fixed, tags, bases, out, ahead);                                               \
        else                                                                                                           \
            decode_part(__VA_ARGS__, 1, fixed, tags, bases, out, ahead);                                               \
    }

#endif
