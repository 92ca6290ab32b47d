// The few PTX instructions that C++ has no name for. Each is one instruction (or the one loop that waiting needs).
#ifndef GAAC_CUDA_PTX_CUH
#define GAAC_CUDA_PTX_CUH

#include <cstdint>

namespace gaac
{

__device__ __forceinline__ unsigned lane_id()
{
    unsigned lane; // volatile: read again where it is needed, rather than held in a register over the loop over tiles
    asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
    return lane;
}

__device__ __forceinline__ unsigned thread_id()
{
    unsigned thread; // volatile, for the same reason
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread;
}
__device__ __forceinline__ unsigned block_id()
{
    unsigned block; // likewise
    asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(block));
    return block;
}

__device__ __forceinline__ uint32_t shared_address(const void *pointer)
{
    return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// ---- bits -----------------------------------------------------------------------------------------------------------

// a where mask, b elsewhere: one LOP3, which ptxas does not make of (a & m) | (b & ~m).
__device__ __forceinline__ uint32_t select_bits(uint32_t a, uint32_t b, uint32_t mask)
{
    uint32_t result;
    asm("lop3.b32 %0, %1, %2, %3, 0xE4;" : "=r"(result) : "r"(a), "r"(b), "r"(mask));
    return result;
}
__device__ __forceinline__ uint32_t permute_bytes(uint32_t a, uint32_t b, uint32_t selector)
{
    uint32_t result;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(selector));
    return result;
}
// a * b + c on the multiplier's pipe: an addition or a shift to the left there leaves the other pipe to LOP3 and PRMT.
// b must be unknown to the compiler, or it makes an addition of it again.
__device__ __forceinline__ uint32_t multiply_add(uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t result;
    asm("mad.lo.u32 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(c));
    return result;
}
__device__ __forceinline__ uint32_t multiply_high_add(uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t result;
    asm("mad.hi.u32 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(c));
    return result;
}

// ---- warp -----------------------------------------------------------------------------------------------------------

// One step of an inclusive prefix sum: adds the value of the lane `distance` below, where there is one.
__device__ __forceinline__ uint32_t scan_step(uint32_t value, int distance)
{
    asm("{\n"
        ".reg .pred p;\n"
        ".reg .u32 t;\n"
        "shfl.sync.up.b32 t|p, %0, %1, 0, 0xffffffff;\n"
        "@p add.u32 %0, %0, t;\n"
        "}"
        : "+r"(value)
        : "r"(distance));
    return value;
}

// ---- device memory --------------------------------------------------------------------------------------------------

__device__ __forceinline__ uint32_t add_acquire_release(uint32_t *counter, uint32_t value)
{
    uint32_t before;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;" : "=r"(before) : "l"(counter), "r"(value) : "memory");
    return before;
}

// ---- arithmetic -----------------------------------------------------------------------------------------------------

__device__ __forceinline__ float exp2_fast(float x)
{
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
}
__device__ __forceinline__ float tanh_fast(float x)
{
    // (e - 1) / (e + 1), e = 2^(2 x log2 e): tanh.approx has 11 bits only.
    const float e = exp2_fast(x * 2.885390082f);
    return x > 15.f ? 1.f : 1.f - __fdividef(2.f, e + 1.f);
}
// Rounds to BF16: low half a, high half b.
__device__ __forceinline__ uint32_t pack_bf16(float a, float b)
{
    uint32_t result;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(b), "f"(a));
    return result;
}
// Transposes an 8 x 8 matrix of 16-bit values held by a warp.
__device__ __forceinline__ uint32_t transpose_8x8(uint32_t x)
{
    uint32_t result;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(result) : "r"(x));
    return result;
}
// c += A (16 x 16 BF16, row) * B (16 x 8 BF16, column), F32 sums.
__device__ __forceinline__ void mma_16x8x16(float (&c)[4], const uint32_t *a, uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void mma_16x8x16(float (&c)[4], const uint32_t *a, uint2 b)
{
    mma_16x8x16(c, a, b.x, b.y);
}

// ---- copies from device memory to shared memory ---------------------------------------------------------------------

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900 && !defined(GAAC_CUDA_ASYNC_COPIES)
#define GAAC_CUDA_BULK_COPIES 1
#endif

#ifdef GAAC_CUDA_BULK_COPIES
__device__ __forceinline__ bool elect_one()
{
    uint32_t elected;
    asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p;\n}" : "=r"(elected));
    return elected != 0;
}
__device__ __forceinline__ void barrier_init(uint32_t barrier, unsigned count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
__device__ __forceinline__ void barrier_init_done()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void barrier_expect(uint32_t barrier, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t parity)
{
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "wait:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
                 "@p bra done;\n"
                 "bra wait;\n"
                 "done:\n"
                 "}" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}
// 16-byte aligned, a multiple of 16 bytes.
__device__ __forceinline__ void bulk_copy(uint32_t to, const void *from, uint32_t bytes, uint32_t barrier)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier)
                 : "memory");
}
// Orders ordinary reads and writes of shared memory before bulk copies into it.
__device__ __forceinline__ void fence_before_bulk()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
#endif

__device__ __forceinline__ void async_copy_16(uint32_t to, const void *from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
template <int bytes> __device__ __forceinline__ void async_copy_small(uint32_t to, const void *from)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to), "l"(from), "n"(bytes) : "memory");
}
__device__ __forceinline__ void async_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int pending> __device__ __forceinline__ void async_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

} // namespace gaac

#endif
