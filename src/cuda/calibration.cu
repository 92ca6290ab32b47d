// Windows: making them ready for kernels, counting exponents, choosing.
#include "cuda/host.cuh"
#include "cuda/pieces.cuh"
#include "cuda/unit_plain.cuh"
#include "cuda/window_words.cuh"

#include <cmath>

namespace gaac
{

constexpr unsigned calibration_threads = 256;

// ---- windows --------------------------------------------------------------------------------------------------------

struct set_windows_params {
    geometry sizes;
    const uint8_t *table;
    uint32_t *windows;
};

// A thread block a head, a thread a word.
__global__ void __launch_bounds__(calibration_threads) set_windows_kernel(const __grid_constant__ set_windows_params p)
{
    const uint32_t head = blockIdx.x, words = p.sizes.head_window_bytes / 4;
    for (uint32_t i = threadIdx.x; i < words; i += calibration_threads)
        p.windows[head * words + i] = window_word(p.sizes, p.table, head, i);
}

// ---- counting rows --------------------------------------------------------------------------------------------------

constexpr unsigned group_channels = 32; // that a thread block counts: a warp's lanes
constexpr uint32_t slice_tokens = 512;  // at least, of one parity; so many that clearing and adding up cost little

struct histogram_params {
    gaac_kv_rows rows;
    uint32_t heads, head_dim[2]; // [gaac_part]
    uint32_t groups[2];          // of channels of a head
    uint32_t tokens, slice;      // tokens of one parity that a thread block counts
    uint32_t *counts[2];         // [gaac_part]
};

__device__ __forceinline__ unsigned exponent_of(uint32_t bits)
{
    return bits >> 7 & 0xff;
}

// Counts tokens 2i + parity of a channel, i = begin, begin + warps, ... below end.
__device__ __forceinline__ void count_channel(const uint16_t *values, size_t token_stride, uint32_t parity,
                                              uint64_t begin, uint64_t end, uint32_t *bins)
{
    constexpr unsigned warps = calibration_threads / 32, at_once = 8; // loads in flight
    uint64_t i = begin;
    for (; i + (at_once - 1) * warps < end; i += at_once * warps) {
        unsigned exponents[at_once];
#pragma unroll
        for (unsigned n = 0; n < at_once; n++)
            exponents[n] = exponent_of(values[(2 * (i + n * warps) + parity) * token_stride]);
#pragma unroll
        for (unsigned n = 0; n < at_once; n++)
            atomicAdd(bins + exponents[n] * group_channels, 1u);
    }
    for (; i < end; i += warps)
        atomicAdd(bins + exponent_of(values[(2 * i + parity) * token_stride]) * group_channels, 1u);
}

// Thread block (x, y, z): a group of channels of K or V of a head, the tokens of parity y, slice z of them. K's two
// parities meet in one histogram.
__global__ void __launch_bounds__(calibration_threads) histogram_kernel(const __grid_constant__ histogram_params p)
{
    __shared__ uint32_t bins[256][group_channels]; // neighbouring lanes never share a bank, whatever they count
    uint32_t *flat = &bins[0][0];
    for (unsigned i = threadIdx.x; i < 256 * group_channels; i += calibration_threads)
        flat[i] = 0;
    const uint32_t k_groups = p.heads * p.groups[GAAC_K], parity = blockIdx.y;
    const unsigned part = blockIdx.x < k_groups ? GAAC_K : GAAC_V;
    const uint32_t group = part == GAAC_K ? blockIdx.x : blockIdx.x - k_groups;
    const uint32_t head = group / p.groups[part], head_dim = p.head_dim[part];
    const uint32_t channel = group % p.groups[part] * group_channels + threadIdx.x % 32;
    const size_t token_stride = part == GAAC_K ? p.rows.k_token_stride : p.rows.v_token_stride;
    const uint16_t *values =
        part == GAAC_K ? p.rows.k + head * p.rows.k_head_stride : p.rows.v + head * p.rows.v_head_stride;
    values += channel;
    const uint32_t of_parity = p.tokens / 2 + (parity < p.tokens % 2);
    const uint64_t begin = static_cast<uint64_t>(blockIdx.z) * p.slice;
    const uint64_t end = begin + p.slice < of_parity ? begin + p.slice : of_parity;
    __syncthreads();
    if (channel < head_dim)
        count_channel(values, token_stride, parity, begin + threadIdx.x / 32, end, &bins[0][threadIdx.x % 32]);
    __syncthreads();
    uint32_t *counts = p.counts[part];
    if (part == GAAC_V)
        counts += static_cast<size_t>(parity) * p.heads * head_dim * 256;
    // Here a warp's lanes are exponents, so that what it adds to lies side by side.
    for (unsigned i = threadIdx.x; i < 256 * group_channels; i += calibration_threads) {
        const unsigned exponent = i % 256, lane = i / 256;
        const uint32_t at = group % p.groups[part] * group_channels + lane, count = bins[exponent][lane];
        if (count != 0)
            atomicAdd(counts + (static_cast<size_t>(head) * head_dim + at) * 256 + exponent, count);
    }
}

// ---- counting blocks ------------------------------------------------------------------------------------------------

constexpr unsigned block_warps = 4;

struct block_histogram_params {
    cache_view cache;
    piece_list pieces;
    uint32_t head_dim[2];
    const int32_t *blocks;
    uint32_t count;
    uint32_t *counts[2];
};

// Adds the exponents of eight tokens of a channel, each different one once.
__device__ __forceinline__ void add_channel(const unsigned (&exponents)[8], uint32_t *counts)
{
#pragma unroll
    for (unsigned i = 0; i < 8; i++) {
        unsigned same = 0;
        bool first = true;
#pragma unroll
        for (unsigned j = 0; j < 8; j++) {
            same += exponents[j] == exponents[i];
            first = first && (j >= i || exponents[j] != exponents[i]);
        }
        if (first)
            atomicAdd(counts + exponents[i], same);
    }
}

// A warp a piece: its fragments to shared memory, then a lane a channel.
__global__ void __launch_bounds__(32 * block_warps)
    block_histogram_kernel(const __grid_constant__ block_histogram_params p)
{
    __shared__ uint4 memory[block_warps][GAAC_MAX_HV * 4 * GAAC_FRAGMENT_BYTES / 16];
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const uint32_t head_pieces = p.pieces.count, block_pieces = p.pieces.heads * head_pieces;
    const uint64_t all = static_cast<uint64_t>(p.count) * block_pieces;
    for (uint64_t work = static_cast<uint64_t>(blockIdx.x) * block_warps + warp; work < all;
         work += static_cast<uint64_t>(gridDim.x) * block_warps) {
        const uint32_t block = static_cast<uint32_t>(p.blocks[work / block_pieces]); // negative: above every index
        const uint32_t in_block = static_cast<uint32_t>(work % block_pieces), head = in_block / head_pieces;
        const piece &what = p.pieces.at[in_block % head_pieces];
        if (block >= p.cache.blocks)
            continue;
        const piece_bytes from = find_piece(p.cache, p.pieces, what, block, head);
        if (from.values == nullptr)
            continue;
        __syncwarp(); // the values before are read
        if (from.variable != nullptr) {
            decode_part_plain(what.hv, static_cast<gaac_part>(what.part), from.values, from.variable,
                              from.variable_bytes, from.exceptions, from.windows,
                              reinterpret_cast<uint8_t *>(memory[warp]));
        } else {
            for (unsigned i = lane; i < what.fragments * (GAAC_FRAGMENT_BYTES / 16u); i += 32)
                memory[warp][i] = reinterpret_cast<const uint4 *>(from.values)[i];
        }
        __syncwarp();
        const uint16_t *values = reinterpret_cast<const uint16_t *>(memory[warp]);
        const unsigned fragments = what.fragments;
        const size_t head_dim = p.head_dim[what.part], heads = p.pieces.heads;
        for (unsigned channel = lane; channel < fragments * GAAC_FRAGMENT_CHANNELS; channel += 32) {
            uint32_t *at = p.counts[what.part] + (head * head_dim + what.channel + channel) * 256;
#pragma unroll 1
            for (unsigned half = 0; half < 2; half++) { // K: of the tokens in their order. V: by parity
                unsigned exponents[8];
#pragma unroll
                for (unsigned i = 0; i < 8; i++)
                    exponents[i] =
                        exponent_of(values[what.part == GAAC_K ? gaac_k_index(fragments, 8 * half + i, channel)
                                                               : gaac_v_index(fragments, 2 * i + half, channel)]);
                add_channel(exponents, at + (what.part == GAAC_V ? half * heads * head_dim * 256 : 0));
            }
        }
    }
}

// ---- choosing -------------------------------------------------------------------------------------------------------

struct choose_params {
    uint32_t heads, head_dim_k, head_dim_v;
    const uint32_t *counts;
    double weight;
    uint8_t *table;
};

// A warp a base of the table. The same sums and the same order of operations as src/codec/windows.c: of bases that cost
// the same, the lowest.
__global__ void __launch_bounds__(calibration_threads) choose_windows_kernel(const __grid_constant__ choose_params p)
{
    __shared__ uint64_t sums[calibration_threads / 32][257]; // elements below an exponent
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    uint64_t *before = sums[warp];
    const uint32_t k_bases = p.heads * p.head_dim_k, v_bases = p.heads * p.head_dim_v;
    const uint32_t at = blockIdx.x * (calibration_threads / 32) + warp;
    if (at >= k_bases + 2 * v_bases)
        return;
    const bool is_v = at >= k_bases;
    const uint32_t v_at = is_v ? (at - k_bases) % v_bases : 0, parity = is_v ? (at - k_bases) / v_bases : 0;
    const uint32_t channel = is_v ? v_at % p.head_dim_v : at % p.head_dim_k;
    const bool wraps = is_v ? gaac_v_wraps(parity, channel) : gaac_k_wraps(channel);

    // Even and odd tokens of V differ by chance only: both count.
    const uint32_t *even = p.counts + (is_v ? k_bases + v_at : static_cast<size_t>(at)) * 256;
    const uint32_t *odd = even + static_cast<size_t>(v_bases) * 256;
    uint64_t count[8], sum = 0;
    for (unsigned i = 0; i < 8; i++) {
        count[i] = even[8 * lane + i];
        if (is_v)
            count[i] += odd[8 * lane + i];
        sum += count[i];
    }
    uint64_t below = sum;
    for (unsigned distance = 1; distance < 32; distance *= 2) {
        const uint64_t other = __shfl_up_sync(0xffffffffu, below, distance);
        below += lane >= distance ? other : 0;
    }
    below -= sum;
    for (unsigned i = 0; i < 8; i++) {
        before[8 * lane + i] = below;
        below += count[i];
    }
    if (lane == 31)
        before[256] = below;
    __syncwarp();

    const unsigned shift = gaac_window_shift(wraps), step = wraps ? 2 : 1;
    double best_cost = 0;
    unsigned best = 256;
    for (unsigned base = lane * step; base <= GAAC_WINDOW_MAX_BASE; base += 32 * step) {
        const uint64_t wide = before[base + 16] - before[base];
        const uint64_t narrow = before[base + shift + 8] - before[base + shift];
        // Rounded after each operation, as C does: no fused multiply-add.
        const double cost =
            __dadd_rn(static_cast<double>(wide - narrow), __dmul_rn(p.weight, static_cast<double>(before[256] - wide)));
        if (best == 256 || cost < best_cost) {
            best_cost = cost;
            best = base;
        }
    }
    for (unsigned distance = 16; distance > 0; distance /= 2) {
        const double cost = __shfl_xor_sync(0xffffffffu, best_cost, distance);
        const unsigned base = __shfl_xor_sync(0xffffffffu, best, distance);
        if (cost < best_cost || (cost == best_cost && base < best)) {
            best_cost = cost;
            best = base;
        }
    }
    if (lane == 0)
        p.table[at] = static_cast<uint8_t>(best);
}

// ---- host -----------------------------------------------------------------------------------------------------------

gaac_status load_calibration_kernels(const gaac_cuda *cuda, gaac_error *error)
{
    (void)cuda;
    cudaFuncAttributes attributes; // asking for them loads the kernel
    cudaError_t asked = cudaFuncGetAttributes(&attributes, set_windows_kernel);
    if (asked == cudaSuccess)
        asked = cudaFuncGetAttributes(&attributes, histogram_kernel);
    if (asked == cudaSuccess)
        asked = cudaFuncGetAttributes(&attributes, block_histogram_kernel);
    if (asked == cudaSuccess)
        asked = cudaFuncGetAttributes(&attributes, choose_windows_kernel);
    return check_cuda(asked, "loading the calibration kernels", error);
}

static gaac_status check_shape_and_device(const gaac_cuda *cuda, const gaac_shape *shape, gaac_error *error)
{
    const gaac_status status = check_device(cuda, error);
    return status != GAAC_OK ? status : gaac_shape_check(shape, error);
}

static gaac_status check_counts(const uint32_t *counts, gaac_error *error)
{
    if (counts == nullptr || reinterpret_cast<uintptr_t>(counts) % 4 != 0)
        return gaac_fail(error, GAAC_ERROR_INVALID_ARGUMENT, "counts must be device memory on a 4-byte boundary");
    return GAAC_OK;
}

static uint32_t *v_counts(const gaac_shape *shape, uint32_t *counts)
{
    return counts + static_cast<size_t>(shape->kv_heads) * shape->head_dim_k * 256;
}

} // namespace gaac

