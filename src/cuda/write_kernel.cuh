// The kernel behind gaac_cuda_append and gaac_cuda_encode. A thread block takes one block of the cache at a time, its
// warps the (head, unit) pairs of it, always the same warp the same pairs: what a warp puts into the raw block it may
// read again after a __syncwarp.
//
//  - New tokens that do not make up the whole block go into its raw block first, beside those that it held. If the
//    block is complete then, it is encoded from there.
//  - A block of 16 new tokens is encoded from the rows.
//  - Pass 1 writes the fixed parts into the slot and keeps variable parts in shared memory; then their places in the
//    pool are known, and whether the block fits; pass 2 writes them. Of a block that has more units than shared memory
//    has room for, the rest is encoded again in pass 2.
#ifndef GAAC_CUDA_WRITE_KERNEL_CUH
#define GAAC_CUDA_WRITE_KERNEL_CUH

#include "cuda/unit_encode.cuh"

namespace gaac
{

constexpr unsigned write_warps = 8; // most of a thread block
// Thread blocks that a multiprocessor should hold: 64 registers a thread. The kernel waits for memory, so more warps
// beat a few values of the whole unit in local memory (one load in the loop over halves; none at all with 3, 80
// registers).
constexpr unsigned write_residents = 4;
constexpr unsigned image_rounds = 4; // units of a warp whose variable parts are kept

struct write_call {
    geometry sizes;
    cache_view cache;
    gaac_kv_rows rows;
    bool wide; // rows and strides are multiples of 16 bytes
    bool keep_raw;
    uint32_t epoch;
    uint32_t rounds; // images that each warp has
    // gaac_cuda_append
    const int32_t *query_start, *lengths, *block_table;
    uint64_t block_table_stride;
    uint32_t sequences; // 0: gaac_cuda_encode
    // gaac_cuda_encode; offsets NULL: blocks' own values
    const int64_t *k_offsets, *v_offsets;
    const int32_t *blocks;
    uint32_t count;
};

// What is asked of one block.
struct block_task {
    uint64_t k, v; // elements from the call's rows to token `first` of head 0
    uint32_t block;
    uint32_t first, last; // tokens of the block that are new
    bool own;             // no new tokens: encode what the block holds
};

// What of the values that a block held stays in its raw block.
enum raw_content { RAW_KEPT, RAW_DECODED, RAW_ZEROED, RAW_REPLACED };

// The same with what a warp found out on the way. It lies in shared memory, a copy for each warp, since the registers
// are needed for values.
struct warp_task {
    block_task task;
    block_source rows, values; // of the new tokens; of those that are encoded
    uint32_t state;            // the block's first entry, before
    uint32_t raw;              // its raw block, or no_raw_block
    raw_content content;
    bool from_rows; // it is encoded from the rows, else from its raw block
    bool fill;      // in this pass values go into the raw block
    bool code;      // in this pass they go into the slot
};

// What a warp has of shared memory. Its images follow it.
struct warp_memory {
    warp_task work;
    half_notes notes;
};

// Shared memory: this, then uint32_t [entries, a multiple of 4] (what encoding the units came to, then their table
// entries), then for each warp its warp_memory and variable_image [rounds].
struct write_shared {
    uint64_t counters[COUNTERS]; // of this thread block; thread 0's
    uint32_t raw;                // index of a raw block just taken
    uint32_t used;               // bytes of the pool, or more than fit
};
static_assert(sizeof(write_shared) % 16 == 0 && sizeof(warp_memory) % 16 == 0 && sizeof(variable_image) % 16 == 0,
              "all of it on 16-byte boundaries");

extern __shared__ uint4 write_memory[];

// How many warps, and how many images each has.
struct write_launch {
    uint32_t warps, rounds, shared_bytes;
};
inline write_launch write_launch_of(const geometry &sizes)
{
    const uint32_t pairs = sizes.layout.units * sizes.layout.shape.kv_heads;
    const uint32_t turns = (pairs + write_warps - 1) / write_warps;
    write_launch launch;
    launch.warps = (pairs + turns - 1) / turns;
    launch.rounds = turns < image_rounds ? turns : image_rounds;
    launch.shared_bytes =
        static_cast<uint32_t>(sizeof(write_shared) + (sizes.entries + 3) / 4 * 4 * sizeof(uint32_t) +
                              launch.warps * (sizeof(warp_memory) + launch.rounds * sizeof(variable_image)));
    return launch;
}

// ---- which blocks -----------------------------------------------------------------------------

// Sequence s of n rows touches at most n / 16 + 2 blocks. Numbers are handed out from first_number(s) on, so that the
// sequence of a number is found by bisection, and some numbers have no block.
__device__ __forceinline__ uint32_t first_number(const write_call &call, uint32_t s)
{
    return static_cast<uint32_t>(call.query_start[s] - call.query_start[0]) / GAAC_BLOCK_TOKENS + 2 * s;
}

__device__ __forceinline__ uint32_t task_count(const write_call &call)
{
    if (call.sequences == 0)
        return call.count;
    return call.query_start == nullptr ? call.sequences : first_number(call, call.sequences);
}

// The last sequence whose first number is not above `number`; a whole warp calls.
__device__ __forceinline__ uint32_t find_sequence(const write_call &call, uint32_t number, unsigned lane)
{
    uint32_t low = 0, size = call.sequences;
    while (size > 1) {
        const uint32_t step = (size + 31) / 32, offset = lane * step;
        const bool below = offset < size && first_number(call, low + offset) <= number;
        const uint32_t last = max(__popc(__ballot_sync(all_lanes, below)), 1) - 1;
        low += last * step;
        size = min(step, size - last * step);
    }
    return low;
}

// Rows of one sequence, and which of the blocks that they touch is meant.
struct append_rows {
    uint32_t sequence, turn;
    int64_t row, rows;
};

// What a number stands for; false: nothing. A whole warp calls.
__device__ __forceinline__ bool find_append_rows(const write_call &call, uint32_t number, unsigned lane,
                                                 append_rows *found)
{
    found->sequence = number;
    found->turn = 0;
    found->row = number;
    found->rows = 1;
    if (call.query_start != nullptr) {
        found->sequence = find_sequence(call, number, lane);
        found->turn = number - first_number(call, found->sequence);
        found->row = call.query_start[found->sequence];
        found->rows = call.query_start[found->sequence + 1] - found->row;
    }
    return found->rows > 0;
}

// All of the task but its block, and which of the sequence's blocks that is. length: of the sequence, with the new
// rows.
__device__ __forceinline__ bool find_append_tokens(const write_call &call, const append_rows &from, int64_t length,
                                                   block_task *task, int64_t *index)
{
    int64_t row = from.row, start = length - from.rows;
    if (start < 0) { // more rows than tokens: the first have no place
        row -= start;
        start = 0;
    }
    *index = start / GAAC_BLOCK_TOKENS + from.turn;
    const int64_t begin = *index * GAAC_BLOCK_TOKENS, first = max(start, begin);
    row += first - start;
    task->first = static_cast<uint32_t>(first - begin);
    task->last = static_cast<uint32_t>(min(length - begin, static_cast<int64_t>(GAAC_BLOCK_TOKENS)));
    task->k = row * call.rows.k_token_stride;
    task->v = row * call.rows.v_token_stride;
    task->own = false;
    return begin < length;
}
__device__ __forceinline__ int32_t table_block(const write_call &call, uint32_t sequence, int64_t index)
{
    return call.block_table[sequence * call.block_table_stride + index];
}
__device__ __forceinline__ bool set_block(const write_call &call, int32_t block, block_task *task)
{
    task->block = static_cast<uint32_t>(block);
    return block >= 0 && task->block < call.cache.blocks;
}

__device__ __forceinline__ bool find_append_task(const write_call &call, uint32_t number, unsigned lane,
                                                 block_task *task)
{
    append_rows rows;
    int64_t index;
    return find_append_rows(call, number, lane, &rows) &&
           find_append_tokens(call, rows, call.lengths[rows.sequence], task, &index) &&
           set_block(call, table_block(call, rows.sequence, index), task);
}

__device__ __forceinline__ bool find_encode_task(const write_call &call, uint32_t number, block_task *task)
{
    const int32_t block = call.blocks[number];
    if (!set_block(call, block, task))
        return false;
    task->first = 0;
    task->last = GAAC_BLOCK_TOKENS;
    task->own = call.k_offsets == nullptr;
    task->k = task->own ? 0 : call.k_offsets[number];
    task->v = task->own ? 0 : (call.v_offsets != nullptr ? call.v_offsets : call.k_offsets)[number];
    return true;
}

// ---- one block --------------------------------------------------------------------------------

// The calling thread's index; read again where it is needed, rather than held in a register, as is all that follows
// from it.
__device__ __forceinline__ unsigned thread_index()
{
#ifdef __CUDA_ARCH__
    unsigned index;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(index));
    return index;
#else
    return threadIdx.x;
#endif
}

