/* A profile in words, as a table and as JSON. */
#ifndef GAAC_TOOL_PROFILE_TEXT_H
#define GAAC_TOOL_PROFILE_TEXT_H

#include <cjson/cJSON.h>

#include "gaac/profile.h"

/* Lowest and highest base b4 of a head's windows of 16, over its channels (and, for V, token parities). */
typedef struct base_range {
    unsigned least, most;
} base_range;
/* Production scheme only. head < shape.kv_heads. */
base_range profile_base_range(const gaac_windows *windows, const gaac_shape *shape, gaac_part part, uint32_t head);

/* Bytes of one block of a layer as the profile lays it out: slot, and the same as BF16. */
typedef struct slot_sizes {
    size_t slot, raw;
} slot_sizes;
slot_sizes profile_slot_sizes(const gaac_profile_layer *layer);

void profile_print_summary(const gaac_profile *profile); /* a few lines */
void profile_print_table(const gaac_profile *profile);   /* a line per layer, part and head */
cJSON *profile_to_json(const gaac_profile *profile);

#endif
