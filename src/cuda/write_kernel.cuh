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

constexpr unsigned write_warps = 8;  // most of a thread block
constexpr unsigned image_rounds = 4; // units of a warp whose variable parts are kept

struct write_call {
    geometry sizes;
    cache_view cache;
    gaac_kv_rows rows;
    bool wide; // rows and strides are multiples of 16 bytes
    bool keep_raw;
    uint32_t epoch;
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
    uint32_t block;
    uint32_t first, last; // tokens of the block that are new
    uint64_t k, v;        // elements from the call's rows to token `first` of head 0
    bool own;             // no new tokens: encode what the block holds
};

// Shared memory: this, then half_notes [warps], variable_image [warps][rounds], uint32_t [entries] (what encoding the
// units came to, then their table entries).
struct write_shared {
    uint64_t counters[COUNTERS]; // of this thread block; thread 0's
    uint32_t raw;                // index of a raw block just taken
    uint32_t used;               // bytes of the pool, or more than fit
    uint32_t unused[2];
};

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
        static_cast<uint32_t>(sizeof(write_shared) + launch.warps * sizeof(half_notes) +
                              launch.warps * launch.rounds * sizeof(variable_image) + sizes.entries * sizeof(uint32_t));
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

__device__ __forceinline__ bool find_append_task(const write_call &call, uint32_t number, unsigned lane,
                                                 block_task *task)
{
    uint32_t s = number, turn = 0;
    int64_t row = number, rows = 1;
    if (call.query_start != nullptr) {
        s = find_sequence(call, number, lane);
        turn = number - first_number(call, s);
        row = call.query_start[s];
        rows = call.query_start[s + 1] - row;
    }
    if (rows <= 0)
        return false;
    const int64_t length = call.lengths[s];
    int64_t start = length - rows;
    if (start < 0) { // more rows than tokens: the first have no place
        row -= start;
        start = 0;
    }
    const int64_t index = start / GAAC_BLOCK_TOKENS + turn, begin = index * GAAC_BLOCK_TOKENS;
    if (begin >= length)
        return false;
    const int32_t block = call.block_table[s * call.block_table_stride + index];
    if (block < 0 || static_cast<uint32_t>(block) >= call.cache.blocks)
        return false;
    const int64_t from = max(start, begin);
    row += from - start;
    task->block = static_cast<uint32_t>(block);
    task->first = static_cast<uint32_t>(from - begin);
    task->last = static_cast<uint32_t>(min(length - begin, static_cast<int64_t>(GAAC_BLOCK_TOKENS)));
    task->k = row * call.rows.k_token_stride;
    task->v = row * call.rows.v_token_stride;
    task->own = false;
    return true;
}

__device__ __forceinline__ bool find_encode_task(const write_call &call, uint32_t number, block_task *task)
{
    const int32_t block = call.blocks[number];
    if (block < 0 || static_cast<uint32_t>(block) >= call.cache.blocks)
        return false;
    task->block = static_cast<uint32_t>(block);
    task->first = 0;
    task->last = GAAC_BLOCK_TOKENS;
    task->own = call.k_offsets == nullptr;
    task->k = task->own ? 0 : call.k_offsets[number];
    task->v = task->own ? 0 : (call.v_offsets != nullptr ? call.v_offsets : call.k_offsets)[number];
    return true;
}

// ---- one block --------------------------------------------------------------------------------

// A thread block's parts of shared memory, and who the calling thread is.
struct writer {
    write_shared *shared;
    half_notes *notes;      // the warp's
    variable_image *images; // the warp's
    uint32_t *needs;
    uint32_t pairs, warps, rounds;
    unsigned warp, lane;
};

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
    return call.cache.windows + static_cast<uint64_t>(epoch) * ((call.sizes.window_bytes + 127) / 128 * 128) +
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
            me.shared->raw = taken;
    }
    __syncthreads();
    return me.shared->raw;
}