using namespace gaac;

gaac_status gaac_cuda_set_windows(const gaac_cuda *cuda, const gaac_shape *shape, const uint8_t *table, void *windows,
                                  gaac_cuda_stream stream, gaac_error *error)
{
    const gaac_status status = check_shape_and_device(cuda, shape, error);
    if (status != GAAC_OK)
        return status;
    if (table == nullptr)
        return gaac_fail(error, GAAC_ERROR_INVALID_ARGUMENT, "the table is NULL");
    if (windows == nullptr || reinterpret_cast<uintptr_t>(windows) % 128 != 0)
        return gaac_fail(error, GAAC_ERROR_INVALID_ARGUMENT, "windows must be device memory on a 128-byte boundary");
    set_windows_params p;
    make_geometry(&p.sizes, shape, 0);
    p.table = table;
    p.windows = static_cast<uint32_t *>(windows);
    set_windows_kernel<<<shape->kv_heads, calibration_threads, 0, stream>>>(p);
    return check_launch("gaac_cuda_set_windows", error);
}

gaac_status gaac_cuda_histogram_add(const gaac_cuda *cuda, const gaac_shape *shape, const gaac_kv_rows *rows,
                                    uint32_t tokens, uint32_t *counts, gaac_cuda_stream stream, gaac_error *error)
{
    gaac_status status = check_shape_and_device(cuda, shape, error);
    if (status == GAAC_OK)
        status = check_counts(counts, error);
    if (status != GAAC_OK || tokens == 0)
        return status;
    if (rows == nullptr || rows->k == nullptr || rows->v == nullptr || reinterpret_cast<uintptr_t>(rows->k) % 2 != 0 ||
        reinterpret_cast<uintptr_t>(rows->v) % 2 != 0)
        return gaac_fail(error, GAAC_ERROR_INVALID_ARGUMENT,
                         "rows.k and rows.v must be device memory on 2-byte boundaries");
    if (tokens > 0x80000000u)
        return gaac_fail(error, GAAC_ERROR_INVALID_ARGUMENT, "%u tokens: a histogram counts at most 2^31", tokens);
    histogram_params p;
    p.rows = *rows;
    p.heads = shape->kv_heads;
    p.head_dim[GAAC_K] = shape->head_dim_k;
    p.head_dim[GAAC_V] = shape->head_dim_v;
    for (unsigned part = 0; part < 2; part++)
        p.groups[part] = (p.head_dim[part] + group_channels - 1) / group_channels;
    p.tokens = tokens;
    p.counts[GAAC_K] = counts;
    p.counts[GAAC_V] = v_counts(shape, counts);
    // As many slices as keep the device busy, none so short that clearing and adding up would take most of the time.
    const uint32_t groups = p.heads * (p.groups[GAAC_K] + p.groups[GAAC_V]), of_parity = tokens / 2 + tokens % 2;
    const uint32_t wanted = (16 * static_cast<uint32_t>(cuda->multiprocessors) + groups - 1) / groups;
    uint32_t slices = (of_parity + slice_tokens - 1) / slice_tokens;
    slices = slices < wanted ? slices : wanted;
    p.slice = (of_parity + slices - 1) / slices;
    histogram_kernel<<<dim3(groups, 2, slices), calibration_threads, 0, stream>>>(p);
    return check_launch("gaac_cuda_histogram_add", error);
}

