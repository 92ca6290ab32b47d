// Split-KV decode attention over coded and raw blocks: the kernel. docs/cuda.md says how it came to be so.
//
// A CTA is one rank of the plan. Its warps share the tiles of an item, each a run of consecutive ones, and work on
// their own: a warp has a ring of stages in shared memory, into which the next tiles are copied while one is decoded
// straight into the registers of the tensor cores' operand A (K, then V transposed), with query rows as the eight
// columns of B. At the end of an item the warps' results are merged, and where an item is cut into parts the last CTA
// to arrive merges those, always in the same order.
//
// A tile's values and the order of all sums do not depend on how it is stored: coded and raw blocks give the same bits.
#ifndef GAAC_CUDA_ATTENTION_KERNEL_CUH
#define GAAC_CUDA_ATTENTION_KERNEL_CUH

#include "cuda/attention_batch.cuh"
#include "cuda/attention_merge.cuh"
#include "cuda/attention_params.cuh"
#include "cuda/attention_ring.cuh"
#include "cuda/attention_softmax.cuh"
#include "cuda/unit_decode.cuh"
#include "cuda/unit_plain.cuh"

namespace gaac
{

// How a kernel is built. columns: groups of eight query rows. general: several query tokens, window, softcap or ALiBi;
// without it every row sees all cells.
template <int dim_, int columns_, bool general_> struct attention_kind {
    static constexpr int dim = dim_, columns = columns_, rows = 8 * columns_;
    static constexpr bool general = general_;
    using head = head_shape<dim>;
    // Registers decide how many warps a multiprocessor holds: spills are dear, since the ring leaves the first-level
    // cache too small for them. Then as many stages as shared memory has room for, of the largest multiprocessors:
    // smaller ones get fewer warps.
    static constexpr int warps = dim * columns > 128 ? 8 : dim > 64 || general || columns > 1 ? 12 : 16;
    static constexpr int room = 200 * 1024 / (warps * head::stage_bytes);
    static constexpr int stages = room < 4 ? 2 : 4;
    // Beside the ring: tag table, places of tiles, barriers, rows.
    static constexpr size_t static_shared_bytes =
        4096 + warps * (sizeof(tile_places<head::units>) + 256 * columns) + 1024;
    static constexpr size_t shared_bytes(int warp_count)
    {
        const size_t ring = static_cast<size_t>(warp_count) * stages * head::stage_bytes + stage_slack;
        const size_t merge = merge_memory<rows, dim>::bytes(warp_count);
        return ring > merge ? ring : merge;
    }
};

// Base words of the lane: of K for its t, of V for its g.
template <typename head>
__device__ __forceinline__ void load_bases(uint32_t (&k_base)[4 * head::halves], uint32_t (&v_base)[4 * head::halves],
                                           const uint8_t *head_windows)
{
    const unsigned g = lane_id() >> 2, t = lane_id() & 3;
#pragma unroll
    for (int u = 0; u < head::units; u++) {
        const uint4 *k = reinterpret_cast<const uint4 *>(head_windows + 2 * (window_k_bytes + window_v_bytes) * u);
        const uint4 *v = k + window_k_bytes / 16 * head::hv(u);
#pragma unroll
        for (int half = 0; half < head::hv(u); half++) {
            const uint4 x = k[t * head::hv(u) + half], y = v[g * head::hv(u) + half];
            uint32_t *to = k_base + 4 * (2 * u + half);
            to[0] = x.x, to[1] = x.y, to[2] = x.z, to[3] = x.w;
            to = v_base + 4 * (2 * u + half);
            to[0] = y.x, to[1] = y.y, to[2] = y.z, to[3] = y.w;
        }
    }
}

// The query rows of an item as operand B: lane (g, t) has row g of each eight. Zeros where there is no row.
template <typename kind>
__device__ __forceinline__ void load_queries(uint32_t (&q)[kind::columns][kind::head::fragments][2],
                                             const attention_params &a, int sequence, int h, int row_group,
                                             int row_total)
{
    using head = typename kind::head;
    const int g = static_cast<int>(lane_id() >> 2), t = static_cast<int>(lane_id() & 3);
#pragma unroll
    for (int c = 0; c < kind::columns; c++) {
        const int row = row_group * kind::rows + 8 * c + g;
        const bool have = row < row_total;
        const int token = kind::general ? row / a.group : 0;
        const uint16_t *from = a.q + (query_row(a.shape, sequence) + token) * a.q_token_stride +
                               (h * a.group + (row - token * a.group)) * a.q_head_stride;
#pragma unroll
        for (int u = 0; u < head::units; u++)
#pragma unroll
            for (int f = 0; f < 4 * head::hv(u); f += 2) {
                uint4 x = make_uint4(0, 0, 0, 0);
                if (have)
                    x = *reinterpret_cast<const uint4 *>(from + 128 * u + 16 * head::hv(u) * t + 4 * f);
                q[c][8 * u + f][0] = x.x, q[c][8 * u + f][1] = x.y;
                q[c][8 * u + f + 1][0] = x.z, q[c][8 * u + f + 1][1] = x.w;
            }
#pragma unroll
        for (int f = 0; f < head::rest; f++) {
            uint2 x = make_uint2(0, 0);
            if (have)
                x = *reinterpret_cast<const uint2 *>(from + 64 * head::halves + 4 * head::rest * t + 4 * f);
            q[c][4 * head::halves + f][0] = x.x, q[c][4 * head::halves + f][1] = x.y;
        }
    }
}

template <typename kind>
__global__ void __launch_bounds__(kind::warps * 32, 1) attention(const __grid_constant__ attention_params a)
{
    using head = typename kind::head;
    constexpr int columns = kind::columns, stages = kind::stages;
    constexpr int units = head::units, halves = head::halves, fragments = head::fragments, rest = head::rest;
    extern __shared__ __align__(128) uint8_t shared[];
    __shared__ ring_barriers<stages> barriers[kind::warps];
    __shared__ uint4 tag_table[tag_table_entries];
    __shared__ merge_rows<kind::rows> merged;
    __shared__ tile_places<units> places[kind::warps];
    __shared__ uint2 parked_weights[kind::warps][32 * columns]; // of a raw tile, between its K and its V
    // What the loop over tiles does not need is parked here: held in registers it would be spilled.
    __shared__ volatile int parked_left, parked_item, parked_segment;
    __shared__ volatile struct {
        int h, sequence, first_tile;
    } parked[kind::warps];

    const int warps = static_cast<int>(blockDim.x / 32);
    ring<stages> tiles(barriers[__shfl_sync(~0u, threadIdx.x / 32, 0)]);
    const rank_work *const record = a.work + blockIdx.x;
    int item = record->item, tile = record->tile, left = record->tiles, segment = 0;
    if (left <= 0)
        return;
    for (unsigned tags = threadIdx.x; tags < tag_table_entries; tags += blockDim.x)
        tag_table[tags] = tag_table_entry(tags);

#pragma unroll 1
    while (left > 0) {
        // ---- a segment: a run of tiles of one item -----------------------------------------------------------------
        const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
        const unsigned position = lane_position(lane_id());
        const int sequence = item / items_of_sequence(a.shape);
        const int h = item % items_of_sequence(a.shape) / a.shape.row_groups;
        const int length = segment == 0 ? record->length : a.shape.lengths[sequence];
        const int queries = kind::general ? query_count(a.shape, sequence) : 1;
        const tile_span span = visible_tiles(length, queries, kind::general ? a.shape.window : 0);
        const int segment_tiles = min(left, max(span.count, 1) - tile);
        left -= segment_tiles;
        if (threadIdx.x == 0)
            parked_left = left, parked_item = item, parked_segment = segment;

        // My share of it. The one tile of a sequence that has none is none.
        const int real_tiles = span.count > 0 ? segment_tiles : 0;
        const int begin = real_tiles * warp / warps, count = real_tiles * (warp + 1) / warps - begin;
        const int first_tile = span.first + tile + begin; // counted from the sequence's start
        parked[warp].h = h, parked[warp].sequence = sequence, parked[warp].first_tile = first_tile;
        __syncwarp();
        const auto source = [&]() {
            return tile_source{a.block_table + parked[warp].sequence * a.block_table_stride + parked[warp].first_tile,
                               a.cache.entries + parked[warp].h * units, a.cache.entry_stride, count};
        };
        tile_batches<units> batches(places[warp]);
        if (count > 0)
            batches.begin(source());
        uint32_t q[columns][fragments][2];
        load_queries<kind>(q, a, sequence, h, item % a.shape.row_groups, queries * a.group);

        // Base words of the epoch at hand. A block of another epoch reloads them.
        uint32_t k_base[4 * halves], v_base[4 * halves], epoch_bits = 0;
        const auto change_epoch = [&](uint32_t bits) {
            epoch_bits = bits;
            const uint32_t epoch = min(bits >> entry_epoch_shift, a.cache.epochs - 1);
            load_bases<head>(k_base, v_base,
                             a.cache.windows + static_cast<uint64_t>(epoch) * a.window_bytes +
                                 parked[warp].h * (halves * (window_k_bytes + window_v_bytes)));
        };
        change_epoch(0);

        // ---- copies ------------------------------------------------------------------------------------------------
        // A coded tile is one step of the ring, a raw one two: K, then V. Tiles are counted in halves: an odd number is
        // a raw tile's V.
        int ahead = 0; // to copy next
        const auto copy_raw = [&](int to, uint32_t entry, bool v) {
            const uint8_t *from = a.cache.raw + (entry & ~entry_raw) * a.raw_bytes +
                                  static_cast<uint64_t>(parked[warp].h) * (2 * head::part_bytes);
            const uint32_t stage = shared_address(shared) + (warp * stages + to) * head::stage_bytes;
            if (tiles.start(to, head::part_bytes)) {
#pragma unroll
                for (int u = 0; u < units; u++)
                    tiles.piece(to, stage + 4096 * u, from + 8192 * u + (v ? 2048 * head::hv(u) : 0),
                                2048 * head::hv(u));
                if (rest > 0)
                    tiles.piece(to, stage + 2048 * halves, from + 4096 * halves + (v ? 512 * rest : 0), 512 * rest);
            }
        };
        const auto copy_coded = [&](int to, const entry_words<units> &entry, int block) {
            const uint8_t *slot = a.cache.slots + static_cast<uint64_t>(block) * a.cache.slot_stride;
            const uint32_t stage = shared_address(shared) + (warp * stages + to) * head::stage_bytes;
            uint32_t bytes = head::fixed_bytes, variable[units];
#pragma unroll
            for (int u = 0; u < units; u++) {
                variable[u] = entry.unit[u] & head::overlong(u) ? 0 : gaac_entry_length(entry.unit[u]);
                bytes += variable[u];
            }
            if (tiles.start(to, bytes)) {
                tiles.piece(to, stage, slot + static_cast<uint64_t>(parked[warp].h) * head::fixed_bytes,
                            head::fixed_bytes);
#pragma unroll
                for (int u = 0; u < units; u++)
                    if (variable[u] > 0)
                        tiles.piece(to, stage + head::variable(u),
                                    slot + a.fixed_bytes + gaac_entry_offset(entry.unit[u]), variable[u]);
            }
        };
        // Starts the copies of the step behind those in the ring.
        const auto copy_step = [&](int to) {
            const int i = ahead / 2;
            if (i < count) {
                if (ahead % (2 * batch_tiles) == 0)
                    tiles.wait_small(); // fetched when the loop came to the batch before
                const entry_words<units> entry = batches.entry(i);
                if (entry_is_raw(entry.unit[0])) {
                    copy_raw(to, entry.unit[0], ahead & 1);
                    ahead++;
                } else {
                    copy_coded(to, entry, batches.block(i));
                    ahead += 2;
                }
            }
            tiles.finish();
        };
#pragma unroll
        for (int i = 0; i < stages; i++)
            copy_step((tiles.steps + i) % stages);
        if (segment == 0)
            __syncthreads(); // the tag table

        // ---- arithmetic --------------------------------------------------------------------------------------------
        row_state<columns, fragments> state;
        state.clear();
        const item_masks<columns, kind::general> masks(a, item, h, length, queries, first_tile);

        // K, then V of a tile that lies in a stage in fragment order.
        const auto scores_of_fragments = [&](const uint8_t *from, float(&score)[columns][4]) {
#pragma unroll
            for (int f = 0; f < fragments; f++) {
                const uint4 x = *reinterpret_cast<const uint4 *>(from + f * GAAC_FRAGMENT_BYTES + position * 16);
                const uint32_t k[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
                for (int c = 0; c < columns; c++)
                    mma_16x8x16(score[c], k, q[c][f][0], q[c][f][1]);
            }
        };
        const auto add_fragments = [&](const uint8_t *from, int i, const uint32_t(&p)[columns][2]) {
            const uint2 keep = masks.seen_tokens(a, i);
#pragma unroll
            for (int f = 0; f < fragments; f++) {
                const uint4 x = *reinterpret_cast<const uint4 *>(from + f * GAAC_FRAGMENT_BYTES + position * 16);
                const uint32_t v[4] = {x.x & keep.x, x.y & keep.x, x.z & keep.y, x.w & keep.y};
#pragma unroll
                for (int c = 0; c < columns; c++)
                    mma_16x8x16(state.out[c][f], v, p[c][0], p[c][1]);
            }
        };
        const auto clear_scores = [&](float(&score)[columns][4]) {
#pragma unroll
            for (int c = 0; c < columns; c++)
                score[c][0] = score[c][1] = score[c][2] = score[c][3] = 0;
        };
        // One part of a coded tile, decoded plainly from device memory into the stage: for what is rare.
        const auto decode_plainly = [&](gaac_part part, const entry_words<units> &entry, int i, uint8_t *stage) {
            const int block = batches.block(i);
            const uint8_t *slot = a.cache.slots + static_cast<uint64_t>(block) * a.cache.slot_stride;
            const int h = parked[warp].h;
            const uint8_t *fixed = slot + static_cast<uint64_t>(h) * head::fixed_bytes;
            const uint32_t epoch = min(epoch_bits >> entry_epoch_shift, a.cache.epochs - 1);
            const uint8_t *windows = a.cache.windows + static_cast<uint64_t>(epoch) * a.window_bytes +
                                     h * (halves * (window_k_bytes + window_v_bytes));
#pragma unroll 1
            for (int u = 0; u < units; u++) {
                const int hv = head::hv(u);
                const uint32_t e = u == 0 ? entry.unit[0] : entry.unit[units - 1];
                decode_part_plain(
                    hv, part, fixed + head::unit_fixed(u) + (part == GAAC_V ? hv * GAAC_PART_FIXED_BYTES : 0),
                    slot + a.fixed_bytes + gaac_entry_offset(e), gaac_entry_length(e),
                    (gaac_entry_exceptions(e) >> 2 * part & 3) != 0,
                    reinterpret_cast<const uint32_t *>(windows + 2 * (window_k_bytes + window_v_bytes) * u +
                                                       (part == GAAC_V ? window_k_bytes * hv : 0)),
                    stage + 4096 * u);
            }
            if constexpr (rest > 0) {
                const uint8_t *from = fixed + head::rest_fixed + (part == GAAC_V ? 512 * rest : 0);
#pragma unroll
                for (int f = 0; f < rest; f++)
                    *reinterpret_cast<uint4 *>(stage + 2048 * halves + 512 * f + 16 * lane_id()) =
                        *reinterpret_cast<const uint4 *>(from + 512 * f + 16 * lane_id());
            }
            __syncwarp();
        };

        // A round of the loop is a step of the ring.
#pragma unroll 1
        for (int at_hand = 0; at_hand < 2 * count;) {
            const int i = at_hand / 2;
            if (at_hand % (2 * batch_tiles) == 0)
                batches.fetch(source(), i);
            tiles.wait();
            const uint8_t *const stage = shared + (warp * stages + tiles.stage()) * head::stage_bytes;
            const entry_words<units> entry = batches.entry(i);
            const bool masked = masks.hides(i);
            uint32_t odd = (entry.unit[0] ^ epoch_bits) & (0xff000000u | head::overlong(0));
            if (units > 1)
                odd |= entry.unit[units - 1] & head::overlong(units - 1);
            float score[columns][4];
            uint32_t p[columns][2];
            clear_scores(score);
            bool plain = false; // the tile is dealt with here
            if (__builtin_expect(odd != 0 || (!kind::general && masked), 0)) {
                if (entry_is_raw(entry.unit[0])) {
                    plain = true;
                    uint2 *const weights = parked_weights[warp] + lane_id();
                    if ((at_hand & 1) == 0) {
                        scores_of_fragments(stage, score);
                        masks.take(a, state, score, i, masked, p);
#pragma unroll
                        for (int c = 0; c < columns; c++)
                            weights[32 * c] = make_uint2(p[c][0], p[c][1]);
                    } else {
#pragma unroll
                        for (int c = 0; c < columns; c++)
                            p[c][0] = weights[32 * c].x, p[c][1] = weights[32 * c].y;
                        add_fragments(stage, i, p);
                    }
                    at_hand -= 1; // half a tile
                } else {
                    if (((entry.unit[0] ^ epoch_bits) & entry_epoch_mask << entry_epoch_shift) != 0)
                        change_epoch(entry.unit[0] & entry_epoch_mask << entry_epoch_shift);
                    odd = (entry.unit[0] & head::overlong(0)) | (entry.unit[units - 1] & head::overlong(units - 1));
                    if (odd != 0 || (!kind::general && masked)) {
                        plain = true;
                        uint8_t *const memory = shared + (stage - shared);
                        decode_plainly(GAAC_K, entry, i, memory);
                        scores_of_fragments(stage, score);
                        masks.take(a, state, score, i, masked, p);
                        __syncwarp();
                        decode_plainly(GAAC_V, entry, i, memory);
                        add_fragments(stage, i, p);
                        tiles.written();
                    }
                }
            }
            if (!plain) {
                // A coded tile.
                stored_bytes stored[units];
                uint32_t corrections[units][2]; // K's and V's, of both halves
#pragma unroll
                for (int u = 0; u < units; u++) {
                    const uint8_t *variable = stage + head::variable(u);
                    uint4 k, v = make_uint4(0, 0, 0, 0);
                    if (head::hv(u) == 2) {
                        const uint32_t tags = *reinterpret_cast<const uint16_t *>(variable + position * 2);
                        k = tag_table[tags & 0xff], v = tag_table[tags >> 8];
                        stored[u] = read_stored<2>(variable, k, v, a.f);
                    } else {
                        k = tag_table[variable[position]];
                        stored[u] = read_stored<1>(variable, k, v, a.f);
                    }
                    corrections[u][0] = k.w, corrections[u][1] = v.w;
                }
#pragma unroll
                for (int u = 0; u < units; u++) {
                    const uint8_t *fixed = stage + head::unit_fixed(u);
                    constexpr int most = 2;
                    uint32_t codes[3 * most];
                    if (head::hv(u) == 2)
                        load_codes<2>(codes, fixed, position);
                    else
                        load_codes<1>(reinterpret_cast<uint32_t(&)[3]>(codes), fixed, position);
#pragma unroll
                    for (int half = 0; half < head::hv(u); half++) {
                        uint32_t words[8], k[16];
                        load_words(words, fixed, half, position);
                        decode_half<GAAC_K>(k, words, codes[3 * half], codes[3 * half + 1], codes[3 * half + 2],
                                            stored[u].n[half], correction_of(corrections[u][0], half, a.f),
                                            k_base + 4 * (2 * u + half), a.f);
                        if (entry.unit[u] & 1u << (GAAC_ENTRY_EXCEPTION_SHIFT + half))
                            apply_exceptions(k, GAAC_K, half, position, stage + head::variable(u),
                                             stage + head::variable(u) + gaac_entry_length(entry.unit[u]));
#pragma unroll
                        for (int c = 0; c < columns; c++)
#pragma unroll
                            for (int j = 0; j < 4; j++)
                                mma_16x8x16(score[c], k + 4 * j, q[c][4 * (2 * u + half) + j][0],
                                            q[c][4 * (2 * u + half) + j][1]);
                    }
                }
#pragma unroll
                for (int f = 0; f < rest; f++) {
                    const uint4 x = *reinterpret_cast<const uint4 *>(stage + head::rest_fixed +
                                                                     f * GAAC_FRAGMENT_BYTES + position * 16);
                    const uint32_t k[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
                    for (int c = 0; c < columns; c++)
                        mma_16x8x16(score[c], k, q[c][4 * halves + f][0], q[c][4 * halves + f][1]);
                }
                masks.take(a, state, score, i, masked, p);
#pragma unroll
                for (int u = 0; u < units; u++) {
                    const uint8_t *fixed = stage + head::unit_fixed(u) + head::hv(u) * GAAC_PART_FIXED_BYTES;
                    constexpr int most = 2;
                    uint32_t codes[3 * most];
                    if (head::hv(u) == 2)
                        load_codes<2>(codes, fixed, position);
                    else
                        load_codes<1>(reinterpret_cast<uint32_t(&)[3]>(codes), fixed, position);
#pragma unroll
                    for (int half = 0; half < head::hv(u); half++) {
                        uint32_t words[8], v[16];
                        load_words(words, fixed, half, position);
                        const uint32_t correction = head::hv(u) == 2 ? correction_of(corrections[u][1], half, a.f)
                                                                     : correction_of(corrections[u][0], 1, a.f);
                        decode_half<GAAC_V>(v, words, codes[3 * half], codes[3 * half + 1], codes[3 * half + 2],
                                            stored[u].n[head::hv(u) == 2 ? 2 + half : 1], correction,
                                            v_base + 4 * (2 * u + half), a.f);
                        if (entry.unit[u] & 1u << (GAAC_ENTRY_EXCEPTION_SHIFT + 2 + half))
                            apply_exceptions(v, GAAC_V, half, position, stage + head::variable(u),
                                             stage + head::variable(u) + gaac_entry_length(entry.unit[u]));
                        if (kind::general && masked) {
                            const uint2 keep = masks.seen_tokens(a, i);
#pragma unroll
                            for (int r = 0; r < 16; r++)
                                v[r] &= r & 2 ? keep.y : keep.x;
                        }
#pragma unroll
                        for (int j = 0; j < 4; j++)
#pragma unroll
                            for (int c = 0; c < columns; c++)
                                mma_16x8x16(state.out[c][4 * (2 * u + half) + j], v + 4 * j, p[c][0], p[c][1]);
                    }
                }
                if constexpr (rest > 0) {
                    uint2 keep = make_uint2(~0u, ~0u);
                    if (kind::general && masked)
                        keep = masks.seen_tokens(a, i);
#pragma unroll
                    for (int f = 0; f < rest; f++) {
                        const uint4 x = *reinterpret_cast<const uint4 *>(
                            stage + head::rest_fixed + (rest + f) * GAAC_FRAGMENT_BYTES + position * 16);
                        const uint32_t v[4] = {x.x & keep.x, x.y & keep.x, x.z & keep.y, x.w & keep.y};
#pragma unroll
                        for (int c = 0; c < columns; c++)
                            mma_16x8x16(state.out[c][4 * halves + f], v, p[c][0], p[c][1]);
                    }
                }
            }
            // The stage is used up: fill it again, go on to the next.
            __syncwarp();
            copy_step(tiles.stage());
            tiles.steps++;
            at_hand += 2;
        }

        // ---- merging -----------------------------------------------------------------------------------------------
        state.sum_totals();
        __syncthreads(); // the ring becomes the memory to merge in; the parked values are there
        item = parked_item, left = parked_left, segment = parked_segment;
        merge_segment<kind>(a, state, shared, merged, item, segment, left == 0);
        if (left > 0) {
            tiles.written();
            __syncthreads();
        }
        item++, tile = 0, segment++;
    }
}

} // namespace gaac

#endif
