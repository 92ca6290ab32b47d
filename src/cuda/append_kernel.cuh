// The kernel behind gaac_cuda_append where few tokens are new, as in a step of decoding: there are fewer blocks than
// multiprocessors, so what counts is how long one block takes from end to end. write_blocks is made for throughput;
// this does the same with a warp for each part of each unit, and differs in order alone:
//
//  - What no address has to be waited for is loaded first: windows and the new tokens. The rest is a chain in which
//  each
//    load gives the next one's address: length, block table, entry, raw block.
//  - A block that is complete now is encoded from both its raw block and the rows. The raw block is written only if the
//    block stays raw.
//  - Each warp finds out by itself where its unit's variable part lies, from all counts, and writes its share of it:
//  one
//    barrier, and no image.
#ifndef GAAC_CUDA_APPEND_KERNEL_CUH
#define GAAC_CUDA_APPEND_KERNEL_CUH

#include "cuda/write_kernel.cuh"

namespace gaac
{

constexpr unsigned most_pieces = 16; // warps of a thread block: 128 registers a thread

// What one warp encodes: a part of a unit.
struct append_piece {
    uint32_t raw, fixed, windows; // bytes to it in a raw block, in a slot and in an epoch's windows
    uint16_t channel;
    uint8_t head, unit, part;
    uint8_t hv, fragments;
    uint8_t entry;   // of the block
    uint8_t leading; // it is the unit's first
    uint8_t unused[3];
};

struct append_call {
    write_call write;
    uint32_t pieces;
    uint32_t tag_bytes; // of all units
    append_piece piece[most_pieces];
};

// Of a part that is encoded: bits 0-9: stored N bytes, the leading part's with the tags; 10-22: exceptions; 28-31:
// halves that have some, as in entries. Those of a unit's parts add up.
constexpr unsigned total_exceptions = 10, total_flags = 28;

// Shared memory.
struct append_shared {
    write_shared head;                  // first: shared_head()
    warp_task work;                     // of all warps; for what is needed behind a barrier
    uint32_t totals[most_pieces][2];    // by entry and part; 0 what a unit lacks
    uint32_t marks[most_pieces][2][32]; // of each lane. Bits 0-7: N bytes that are stored; from 16 on: exceptions
    half_notes notes[most_pieces];      // of the warps, by half
};

// False: the shape has more pieces than a thread block has warps.
inline bool make_pieces(append_call *call)
{
    const geometry &sizes = call->write.sizes;
    const gaac_layout &layout = sizes.layout;
    call->pieces = 0;
    call->tag_bytes = 0;
    for (uint32_t head = 0; head < layout.shape.kv_heads; head++)
        for (uint32_t u = 0; u < layout.units; u++) {
            const gaac_unit &unit = layout.unit[u];
            call->tag_bytes += GAAC_TAG_BYTES * unit.hv;
            for (unsigned part = unit.has_k ? 0 : 1; part < (unit.has_v ? 2u : 1u); part++) {
                if (call->pieces == most_pieces)
                    return false;
                const bool is_k = part == GAAC_K;
                append_piece *piece = &call->piece[call->pieces++];
                piece->raw = head * layout.head_raw_bytes + (is_k ? unit.raw_k_offset : unit.raw_v_offset);
                piece->fixed = head * layout.head_fixed_bytes + (is_k ? unit.fixed_offset : unit.fixed_v_offset);
                piece->windows = head * sizes.head_window_bytes + (is_k ? sizes.window_k[u] : sizes.window_v[u]);
                piece->channel = unit.channel;
                piece->head = static_cast<uint8_t>(head);
                piece->unit = static_cast<uint8_t>(u);
                piece->part = static_cast<uint8_t>(part);
                piece->hv = unit.hv;
                piece->fragments = unit.fragments;
                piece->entry = static_cast<uint8_t>(unit.hv > 0 ? head * layout.coded_units + unit.entry : 0);
                piece->leading = is_k || !unit.has_k;
            }
        }
    return true;
}

__device__ __forceinline__ append_shared *append_memory()
{
    return reinterpret_cast<append_shared *>(write_memory);
}

// Before the barrier behind which counting begins.
__device__ __forceinline__ void clear_counts(const write_call &call)
{
    append_shared *shared = append_memory();
    if (threadIdx.x < COUNTERS)
        shared->head.counters[threadIdx.x] = 0;
    if (threadIdx.x < most_pieces) {
        shared->totals[threadIdx.x][0] = 0;
        shared->totals[threadIdx.x][1] = 0;
    }
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < 2 * 32 * call.sizes.entries; i += blockDim.x)
        shared->marks[i / 64][i / 32 % 2][i % 32] = 0;
}