gaac_status gaac_cuda_histogram_add_blocks(const gaac_cuda *cuda, const gaac_cuda_cache *cache, const int32_t *blocks,
                                           uint32_t count, uint32_t *counts, gaac_cuda_stream stream, gaac_error *error)
{
    gaac_status status = check_device(cuda, error);
    if (status == GAAC_OK)
        status = check_cache(cache, error);
    if (status == GAAC_OK)
        status = check_counts(counts, error);
    if (status != GAAC_OK || count == 0)
        return status;
    if (blocks == nullptr)
        return gaac_fail(error, GAAC_ERROR_INVALID_ARGUMENT, "blocks is NULL: it lists the blocks to count");
    block_histogram_params p;
    geometry sizes;
    make_geometry(&sizes, &cache->shape, cache->pool_bytes);
    p.cache = view_of(cache);
    make_pieces(&p.pieces, &sizes, true, true);
    p.head_dim[GAAC_K] = cache->shape.head_dim_k;
    p.head_dim[GAAC_V] = cache->shape.head_dim_v;
    p.blocks = blocks;
    p.count = count;
    p.counts[GAAC_K] = counts;
    p.counts[GAAC_V] = v_counts(&cache->shape, counts);
    const uint64_t pieces = static_cast<uint64_t>(count) * p.pieces.heads * p.pieces.count;
    const uint64_t wanted = (pieces + block_warps - 1) / block_warps;
    const uint64_t most = static_cast<uint64_t>(cuda->multiprocessors) * 64;
    block_histogram_kernel<<<static_cast<unsigned>(wanted < most ? wanted : most), 32 * block_warps, 0, stream>>>(p);
    return check_launch("gaac_cuda_histogram_add_blocks", error);
}

