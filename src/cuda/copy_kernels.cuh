// The kernels behind gaac_cuda_copy_blocks and gaac_cuda_release_blocks.
#ifndef GAAC_CUDA_COPY_KERNELS_CUH
#define GAAC_CUDA_COPY_KERNELS_CUH

#include "cuda/raw_blocks.cuh"

namespace gaac
{

constexpr unsigned copy_threads = 256;
constexpr unsigned release_threads = 32;

struct copy_call {
    cache_view cache;
    uint32_t entries; // of a block
    uint32_t fixed_bytes, raw_bytes;
    const int32_t *from, *to; // release: `from` alone
    uint32_t count;
};

__device__ __forceinline__ bool is_block(const copy_call &call, int32_t block)
{
    return block >= 0 && static_cast<uint32_t>(block) < call.cache.blocks;
}

__device__ __forceinline__ void copy_bytes(uint8_t *to, const uint8_t *from, uint32_t bytes)
{
    for (uint32_t i = threadIdx.x; i < bytes / 16; i += blockDim.x)
        reinterpret_cast<uint4 *>(to)[i] = reinterpret_cast<const uint4 *>(from)[i];
}

extern __shared__ uint4 copy_memory[]; // the index of a raw block just taken

// One thread block a pair.
__global__ void __launch_bounds__(copy_threads) copy_blocks(const __grid_constant__ copy_call call)
{
    const int32_t from = call.from[blockIdx.x], to = call.to[blockIdx.x];
    if (!is_block(call, from) || !is_block(call, to) || from == to)
        return;
    const cache_view &cache = call.cache;
    const uint32_t *source = entries_of(cache, from);
    uint32_t *target = entries_of(cache, to);
    const uint32_t state = source[0];
    const uint32_t raw = raw_block_of(state), held = raw_block_of(target[0]);
    if (raw != no_raw_block) {
        uint32_t taken = held;
        if (held == no_raw_block) {
            uint32_t *shared = reinterpret_cast<uint32_t *>(copy_memory);
            if (threadIdx.x < 32) {
                taken = take_raw_block(cache, static_cast<uint32_t>(to));
                if (threadIdx.x == 0)
                    *shared = taken;
            }
            __syncthreads();
            taken = *shared;
        }
        if (taken != no_raw_block)
            copy_bytes(cache.raw + static_cast<uint64_t>(taken) * call.raw_bytes,
                       cache.raw + static_cast<uint64_t>(raw) * call.raw_bytes, call.raw_bytes);
        else if (threadIdx.x == 0)
            count(cache, LOST, 1);
        set_entries(cache, call.entries, static_cast<uint32_t>(to), taken == no_raw_block ? 0 : entry_raw | taken);
        return;
    }
    if (!entry_is_empty(state))
        copy_bytes(cache.slots + static_cast<uint64_t>(to) * cache.slot_stride,
                   cache.slots + static_cast<uint64_t>(from) * cache.slot_stride, call.fixed_bytes + cache.pool_bytes);
    __syncthreads(); // all have read what `to` held
    for (uint32_t i = threadIdx.x; i < call.entries; i += blockDim.x)
        target[i] = source[i];
    if (threadIdx.x == 0 && held != no_raw_block)
        give_raw_block_back(cache, held);
}

// One warp a block.
__global__ void __launch_bounds__(release_threads) release_blocks(const __grid_constant__ copy_call call)
{
    const int32_t block = call.from[blockIdx.x];
    if (!is_block(call, block))
        return;
    const uint32_t raw = raw_block_of(*entries_of(call.cache, block));
    __syncwarp();
    set_entries(call.cache, call.entries, static_cast<uint32_t>(block), 0);
    if (threadIdx.x == 0 && raw != no_raw_block)
        give_raw_block_back(call.cache, raw);
}

} // namespace gaac

#endif