// The calling warp's piece; read again where it is needed, rather than held in registers.
__device__ __forceinline__ const append_piece &own_piece(const append_call &call)
{
    return call.piece[thread_index() / 32];
}

// The piece's values. k, v: from the rows to where the block's token 0 lies or would lie.
__device__ __forceinline__ part_source piece_source(const write_call &call, const append_piece &piece, int64_t k,
                                                    int64_t v)
{
    const bool is_k = piece.part == GAAC_K;
    part_source source;
    source.stride = is_k ? call.rows.k_token_stride : call.rows.v_token_stride;
    source.rows = (is_k ? call.rows.k + k : call.rows.v + v) +
                  piece.head * (is_k ? call.rows.k_head_stride : call.rows.v_head_stride) + piece.channel;
    source.wide = true;
    source.fragments = nullptr;
    source.rows_from = 0;
    return source;
}

// What all warps find out after the barrier: where the variable part of the warp's unit lies, and whether the block
// fits. Bytes.
struct piece_place {
    uint32_t variable, length; // of the unit
    uint32_t head;             // of that, tags and N bytes
    uint32_t used;             // of the pool
    uint32_t exceptions;       // of the block
    bool fits;
};
__device__ __forceinline__ piece_place place_piece(const append_call &call, const append_piece &piece, unsigned lane)
{
    uint32_t need = 0;
    if (lane < most_pieces)
        need = append_memory()->totals[lane][0] + append_memory()->totals[lane][1];
    const uint32_t head = need & 0x3ff, exceptions = need >> total_exceptions & 0x1fff;
    const uint32_t length = (head + 4 * exceptions + GAAC_POOL_ALIGN - 1) / GAAC_POOL_ALIGN;
    piece_place place;
    place.variable = __reduce_add_sync(all_lanes, lane < piece.entry ? length : 0) * GAAC_POOL_ALIGN;
    place.used = __reduce_add_sync(all_lanes, length) * GAAC_POOL_ALIGN;
    place.exceptions = __reduce_add_sync(all_lanes, exceptions);
    place.fits = __all_sync(all_lanes, length <= GAAC_MAX_UNIT_POOL / GAAC_POOL_ALIGN) &&
                 place.used <= call.write.cache.pool_bytes &&
                 place.exceptions <= call.write.sizes.layout.max_exceptions;
    const uint32_t heads = __reduce_add_sync(all_lanes, head);
    place.length = __shfl_sync(all_lanes, length, piece.entry) * GAAC_POOL_ALIGN;
    place.head = __shfl_sync(all_lanes, head, piece.entry);
    if (place.fits && threadIdx.x == 0) {
        uint64_t *counters = shared_head()->counters;
        counters[ENCODED] = 1;
        counters[POOL_BYTES] = place.used;
        counters[EXCEPTIONS] = place.exceptions;
        counters[STORED_N] = heads - call.tag_bytes;
    }
    return place;
}

// Values of a complete block, some of them in the rows, some in its raw block, whose part for this is held. NULL: all
// in the rows.
__device__ __forceinline__ part_source complete_source(const write_call &call, const append_piece &piece,
                                                       const block_task &task, const uint8_t *held, unsigned rows_from)
{
    part_source source = piece_source(call, piece, static_cast<int64_t>(task.k - task.first * call.rows.k_token_stride),
                                      static_cast<int64_t>(task.v - task.first * call.rows.v_token_stride));
    source.fragments = held;
    source.rows_from = rows_from;
    return source;
}
__device__ __forceinline__ const uint8_t *held_part(const write_call &call, const append_piece &piece,
                                                    const warp_task &work)
{
    return work.from_rows ? nullptr : raw_block_at(call, work.raw) + piece.raw;
}
// filled: the thread block has put all values into the raw block.
__device__ __forceinline__ unsigned rows_from(const block_task &task, bool filled)
{
    return filled ? GAAC_BLOCK_TOKENS : task.first;
}

