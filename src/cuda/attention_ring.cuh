// A warp's ring of stages in shared memory, into which tiles are copied ahead: by bulk copies and a barrier in shared
// memory from compute capability 9.0 on, by cp.async and its groups below.
#ifndef GAAC_CUDA_ATTENTION_RING_CUH
#define GAAC_CUDA_ATTENTION_RING_CUH

#include "cuda/ptx.cuh"

namespace gaac
{

#ifdef GAAC_CUDA_BULK_COPIES
template <int stages> struct ring_barriers {
    alignas(8) uint64_t barrier[stages];
};
template <int stages> struct ring {
    static_assert((stages & (stages - 1)) == 0, "the number of steps taken says stage and parity");
    const ring_barriers<stages> &memory;
    unsigned steps = 0;

    __device__ explicit ring(ring_barriers<stages> &barriers) : memory(barriers)
    {
        if (lane_id() == 0)
            for (int i = 0; i < stages; i++)
                barrier_init(barrier(i), 1);
        barrier_init_done();
        __syncwarp();
    }
    __device__ uint32_t barrier(unsigned i) const { return shared_address(&memory) + 8 * i; }
    __device__ unsigned stage() const { return steps % stages; }
    __device__ void wait() { barrier_wait(barrier(stage()), steps / stages & 1); }
    // Copies: announce all bytes, then make the pieces. Called by the whole warp.
    __device__ bool start(int to, uint32_t bytes)
    {
        if (!elect_one())
            return false;
        barrier_expect(barrier(to), bytes);
        return true;
    }
    __device__ void piece(int to, uint32_t shared, const uint8_t *from, uint32_t bytes)
    {
        bulk_copy(shared, from, bytes, barrier(to));
    }
    __device__ void finish() {}
    __device__ void written() { fence_before_bulk(); }
    // Waits for small copies (cp.async) that began many steps ago.
    __device__ void wait_small()
    {
        asm volatile("cp.async.wait_all;" ::: "memory");
        __syncwarp();
    }
};
#else
template <int stages> struct ring_barriers {
};
template <int stages> struct ring {
    unsigned steps = 0;

    __device__ explicit ring(ring_barriers<stages> &) {}
    __device__ unsigned stage() const { return steps % stages; }
    __device__ void wait()
    {
        async_wait<stages - 1>();
        __syncwarp();
    }
    __device__ bool start(int, uint32_t) { return true; }
    __device__ void piece(int, uint32_t shared, const uint8_t *from, uint32_t bytes)
    {
        for (uint32_t at = lane_id() * 16; at < bytes; at += 512)
            async_copy_16(shared + at, from + at);
    }
    __device__ void finish() { async_commit(); } // also when there was nothing to copy: waiting counts groups
    __device__ void written() {}
    __device__ void wait_small() { __syncwarp(); } // they are part of the next step's group, which has been waited for
};
#endif

} // namespace gaac

#endif