// No raw block was free: the block is empty now.
__device__ __forceinline__ void lose_block(const write_call &call, const writer &me, uint32_t block)
{
    set_entries(call.cache, call.sizes.entries, block, 0);
    if (threadIdx.x == 0)
        me.shared->counters[LOST]++;
}

enum raw_content { RAW_KEPT, RAW_DECODED, RAW_ZEROED, RAW_REPLACED };

// Puts one unit's values into the block's raw block: what it held before, then what is new.
__device__ __forceinline__ void fill_raw_unit(const write_call &call, const writer &me, const block_task &task,
                                              const block_source &rows, uint32_t u, uint32_t head, uint32_t state,
                                              raw_content content, uint8_t *raw)
{
    const gaac_unit &unit = call.sizes.layout.unit[u];
    const uint32_t *entries = entries_of(call.cache, task.block) + head * call.sizes.layout.coded_units;
#pragma unroll 1
    for (unsigned part = 0; part < 2; part++) {
        if (!unit_has(unit, part))
            continue;
        uint8_t *out = raw + head * call.sizes.layout.head_raw_bytes + raw_part_offset(unit, part);
        if (content == RAW_DECODED)
            reopen_part(call.sizes, u, head, part, slot_of(call, task.block), unit.hv > 0 ? entries[unit.entry] : 0,
                        windows_of(call, state >> entry_epoch_shift & entry_epoch_mask, head), me.lane, out);
        else if (content == RAW_ZEROED)
            for (unsigned f = 0; f < unit.fragments; f++)
                reinterpret_cast<uint4 *>(out + f * GAAC_FRAGMENT_BYTES)[me.lane] = make_uint4(0, 0, 0, 0);
        __syncwarp();
        if (task.own)
            continue;
        const part_source values = source_of(rows, call.rows, call.sizes, unit, head, part);
        if (content == RAW_REPLACED && task.last == GAAC_BLOCK_TOKENS)
            store_fragments(values, part, unit, me.lane, out);
        else
            store_tokens(values, part, unit.fragments, task.first, task.last, me.lane, out);
    }
    __syncwarp();
}

// Pass 1: a unit into the slot, as far as its place is known.
__device__ __forceinline__ void encode_pair(const write_call &call, const writer &me, const block_task &task,
                                            const block_source &source, uint32_t u, uint32_t head, uint32_t round)
{
    const gaac_unit &unit = call.sizes.layout.unit[u];
    uint8_t *slot = slot_of(call, task.block);
    if (unit.hv > 0) {
        variable_image *image = me.images + min(round, me.rounds - 1);
        const uint32_t need = encode_unit(call.sizes, call.rows, u, head, source, windows_of(call, call.epoch, head),
                                          me.lane, slot, me.notes, image, image->records + kept_records, kept_records);
        if (me.lane == 0)
            me.needs[head * call.sizes.layout.coded_units + unit.entry] = need;
        return;
    }
    for (unsigned part = 0; part < 2; part++)
        if (unit_has(unit, part))
            store_fragments(source_of(source, call.rows, call.sizes, unit, head, part), part, unit, me.lane,
                            slot + head * call.sizes.layout.head_fixed_bytes + fixed_part_offset(unit, part));
}