// The piece's share of its unit's variable part; with the unit's first piece what belongs to no other, and the entry.
__device__ __forceinline__ void store_share(const append_call &call, const append_piece &piece,
                                            const piece_place &place, unsigned lane, uint8_t *variable,
                                            uint32_t *entries, bool filled)
{
    const append_shared *shared = append_memory();
    const half_notes &notes = shared->notes[threadIdx.x / 32];
    const unsigned hv = piece.hv;
    const uint32_t k = shared->marks[piece.entry][0][lane], v = shared->marks[piece.entry][1][lane];
    const uint32_t below = __popc(k & 0xff) | (k & 0xffff0000), all = below + (__popc(v & 0xff) | (v & 0xffff0000));
    uint32_t total;
    const uint32_t before = sum_of_lanes_below(all, lane, &total) + (piece.part == GAAC_K ? 0 : below);
    uint8_t *next = variable + GAAC_TAG_BYTES * hv + (before & 0xffff);
    uint32_t stored = piece.part == GAAC_K ? k : v;
#pragma unroll 1
    for (unsigned h = 0; h < hv; h++, stored >>= 4) {
        const uint32_t n = notes.n[h][lane];
#pragma unroll
        for (unsigned byte = 0; byte < 4; byte++)
            if (stored >> byte & 1)
                *next++ = static_cast<uint8_t>(n >> 8 * byte);
    }
    const uint32_t total_k = shared->totals[piece.entry][0], total_v = shared->totals[piece.entry][1];
    const uint32_t flags = (total_k + total_v) >> total_flags;
    if (piece.leading) {
        if (hv == 2)
            reinterpret_cast<uint16_t *>(variable)[lane_position(lane)] =
                static_cast<uint16_t>((k & 0xff) | (v & 0xff) << 8);
        else
            variable[lane_position(lane)] = static_cast<uint8_t>((k & 0xf) | (v & 0xf) << 4);
        if (place.head + lane < place.length - 4 * (total >> 16)) // less than GAAC_POOL_ALIGN bytes
            variable[place.head + lane] = 0;
        if (lane == 0)
            entries[piece.entry] = gaac_entry_make(place.variable, place.length, flags) | call.write.epoch
                                                                                              << entry_epoch_shift;
    }
    if (flags == 0)
        return;
    uint32_t number = before >> 16;
#pragma unroll 1
    for (unsigned h = 0; h < hv; h++)
        if (flags >> (2 * piece.part + h) & 1)
            number = store_records(complete_source(call.write, piece, shared->work.task,
                                                   held_part(call.write, piece, shared->work),
                                                   rows_from(shared->work.task, filled)),
                                   piece.part, hv, h, lane, notes.outside[h][lane], number, total >> 16, 0xffffffffu,
                                   reinterpret_cast<uint32_t *>(variable + place.length));
}

// Base words of both halves of a piece.
struct piece_bases {
    uint4 half[2];
};
__device__ __forceinline__ piece_bases load_bases(const write_call &call, const append_piece &piece, unsigned lane)
{
    const uint4 *at = reinterpret_cast<const uint4 *>(windows_of(call, call.epoch, 0) + piece.windows) +
                      (piece.part == GAAC_K ? lane & 3 : lane >> 2) * piece.hv;
    piece_bases found = {};
    if (piece.hv > 0)
        found.half[0] = at[0];
    if (piece.hv > 1)
        found.half[1] = at[1];
    return found;
}

