/* Keys and values to measure with: drawn ones in the shape of a dump, and caches filled from a dump. */
#ifndef GAAC_TOOL_KV_SAMPLE_H
#define GAAC_TOOL_KV_SAMPLE_H

#include "gaac/gaac.h"
#include "kv_dump.h"

/* Draws a dump of one layer: each channel normal around zero with a scale of its own, as real keys and values
 * are nearly. Always the same for a shape (head_dim_k == head_dim_v). Released with kv_sample_release. */
void kv_sample_draw(kv_dump *sample, const gaac_shape *shape);
void kv_sample_release(kv_dump *sample);

/* `count` standard normal numbers, the same for a seed. */
void kv_sample_normal(float *numbers, size_t count, uint64_t seed);

/* Writes cells 0 .. tokens - 1 of every layer of the first sequence. A shorter dump is repeated; layers take turns. */
gaac_status kv_sample_fill(const kv_dump *sample, gaac_cache *cache, uint64_t tokens, gaac_error *error);

#endif
