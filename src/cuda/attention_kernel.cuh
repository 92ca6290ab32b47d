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
    // cache too small for them. Two stages a warp, or four of few bytes: more copies in flight gain nothing.
    static constexpr int warps = dim * columns > 256 || dim > 128 ? 8 : dim > 64 || general || columns > 1 ? 12 : 16;
    static constexpr int stages = 2 * warps * head::stage_bytes >= 96 * 1024 ? 2 : 4;
    __host__ __device__ static constexpr size_t ring_bytes(int warp_count)
    {
        return (static_cast<size_t>(warp_count) * stages * head::stage_bytes + stage_slack + 127) / 128 * 128;
    }
    // Beside both: tag table, places of tiles, query rows and more.
    static constexpr size_t static_shared_bytes = 4096 +
                                                  warps * (sizeof(tile_places<head::units>) + 320 * columns + 128) +
                                                  2 * columns * head::fragments * 256 + 1024;
    // With memory of its own, merging runs beside the first copies of the next item.
    static constexpr bool separate =
        ring_bytes(warps) + merge_memory<rows, dim>::bytes(warps, most_ranks) + static_shared_bytes <= 227 * 1024;
    static constexpr size_t shared_bytes(int warp_count, int ranks)
    {
        const size_t ring = ring_bytes(warp_count), merge = merge_memory<rows, dim>::bytes(warp_count, ranks);
        return separate ? ring + merge : ring > merge ? ring : merge;
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

// Writes eight query rows of an item as operand B, [fragment][lane]: lane (g, t) has row g. Zeros where there is no
// row.
template <typename kind>
__device__ __forceinline__ void load_queries(uint2 *to, const attention_params &a, int sequence, int h, int first_row,
                                             int row_total)
{
    using head = typename kind::head;
    const int g = static_cast<int>(lane_id() >> 2), t = static_cast<int>(lane_id() & 3);
    const int row = first_row + g, token = kind::general ? row / a.group : 0;
    const bool have = row < row_total;
    const uint16_t *from = a.q + (query_row(a.shape, sequence) + token) * a.q_token_stride +
                           (h * a.group + (row - token * a.group)) * a.q_head_stride;
#pragma unroll
    for (int u = 0; u < head::units; u++)
#pragma unroll
        for (int f = 0; f < 4 * head::hv(u); f += 2) {
            uint4 x = make_uint4(0, 0, 0, 0);
            if (have)
                x = *reinterpret_cast<const uint4 *>(from + 128 * u + 16 * head::hv(u) * t + 4 * f);
            to[(8 * u + f) * 32] = make_uint2(x.x, x.y);
            to[(8 * u + f + 1) * 32] = make_uint2(x.z, x.w);
        }
#pragma unroll
    for (int f = 0; f < head::rest; f++) {
        uint2 x = make_uint2(0, 0);
        if (have)
            x = *reinterpret_cast<const uint2 *>(from + 64 * head::halves + 4 * head::rest * t + 4 * f);
        to[(4 * head::halves + f) * 32] = x;
    }
}

// A warp's shared memory beside its stages. What the loop over tiles rarely needs is parked here: held in registers it
// would be spilled.
template <typename kind> struct warp_memory {
    ring_barriers<kind::stages> barriers;
    tile_places<kind::head::units> places;
    uint2 weights[32 * kind::columns]; // of a raw tile, between its K and its V
    int item, segment, left;           // what the warp works at; tiles of the rank after it
    int h, sequence, queries;          // of the item
    int first_tile;                    // the warp's
    unsigned count;                    // of the warp's tiles
    int cells;                         // of the sequence, from the warp's first tile on
    uint32_t epoch_bits;               // of the base words at hand, where an entry has them
};

template <typename kind>
__global__ void __launch_bounds__(kind::warps * 32, 1) attention(const __grid_constant__ attention_params a)
{
    using head = typename kind::head;
    constexpr int columns = kind::columns, stages = kind::stages;
    constexpr int units = head::units, halves = head::halves, fragments = head::fragments, rest = head::rest;
    extern __shared__ __align__(128) uint8_t shared[];
    __shared__ uint4 tag_table[tag_table_entries];
    __shared__ merge_rows<kind::warps, kind::rows> merged;
    __shared__ warp_memory<kind> memories[kind::warps];
    // Of the segment at hand and the next, by turns. Query rows are kept here as operand B for all warps.
    __shared__ uint2 query_operands[2][columns * fragments * 32];
    __shared__ query_row_info row_infos[kind::general ? 2 : 1][kind::general ? kind::rows : 1];

    const int warps = static_cast<int>(blockDim.x / 32);
    const int warp = __shfl_sync(~0u, thread_id() / 32, 0);
    warp_memory<kind> &mine = memories[warp];
    volatile warp_memory<kind> &parked = mine;
    ring<stages> tiles(mine.barriers);
    tile_batches<units> batches(mine.places);
    const auto source = [&]() {
        return tile_source{a.block_table + parked.sequence * a.block_table_stride + parked.first_tile,
                           a.cache.entries + parked.h * units, a.cache.entry_stride, parked.count};
    };
    uint32_t k_base[4 * halves], v_base[4 * halves];
    // Base words of an epoch. A block of another epoch loads others.
    const auto change_epoch = [&](uint32_t bits) {
        __syncwarp();
        if (lane_id() == 0)
            parked.epoch_bits = bits;
        __syncwarp();
        const uint32_t epoch = min(bits >> entry_epoch_shift, a.cache.epochs - 1);
        load_bases<head>(k_base, v_base,
                         a.cache.windows + static_cast<uint64_t>(epoch) * a.window_bytes +
                             parked.h * head::window_bytes);
    };

    const unsigned position = lane_position(lane_id());

    // ---- copies ------------------------------------------------------------------------------------------------
    // A coded tile is one step of the ring, a raw one two: K, then V. Tiles are counted in halves: an odd number is
    // a raw tile's V.
    unsigned ahead = 0; // to copy next
    const auto copy_raw = [&](int to, uint32_t entry, bool v) {
        const uint8_t *from =
            a.cache.raw + (entry & ~entry_raw) * a.raw_bytes + static_cast<uint64_t>(parked.h) * (2 * head::part_bytes);
        const uint32_t stage = shared_address(shared) + (warp * stages + to) * head::stage_bytes;
        if (tiles.start(to, head::part_bytes)) {
#pragma unroll
            for (int u = 0; u < units; u++)
                tiles.piece(to, stage + head::unit_part(u),
                            from + 2 * head::unit_part(u) + (v ? head::unit_part_bytes(u) : 0),
                            head::unit_part_bytes(u));
            if (rest > 0)
                tiles.piece(to, stage + head::rest_part, from + 2 * head::rest_part + (v ? head::rest_part_bytes : 0),
                            head::rest_part_bytes);
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
            tiles.piece(to, stage, slot + static_cast<uint64_t>(parked.h) * head::fixed_bytes, head::fixed_bytes);
#pragma unroll
            for (int u = 0; u < units; u++)
                if (variable[u] > 0)
                    tiles.piece(to, stage + head::variable(u), slot + a.fixed_bytes + gaac_entry_offset(entry.unit[u]),
                                variable[u]);
        }
    };
    // Starts the copies of the step behind those in the ring.
    const auto copy_step = [&](int to) {
        const unsigned i = ahead / 2;
        if (i < parked.count) {
            if (ahead % (2 * batch_tiles) == 0 && ahead > 0)
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

    // ---- a segment: a run of tiles of one item ---------------------------------------------------------------------
    // Finds the warp's share, parks what describes it, starts its first copies.
    const auto begin_segment = [&](int item, int tile, int left, int segment) {
        const int sequence = item / items_of_sequence(a.shape);
        const int h = item % items_of_sequence(a.shape) / a.shape.row_groups;
        const int row_group = item % a.shape.row_groups;
        const int length = segment == 0 ? a.work[block_id()].length : a.shape.lengths[sequence];
        const int queries = kind::general ? query_count(a.shape, sequence) : 1;
        const tile_span span = visible_tiles(length, queries, kind::general ? a.shape.window : 0);
        const int segment_tiles = min(left, max(span.count, 1) - tile);
        const int real_tiles = span.count > 0 ? segment_tiles : 0; // the one tile of a sequence without any is none
        const int begin = real_tiles * warp / warps, count = real_tiles * (warp + 1) / warps - begin;
        const int first_tile = span.first + tile + begin; // counted from the sequence's start
        __syncwarp();
        if (lane_id() == 0) {
            parked.item = item, parked.segment = segment, parked.left = left - segment_tiles;
            parked.h = h, parked.sequence = sequence, parked.queries = queries;
            parked.first_tile = first_tile, parked.count = count;
            parked.cells = length - first_tile * GAAC_BLOCK_TOKENS;
        }
        __syncwarp();
        if (count > 0)
            batches.begin(source());
        for (int c = warp; c < columns; c += warps)
            load_queries<kind>(query_operands[segment & 1] + c * fragments * 32 + lane_id(), a, sequence, h,
                               row_group * kind::rows + 8 * c, queries * a.group);
        if constexpr (kind::general) {
            if (thread_id() < kind::rows) {
                const int row = row_group * kind::rows + static_cast<int>(thread_id()), token = row / a.group;
                const bool have = row < queries * a.group;
                row_infos[segment & 1][thread_id()] = {
                    min(token, queries - 1),
                    have && a.slopes != nullptr ? a.slopes[h * a.group + row - token * a.group] * 1.442695041f : 0.f};
            }
        }
        change_epoch(0);
        ahead = 0;
#pragma unroll
        for (int i = 0; i < stages; i++)
            copy_step((tiles.steps + i) % stages);
    };

    // ---- arithmetic --------------------------------------------------------------------------------------------
    row_state<columns, fragments> state;
    const uint2 *operands = nullptr; // the lane's
    const auto operand = [&](int c, int f) { return operands[(c * fragments + f) * 32]; };
    const auto masks = [&]() {
        return item_masks{parked.cells, kind::general ? parked.queries : 1,
                          row_infos[kind::general ? parked.segment & 1 : 0]};
    };
    // Scores of tile i to weights.
    const auto take = [&](float(&score)[columns][4], int i, bool masked, uint32_t(&p)[columns][2]) {
        if constexpr (kind::general) {
            if (masked || a.softcap != 0.f || a.slopes != nullptr) {
                masks().change_scores(a, score, i, masked);
                state.take(score, 1.f, p);
            } else
                state.take(score, a.scale_log2, p);
        } else {
            if (masked)
                masks().hide_unwritten(score, i);
            state.take(score, a.scale_log2, p);
        }
    };

    // K, then V of a tile that lies in a stage in fragment order.
    const auto scores_of_fragments = [&](const uint8_t *from, float(&score)[columns][4]) {
#pragma unroll
        for (int f = 0; f < fragments; f++) {
            const uint4 x = *reinterpret_cast<const uint4 *>(from + f * GAAC_FRAGMENT_BYTES + position * 16);
            const uint32_t k[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
            for (int c = 0; c < columns; c++)
                mma_16x8x16(score[c], k, operand(c, f));
        }
    };
    const auto add_fragments = [&](const uint8_t *from, int i, const uint32_t(&p)[columns][2]) {
        const uint2 keep = masks().template seen_tokens<kind::general>(a, i);
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
        const int h = parked.h;
        const uint8_t *fixed = slot + static_cast<uint64_t>(h) * head::fixed_bytes;
        const uint32_t epoch = min(parked.epoch_bits >> entry_epoch_shift, a.cache.epochs - 1);
        const uint8_t *windows =
            a.cache.windows + static_cast<uint64_t>(epoch) * a.window_bytes + h * head::window_bytes;
#pragma unroll 1
        for (int u = 0; u < units; u++) {
            const int hv = head::hv(u);
            const uint32_t e = u == 0 ? entry.unit[0] : entry.unit[units - 1];
            decode_part_plain(hv, part, fixed + head::unit_fixed(u) + (part == GAAC_V ? hv * GAAC_PART_FIXED_BYTES : 0),
                              slot + a.fixed_bytes + gaac_entry_offset(e), gaac_entry_length(e),
                              (gaac_entry_exceptions(e) >> 2 * part & 3) != 0,
                              reinterpret_cast<const uint32_t *>(windows + 2 * (window_k_bytes + window_v_bytes) * u +
                                                                 (part == GAAC_V ? window_k_bytes * hv : 0)),
                              stage + head::unit_part(u));
        }
        if constexpr (rest > 0) {
            const uint8_t *from = fixed + head::rest_fixed + (part == GAAC_V ? head::rest_part_bytes : 0);
#pragma unroll
            for (int f = 0; f < rest; f++)
                *reinterpret_cast<uint4 *>(stage + head::rest_part + f * GAAC_FRAGMENT_BYTES + 16 * lane_id()) =
                    *reinterpret_cast<const uint4 *>(from + f * GAAC_FRAGMENT_BYTES + 16 * lane_id());
        }
        __syncwarp();
        // Loaded again rather than kept over the call, for which there are too few registers.
        change_epoch(parked.epoch_bits);
    };

    // ---- the rank's segments ---------------------------------------------------------------------------------------
    // Each is merged while the first copies of the next are on their way.
    const int4 start = *reinterpret_cast<const int4 *>(a.work + block_id()); // the first half of its rank_work
    int item = start.x, tile = start.y, left = start.z, segment = 0;         // to begin next
    if (left <= 0)
        return;
    for (unsigned tags = thread_id(); tags < tag_table_entries; tags += blockDim.x)
        tag_table[tags] = tag_table_entry(tags);
#pragma unroll 1
    while (true) {
        const auto merge_last = [&]() {
            merge_segment<kind>(a, state, shared + (kind::separate ? kind::ring_bytes(warps) : 0), merged, item - 1,
                                segment - 1, left == 0);
        };
        if constexpr (!kind::separate)
            if (segment > 0) {
                __syncthreads();
                merge_last();
                if (left == 0)
                    return;
                tiles.written();
                __syncthreads();
            }
        if (left > 0)
            begin_segment(item, tile, left, segment);
        __syncthreads(); // tag table, query rows; and all warps' rows and totals
        if constexpr (kind::separate)
            if (segment > 0) {
                merge_last();
                if (left == 0)
                    return;
            }
        state.clear();
        operands = query_operands[segment & 1] + lane_id();

        // A round of the loop is a step of the ring.
#pragma unroll 1
        for (unsigned at_hand = 0; at_hand / 2 < parked.count;) {
            const int i = static_cast<int>(at_hand / 2);
            if (at_hand % (2 * batch_tiles) == 0)
                batches.fetch(source(), i);
            tiles.wait();
            const uint8_t *const stage = shared + (warp * stages + tiles.stage()) * head::stage_bytes;
            const entry_words<units> entry = batches.entry(i);
            const bool masked = masks().template hides<kind::general>(a, i);
            uint32_t odd = (entry.unit[0] ^ parked.epoch_bits) & (0xff000000u | head::overlong(0));
            if (units > 1)
                odd |= entry.unit[units - 1] & head::overlong(units - 1);
            float score[columns][4];
            uint32_t p[columns][2];
            clear_scores(score);
            bool plain = false; // the tile is dealt with here
            if (__builtin_expect(odd != 0 || (!kind::general && masked), 0)) {
                if (entry_is_raw(entry.unit[0])) {
                    plain = true;
                    uint2 *const weights = mine.weights + lane_id();
                    if ((at_hand & 1) == 0) {
                        scores_of_fragments(stage, score);
                        take(score, i, masked, p);
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
                    if (((entry.unit[0] ^ parked.epoch_bits) & entry_epoch_mask << entry_epoch_shift) != 0)
                        change_epoch(entry.unit[0] & entry_epoch_mask << entry_epoch_shift);
                    odd = (entry.unit[0] & head::overlong(0)) | (entry.unit[units - 1] & head::overlong(units - 1));
                    if (odd != 0 || (!kind::general && masked)) {
                        plain = true;
                        uint8_t *const memory = shared + (stage - shared);
                        decode_plainly(GAAC_K, entry, i, memory);
                        scores_of_fragments(stage, score);
                        take(score, i, masked, p);
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
                    uint32_t codes[3 * GAAC_MAX_HV];
                    load_codes(codes, head::hv(u), fixed, position);
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
                                mma_16x8x16(score[c], k + 4 * j, operand(c, 4 * (2 * u + half) + j));
                    }
                }
#pragma unroll
                for (int f = 0; f < rest; f++) {
                    const uint4 x = *reinterpret_cast<const uint4 *>(stage + head::rest_fixed +
                                                                     f * GAAC_FRAGMENT_BYTES + position * 16);
                    const uint32_t k[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
                    for (int c = 0; c < columns; c++)
                        mma_16x8x16(score[c], k, operand(c, 4 * halves + f));
                }
                take(score, i, masked, p);
#pragma unroll
                for (int u = 0; u < units; u++) {
                    const uint8_t *fixed = stage + head::unit_fixed(u) + head::hv(u) * GAAC_PART_FIXED_BYTES;
                    uint32_t codes[3 * GAAC_MAX_HV];
                    load_codes(codes, head::hv(u), fixed, position);
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
                            const uint2 keep = masks().template seen_tokens<kind::general>(a, i);
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
                        keep = masks().template seen_tokens<kind::general>(a, i);
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
            tiles.steps++;
            copy_step((tiles.steps - 1) % stages);
            at_hand += 2;
        }

        state.sum_totals();
        leave_rows<kind>(state, warp, merged);
        item = parked.item + 1, tile = 0, left = parked.left, segment = parked.segment + 1;
    }
}

} // namespace gaac

#endif