// Encodes the piece: all but its share of the variable part, which stays in shared memory.
__device__ __forceinline__ void encode_piece(const append_piece &piece, const mixed_part &values, unsigned rows_from,
                                             piece_bases bases, unsigned lane, uint8_t *fixed)
{
    append_shared *shared = append_memory();
    half_notes *notes = &shared->notes[threadIdx.x / 32];
    const unsigned hv = piece.hv, part = piece.part, position = lane_position(lane);
    uint32_t mark = 0, flags = 0, waiting[3] = {0, 0, 0}, pairs[16], next[16];
    order_mixed(values.fresh[0], values.held[0], part, rows_from, lane, pairs);
    order_mixed(values.fresh[1], values.held[1], part, rows_from, lane, next);
#pragma unroll 1
    for (unsigned h = 0;;) {
        const lane_code found = encode_half(pairs, bases.half[0], position, fixed);
        fixed += GAAC_WORD_BYTES; // of the next half; at the end, codes
        store_codes(hv, h, position, found.code, waiting, fixed);
        notes->n[h][lane] = found.n;
        mark |= found.stored << 4 * h;
        if (found.any) {
            notes->outside[h][lane] = found.outside;
            mark += static_cast<uint32_t>(__popc(found.outside)) << 16;
            flags |= 1u << h;
        }
        if (++h == hv)
            break;
#pragma unroll
        for (unsigned i = 0; i < 16; i++)
            pairs[i] = next[i];
        bases.half[0] = bases.half[1];
    }
    shared->marks[piece.entry][part][lane] = mark;
    uint32_t total = static_cast<uint32_t>(__popc(mark & 0xff)) | mark >> 16 << total_exceptions;
    total = __reduce_add_sync(all_lanes, total) + (piece.leading ? GAAC_TAG_BYTES * hv : 0);
    if (lane == 0)
        shared->totals[piece.entry][part] = total | flags << (total_flags + 2 * part);
}

// What few blocks need stands apart, so that others need not go round it, nor hold registers for it. Both read the
// thread block's task from shared memory.

// All values of the piece into the block's raw block, whatever it held before.
[[maybe_unused]] static __device__ __noinline__ void fill_apart(const append_call &call)
{
    const append_piece &piece = own_piece(call);
    const warp_task &work = append_memory()->work;
    const unsigned lane = threadIdx.x % 32;
    fill_raw_part(
        call.write, work, piece.unit, piece.head, piece.part, lane,
        load_four(piece_source(call.write, piece, static_cast<int64_t>(work.task.k), static_cast<int64_t>(work.task.v)),
                  piece.fragments, lane));
}

// A complete block that does not fit stays raw. All threads call. filled: its values are in its raw block already.
[[maybe_unused]] static __device__ __noinline__ void keep_raw_block(const append_call &call, bool filled)
{
    warp_task *work = &append_memory()->work;
    const uint32_t block = work->task.block;
    if (work->raw == no_raw_block) {
        const writer me = {threadIdx.x / 32, threadIdx.x % 32, nullptr};
        const uint32_t raw = take_raw_block_together(call.write, me, block);
        if (raw == no_raw_block) {
            lose_block(call.write, block);
            return;
        }
        if (threadIdx.x == 0)
            work->raw = raw;
        __syncthreads();
    }
    if (threadIdx.x == 0)
        shared_head()->counters[FALLBACKS]++;
    if (!filled)
        fill_apart(call);
    if (!entry_is_raw(work->state))
        set_entries(call.write.cache, call.write.sizes.entries, block, entry_raw | work->raw);
}

// Encodes a complete block. work: what will be in shared memory after a barrier. values: what is fresh. filled: all
// values are in its raw block, written by this thread block.
__device__ __forceinline__ void complete_block(const append_call &call, const append_piece &piece,
                                               const warp_task &work, mixed_part *values, const piece_bases &bases,
                                               unsigned lane, bool filled)
{
    const uint8_t *held = held_part(call.write, piece, work);
    const unsigned from = rows_from(work.task, filled);
    uint8_t *fixed = slot_of(call.write, work.task.block) + piece.fixed;
    if (piece.hv > 0) {
        load_held(held, piece.hv, lane, values);
        encode_piece(piece, *values, from, bases, lane, fixed);
    } else {
        store_remainder(complete_source(call.write, piece, work.task, held, from), piece.part, piece.fragments, lane,
                        fixed);
    }
    __syncthreads();

    const warp_task &shared = append_memory()->work;
    const append_piece &again = own_piece(call);
    const piece_place place = place_piece(call, again, lane);
    if (!place.fits) {
        keep_raw_block(call, filled);
        return;
    }
    uint8_t *pool = slot_of(call.write, shared.task.block) + call.write.sizes.layout.fixed_bytes;
    if (again.hv > 0)
        store_share(call, again, place, lane, pool + place.variable, entries_of(call.write.cache, shared.task.block),
                    filled);
#pragma unroll 1
    for (uint32_t i = place.used / 16 + threadIdx.x; i < call.write.cache.pool_bytes / 16; i += blockDim.x)
        reinterpret_cast<uint4 *>(pool)[i] = make_uint4(0, 0, 0, 0);
    if (shared.raw == no_raw_block)
        return;
    if (place.exceptions > 0) // which are read once more
        __syncthreads();
    // All reads of the raw block are done: what was read decided that this is reached. Only writes have to be waited
    // for.
    if (threadIdx.x == 0 && filled)
        give_raw_block_back(call.write.cache, shared.raw);
    else if (threadIdx.x == 0)
        return_raw_block(call.write.cache, shared.raw);
}

