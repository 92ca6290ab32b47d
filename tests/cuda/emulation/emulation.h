// CUDA's kernels on a CPU, so that their logic is tested where no GPU is: each thread of a thread block is a coroutine,
// and where threads wait for each other, which of them runs next is random. One thread block runs at a time. Included
// before the kernels, in place of what nvcc knows by itself.
#ifndef GAAC_TESTS_CUDA_EMULATION_H
#define GAAC_TESTS_CUDA_EMULATION_H

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#ifndef __CUDACC__
#define __CUDACC__ // after CUDA's headers, for ours
#endif
#undef __forceinline__
#define __forceinline__ inline
#undef __noinline__
#define __noinline__
#undef __launch_bounds__
#define __launch_bounds__(...)
#undef __grid_constant__
#define __grid_constant__
#undef __shared__
#define __shared__

extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;

using std::max;
using std::min;

namespace emulation
{
// Waits for the warp, or the thread block.
void wait_for_warp();
void wait_for_block();
// The values that the lanes of the warp gave.
const uint64_t *exchange(uint64_t value);
} // namespace emulation

inline void __syncthreads()
{
    emulation::wait_for_block();
}
inline void __syncwarp(unsigned = 0xffffffffu)
{
    emulation::wait_for_warp();
}
inline void __threadfence() {}

inline uint32_t __shfl_sync(unsigned, uint32_t value, unsigned lane)
{
    return static_cast<uint32_t>(emulation::exchange(value)[lane & 31]);
}
inline uint32_t __shfl_up_sync(unsigned, uint32_t value, unsigned delta)
{
    const unsigned lane = threadIdx.x & 31;
    const uint64_t *all = emulation::exchange(value);
    return static_cast<uint32_t>(lane >= delta ? all[lane - delta] : all[lane]);
}
inline unsigned __ballot_sync(unsigned, bool value)
{
    const uint64_t *all = emulation::exchange(value);
    unsigned bits = 0;
    for (unsigned i = 0; i < 32; i++)
        bits |= static_cast<unsigned>(all[i]) << i;
    return bits;
}
inline bool __any_sync(unsigned mask, bool value)
{
    return __ballot_sync(mask, value) != 0;
}
inline bool __all_sync(unsigned mask, bool value)
{
    return __ballot_sync(mask, value) == 0xffffffffu;
}
inline uint32_t __reduce_add_sync(unsigned, uint32_t value)
{
    const uint64_t *all = emulation::exchange(value);
    uint64_t sum = 0;
    for (unsigned i = 0; i < 32; i++)
        sum += all[i];
    return static_cast<uint32_t>(sum);
}

inline int __popc(uint32_t x)
{
    return __builtin_popcount(x);
}
inline int __popcll(unsigned long long x)
{
    return __builtin_popcountll(x);
}
inline int __ffs(uint32_t x)
{
    return __builtin_ffs(static_cast<int>(x));
}
inline uint32_t __byte_perm(uint32_t a, uint32_t b, uint32_t selector)
{
    const uint64_t both = a | static_cast<uint64_t>(b) << 32;
    uint32_t out = 0;
    for (unsigned i = 0; i < 4; i++)
        out |= static_cast<uint32_t>(both >> 8 * (selector >> 4 * i & 7) & 0xff) << 8 * i;
    return out;
}

template <typename T> inline T atomicOr(T *at, T bits)
{
    const T before = *at;
    *at |= bits;
    return before;
}
template <typename T> inline T atomicAnd(T *at, T bits)
{
    const T before = *at;
    *at &= bits;
    return before;
}
template <typename T> inline T atomicAdd(T *at, T value)
{
    const T before = *at;
    *at += value;
    return before;
}

#endif