// Who the calling thread is, and its warp's shared memory.
struct writer {
    unsigned warp, lane;
    warp_memory *own;
};

__device__ __forceinline__ write_shared *shared_head()
{
    return reinterpret_cast<write_shared *>(write_memory);
}
__device__ __forceinline__ uint32_t *shared_needs()
{
    return reinterpret_cast<uint32_t *>(shared_head() + 1);
}
__device__ __forceinline__ writer make_writer(const write_call &call)
{
    const unsigned index = thread_index();
    writer me;
    me.warp = index / 32;
    me.lane = index % 32;
    me.own = reinterpret_cast<warp_memory *>(
        reinterpret_cast<uint8_t *>(shared_needs() + (call.sizes.entries + 3) / 4 * 4) +
        me.warp * static_cast<uint32_t>(sizeof(warp_memory) + call.rounds * sizeof(variable_image)));
    return me;
}
__device__ __forceinline__ variable_image *image_of(const write_call &call, const writer &me, uint32_t round)
{
    return reinterpret_cast<variable_image *>(me.own + 1) + min(round, call.rounds - 1);
}

__device__ __forceinline__ uint32_t pairs_of(const write_call &call)
{
    return call.sizes.layout.units * call.sizes.layout.shape.kv_heads;
}
__device__ __forceinline__ uint8_t *slot_of(const write_call &call, uint32_t block)
{
    return call.cache.slots + block * call.cache.slot_stride;
}
__device__ __forceinline__ uint8_t *raw_block_at(const write_call &call, uint32_t index)
{
    return call.cache.raw + static_cast<uint64_t>(index) * call.sizes.layout.raw_bytes;
}
__device__ __forceinline__ const uint8_t *windows_of(const write_call &call, uint32_t epoch, uint32_t head)
{
    return call.cache.windows + static_cast<uint64_t>(epoch) * call.sizes.window_bytes +
           head * call.sizes.head_window_bytes;
}