// False: nothing to do, and nothing counted.
__device__ __forceinline__ bool append_block(const append_call &call, unsigned lane)
{
    append_rows rows;
    if (!find_append_rows(call.write, blockIdx.x, lane, &rows))
        return false;
    // What can be loaded already.
    const int64_t length = call.write.lengths[rows.sequence];
    const append_piece &piece = own_piece(call);
    piece_bases bases = load_bases(call.write, piece, lane);
    // Most likely the first token that is stored.
    const uint64_t k = rows.row * call.write.rows.k_token_stride, v = rows.row * call.write.rows.v_token_stride;
    uint2 token = load_four(piece_source(call.write, piece, static_cast<int64_t>(k), static_cast<int64_t>(v)),
                            piece.fragments, lane);
    clear_counts(call.write);
    __syncthreads();

    warp_task work;
    int64_t index;
    if (!find_append_tokens(call.write, rows, length, &work.task, &index))
        return false;
    const block_task &task = work.task;
    const bool encode = task.last == GAAC_BLOCK_TOKENS && !call.write.keep_raw;
    const int32_t block = table_block(call.write, rows.sequence, index);
    mixed_part values = {};
    if (encode && piece.hv > 0) // while the table is waited for
        load_fresh(complete_source(call.write, piece, task, nullptr, task.first), piece.part, piece.hv, lane, &values);
    if (!set_block(call.write, block, &work.task))
        return false;
    work.rows = rows_source(call.write, task);
    work.values = work.rows;
    work.state = *entries_of(call.write.cache, task.block);
    if (task.first > 0 && entry_is_empty(work.state)) { // what was lost stays so until the block begins anew
        lose_block(call.write, task.block);
        return true;
    }
    work.raw = raw_block_of(work.state);
    const bool held = entry_is_raw(work.state);
    work.from_rows = encode && task.first == 0;
    work.fill = work.code = false;
    work.content = kept_content(task, work.state);
    if (!work.from_rows && !held) {
        const writer me = {threadIdx.x / 32, lane, nullptr};
        work.raw = take_raw_block_together(call.write, me, task.block);
        if (work.raw == no_raw_block) {
            lose_block(call.write, task.block);
            return true;
        }
    }
    const bool reopen = work.content == RAW_DECODED || work.content == RAW_ZEROED;
    if (encode || reopen)
        if (threadIdx.x == 0)
            append_memory()->work = work;
    if (reopen) {
        if (work.content == RAW_DECODED && threadIdx.x == 0)
            shared_head()->counters[REOPENED]++;
        __syncthreads();
        fill_apart(call);
        __syncthreads(); // a warp reads what others wrote
        // No register holds these over the call.
        work = append_memory()->work;
        bases = load_bases(call.write, own_piece(call), lane);
        values = {};
    }
    if (encode) {
        complete_block(call, own_piece(call), work, &values, bases, lane, reopen);
        return true;
    }
    if (!reopen) {
        const part_source source =
            piece_source(call.write, piece, static_cast<int64_t>(task.k), static_cast<int64_t>(task.v));
        if (task.k != k || task.v != v)
            token = load_four(source, piece.fragments, lane);
        store_tokens(source, piece.part, piece.fragments, task.first, task.last, lane, token,
                     raw_block_at(call.write, work.raw) + piece.raw);
    }
    if (!held) {
        __syncthreads(); // all have read their entries
        set_entries(call.write.cache, call.write.sizes.entries, task.block, entry_raw | work.raw);
    }
    return true;
}

// A thread block a number of first_number, with a warp a piece.
__global__ void __launch_bounds__(32 * most_pieces, 1) append_blocks(const __grid_constant__ append_call call)
{
    if (append_block(call, threadIdx.x % 32))
        add_counters(call.write.cache);
}

} // namespace gaac

#endif
