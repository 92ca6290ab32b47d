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

// Which cells the rows of an item see. Tiles are counted from the warp's first, cells from that tile's first.
template <int columns, bool general> struct item_masks;

// All rows see all cells.
template <int columns> struct item_masks<columns, false> {
    int cells;

    __device__ item_masks(const attention_params &, int, int, int length, int, int first_tile)
        : cells(length - first_tile * GAAC_BLOCK_TOKENS)
    {
    }
    __device__ bool hides(int i) const { return (i + 1) * GAAC_BLOCK_TOKENS > cells; }
    __device__ uint2 seen_tokens(const attention_params &, int i) const
    {
        return keep_tokens(0, cells - i * GAAC_BLOCK_TOKENS);
    }
    template <typename rows>
    __device__ __forceinline__ void take(const attention_params &a, rows &state, float (&score)[columns][4], int i,
                                         bool masked, uint32_t (&p)[columns][2]) const
    {
        if (masked) {
            const int seen = cells - i * GAAC_BLOCK_TOKENS - static_cast<int>(lane_id() >> 2);
#pragma unroll
            for (int c = 0; c < columns; c++)
#pragma unroll
                for (int k = 0; k < 4; k++)
                    score[c][k] = 8 * (k >> 1) < seen ? score[c][k] : -INFINITY;
        }
        state.take(score, a.scale_log2, p);
    }
};

// Causal order among query tokens, window, softcap, ALiBi.
template <int columns> struct item_masks<columns, true> {
    static constexpr int unlimited = -(1 << 30); // below every cell, and far enough from where integers wrap round
    int cells, queries;
    int first_query_sees;    // first cell that the first query token sees, or `unlimited`
    int last[columns][2];    // last cell that the lane's rows see
    float slope[columns][2]; // times log2(e)

    __device__ item_masks(const attention_params &a, int item, int h, int length, int query_tokens, int first_tile)
        : cells(length - first_tile * GAAC_BLOCK_TOKENS), queries(query_tokens)
    {
        const int64_t first = static_cast<int64_t>(cells) - queries - a.shape.window + 1;
        first_query_sees =
            a.shape.window == 0 ? unlimited : static_cast<int>(max(first, static_cast<int64_t>(unlimited)));
        const int first_row = item % a.shape.row_groups * 8 * columns;
#pragma unroll
        for (int c = 0; c < columns; c++)
#pragma unroll
            for (int k = 0; k < 2; k++) {
                const int row = first_row + 8 * c + 2 * static_cast<int>(lane_id() & 3) + k, token = row / a.group;
                last[c][k] = cells - queries + min(token, queries - 1);
                slope[c][k] = a.slopes == nullptr ? 0 : a.slopes[h * a.group + row - token * a.group] * 1.442695041f;
            }
    }
    // Whether any query token does not see all of tile i: the last token's window starts `queries` - 1 cells later.
    __device__ bool hides(int i) const
    {
        const int cell = i * GAAC_BLOCK_TOKENS;
        return cell + GAAC_BLOCK_TOKENS > cells - queries + 1 ||
               (first_query_sees != unlimited && cell < first_query_sees + queries - 1);
    }
    __device__ uint2 seen_tokens(const attention_params &, int i) const
    {
        const int cell = i * GAAC_BLOCK_TOKENS;
        return keep_tokens(first_query_sees > cell ? first_query_sees - cell : 0, cells - cell);
    }
    template <typename rows>
    __device__ __forceinline__ void take(const attention_params &a, rows &state, float (&score)[columns][4], int i,
                                         bool masked, uint32_t (&p)[columns][2]) const
    {
        const int cell = i * GAAC_BLOCK_TOKENS + static_cast<int>(lane_id() >> 2);
#pragma unroll
        for (int c = 0; c < columns; c++)
#pragma unroll
            for (int k = 0; k < 4; k++) {
                float s = score[c][k];
                s = a.softcap != 0.f ? a.softcap * tanh_fast(s * a.softcap_in) : s * a.scale_log2;
                const int behind = last[c][k & 1] - (cell + 8 * (k >> 1)); // cells before the query's own
                s = fmaf(slope[c][k & 1], static_cast<float>(-behind), s);
                if (masked)
                    s = behind >= 0 && (a.shape.window == 0 || static_cast<uint32_t>(behind) < a.shape.window)
                            ? s
                            : -INFINITY;
                score[c][k] = s;
            }
        state.take(score, 1.f, p);
    }
};

} // namespace gaac

#endif
