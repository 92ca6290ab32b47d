// The library's writing side, and as much of CUDA's runtime as it and the tests' fixture call, on a CPU.
#include "emulation.h"

#include "cuda/encode.cu"
#include "cuda/host.cu"

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <sys/mman.h>
#include <ucontext.h>
#include <vector>

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace gaac
{
alignas(128) uint4 write_memory[(48 << 10) / sizeof(uint4)];
alignas(128) uint4 copy_memory[1];

gaac_status load_decode_kernels(const gaac_cuda *, gaac_error *)
{
    return GAAC_OK;
}
gaac_status load_calibration_kernels(const gaac_cuda *, gaac_error *)
{
    return GAAC_OK;
}
gaac_status load_attention_kernels(const gaac_cuda *, gaac_error *)
{
    return GAAC_OK;
}
gaac_status load_attention_reference_kernel(const gaac_cuda *, gaac_error *)
{
    return GAAC_OK;
}
} // namespace gaac

// ---- threads ----------------------------------------------------------------------------------

namespace emulation
{
namespace
{

constexpr size_t stack_bytes = 128 << 10;

struct barrier {
    unsigned arrived;
    std::vector<unsigned> waiting;
};

struct thread_block {
    std::vector<ucontext_t> threads;
    std::vector<uint8_t> stacks;
    std::vector<unsigned> ready;
    std::vector<barrier> warps;
    barrier all;
    std::vector<uint64_t> values; // that lanes exchange, two sets in turn
    std::vector<unsigned> turn;
    unsigned current, running;
    ucontext_t scheduler;
    std::function<void()> kernel;
    uint64_t random = 88172645463325252u;
};
thread_block now;

// Lets another thread run; this one goes on when somebody has made it ready.
void rest()
{
    const unsigned self = now.current;
    swapcontext(&now.threads[self], &now.scheduler);
    threadIdx.x = self;
}

void wait(barrier *at, unsigned threads)
{
    const unsigned self = now.current;
    if (++at->arrived < threads) {
        at->waiting.push_back(self);
        rest();
        return;
    }
    at->arrived = 0;
    now.ready.insert(now.ready.end(), at->waiting.begin(), at->waiting.end());
    at->waiting.clear();
    now.ready.push_back(self);
    rest();
}

void run_thread()
{
    now.kernel();
    now.running--;
}

void run_block(unsigned threads)
{
    now.threads.resize(threads);
    now.stacks.resize(threads * stack_bytes);
    now.warps.assign(threads / 32, barrier());
    now.all = barrier();
    now.values.assign(2 * threads, 0);
    now.turn.assign(threads, 0);
    now.running = threads;
    now.ready.clear();
    for (unsigned i = 0; i < threads; i++) {
        ucontext_t *thread = &now.threads[i];
        getcontext(thread);
        thread->uc_stack.ss_sp = now.stacks.data() + i * stack_bytes;
        thread->uc_stack.ss_size = stack_bytes;
        thread->uc_link = &now.scheduler;
        makecontext(thread, run_thread, 0);
        now.ready.push_back(i);
    }
    while (!now.ready.empty()) {
        now.random ^= now.random << 13;
        now.random ^= now.random >> 7;
        now.random ^= now.random << 17;
        std::swap(now.ready[now.random % now.ready.size()], now.ready.back());
        now.current = threadIdx.x = now.ready.back();
        now.ready.pop_back();
        swapcontext(&now.scheduler, &now.threads[now.current]);
    }
    if (now.running != 0) {
        fprintf(stderr, "%u threads wait for each other in vain\n", now.running);
        abort();
    }
}

} // namespace

void wait_for_warp()
{
    wait(&now.warps[now.current / 32], 32);
}

void wait_for_block()
{
    wait(&now.all, static_cast<unsigned>(now.threads.size()));
}

const uint64_t *exchange(uint64_t value)
{
    const unsigned self = now.current;
    uint64_t *set = now.values.data() + (now.turn[self]++ % 2) * now.threads.size();
    set[self] = value;
    wait_for_warp();
    return set + self / 32 * 32;
}

} // namespace emulation

// ---- CUDA's runtime ---------------------------------------------------------------------------

