// Merging what warps and CTAs found for an item, and writing its output.
#ifndef GAAC_CUDA_ATTENTION_MERGE_CUH
#define GAAC_CUDA_ATTENTION_MERGE_CUH

#include "cuda/attention_params.cuh"
#include "cuda/attention_softmax.cuh"

namespace gaac
{

// Rows of an item while they are merged: what the warps found, then all of them, then the factor that sums take.
template <int warps, int rows> struct merge_rows {
    float warp_maximum[warps][rows], warp_total[warps][rows];
    float maximum[rows], total[rows], factor[rows];
    bool last_to_arrive;
};

// Shared memory while merging. Warps: sums as the registers have them, [warp][vector]. Parts: maxima, weights and
// totals [part][row], then a vector a thread.
template <int rows, int dim> struct merge_memory {
    static constexpr int vectors = rows * dim / 4; // float4 of an item
    static constexpr size_t bytes(int warps, int ranks)
    {
        const size_t of_warps = static_cast<size_t>(warps) * rows * dim * 4;
        const size_t of_parts = static_cast<size_t>(ranks) * rows * 12 + static_cast<size_t>(warps) * 32 * 16;
        return of_warps > of_parts ? of_warps : of_parts;
    }
};

// Maximum and total of row lane % rows, of `count` results, by one warp: lanes of the same row share them, and all get
// the outcome.
template <int rows>
__device__ __forceinline__ void merge_row(const float *maxima, const float *totals, int count, float &maximum,
                                          float &total)
{
    const int lane = static_cast<int>(lane_id()), row = lane % rows;
    maximum = no_score;
    for (int i = lane / rows; i < count; i += 32 / rows)
        maximum = fmaxf(maximum, maxima[i * rows + row]);
#pragma unroll
    for (int distance = rows; distance < 32; distance *= 2)
        maximum = fmaxf(maximum, __shfl_xor_sync(~0u, maximum, distance));
    total = 0;
    for (int i = lane / rows; i < count; i += 32 / rows)
        total += totals[i * rows + row] * exp2_fast(maxima[i * rows + row] - maximum);
#pragma unroll
    for (int distance = rows; distance < 32; distance *= 2)
        total += __shfl_xor_sync(~0u, total, distance);
}

// Row `row` of the item, of which maximum and total are known at last: takes the sink in, writes the log of the sum,
// and returns what sums are multiplied by.
__device__ inline float finish_row(const attention_params &a, float maximum, float total, int sequence, int h, int row,
                                   int row_total)
{
    if (row >= row_total)
        return 0;
    const int token = row / a.group, head = h * a.group + row - token * a.group;
    float factor = 1;
    if (a.sinks != nullptr) {
        const float sink = a.sinks[head] * 1.442695041f, highest = fmaxf(maximum, sink);
        factor = exp2_fast(maximum - highest);
        total = total * factor + exp2_fast(sink - highest);
        maximum = highest;
    }
    if (a.lse != nullptr)
        a.lse[static_cast<uint64_t>(query_row(a.shape, sequence) + token) * a.query_heads + head] =
            total > 0 ? (maximum + log2f(total)) * 0.6931471806f : -INFINITY;
    return total > 0 ? factor / total : total == 0 ? 0 : total; // NaN stays NaN
}

// Channel of the head that fragment f's registers A and B (the next one) hold for lane group g, as V has them.
template <typename head> __device__ __forceinline__ int fragment_channel(int f, int g)
{
    if (f < 8 * head::wide)
        return 128 * (f >> 3) + 16 * g + 2 * (f & 7);
    if (f < 4 * head::halves)
        return 128 * head::wide + 8 * g + 2 * (f - 8 * head::wide);
    return 64 * head::halves + 2 * head::rest * g + 2 * (f - 4 * head::halves);
}

// Writes vector i of an item (registers of lane i % 32, fragment, column): sums of two rows and two channels.
template <typename kind>
__device__ __forceinline__ void write_output(const attention_params &a, int i, float4 sums, const float *factors,
                                             int sequence, int h, int row_group, int row_total)
{
    using head = typename kind::head;
    const int lane = i & 31, f = (i >> 5) % head::fragments, c = (i >> 5) / head::fragments;
    const int channel = fragment_channel<head>(f, lane >> 2);
#pragma unroll
    for (int k = 0; k < 2; k++) {
        const int row_here = 8 * c + 2 * (lane & 3) + k, row = row_group * kind::rows + row_here;
        if (row >= row_total)
            continue;
        const int token = kind::general ? row / a.group : 0;
        const float factor = factors[row_here];
        // A row without anything to see has the factor 0, and sums of 0.
        const float x = (k == 0 ? sums.x : sums.y) * factor, y = (k == 0 ? sums.z : sums.w) * factor;
        const uint64_t at = (query_row(a.shape, sequence) + token) * a.out_token_stride +
                            (h * a.group + (row - token * a.group)) * a.out_head_stride + channel;
        if (a.out_f32)
            *reinterpret_cast<float2 *>(static_cast<float *>(a.out) + at) = make_float2(x, y);
        else
            *reinterpret_cast<uint32_t *>(static_cast<uint16_t *>(a.out) + at) = pack_bf16(x, y);
    }
}

// What a warp found for its tiles, to be left before the barrier in front of merge_segment. totals are summed.
template <typename kind>
__device__ __forceinline__ void leave_rows(const row_state<kind::columns, kind::head::fragments> &state, int warp,
                                           merge_rows<kind::warps, kind::rows> &merged)
{
    const int lane = static_cast<int>(lane_id());
    if (lane >= 4)
        return;
#pragma unroll
    for (int c = 0; c < kind::columns; c++)
#pragma unroll
        for (int k = 0; k < 2; k++) {
            merged.warp_maximum[warp][8 * c + 2 * lane + k] = state.maximum[c][k];
            merged.warp_total[warp][8 * c + 2 * lane + k] = state.total[c][k];
        }
}

// The end of a segment, called by all threads. ends: it is the rank's last.
template <typename kind>
__device__ __forceinline__ void
merge_segment(const attention_params &a, const row_state<kind::columns, kind::head::fragments> &state, uint8_t *shared,
              merge_rows<kind::warps, kind::rows> &merged, int item, int segment, bool ends)
{
    using head = typename kind::head;
    constexpr int rows = kind::rows, columns = kind::columns, fragments = head::fragments;
    constexpr int vectors = merge_memory<rows, kind::dim>::vectors;
    const int threads = static_cast<int>(blockDim.x), thread = static_cast<int>(thread_id());
    const int warps = threads / 32, warp = thread / 32, lane = static_cast<int>(lane_id());
    const int sequence = item / items_of_sequence(a.shape), h = item % items_of_sequence(a.shape) / a.shape.row_groups;
    const int row_group = item % a.shape.row_groups;
    const int row_total = (kind::general ? query_count(a.shape, sequence) : 1) * a.group;
    const int rank = static_cast<int>(block_id());
    const rank_work *const record = a.work + rank;
    const int parts = segment == 0 ? record->first_parts : ends ? record->last_parts : 1;

    // Warps of this CTA.
    float4 *const sums = reinterpret_cast<float4 *>(shared);
#pragma unroll
    for (int c = 0; c < columns; c++) {
        float factor[2];
#pragma unroll
        for (int k = 0; k < 2; k++) {
            float highest = no_score;
            for (int w = 0; w < warps; w++)
                highest = fmaxf(highest, merged.warp_maximum[w][8 * c + 2 * (lane & 3) + k]);
            factor[k] = exp2_fast(state.maximum[c][k] - highest);
        }
#pragma unroll
        for (int f = 0; f < fragments; f++)
            sums[warp * vectors + (c * fragments + f) * 32 + lane] =
                make_float4(state.out[c][f][0] * factor[0], state.out[c][f][1] * factor[1],
                            state.out[c][f][2] * factor[0], state.out[c][f][3] * factor[1]);
    }
    const int slot = 2 * rank + (segment == 0 ? 0 : 1);
    if (warp == 0) {
        float maximum, total;
        merge_row<rows>(&merged.warp_maximum[0][0], &merged.warp_total[0][0], warps, maximum, total);
        if (lane < rows && parts == 1)
            merged.factor[lane] = finish_row(a, maximum, total, sequence, h, row_group * rows + lane, row_total);
        if (lane < rows && parts > 1) {
            __stcg(a.maxima + slot * rows + lane, maximum);
            __stcg(a.totals + slot * rows + lane, total);
        }
    }
    __syncthreads();
    float4 *const partial = reinterpret_cast<float4 *>(a.partial);
    for (int i = thread; i < vectors; i += threads) {
        float4 sum = make_float4(0, 0, 0, 0);
        for (int w = 0; w < warps; w++) {
            const float4 x = sums[w * vectors + i];
            sum.x += x.x, sum.y += x.y, sum.z += x.z, sum.w += x.w;
        }
        if (parts == 1)
            write_output<kind>(a, i, sum, merged.factor, sequence, h, row_group, row_total);
        else
            __stcg(partial + static_cast<uint64_t>(slot) * vectors + i, sum);
    }
    if (parts == 1)
        return;

    // Parts of the item: the CTA that comes last merges them, in their order.
    __syncthreads();
    const int first_rank = segment == 0 ? record->first_rank : rank;
    const int first_slot = segment == 0 ? record->first_slot : slot;
    if (thread == 0) {
        // Releases what the whole CTA wrote before the barrier, acquires what the others released.
        merged.last_to_arrive = add_acquire_release(a.counters + first_rank, 1) == static_cast<unsigned>(parts) - 1;
        if (merged.last_to_arrive)
            a.counters[first_rank] = 0; // for the next call
    }
    __syncthreads();
    if (!merged.last_to_arrive)
        return;
    const auto slot_of = [&](int part) { return part == 0 ? first_slot : 2 * (first_rank + part); };
    float *const maxima = reinterpret_cast<float *>(shared), *const totals = maxima + parts * rows;
    float *const weights = totals + parts * rows;
    for (int i = thread; i < parts * rows; i += threads) {
        maxima[i] = __ldcg(a.maxima + slot_of(i / rows) * rows + i % rows);
        totals[i] = __ldcg(a.totals + slot_of(i / rows) * rows + i % rows);
    }
    __syncthreads();
    for (int i = thread; i < parts * rows; i += threads) {
        float highest = no_score;
        for (int part = 0; part < parts; part++)
            highest = fmaxf(highest, maxima[part * rows + i % rows]);
        weights[i] = exp2_fast(maxima[i] - highest);
    }
    if (warp == warps - 1) {
        float maximum, total;
        merge_row<rows>(maxima, totals, parts, maximum, total);
        if (lane < rows)
            merged.factor[lane] = finish_row(a, maximum, total, sequence, h, row_group * rows + lane, row_total);
    }
    __syncthreads();
    // Sums, each by as many threads as there are, over a share of the parts.
    float4 *const shares = reinterpret_cast<float4 *>(shared) + (3 * parts * rows + 3) / 4;
    const int teams = max(threads / vectors, 1);
    const int team = min(thread / vectors, teams); // threads that make up no team have none
    const int begin = team < teams ? parts * team / teams : 0, end = team < teams ? parts * (team + 1) / teams : 0;
    for (int i = thread % vectors; i < vectors && team<teams; i += teams> 1 ? vectors : threads) {
        const int row = 8 * ((i >> 5) / fragments) + 2 * (i & 3);
        float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll 16
        for (int part = begin; part < end; part++) {
            const float4 x = __ldcg(partial + static_cast<uint64_t>(slot_of(part)) * vectors + i);
            const float2 weight = *reinterpret_cast<const float2 *>(weights + part * rows + row);
            sum.x += weight.x * x.x, sum.y += weight.y * x.y, sum.z += weight.x * x.z, sum.w += weight.y * x.w;
        }
        if (teams == 1)
            write_output<kind>(a, i, sum, merged.factor, sequence, h, row_group, row_total);
        else
            shares[team * vectors + i] = sum;
    }
    if (teams == 1)
        return;
    __syncthreads();
    if (thread < vectors) {
        float4 sum = shares[thread];
        for (int other = 1; other < teams; other++) {
            const float4 x = shares[other * vectors + thread];
            sum.x += x.x, sum.y += x.y, sum.z += x.z, sum.w += x.w;
        }
        write_output<kind>(a, thread, sum, merged.factor, sequence, h, row_group, row_total);
    }
}

} // namespace gaac

#endif