__device__ __forceinline__ block_source rows_source(const write_call &call, const block_task &task)
{
    block_source source;
    source.k = call.rows.k + task.k;
    source.v = call.rows.v + task.v;
    source.wide = call.wide && (task.k | task.v) % 8 == 0;
    source.raw = nullptr;
    return source;
}

// A raw block for all threads of the thread block, or no_raw_block.
__device__ __forceinline__ uint32_t take_raw_block_together(const write_call &call, const writer &me, uint32_t block)
{
    if (me.warp == 0) {
        const uint32_t taken = take_raw_block(call.cache, block);
        if (me.lane == 0)
            shared_head()->raw = taken;
    }
    __syncthreads();
    return shared_head()->raw;
}

// No raw block was free: the block is empty now.
__device__ __forceinline__ void lose_block(const write_call &call, uint32_t block)
{
    set_entries(call.cache, call.sizes.entries, block, 0);
    if (threadIdx.x == 0)
        shared_head()->counters[LOST]++;
}

// The thread block's counters to the cache's. Thread 0 has counted, its warp adds.
__device__ __forceinline__ void add_counters(const cache_view &cache)
{
    if (threadIdx.x >= 32)
        return;
    __syncwarp();
    if (threadIdx.x < COUNTERS)
        count(cache, threadIdx.x, shared_head()->counters[threadIdx.x]);
}

