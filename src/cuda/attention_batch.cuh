// Where a warp's next tiles are: physical blocks and their table entries, fetched ahead from device memory into shared
// memory, 32 tiles at a time, so that neither their latency nor registers for them burden the loop over tiles.
#ifndef GAAC_CUDA_ATTENTION_BATCH_CUH
#define GAAC_CUDA_ATTENTION_BATCH_CUH

#include "cuda/attention_params.cuh"

namespace gaac
{

// The entries of a block's units of one head.
template <int units> struct alignas(4 * units) entry_words {
    uint32_t unit[units];
};

constexpr unsigned batch_tiles = 32;

// A warp's memory: rings by tile number.
template <int units> struct tile_places {
    int32_t block[4 * batch_tiles];
    entry_words<units> entry[2 * batch_tiles];
};

// What the fetches need, the same for all warps of a segment but for the tile the warp begins with.
struct tile_source {
    const int32_t *table;    // block table, at the warp's first tile
    const uint32_t *entries; // of the head, in block 0
    uint64_t entry_stride;
    unsigned count; // the warp's tiles, more than 0
};

template <int units> class tile_batches
{
  public:
    __device__ explicit tile_batches(tile_places<units> &memory) : places(memory) {}

    __device__ int block(unsigned tile) const { return places.block[tile % (4 * batch_tiles)]; }
    __device__ entry_words<units> entry(unsigned tile) const { return places.entry[tile % (2 * batch_tiles)]; }

    // Tiles 0 to 31, at once; blocks of the 32 after them too.
    __device__ void begin(const tile_source &from)
    {
        const unsigned lane = lane_id();
        const int32_t first = from.table[min(lane, from.count - 1)];
        const int32_t second = from.table[min(lane + batch_tiles, from.count - 1)];
        const entry_words<units> loaded = *entry_of(from, first);
        places.block[lane] = first;
        places.block[lane + batch_tiles] = second;
        places.entry[lane] = loaded;
        __syncwarp();
    }
    // At tile `first`, a multiple of 32: starts to fetch what the next batch needs. The ring's wait_small must pass
    // before entries from first + 32 on are asked for.
    __device__ void fetch(const tile_source &from, unsigned first)
    {
        const unsigned next = first + batch_tiles + lane_id(), after = next + batch_tiles;
        if (next < from.count)
            async_copy_small<4 * units>(shared_address(&places.entry[next % (2 * batch_tiles)]),
                                        entry_of(from, block(next)));
        if (after < from.count)
            async_copy_small<4>(shared_address(&places.block[after % (4 * batch_tiles)]), from.table + after);
    }

  private:
    __device__ static const entry_words<units> *entry_of(const tile_source &from, int block)
    {
        return reinterpret_cast<const entry_words<units> *>(from.entries +
                                                            static_cast<uint64_t>(block) * from.entry_stride);
    }
    tile_places<units> &places;
};

} // namespace gaac

#endif