// Between the passes: places of all units in the pool, as table entries; shared->used tells whether the block fits.
// Warp 0 calls.
__device__ __forceinline__ void place_units(const write_call &call, const writer &me)
{
    uint32_t used = 0, exceptions = 0, stored = 0;
    bool fits = true;
    for (uint32_t from = 0; from < call.sizes.entries; from += 32) {
        const bool inside = from + me.lane < call.sizes.entries;
        const uint32_t need = inside ? me.needs[from + me.lane] : 0, length = inside ? need_length(need) : 0;
        uint32_t total;
        const uint32_t at = used + sum_of_lanes_below(length, me.lane, &total);
        fits = fits && length <= GAAC_MAX_UNIT_POOL / GAAC_POOL_ALIGN;
        if (inside)
            me.needs[from + me.lane] =
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
    uint64_t *counters = me.shared->counters;
    me.shared->used = fits ? used * GAAC_POOL_ALIGN : no_raw_block;
    counters[fits ? ENCODED : FALLBACKS]++;
    if (fits) {
        counters[POOL_BYTES] += used * GAAC_POOL_ALIGN;
        counters[EXCEPTIONS] += exceptions;
        counters[STORED_N] += stored;
    }
}

// Pass 2: the variable part of a unit.
__device__ __forceinline__ void place_pair(const write_call &call, const writer &me, const block_task &task,
                                           const block_source &source, uint32_t u, uint32_t head, uint32_t round)
{
    const gaac_unit &unit = call.sizes.layout.unit[u];
    if (unit.hv == 0)
        return;
    const uint32_t entry = me.needs[head * call.sizes.layout.coded_units + unit.entry];
    uint8_t *slot = slot_of(call, task.block);
    uint8_t *variable = slot + call.sizes.layout.fixed_bytes + gaac_entry_offset(entry);
    variable_image *image = me.images + min(round, me.rounds - 1);
    const bool overwritten = round + 1 >= me.rounds && me.rounds * me.warps < me.pairs;
    const bool again = overwritten || need_exceptions(image->need) > kept_records;
    if (again)
        encode_unit(call.sizes, call.rows, u, head, source, windows_of(call, call.epoch, head), me.lane, slot, me.notes,
                    image, reinterpret_cast<uint32_t *>(variable + gaac_entry_length(entry)), 0xffffffffu);
    store_image(image, me.lane, variable, again);
    __syncwarp(); // the image may be used again
}

// The rest of a block that fits: the variable parts, zeros behind them, entries.
__device__ __forceinline__ void finish_coded(const write_call &call, const writer &me, const block_task &task,
                                             const block_source &source)
{
    const uint32_t units = call.sizes.layout.units;
    for (uint32_t pair = me.warp, round = 0; pair < me.pairs; pair += me.warps, round++)
        place_pair(call, me, task, source, pair % units, pair / units, round);
    uint4 *pool = reinterpret_cast<uint4 *>(slot_of(call, task.block) + call.sizes.layout.fixed_bytes);
    for (uint32_t i = me.shared->used / 16 + threadIdx.x; i < call.cache.pool_bytes / 16; i += blockDim.x)
        pool[i] = make_uint4(0, 0, 0, 0);
    uint32_t *entries = entries_of(call.cache, task.block);
    for (uint32_t i = threadIdx.x; i < call.sizes.entries; i += blockDim.x)
        entries[i] = me.needs[i];
}

// A block that does not fit stays raw, or becomes so.
__device__ __forceinline__ void finish_raw(const write_call &call, const writer &me, const block_task &task,
                                           const block_source &source, uint32_t raw)
{
    if (source.raw == nullptr) {
        if (raw == no_raw_block && (raw = take_raw_block_together(call, me, task.block)) == no_raw_block) {
            if (threadIdx.x == 0)
                me.shared->counters[FALLBACKS]--;
            lose_block(call, me, task.block);
            return;
        }
        const uint32_t units = call.sizes.layout.units;
        for (uint32_t pair = me.warp; pair < me.pairs; pair += me.warps)
            fill_raw_unit(call, me, task, source, pair % units, pair / units, 0, RAW_REPLACED, raw_block_at(call, raw));
    }
    set_entries(call.cache, call.sizes.entries, task.block, entry_raw | raw);
}

__device__ __forceinline__ void write_block(const write_call &call, const writer &me, const block_task &task)
{
    const uint32_t state = *entries_of(call.cache, task.block);
    const bool coded = !entry_is_raw(state) && !entry_is_empty(state);
    if (task.own && (entry_is_empty(state) || (coded && (state >> entry_epoch_shift & entry_epoch_mask) == call.epoch)))
        return;
    const bool complete = task.last == GAAC_BLOCK_TOKENS, encode = complete && !call.keep_raw;
    const bool from_rows = encode && task.first == 0 && !task.own;
    const uint32_t held = raw_block_of(state);
    uint32_t raw = held;
    block_source source = rows_source(call, task);

    if (!from_rows && raw == no_raw_block && (raw = take_raw_block_together(call, me, task.block)) == no_raw_block) {
        if (!task.own) // else it stays as it is, readable with its own epoch
            lose_block(call, me, task.block);
        return;
    }
    raw_content content = task.first == 0 && !task.own ? RAW_REPLACED : RAW_KEPT;
    if (content == RAW_KEPT && held == no_raw_block)
        content = coded ? RAW_DECODED : RAW_ZEROED; // what an earlier call lost reads as zero
    block_source values = source;
    if (!from_rows)
        values.raw = raw_block_at(call, raw);
    const uint32_t units = call.sizes.layout.units;
#pragma unroll 1
    for (uint32_t pair = me.warp, round = 0; pair < me.pairs; pair += me.warps, round++) {
        const uint32_t head = pair / units, u = pair % units;
        if (!from_rows)
            fill_raw_unit(call, me, task, source, u, head, state, content, raw_block_at(call, raw));
        if (encode)
            encode_pair(call, me, task, values, u, head, round);
    }
    if (content == RAW_DECODED && !from_rows && !task.own && threadIdx.x == 0)
        me.shared->counters[REOPENED]++;
    if (!encode) {
        if (held == no_raw_block) {
            if (content == RAW_DECODED)
                __syncthreads(); // all have read their entries
            set_entries(call.cache, call.sizes.entries, task.block, entry_raw | raw);
        }
        return;
    }
    __syncthreads();
    if (me.warp == 0)
        place_units(call, me);
    __syncthreads();
    if (me.shared->used == no_raw_block) {
        finish_raw(call, me, task, values, raw);
        return;
    }
    finish_coded(call, me, task, values);
    if (raw != no_raw_block) {
        __syncthreads();
        if (threadIdx.x == 0)
            give_raw_block_back(call.cache, raw);
    }
}

__device__ __forceinline__ writer make_writer(const write_call &call, uint8_t *shared, uint32_t rounds)
{
    writer me;
    me.warp = threadIdx.x / 32;
    me.lane = threadIdx.x % 32;
    me.warps = blockDim.x / 32;
    me.rounds = rounds;
    me.pairs = call.sizes.layout.units * call.sizes.layout.shape.kv_heads;
    me.shared = reinterpret_cast<write_shared *>(shared);
    half_notes *notes = reinterpret_cast<half_notes *>(me.shared + 1);
    variable_image *images = reinterpret_cast<variable_image *>(notes + me.warps);
    me.notes = notes + me.warp;
    me.images = images + me.warp * rounds;
    me.needs = reinterpret_cast<uint32_t *>(images + me.warps * rounds);
    return me;
}

extern __shared__ uint4 write_memory[];

__global__ void __launch_bounds__(32 * write_warps, 4)
    write_blocks(const __grid_constant__ write_call call, uint32_t rounds)
{
    const writer me = make_writer(call, reinterpret_cast<uint8_t *>(write_memory), rounds);
    if (threadIdx.x == 0)
        for (unsigned i = 0; i < COUNTERS; i++)
            me.shared->counters[i] = 0;
    const uint32_t tasks = task_count(call);
    for (uint32_t number = blockIdx.x; number < tasks; number += gridDim.x) {
        block_task task;
        const bool any = call.sequences == 0 ? find_encode_task(call, number, &task)
                                             : find_append_task(call, number, me.lane, &task);
        if (any) {
            write_block(call, me, task);
            __syncthreads(); // shared memory is used again
        }
    }
    if (threadIdx.x == 0)
        for (unsigned i = 0; i < COUNTERS; i++)
            count(call.cache, i, me.shared->counters[i]);
}

} // namespace gaac

#endif