// Puts the values of a part of a unit into the block's raw block: what the block held before, then what is new.
// token: the first new token's channels, from load_four.
__device__ __forceinline__ void fill_raw_part(const write_call &call, const warp_task &work, uint32_t u, uint32_t head,
                                              unsigned part, unsigned lane, uint2 token)
{
    const block_task &task = work.task;
    const raw_content content = work.content;
    const gaac_unit &unit = call.sizes.layout.unit[u];
    const uint32_t *entries = entries_of(call.cache, task.block) + head * call.sizes.layout.coded_units;
    uint8_t *out = raw_block_at(call, work.raw) + head * call.sizes.layout.head_raw_bytes + raw_part_offset(unit, part);
    if (content == RAW_DECODED)
        reopen_part(call.sizes, u, head, part, slot_of(call, task.block), unit.hv > 0 ? entries[unit.entry] : 0,
                    windows_of(call, work.state >> entry_epoch_shift & entry_epoch_mask, head), lane, out);
    else if (content == RAW_ZEROED)
        for (unsigned f = 0; f < unit.fragments; f++)
            reinterpret_cast<uint4 *>(out + f * GAAC_FRAGMENT_BYTES)[lane] = make_uint4(0, 0, 0, 0);
    __syncwarp();
    if (task.own)
        return;
    const part_source values = source_of(work.rows, call.rows, call.sizes, unit, head, part);
    if (content == RAW_REPLACED && task.last == GAAC_BLOCK_TOKENS && unit.hv > 0)
        store_halves(values, part, unit.hv, lane, out);
    else if (content == RAW_REPLACED && task.last == GAAC_BLOCK_TOKENS)
        store_remainder(values, part, unit.fragments, lane, out);
    else
        store_tokens(values, part, unit.fragments, task.first, task.last, lane, token, out);
}

__device__ __forceinline__ void fill_raw_unit(const write_call &call, const writer &me, uint32_t u, uint32_t head)
{
    const warp_task &work = me.own->work;
    const gaac_unit &unit = call.sizes.layout.unit[u];
#pragma unroll 1
    for (unsigned part = 0; part < 2; part++) {
        if (!unit_has(unit, part))
            continue;
        uint2 token = make_uint2(0, 0);
        if (!work.task.own)
            token = load_four(source_of(work.rows, call.rows, call.sizes, unit, head, part), unit.fragments, me.lane);
        fill_raw_part(call, work, u, head, part, me.lane, token);
    }
    __syncwarp();
}

// Between the passes: places of all units in the pool, as table entries; shared->used tells whether the block fits.
// Warp 0 calls.
__device__ __forceinline__ void place_units(const write_call &call, const writer &me)
{
    uint32_t used = 0, exceptions = 0, stored = 0;
    bool fits = true;
    for (uint32_t from = 0; from < call.sizes.entries; from += 32) {
        const bool inside = from + me.lane < call.sizes.entries;
        const uint32_t need = inside ? shared_needs()[from + me.lane] : 0, length = inside ? need_length(need) : 0;
        uint32_t total;
        const uint32_t at = used + sum_of_lanes_below(length, me.lane, &total);
        fits = fits && length <= GAAC_MAX_UNIT_POOL / GAAC_POOL_ALIGN;
        if (inside)
            shared_needs()[from + me.lane] =
                gaac_entry_make(at * GAAC_POOL_ALIGN, length * GAAC_POOL_ALIGN, need_flags(need)) |
                call.epoch << entry_epoch_shift;
        used += total;
        exceptions += inside ? need_exceptions(need) : 0;
        stored += inside ? need_stored(need) : 0;
    }
    exceptions = __reduce_add_sync(all_lanes, exceptions);
    stored = __reduce_add_sync(all_lanes, stored);
    fits = __all_sync(all_lanes, fits) && used * GAAC_POOL_ALIGN <= call.cache.pool_bytes &&
           exceptions <= call.sizes.layout.max_exceptions;
    if (me.lane != 0)
        return;
    uint64_t *counters = shared_head()->counters;
    shared_head()->used = fits ? used * GAAC_POOL_ALIGN : no_raw_block;
    if (fits) {
        counters[ENCODED]++;
        counters[POOL_BYTES] += used * GAAC_POOL_ALIGN;
        counters[EXCEPTIONS] += exceptions;
        counters[STORED_N] += stored;
    }
}

