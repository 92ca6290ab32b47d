// How decode attention is cut into pieces of equal length, one for each CTA of the launch ("rank").
//
// An item is what one softmax covers: a sequence, a KV head, and a group of query rows (query token, query head of the
// KV head's group) that the tensor cores take at once. Items lie side by side on a line, each as long as it has tiles
// (blocks of 16 cells that its rows see; one where there is none, so that its zeros are written). Ranks own equal
// consecutive stretches of the line: a rank may hold the end of one item, whole items, and the start of another. An
// item that is cut has its parts on consecutive ranks; the rank that ends last merges them, in their order.
#ifndef GAAC_CUDA_ATTENTION_PLAN_CUH
#define GAAC_CUDA_ATTENTION_PLAN_CUH

#include "cuda/geometry.cuh"

namespace gaac
{

// A rank's stretch. 32 bytes, read as two vectors.
struct alignas(16) rank_work {
    int32_t item;        // that it starts in
    int32_t tile;        // of that item, counted from the first that the rows see
    int32_t tiles;       // of the stretch; 0: nothing to do
    int32_t length;      // cells of the first item's sequence
    int32_t first_rank;  // that holds the first part of the item the stretch starts in
    int32_t first_parts; // into how many parts that item is cut
    int32_t first_slot;  // where its first part's partial result lies
    int32_t last_parts;  // of the item that the stretch ends in, if it is another one
};

// CTAs of a launch: one a multiprocessor.
constexpr int most_ranks = 256;

// Partial results: slot 2 * rank for the item that the rank starts in, 2 * rank + 1 for the one that it ends in.
__host__ __device__ inline int partial_slots(int ranks)
{
    return 2 * ranks;
}

// Which tiles of a sequence its query rows see. queries: its query tokens, the last cells of the sequence.
struct tile_span {
    int first, count;
};
__host__ __device__ inline tile_span visible_tiles(int length, int queries, uint32_t window)
{
    if (length <= 0 || queries <= 0)
        return {0, 0};
    const int64_t first_cell = window == 0 ? 0 : static_cast<int64_t>(length) - queries - window + 1;
    const int first = first_cell > 0 ? static_cast<int>(first_cell / GAAC_BLOCK_TOKENS) : 0;
    return {first, (length + GAAC_BLOCK_TOKENS - 1) / GAAC_BLOCK_TOKENS - first};
}

// What plan and attention both know of a call.
struct plan_shape {
    int sequences, kv_heads, row_groups; // of a sequence and KV head
    int query_tokens;                    // most of one sequence
    uint32_t window;
    const int32_t *lengths, *query_start;
};
__device__ inline int query_count(const plan_shape &shape, int sequence)
{
    if (shape.query_start == nullptr)
        return shape.query_tokens;
    const int count = shape.query_start[sequence + 1] - shape.query_start[sequence];
    return count < 0 ? 0 : count < shape.query_tokens ? count : shape.query_tokens;
}
__device__ inline int query_row(const plan_shape &shape, int sequence)
{
    return shape.query_start == nullptr ? sequence * shape.query_tokens : shape.query_start[sequence];
}
__host__ __device__ inline int items_of_sequence(const plan_shape &shape)
{
    return shape.kv_heads * shape.row_groups;
}

// The workspace, in this order, each on a 256-byte boundary.
struct workspace_layout {
    size_t work;     // rank_work [ranks]
    size_t counters; // uint32_t [ranks]: parts of the item that starts at a rank which have arrived
    size_t sums;     // int64_t [sequences + 1]: tiles before a sequence, for the plan alone
    size_t maxima;   // float [slots][rows]
    size_t totals;   // float [slots][rows]
    size_t partial;  // float [slots][rows * head_dim_v]
    size_t bytes;
};
inline workspace_layout layout_workspace(int ranks, int sequences, int rows, int head_dim_v)
{
    const auto aligned = [](size_t bytes) { return (bytes + 255) / 256 * 256; };
    const size_t slots = static_cast<size_t>(partial_slots(ranks));
    workspace_layout at;
    at.work = 0;
    at.counters = at.work + aligned(sizeof(rank_work) * ranks);
    at.sums = at.counters + aligned(sizeof(uint32_t) * ranks);
    at.maxima = at.sums + aligned(sizeof(int64_t) * (static_cast<size_t>(sequences) + 1));
    at.totals = at.maxima + aligned(sizeof(float) * slots * rows);
    at.partial = at.totals + aligned(sizeof(float) * slots * rows);
    at.bytes = at.partial + aligned(sizeof(float) * slots * rows * head_dim_v);
    return at;
}

} // namespace gaac

#endif
