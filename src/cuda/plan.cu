// The plan of decode attention: cutting the work into equal stretches, on the device, from the lengths there.
#include "cuda/attention_host.cuh"
#include "cuda/attention_plan.cuh"

namespace gaac
{

constexpr int plan_threads = 1024;

// Inclusive prefix sum over the CTA.
__device__ static int64_t scan_block(int64_t value, int64_t *warp_sums)
{
    const unsigned lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    for (int distance = 1; distance < 32; distance *= 2) {
        const int64_t below = __shfl_up_sync(~0u, value, distance);
        value += lane >= distance ? below : 0;
    }
    if (lane == 31)
        warp_sums[warp] = value;
    __syncthreads();
    if (warp == 0) {
        int64_t sum = lane < blockDim.x / 32 ? warp_sums[lane] : 0;
        for (int distance = 1; distance < 32; distance *= 2) {
            const int64_t below = __shfl_up_sync(~0u, sum, distance);
            sum += lane >= distance ? below : 0;
        }
        warp_sums[lane] = sum;
    }
    __syncthreads();
    const int64_t result = value + (warp > 0 ? warp_sums[warp - 1] : 0);
    __syncthreads(); // warp_sums may be written again
    return result;
}

// Number of ranks that share the work. Where all items are equally long, whole items or equal parts of one each: an
// item cut unevenly costs a merge more. No rank gets fewer tiles than it has warps, at least eight: merging parts takes
// about 3 us, in which a multiprocessor decodes far more than that.
__device__ static int choose_ranks(int ranks, int64_t items, int64_t tiles, bool equal)
{
    constexpr int64_t least = 8;
    if (equal && items <= ranks) {
        const int64_t tiles_of_item = tiles / items, most = (tiles_of_item + least - 1) / least;
        return static_cast<int>(items * min(ranks / items, most));
    }
    if (equal)
        for (int fewer = ranks; fewer * 10 >= ranks * 9; fewer--)
            if (items % fewer == 0)
                return fewer;
    return static_cast<int>(min(static_cast<int64_t>(ranks), max((tiles + least - 1) / least, items)));
}

__global__ void __launch_bounds__(plan_threads)
    plan_ranks(plan_shape shape, int ranks, rank_work *work, uint32_t *counters, int64_t *sums)
{
    __shared__ int64_t warp_sums[32];
    __shared__ int64_t total;
    const int items = items_of_sequence(shape);
    const auto tiles_of = [&](int sequence) {
        return max(visible_tiles(shape.lengths[sequence], query_count(shape, sequence), shape.window).count, 1);
    };
    const int first_tiles = tiles_of(0);
    bool equal = true;
    int64_t before = 0;
    for (int base = 0; base < shape.sequences; base += plan_threads) {
        const int sequence = base + static_cast<int>(threadIdx.x);
        int tiles = 0;
        if (sequence < shape.sequences) {
            tiles = tiles_of(sequence);
            equal &= tiles == first_tiles;
        }
        const int64_t sum = before + scan_block(static_cast<int64_t>(tiles) * items, warp_sums);
        if (sequence < shape.sequences)
            sums[sequence + 1] = sum;
        if (threadIdx.x == plan_threads - 1)
            total = sum;
        __syncthreads();
        before = total;
    }
    if (threadIdx.x == 0)
        sums[0] = 0;
    equal = __syncthreads_and(equal);
    const int64_t tiles = total;
    const int used = choose_ranks(ranks, static_cast<int64_t>(shape.sequences) * items, tiles, equal);
    const auto start_of = [&](int64_t rank) { return tiles * rank / used; };
    const auto rank_of = [&](int64_t tile) { return static_cast<int>(((tile + 1) * used + tiles - 1) / tiles - 1); };

    for (int rank = static_cast<int>(threadIdx.x); rank < ranks; rank += plan_threads) {
        counters[rank] = 0;
        rank_work mine = {};
        if (rank < used) {
            const int64_t start = start_of(rank), end = start_of(rank + 1);
            const auto sequence_of = [&](int64_t tile) {
                int low = 0, high = shape.sequences; // sums[low] <= tile < sums[high]
                while (high - low > 1) {
                    const int middle = (low + high) / 2;
                    (sums[middle] <= tile ? low : high) = middle;
                }
                return low;
            };
            const int sequence = sequence_of(start);
            const int64_t length = (sums[sequence + 1] - sums[sequence]) / items, offset = start - sums[sequence];
            const int64_t item_start = start - offset % length;
            mine.item = static_cast<int>(static_cast<int64_t>(sequence) * items + offset / length);
            mine.tile = static_cast<int>(offset % length);
            mine.tiles = static_cast<int>(end - start);
            mine.length = shape.lengths[sequence];
            mine.first_rank = rank_of(item_start);
            mine.first_parts = rank_of(item_start + length - 1) - mine.first_rank + 1;
            mine.first_slot = 2 * mine.first_rank + (start_of(mine.first_rank) == item_start ? 0 : 1);
            const int last_sequence = sequence_of(end - 1);
            const int64_t last_length = (sums[last_sequence + 1] - sums[last_sequence]) / items;
            const int64_t last_start = end - 1 - (end - 1 - sums[last_sequence]) % last_length;
            mine.last_parts = rank_of(last_start + last_length - 1) - rank + 1;
        }
        work[rank] = mine;
    }
}

// A kernel is loaded when it is asked about, at the latest when it is launched: not inside a graph's capture.
gaac_status load_plan_kernel(gaac_error *error)
{
    cudaFuncAttributes attributes;
    return check_cuda(cudaFuncGetAttributes(&attributes, plan_ranks), "loading the plan's kernel", error);
}

} // namespace gaac

using namespace gaac;

gaac_status gaac_cuda_plan_bytes(const gaac_cuda *cuda, const gaac_cuda_plan_args *args, size_t *bytes,
                                 gaac_error *error)
{
    if (cuda == nullptr)
        return gaac_fail(error, GAAC_ERROR_INVALID_ARGUMENT, "the handle is NULL: make one with gaac_cuda_create");
    const gaac_status status = check_plan(args, error);
    if (status != GAAC_OK)
        return status;
    if (bytes == nullptr)
        return gaac_fail(error, GAAC_ERROR_INVALID_ARGUMENT, "bytes is NULL");
    *bytes = workspace_of(cuda, args).bytes;
    return GAAC_OK;
}

gaac_status gaac_cuda_plan(const gaac_cuda *cuda, const gaac_cuda_plan_args *args, void *workspace,
                           gaac_cuda_stream stream, gaac_error *error)
{
    gaac_status status = check_device(cuda, error);
    if (status == GAAC_OK)
        status = check_plan(args, error);
    if (status == GAAC_OK)
        status = check_workspace(args, workspace, error);
    if (status == GAAC_OK && args->sequences > 0 && args->lengths == nullptr)
        status = gaac_fail(error, GAAC_ERROR_INVALID_ARGUMENT, "lengths is NULL");
    if (status != GAAC_OK || args->sequences == 0 || !has_fast_kernel(&args->shape))
        return status;
    uint8_t *bytes = static_cast<uint8_t *>(workspace);
    const workspace_layout at = workspace_of(cuda, args);
    plan_ranks<<<1, plan_threads, 0, stream>>>(
        shape_of(cuda, args), ranks_of(cuda), reinterpret_cast<rank_work *>(bytes + at.work),
        reinterpret_cast<uint32_t *>(bytes + at.counters), reinterpret_cast<int64_t *>(bytes + at.sums));
    return check_launch("planning attention", error);
}