// A unit into the slot: pass 1 all of it but the variable part, pass 2 that.
__device__ __forceinline__ void encode_pair(const write_call &call, const writer &me, uint32_t u, uint32_t head,
                                            uint32_t round, bool second_pass)
{
    const block_source &source = me.own->work.values;
    const gaac_unit &unit = call.sizes.layout.unit[u];
    uint8_t *slot = slot_of(call, me.own->work.task.block);
    if (unit.hv == 0) {
        for (unsigned part = 0; part < 2 && !second_pass; part++)
            if (unit_has(unit, part))
                store_remainder(source_of(source, call.rows, call.sizes, unit, head, part), part, unit.fragments,
                                me.lane,
                                slot + head * call.sizes.layout.head_fixed_bytes + fixed_part_offset(unit, part));
        return;
    }
    uint32_t *need = shared_needs() + head * call.sizes.layout.coded_units + unit.entry;
    variable_image *image = image_of(call, me, round);
    uint8_t *variable = slot + call.sizes.layout.fixed_bytes;
    uint8_t *end = nullptr;
    bool again = false;
    if (second_pass) {
        const bool overwritten = round + 1 >= call.rounds && call.rounds * (blockDim.x / 32) < pairs_of(call);
        again = overwritten || need_exceptions(image->need) > kept_records;
        variable += gaac_entry_offset(*need);
        end = variable + gaac_entry_length(*need);
    }
    if (!second_pass || again) {
        const uint32_t found = encode_unit(call.sizes, call.rows, u, head, source, windows_of(call, call.epoch, head),
                                           me.lane, slot, &me.own->notes, image, end);
        if (!second_pass && me.lane == 0)
            *need = found;
    }
    if (second_pass) {
        store_image(image, me.lane, variable, again);
        __syncwarp(); // the image may be used again
    }
}

// The end of a block that fits: zeros behind the variable parts, entries.
__device__ __forceinline__ void finish_coded(const write_call &call, const block_task &task)
{
    uint4 *pool = reinterpret_cast<uint4 *>(slot_of(call, task.block) + call.sizes.layout.fixed_bytes);
#pragma unroll 1
    for (uint32_t i = shared_head()->used / 16 + threadIdx.x; i < call.cache.pool_bytes / 16; i += blockDim.x)
        pool[i] = make_uint4(0, 0, 0, 0);
    uint32_t *entries = entries_of(call.cache, task.block);
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < call.sizes.entries; i += blockDim.x)
        entries[i] = shared_needs()[i];
}

// state: the block's first entry. What an earlier call lost reads as zero.
__device__ __forceinline__ raw_content kept_content(const block_task &task, uint32_t state)
{
    if (task.first == 0 && !task.own)
        return RAW_REPLACED;
    if (entry_is_raw(state))
        return RAW_KEPT;
    return entry_is_empty(state) ? RAW_ZEROED : RAW_DECODED;
}

// What is to be done with the block of me.own->work.task. False: nothing more.
__device__ __forceinline__ bool start_block(const write_call &call)
{
    const writer me = make_writer(call);
    const block_task task = me.own->work.task;
    const uint32_t state = *entries_of(call.cache, task.block);
    const bool coded = !entry_is_raw(state) && !entry_is_empty(state);
    if (task.own && (entry_is_empty(state) || (coded && (state >> entry_epoch_shift & entry_epoch_mask) == call.epoch)))
        return false;
    if (!task.own && task.first > 0 && entry_is_empty(state)) { // what was lost stays so until the block begins anew
        lose_block(call, task.block);
        return false;
    }
    const bool encode = task.last == GAAC_BLOCK_TOKENS && !call.keep_raw;
    const bool from_rows = encode && task.first == 0 && !task.own;
    const bool held = entry_is_raw(state);
    uint32_t raw = raw_block_of(state);
    if (!from_rows && !held && (raw = take_raw_block_together(call, me, task.block)) == no_raw_block) {
        if (!task.own) // else it stays as it is, readable with its own epoch
            lose_block(call, task.block);
        return false;
    }
    const raw_content content = kept_content(task, state);
    if (content == RAW_DECODED && !task.own && threadIdx.x == 0)
        shared_head()->counters[REOPENED]++;
    if (me.lane == 0) {
        me.own->work.rows = rows_source(call, task);
        me.own->work.values = me.own->work.rows;
        if (!from_rows)
            me.own->work.values.raw = raw_block_at(call, raw);
        me.own->work.state = state;
        me.own->work.raw = raw;
        me.own->work.content = content;
        me.own->work.from_rows = from_rows;
        me.own->work.fill = !from_rows;
        me.own->work.code = encode;
    }
    __syncwarp();
    return true;
}