extern "C" {

cudaError_t cudaLaunchKernel(const void *function, dim3 grid, dim3 block, void **arguments, size_t shared_bytes,
                             cudaStream_t)
{
    using namespace gaac;
    blockDim = block;
    gridDim = grid;
    threadIdx = blockIdx = {0, 0, 0};
    if (function == reinterpret_cast<const void *>(write_blocks))
        emulation::now.kernel = [&] { write_blocks(*static_cast<write_call *>(arguments[0])); };
    else if (function == reinterpret_cast<const void *>(append_blocks))
        emulation::now.kernel = [&] { append_blocks(*static_cast<append_call *>(arguments[0])); };
    else if (function == reinterpret_cast<const void *>(copy_blocks))
        emulation::now.kernel = [&] { copy_blocks(*static_cast<copy_call *>(arguments[0])); };
    else
        emulation::now.kernel = [&] { release_blocks(*static_cast<copy_call *>(arguments[0])); };
    for (blockIdx.x = 0; blockIdx.x < grid.x; blockIdx.x++) {
        memset(write_memory, 0xcd, sizeof write_memory);
        memset(copy_memory, 0xcd, sizeof copy_memory);
        emulation::run_block(block.x);
        // What lies behind the shared memory that was asked for is untouched.
        const uint8_t *const memory = reinterpret_cast<const uint8_t *>(write_memory);
        for (size_t i = shared_bytes; i < sizeof write_memory; i++)
            if (memory[i] != 0xcd) {
                fprintf(stderr, "shared memory: byte %zu of %zu was written\n", i, shared_bytes);
                abort();
            }
    }
    return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *, const void *)
{
    return cudaSuccess;
}

// Device memory ends where the next page can't be touched.
static size_t pages_of(size_t bytes)
{
    return (bytes + 4095) / 4096 * 4096;
}
static std::vector<std::pair<void *, size_t>> allocations;

cudaError_t cudaMalloc(void **memory, size_t bytes)
{
    const size_t all = pages_of(bytes) + 4096;
    uint8_t *begin =
        static_cast<uint8_t *>(mmap(nullptr, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    mprotect(begin + all - 4096, 4096, PROT_NONE);
    *memory = begin + all - 4096 - (bytes + 127) / 128 * 128;
    allocations.emplace_back(*memory, bytes);
    return cudaSuccess;
}

cudaError_t cudaFree(void *memory)
{
    for (auto &found : allocations)
        if (found.first == memory && memory != nullptr) {
            const size_t all = pages_of(found.second) + 4096;
            munmap(static_cast<uint8_t *>(memory) + (found.second + 127) / 128 * 128 + 4096 - all, all);
            found.first = nullptr;
        }
    return cudaSuccess;
}

cudaError_t cudaMemset(void *memory, int value, size_t bytes)
{
    memset(memory, value, bytes);
    return cudaSuccess;
}
cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind)
{
    memcpy(to, from, bytes);
    return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int *count)
{
    *count = 1;
    return cudaSuccess;
}
cudaError_t cudaSetDevice(int)
{
    return cudaSuccess;
}
cudaError_t cudaGetDevice(int *device)
{
    *device = 0;
    return cudaSuccess;
}
// Few, so that thread blocks take several tasks, or many, so that appends are small ones.
static int multiprocessors(void)
{
    const char *said = getenv("GAAC_EMULATED_MULTIPROCESSORS");
    return said != nullptr ? atoi(said) : 2;
}
cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int)
{
    *value = attribute == cudaDevAttrComputeCapabilityMajor   ? 9
             : attribute == cudaDevAttrComputeCapabilityMinor ? 0
             : attribute == cudaDevAttrMultiProcessorCount    ? multiprocessors()
                                                              : 232448;
    return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize(void)
{
    return cudaSuccess;
}
cudaError_t cudaDeviceReset(void)
{
    return cudaSuccess;
}
cudaError_t cudaGetLastError(void)
{
    return cudaSuccess;
}
const char *cudaGetErrorString(cudaError_t)
{
    return "the emulation's";
}

} // extern "C"

// ---- what other files of the library do -------------------------------------------------------

// docs/format.md section 5: a word's bases, from those of its fields.
static uint32_t base_word(uint8_t a_lo, uint8_t a_hi, uint8_t b_lo, uint8_t b_hi)
{
    return static_cast<uint32_t>(a_lo) << 7 | static_cast<uint32_t>(b_lo) << 15 | static_cast<uint32_t>(a_hi) << 23 |
           b_hi >> 1;
}

gaac_status gaac_cuda_set_windows(const gaac_cuda *, const gaac_shape *shape, const uint8_t *table, void *windows,
                                  gaac_cuda_stream, gaac_error *)
{
    geometry sizes;
    make_geometry(&sizes, shape, 0);
    const uint8_t *v_table = table + static_cast<size_t>(shape->kv_heads) * shape->head_dim_k;
    for (uint32_t head = 0; head < shape->kv_heads; head++)
        for (uint32_t u = 0; u < sizes.layout.units; u++) {
            const gaac_unit &unit = sizes.layout.unit[u];
            uint8_t *at = static_cast<uint8_t *>(windows) + head * sizes.head_window_bytes;
            const uint8_t *k = table + head * shape->head_dim_k + unit.channel;
            const uint8_t *even = v_table + head * shape->head_dim_v + unit.channel;
            const uint8_t *odd = even + shape->kv_heads * shape->head_dim_v;
            for (unsigned i = 0; unit.has_k && i < 4u * 4 * unit.hv; i++) // channels 4i ..
                reinterpret_cast<uint32_t *>(at + sizes.window_k[u])[i] =
                    base_word(k[4 * i], k[4 * i + 1], k[4 * i + 2], k[4 * i + 3]);
            for (unsigned i = 0; unit.has_v && i < 8u * 4 * unit.hv; i++) // channels 2i, 2i + 1
                reinterpret_cast<uint32_t *>(at + sizes.window_v[u])[i] =
                    base_word(even[2 * i], odd[2 * i], even[2 * i + 1], odd[2 * i + 1]);
        }
    return GAAC_OK;
}