gaac_status gaac_cuda_choose_windows(const gaac_cuda *cuda, const gaac_shape *shape, const uint32_t *counts,
                                     double exception_weight, uint8_t *table, gaac_cuda_stream stream,
                                     gaac_error *error)
{
    gaac_status status = check_shape_and_device(cuda, shape, error);
    if (status == GAAC_OK)
        status = check_counts(counts, error);
    if (status != GAAC_OK)
        return status;
    if (table == nullptr)
        return gaac_fail(error, GAAC_ERROR_INVALID_ARGUMENT, "the table is NULL");
    if (!(exception_weight >= 0) || !std::isfinite(exception_weight))
        return gaac_fail(error, GAAC_ERROR_INVALID_ARGUMENT,
                         "the exception weight must be a number, not negative; 0 means the default");
    const double default_exception_weight = 10; // src/codec/windows.c says why
    choose_params p;
    p.heads = shape->kv_heads;
    p.head_dim_k = shape->head_dim_k;
    p.head_dim_v = shape->head_dim_v;
    p.counts = counts;
    p.weight = exception_weight > 0 ? exception_weight : default_exception_weight;
    p.table = table;
    const uint32_t bases = p.heads * (p.head_dim_k + 2 * p.head_dim_v), warps = calibration_threads / 32;
    choose_windows_kernel<<<(bases + warps - 1) / warps, calibration_threads, 0, stream>>>(p);
    return check_launch("gaac_cuda_choose_windows", error);
}