// One pass over the warp's units.
__device__ __forceinline__ void write_units(const write_call &call, bool second_pass)
{
    const uint32_t units = call.sizes.layout.units;
#pragma unroll 1
    for (uint32_t pair = thread_index() / 32, round = 0; pair < pairs_of(call); pair += blockDim.x / 32, round++) {
        const writer me = make_writer(call);
        const uint32_t head = pair / units, u = pair % units;
        if (me.own->work.fill)
            fill_raw_unit(call, me, u, head);
        if (me.own->work.code)
            encode_pair(call, me, u, head, round, second_pass);
    }
}

// Between the passes. False: the block is lost.
__device__ __forceinline__ bool start_second_pass(const write_call &call)
{
    const writer me = make_writer(call);
    __syncthreads();
    if (me.warp == 0)
        place_units(call, me);
    __syncthreads();
    const bool code = shared_head()->used != no_raw_block, fill = !code && me.own->work.from_rows;
    uint32_t raw = me.own->work.raw;
    if (fill && raw == no_raw_block &&
        (raw = take_raw_block_together(call, me, me.own->work.task.block)) == no_raw_block) {
        lose_block(call, me.own->work.task.block);
        return false;
    }
    __syncwarp();
    if (me.lane == 0) {
        me.own->work.raw = raw;
        me.own->work.fill = fill;
        me.own->work.code = code;
    }
    __syncwarp();
    return true;
}

__device__ __forceinline__ void finish_block(const write_call &call, bool encode)
{
    const writer me = make_writer(call);
    const uint32_t raw = me.own->work.raw, block = me.own->work.task.block;
    if (me.own->work.code) {
        finish_coded(call, me.own->work.task);
        if (raw != no_raw_block) {
            __syncthreads(); // all reads of it are done
            if (threadIdx.x == 0)
                give_raw_block_back(call.cache, raw);
        }
        return;
    }
    if (encode && threadIdx.x == 0)
        shared_head()->counters[FALLBACKS]++;
    if (!entry_is_raw(me.own->work.state)) {
        __syncthreads(); // all have read their entries
        set_entries(call.cache, call.sizes.entries, block, entry_raw | raw);
    }
}

__device__ __forceinline__ void write_block(const write_call &call)
{
    if (!start_block(call))
        return;
    const bool encode = make_writer(call).own->work.code;
#pragma unroll 1
    for (unsigned pass = 0; pass < (encode ? 2 : 1); pass++) {
        if (pass == 1 && !start_second_pass(call))
            return;
        write_units(call, pass == 1);
    }
    finish_block(call, encode);
}

__global__ void __launch_bounds__(32 * write_warps, write_residents)
    write_blocks(const __grid_constant__ write_call call)
{
    if (threadIdx.x == 0)
#pragma unroll 1
        for (unsigned i = 0; i < COUNTERS; i++)
            shared_head()->counters[i] = 0;
    const uint32_t tasks = task_count(call);
#pragma unroll 1
    for (uint32_t number = blockIdx.x; number < tasks; number += gridDim.x) {
        const writer me = make_writer(call);
        block_task task;
        const bool any = call.sequences == 0 ? find_encode_task(call, number, &task)
                                             : find_append_task(call, number, me.lane, &task);
        if (!any)
            continue;
        if (me.lane == 0)
            me.own->work.task = task;
        __syncwarp();
        write_block(call);
        __syncthreads(); // shared memory is used again
    }
    add_counters(call.cache);
}

} // namespace gaac

#endif
