/* How much room a slot's pool gets. */
#include "base/base.h"
#include "codec/codec_internal.h"

uint32_t gaac_choose_pool_bytes(const gaac_shape *shape, const uint32_t *pool_needs, size_t count)
{
    gaac_layout layout;
    gaac_layout_init(&layout, shape);
    if (count == 0)
        return layout.max_pool_bytes;
    /* Every step of 64 bytes is tried: the expected bytes of a block are slot + raw * (share that does
     * not fit). A raw block also costs time and more traffic, hence the bound of 1% while any capacity
     * keeps it; past the largest capacity nothing can. */
    uint32_t best = layout.max_pool_bytes;
    double best_bytes = -1;
    for (uint32_t pool = GAAC_SLOT_ALIGN; pool <= layout.max_pool_bytes; pool += GAAC_SLOT_ALIGN) {
        size_t raw = 0;
        for (size_t i = 0; i < count; i++)
            raw += pool_needs[i] > pool;
        if ((double)raw > 0.01 * (double)count && pool < layout.max_pool_bytes)
            continue;
        const double share = (double)raw / (double)count;
        const double bytes = (1 - share) * (layout.fixed_bytes + pool) + share * layout.raw_bytes;
        if (best_bytes < 0 || bytes < best_bytes) {
            best_bytes = bytes;
            best = pool;
        }
    }
    return best;
}
