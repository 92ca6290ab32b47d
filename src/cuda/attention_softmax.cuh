// Softmax over the tiles that a warp takes, for 8 query rows a column of operand B, and what a mask hides.
#ifndef GAAC_CUDA_ATTENTION_SOFTMAX_CUH
#define GAAC_CUDA_ATTENTION_SOFTMAX_CUH

#include "cuda/attention_params.cuh"

namespace gaac
{

// Below every score, and small enough that 2^(it - anything) is 0. A row that sees nothing keeps it.
constexpr float no_score = -1e30f;

// Columns are query rows: lane (g, t) holds rows 2t and 2t + 1 of each group of eight.
template <int columns, int fragments> struct row_state {
    float maximum[columns][2], total[columns][2]; // powers of two; totals are the lane's own tokens' until the end
    float out[columns][fragments][4];

    __device__ void clear()
    {
#pragma unroll
        for (int c = 0; c < columns; c++) {
            maximum[c][0] = maximum[c][1] = no_score;
            total[c][0] = total[c][1] = 0;
#pragma unroll
            for (int f = 0; f < fragments; f++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    out[c][f][i] = 0;
        }
    }

    // Scores (tokens g and g + 8; times `scale` they are logarithms to base 2) to probabilities as operand B, tokens
    // 2t + 8s and + 1 of row g in p[c][s]. The maximum follows only when a score passes it by 2^8: until then nothing
    // overflows, and rescaling would cost more than all the rest.
    __device__ __forceinline__ void take(const float (&score)[columns][4], float scale, uint32_t (&p)[columns][2])
    {
        bool above = false;
#pragma unroll
        for (int c = 0; c < columns; c++) {
            const float x = fmaf(fmaxf(score[c][0], score[c][2]), scale, -maximum[c][0]);
            const float y = fmaf(fmaxf(score[c][1], score[c][3]), scale, -maximum[c][1]);
            above |= fmaxf(x, y) > 8.f;
        }
        if (__any_sync(~0u, above))
            rescale(score, scale);
#pragma unroll
        for (int c = 0; c < columns; c++) {
            const float p0 = exp2_fast(score[c][0] * scale - maximum[c][0]);
            const float p1 = exp2_fast(score[c][1] * scale - maximum[c][1]);
            const float p2 = exp2_fast(score[c][2] * scale - maximum[c][0]);
            const float p3 = exp2_fast(score[c][3] * scale - maximum[c][1]);
            total[c][0] += p0 + p2;
            total[c][1] += p1 + p3;
            p[c][0] = transpose_8x8(pack_bf16(p0, p1));
            p[c][1] = transpose_8x8(pack_bf16(p2, p3));
        }
    }
    __device__ __forceinline__ void rescale(const float (&score)[columns][4], float scale)
    {
#pragma unroll
        for (int c = 0; c < columns; c++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                float highest = fmaxf(score[c][i], score[c][i + 2]) * scale;
#pragma unroll
                for (int distance = 4; distance < 32; distance *= 2)
                    highest = fmaxf(highest, __shfl_xor_sync(~0u, highest, distance));
                highest = fmaxf(maximum[c][i], highest);
                const float factor = exp2_fast(maximum[c][i] - highest);
                maximum[c][i] = highest;
                total[c][i] *= factor;
#pragma unroll
                for (int f = 0; f < fragments; f++) {
                    out[c][f][i] *= factor;
                    out[c][f][i + 2] *= factor;
                }
            }
    }
    __device__ __forceinline__ void sum_totals()
    {
#pragma unroll
        for (int c = 0; c < columns; c++)
#pragma unroll
            for (int i = 0; i < 2; i++)
#pragma unroll
                for (int distance = 4; distance < 32; distance *= 2)
                    total[c][i] += __shfl_xor_sync(~0u, total[c][i], distance);
    }
};

// ---- masks ----------------------------------------------------------------------------------------------------------

// Operand A registers of V: what to keep of tokens 2t + 8s and 2t + 8s + 1 (x: s = 0, y: s = 1) when the tokens from
// `from` up to `to` count. No row sees the others, which may hold anything, NaN too, and 0 * NaN would spread.
__device__ __forceinline__ uint2 keep_tokens(int from, int to)
{
    const int token = 2 * static_cast<int>(lane_id() & 3);
    const auto keep = [&](int first) {
        return (first >= from && first < to ? 0xffffu : 0u) | (first + 1 >= from && first + 1 < to ? 0xffff0000u : 0u);
    };
    return make_uint2(keep(token), keep(token + 8));
}

// A query row of the item at hand, in shared memory: its query token (of the sequence's) and its ALiBi slope times
// log2(e).
struct query_row_info {
    int token;
    float slope;
};

// What hides cells from the rows of an item. Tiles are counted from the warp's first, cells from that tile's first.
struct item_masks {
    int cells;   // of the sequence
    int queries; // query tokens, the last of the cells
    const query_row_info *rows;

    static constexpr int unlimited = -(1 << 30); // below every cell, and far from where integers wrap round
    // First cell that the first query token sees. Each next one's is one further.
    __device__ __forceinline__ int first_seen(const attention_params &a) const
    {
        const int64_t first = static_cast<int64_t>(cells) - queries - a.shape.window + 1;
        return a.shape.window == 0 ? unlimited : static_cast<int>(max(first, static_cast<int64_t>(unlimited)));
    }
    // Whether any query token does not see all of tile i.
    template <bool general> __device__ __forceinline__ bool hides(const attention_params &a, int i) const
    {
        const int cell = i * GAAC_BLOCK_TOKENS;
        if (!general)
            return cell + GAAC_BLOCK_TOKENS > cells;
        return cell + GAAC_BLOCK_TOKENS > cells - queries + 1 ||
               (a.shape.window != 0 && cell < first_seen(a) + queries - 1);
    }
    // Tokens of tile i that some query token sees, as keep_tokens has them.
    template <bool general> __device__ __forceinline__ uint2 seen_tokens(const attention_params &a, int i) const
    {
        const int cell = i * GAAC_BLOCK_TOKENS, first = general ? first_seen(a) : unlimited;
        return keep_tokens(first > cell ? first - cell : 0, cells - cell);
    }
    // Scores of tile i as logarithms to base 2, with all that a model may do to them. lane (g, t): tokens g and g + 8.
    template <int columns>
    __device__ __forceinline__ void change_scores(const attention_params &a, float (&score)[columns][4], int i,
                                                  bool masked) const
    {
        const int cell = i * GAAC_BLOCK_TOKENS + static_cast<int>(lane_id() >> 2), t = static_cast<int>(lane_id() & 3);
#pragma unroll
        for (int c = 0; c < columns; c++)
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const query_row_info row = rows[8 * c + 2 * t + (k & 1)];
                float s = score[c][k];
                s = a.softcap != 0.f ? a.softcap * tanh_fast(s * a.softcap_in) : s * a.scale_log2;
                const int behind = cells - queries + row.token - (cell + 8 * (k >> 1)); // cells before the query's own
                s = fmaf(row.slope, static_cast<float>(-behind), s);
                if (masked)
                    s = behind >= 0 && (a.shape.window == 0 || static_cast<uint32_t>(behind) < a.shape.window)
                            ? s
                            : -INFINITY;
                score[c][k] = s;
            }
    }
    template <int columns> __device__ __forceinline__ void hide_unwritten(float (&score)[columns][4], int i) const
    {
        const int seen = cells - i * GAAC_BLOCK_TOKENS - static_cast<int>(lane_id() >> 2);
#pragma unroll
        for (int c = 0; c < columns; c++)
#pragma unroll
            for (int k = 0; k < 4; k++)
                score[c][k] = 8 * (k >> 1) < seen ? score[c][k] : -INFINITY;
    }
};

} // namespace gaac

#endif
