// The bitmap of raw blocks, and what a block's entries say of it.
#ifndef GAAC_CUDA_RAW_BLOCKS_CUH
#define GAAC_CUDA_RAW_BLOCKS_CUH

#include "cuda/geometry.cuh"

namespace gaac
{

constexpr unsigned all_lanes = 0xffffffffu;
constexpr uint32_t no_raw_block = 0xffffffffu;

__device__ __forceinline__ uint32_t raw_block_of(uint32_t entry)
{
    return entry_is_raw(entry) ? entry & ~entry_raw : no_raw_block;
}

// Bits of word `index` of the bitmap that stand for raw blocks.
__device__ __forceinline__ uint32_t raw_word_mask(const cache_view &cache, uint32_t index)
{
    const uint32_t bits = cache.raw_blocks - 32 * index;
    return bits >= 32 ? 0xffffffffu : (1u << bits) - 1;
}

// Takes a free raw block: a whole warp calls, all lanes get its index, or no_raw_block when none was free. `block`
// spreads the places where warps begin to look. Ends after one look at every word: each turn of the inner loop takes a
// bit, or learns of one that another warp took.
__device__ __forceinline__ uint32_t take_raw_block(const cache_view &cache, uint32_t block)
{
    const unsigned lane = threadIdx.x & 31;
    const uint32_t words = (cache.raw_blocks + 31) / 32;
    uint32_t hash = block * 0x9e3779b1u;
    hash = (hash ^ hash >> 15) * 0x85ebca77u;
    hash ^= hash >> 13;
    const uint32_t start = hash % words, turn = hash >> 27;
    for (uint32_t looked = 0; looked < words; looked += 32) {
        const uint32_t index = (start + looked + lane) % words;
        uint32_t free = 0;
        if (looked + lane < words)
            free = ~*const_cast<const volatile uint32_t *>(&cache.raw_used[index]) & raw_word_mask(cache, index);
        for (unsigned found; (found = __ballot_sync(all_lanes, free != 0)) != 0;) {
            const unsigned leader = __ffs(found) - 1;
            uint32_t taken = no_raw_block;
            if (lane == leader) {
                const uint32_t turned = free >> turn | (turn == 0 ? 0 : free << (32 - turn));
                const unsigned bit = (__ffs(turned) - 1 + turn) % 32;
                const uint32_t before = atomicOr(&cache.raw_used[index], 1u << bit);
                if ((before >> bit & 1) == 0)
                    taken = 32 * index + bit;
                free &= ~before & ~(1u << bit);
            }
            taken = __shfl_sync(all_lanes, taken, leader);
            if (taken != no_raw_block)
                return taken;
        }
    }
    return no_raw_block;
}

// Gives a raw block back that nobody writes any more: one thread calls, after all reads of it.
__device__ __forceinline__ void return_raw_block(const cache_view &cache, uint32_t index)
{
    atomicAnd(&cache.raw_used[index / 32], ~(1u << index % 32));
}

// The same after all reads and writes of it.
__device__ __forceinline__ void give_raw_block_back(const cache_view &cache, uint32_t index)
{
    __threadfence();
    return_raw_block(cache, index);
}

__device__ __forceinline__ uint32_t *entries_of(const cache_view &cache, uint32_t block)
{
    return cache.entries + block * cache.entry_stride;
}

// Sets all entries of a block: the whole thread block calls.
__device__ __forceinline__ void set_entries(const cache_view &cache, uint32_t count, uint32_t block, uint32_t entry)
{
    uint32_t *entries = entries_of(cache, block);
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < count; i += blockDim.x)
        entries[i] = entry;
}

// Indices of what gaac_cuda_counters has.
enum counter { ENCODED, FALLBACKS, LOST, POOL_BYTES, EXCEPTIONS, STORED_N, REOPENED, COUNTERS };
static_assert(sizeof(gaac_cuda_counters) == (COUNTERS + 1) * sizeof(uint64_t), "counters are those of the API");

__device__ __forceinline__ void count(const cache_view &cache, unsigned counter, uint64_t value)
{
    if (value != 0)
        atomicAdd(reinterpret_cast<unsigned long long *>(cache.counters) + counter,
                  static_cast<unsigned long long>(value));
}

} // namespace gaac

#endif
