// Decoding to rows: gaac_cuda_decode and gaac_cuda_expand.
//
// A warp takes one piece (K or V of a unit) of one block: it loads it into registers, decodes it there, turns it into
// rows in shared memory and writes those, 16 bytes a lane and whole rows side by side. There is nothing to gain from
// loading ahead: with this many warps on a multiprocessor some always have their loads in flight.
#include "cuda/host.cuh"
#include "cuda/pieces.cuh"
#include "cuda/unit_decode.cuh"

namespace gaac
{

constexpr int decode_warps = 8; // of a thread block
// Thread blocks that a multiprocessor holds at once: as many as its shared memory has room for and the registers that
// the compiler then needs allow.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ == 900
constexpr int decode_blocks = 4;
#elif __CUDA_ARCH__ == 800 || __CUDA_ARCH__ / 100 == 10
constexpr int decode_blocks = 3;
#else
constexpr int decode_blocks = 2;
#endif

// Chunks of 16 bytes of the variable part that are copied to shared memory: tags and all N bytes of a unit, and what
// read_window may read behind them. Exceptions lie there too, unless the variable part is longer.
constexpr unsigned staged_chunks = (GAAC_MAX_HV * GAAC_TAG_BYTES + 520 + 15) / 16;

struct warp_memory {
    uint4 rows[GAAC_BLOCK_TOKENS * 16]; // 16 rows of up to 128 channels: row_chunk says where
    uint4 variable[staged_chunks];
};

// Where 16-byte chunk `chunk` of a row lies, for rows of hv * 64 channels. Permuted such that eight neighbouring lanes
// never share banks: not those that read a row's consecutive chunks, not those that write tokens g, g + 1 of K (t =
// 0..3), and not those that write tokens 2t of V (two values of g).
template <int hv> __device__ __forceinline__ unsigned row_chunk(unsigned row, unsigned chunk)
{
    if constexpr (hv == 2)
        return row * 16 + (chunk ^ (((chunk >> 3 ^ row >> 1) & 1) | (row & 1) << 1 | (row & 4)));
    return row * 8 + (chunk ^ (row & 7));
}

// An element of such rows.
template <int hv> __device__ __forceinline__ uint16_t *row_element(uint4 *rows, unsigned row, unsigned channel)
{
    return reinterpret_cast<uint16_t *>(rows + row_chunk<hv>(row, channel >> 3)) + (channel & 7);
}

// Writes the registers of a half (4j + r: register r of fragment 4 * half + j) to the rows.
template <int hv, gaac_part part>
__device__ __forceinline__ void half_to_rows(uint4 *rows, int half, const uint32_t (&x)[16], unsigned g, unsigned t)
{
#pragma unroll
    for (int s = 0; s < 2; s++) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            if constexpr (part == GAAC_K) { // 16 * hv consecutive channels of tokens g, g + 8
                const int a = 8 * i + s, b = a + 4;
                rows[row_chunk<hv>(g + 8 * s, 2 * hv * t + 2 * half + i)] = make_uint4(x[a], x[a + 2], x[b], x[b + 2]);
            } else { // 8 * hv consecutive channels of tokens 2t, 2t + 1, 2t + 8, 2t + 9
                const uint32_t pick = i == 0 ? 0x5410 : 0x7632; // the low or the high half of each
                rows[row_chunk<hv>(2 * t + 8 * s + i, hv * g + half)] = make_uint4(
                    permute_bytes(x[2 * s], x[2 * s + 1], pick), permute_bytes(x[2 * s + 4], x[2 * s + 5], pick),
                    permute_bytes(x[2 * s + 8], x[2 * s + 9], pick), permute_bytes(x[2 * s + 12], x[2 * s + 13], pick));
            }
        }
    }
}

// Puts the exponents of the part's exceptions into the rows: 32 records at a time, a lane each.
template <int hv, gaac_part part>
__device__ __forceinline__ void exceptions_to_rows(uint4 *rows, const uint8_t *variable, uint32_t bytes, unsigned lane)
{
    __syncwarp();
    uint32_t last;
    uint32_t below = 4 * (lane + 1); // of the end
    do {
        const bool inside = below + GAAC_TAG_BYTES * hv <= bytes;
        const uint32_t record = inside ? *reinterpret_cast<const uint32_t *>(variable + (bytes - below)) : 0;
        last = __ballot_sync(0xffffffffu, record >> 31 == 0);
        const bool listed = inside && (last & ((1u << lane) - 1)) == 0; // no record before it is the last one
        const unsigned half = record >> 13 & 1, named = record >> 14 & 1;
        if (listed && half < hv && named == part) {
            const unsigned position = record >> 15 & 31, t = position >> 3, g = (position & 7) ^ 2 * t;
            const unsigned f = 4 * half + (record >> 11 & 3), r = record >> 9 & 3, hi = record >> 8 & 1;
            uint16_t *value = part == GAAC_K
                                  ? row_element<hv>(rows, g + 8 * (r & 1), 16 * hv * t + 4 * f + (r & 2) + hi)
                                  : row_element<hv>(rows, 2 * t + 4 * (r & 2) + hi, 8 * hv * g + 2 * f + (r & 1));
            *value = static_cast<uint16_t>((*value & 0x807f) | (record & 0xff) << 7);
        }
        below += 4 * 32;
    } while (last == 0);
}

template <int hv, gaac_part part>
__device__ __forceinline__ void coded_to_rows(const piece_bytes &from, const uint4 *tag_table, warp_memory &memory,
                                              const factors &f, unsigned lane)
{
    const unsigned position = lane_position(lane), g = lane >> 2, t = lane & 3;
    const uint4 *variable = reinterpret_cast<const uint4 *>(from.variable);
    const unsigned chunks = min(from.variable_bytes / 16, staged_chunks);
    uint32_t words[hv][8], codes[3 * GAAC_MAX_HV];
#pragma unroll
    for (int half = 0; half < hv; half++)
        load_words(words[half], from.values, half, position);
    load_codes(codes, hv, from.values, position);
    uint4 base[hv];
#pragma unroll
    for (int half = 0; half < hv; half++)
        base[half] = reinterpret_cast<const uint4 *>(from.windows)[(part == GAAC_K ? t : g) * hv + half];
    for (unsigned i = lane; i < chunks; i += 32)
        memory.variable[i] = variable[i];
    __syncwarp();
    const uint8_t *staged = reinterpret_cast<const uint8_t *>(memory.variable);

    // The lane's stored bytes: behind those of the lanes below it, V's behind K's.
    const uint32_t tag = hv == 2 ? reinterpret_cast<const uint16_t *>(staged)[position] : staged[position];
    const uint32_t count = __popc(tag);
    uint32_t offset = count;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2)
        offset = scan_step(offset, distance);
    offset -= count;
    if (hv == 2 && part == GAAC_V)
        offset += __popc(tag & 0xff);
    uint32_t low, high;
    read_window(staged + GAAC_TAG_BYTES * hv, offset, f, low, high);
    const uint4 meaning = tag_table[hv == 2 && part == GAAC_V ? tag >> 8 : tag & 0xff];
    const uint32_t n_first = permute_bytes(low, ~0u, meaning.x),
                   n_second = permute_bytes(low, high, meaning.y) | meaning.z;
#pragma unroll
    for (int half = 0; half < hv; half++) {
        const bool second = hv == 2 ? half == 1 : part == GAAC_V; // of the two that share a table entry
        const uint32_t bases[4] = {base[half].x, base[half].y, base[half].z, base[half].w};
        uint32_t x[16];
        decode_half<part>(x, words[half], codes[3 * half], codes[3 * half + 1], codes[3 * half + 2],
                          second ? n_second : n_first, correction_of(meaning.w, second, f), bases, f);
        half_to_rows<hv, part>(memory.rows, half, x, g, t);
    }
    if (from.exceptions)
        exceptions_to_rows<hv, part>(memory.rows,
                                     from.variable_bytes <= sizeof memory.variable ? staged : from.variable,
                                     from.variable_bytes, lane);
}

// From fragment order: raw blocks.
template <int hv, gaac_part part>
__device__ __forceinline__ void fragments_to_rows(const uint8_t *fragments, warp_memory &memory, unsigned lane)
{
    const uint4 *from = reinterpret_cast<const uint4 *>(fragments) + lane_position(lane);
#pragma unroll
    for (int half = 0; half < hv; half++) {
        uint32_t x[16];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const uint4 loaded = from[(4 * half + j) * (GAAC_FRAGMENT_BYTES / 16)];
            x[4 * j] = loaded.x, x[4 * j + 1] = loaded.y, x[4 * j + 2] = loaded.z, x[4 * j + 3] = loaded.w;
        }
        half_to_rows<hv, part>(memory.rows, half, x, lane >> 2, lane & 3);
    }
}

// The remainder, one to three fragments, into rows as those of hv 1.
template <gaac_part part>
__device__ __forceinline__ void remainder_to_rows(const uint8_t *fragments, unsigned count, warp_memory &memory,
                                                  unsigned lane)
{
    const uint4 *from = reinterpret_cast<const uint4 *>(fragments) + lane_position(lane);
    const unsigned g = lane >> 2, t = lane & 3;
    for (unsigned i = 0; i < count; i++) {
        const uint4 loaded = from[i * (GAAC_FRAGMENT_BYTES / 16)];
        const uint32_t x[4] = {loaded.x, loaded.y, loaded.z, loaded.w};
#pragma unroll
        for (unsigned s = 0; s < 2; s++)
#pragma unroll
            for (unsigned k = 0; k < 2; k++) { // K: register pair's b. V: the token's parity
                const unsigned row = part == GAAC_K ? g + 8 * s : 2 * t + 8 * s + k;
                const unsigned channel = part == GAAC_K ? 4 * count * t + 4 * i + 2 * k : 2 * count * g + 2 * i;
                *reinterpret_cast<uint32_t *>(row_element<1>(memory.rows, row, channel)) =
                    part == GAAC_K ? x[s + 2 * k] : permute_bytes(x[2 * s], x[2 * s + 1], k == 0 ? 0x5410 : 0x7632);
            }
    }
}

constexpr unsigned all_tokens = (1u << GAAC_BLOCK_TOKENS) - 1;

// Where rows of a piece go, and which of its 16.
struct rows_out {
    uint16_t *first; // row 0, which need not be wanted
    int64_t stride;  // elements
    unsigned wanted; // a bit a row
};

template <int hv>
__device__ __forceinline__ void write_rows(uint4 *rows, unsigned chunks, const rows_out &to, unsigned lane)
{
    if (reinterpret_cast<uintptr_t>(to.first) % 16 == 0 && to.stride % 8 == 0) {
#pragma unroll
        for (unsigned i = lane; i < GAAC_BLOCK_TOKENS * chunks; i += 32) {
            const unsigned row = i / chunks, chunk = i % chunks;
            if (to.wanted >> row & 1)
                *reinterpret_cast<uint4 *>(to.first + row * to.stride + chunk * 8) = rows[row_chunk<hv>(row, chunk)];
        }
        return;
    }
    const unsigned channels = 8 * chunks;
#pragma unroll 1
    for (unsigned i = lane; i < GAAC_BLOCK_TOKENS * channels; i += 32) {
        const unsigned row = i / channels, channel = i % channels;
        if (to.wanted >> row & 1)
            to.first[row * to.stride + channel] = *row_element<hv>(rows, row, channel);
    }
}

template <int hv, gaac_part part>
__device__ __forceinline__ void decode_piece(const piece_bytes &from, const uint4 *tag_table, warp_memory &memory,
                                             const rows_out &to, const factors &f, unsigned lane)
{
    if (from.variable != nullptr)
        coded_to_rows<hv, part>(from, tag_table, memory, f, lane);
    else
        fragments_to_rows<hv, part>(from.values, memory, lane);
    __syncwarp();
    write_rows<hv>(memory.rows, 8 * hv, to, lane);
}

template <gaac_part part>
__device__ __forceinline__ void decode_part(const piece &what, const piece_bytes &from, const uint4 *tag_table,
                                            warp_memory &memory, const rows_out &to, const factors &f, unsigned lane)
{
    if (what.hv == 2) {
        decode_piece<2, part>(from, tag_table, memory, to, f, lane);
    } else if (what.hv == 1) {
        decode_piece<1, part>(from, tag_table, memory, to, f, lane);
    } else {
        remainder_to_rows<part>(from.values, what.fragments, memory, lane);
        __syncwarp();
        write_rows<1>(memory.rows, 2 * what.fragments, to, lane);
    }
    __syncwarp(); // the rows are read before the next piece's are written
}

// Listed blocks, or cells of sequences (lengths not NULL).
struct decode_params {
    cache_view cache;
    piece_list pieces;
    gaac_kv_rows_out rows;
    factors f;
    uint32_t all_pieces; // of all items: blocks, or sequences * sequence_blocks. Below 2^31
    const int32_t *blocks;
    const int64_t *k_offsets, *v_offsets;
    uint32_t sequence_blocks; // the most that a sequence's wanted cells touch
    const int32_t *first, *lengths;
    const int64_t *row_start;
    const int32_t *block_table;
    uint64_t block_table_stride;
};

// What an item comes to: a block, the element that its token 0 has in K's and V's rows, a bit for each wanted token.
struct decode_item {
    uint32_t block;
    int64_t k, v;
    unsigned wanted;
};

__device__ __forceinline__ decode_item listed_block(const decode_params &p, uint32_t i)
{
    decode_item item = {0, 0, 0, 0};
    item.block = static_cast<uint32_t>(p.blocks[i]); // negative ones are above every index
    item.wanted = all_tokens;
    const int64_t row = static_cast<int64_t>(i) * GAAC_BLOCK_TOKENS;
    item.k = p.k_offsets != nullptr ? p.k_offsets[i] : row * static_cast<int64_t>(p.rows.k_token_stride);
    item.v = p.v_offsets != nullptr ? p.v_offsets[i] : row * static_cast<int64_t>(p.rows.v_token_stride);
    return item;
}

__device__ __forceinline__ decode_item sequence_block(const decode_params &p, uint32_t i)
{
    decode_item item = {0, 0, 0, 0};
    const uint32_t sequence = i / p.sequence_blocks;
    const int32_t first = p.first != nullptr ? p.first[sequence] : 0, length = p.lengths[sequence];
    if (first < 0 || first >= length)
        return item;
    const uint32_t index = static_cast<uint32_t>(first) / GAAC_BLOCK_TOKENS + i % p.sequence_blocks;
    const int64_t cell = static_cast<int64_t>(index) * GAAC_BLOCK_TOKENS; // of the block's token 0
    if (cell >= length)
        return item;
    item.block = static_cast<uint32_t>(p.block_table[sequence * p.block_table_stride + index]);
    item.wanted = all_tokens;
    if (cell < first)
        item.wanted &= all_tokens << (first - cell);
    if (length - cell < GAAC_BLOCK_TOKENS)
        item.wanted &= (1u << (length - cell)) - 1;
    const int64_t row = p.row_start[sequence] + cell - first;
    item.k = row * static_cast<int64_t>(p.rows.k_token_stride);
    item.v = row * static_cast<int64_t>(p.rows.v_token_stride);
    return item;
}

template <bool sequences>
__global__ void __launch_bounds__(32 * decode_warps, decode_blocks)
    decode_kernel(const __grid_constant__ decode_params p)
{
    __shared__ uint4 tag_table[tag_table_entries];
    __shared__ warp_memory memory[decode_warps];
    for (unsigned i = threadIdx.x; i < tag_table_entries; i += 32 * decode_warps)
        tag_table[i] = tag_table_entry(i);
    __syncthreads();
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const uint32_t block_pieces = p.pieces.heads * p.pieces.count;
    for (uint32_t work = blockIdx.x * decode_warps + warp; work < p.all_pieces; work += gridDim.x * decode_warps) {
        const uint32_t i = work / block_pieces, in_block = work % block_pieces;
        const uint32_t head = in_block / p.pieces.count;
        const piece &what = p.pieces.at[in_block % p.pieces.count];
        const decode_item item = sequences ? sequence_block(p, i) : listed_block(p, i);
        if (item.wanted == 0 || item.block >= p.cache.blocks)
            continue;
        const piece_bytes from = find_piece(p.cache, p.pieces, what, item.block, head);
        if (from.values == nullptr)
            continue;
        assume_global(from.values);
        assume_global(from.variable);
        assume_global(from.windows);
        if (what.part == GAAC_K) {
            const rows_out to = {p.rows.k + item.k + head * p.rows.k_head_stride + what.channel,
                                 static_cast<int64_t>(p.rows.k_token_stride), item.wanted};
            decode_part<GAAC_K>(what, from, tag_table, memory[warp], to, p.f, lane);
        } else {
            const rows_out to = {p.rows.v + item.v + head * p.rows.v_head_stride + what.channel,
                                 static_cast<int64_t>(p.rows.v_token_stride), item.wanted};
            decode_part<GAAC_V>(what, from, tag_table, memory[warp], to, p.f, lane);
        }
    }
}

gaac_status load_decode_kernels(const gaac_cuda *cuda, gaac_error *error)
{
    (void)cuda;
    cudaFuncAttributes attributes; // asking for them loads the kernel
    gaac_status status =
        check_cuda(cudaFuncGetAttributes(&attributes, decode_kernel<false>), "loading the decode kernel", error);
    if (status == GAAC_OK)
        status =
            check_cuda(cudaFuncGetAttributes(&attributes, decode_kernel<true>), "loading the expand kernel", error);
    return status;
}

static gaac_status check_rows(const gaac_kv_rows_out *rows, gaac_error *error)
{
    if (rows->k == nullptr && rows->v == nullptr)
        return gaac_fail(error, GAAC_ERROR_INVALID_ARGUMENT, "rows.k and rows.v are both NULL: nothing is wanted");
    if (reinterpret_cast<uintptr_t>(rows->k) % 2 != 0 || reinterpret_cast<uintptr_t>(rows->v) % 2 != 0)
        return gaac_fail(error, GAAC_ERROR_INVALID_ARGUMENT, "rows.k and rows.v must be on 2-byte boundaries");
    return GAAC_OK;
}

// What decode and expand share: device, cache, destination.
static gaac_status start(decode_params *p, const gaac_cuda *cuda, const gaac_cuda_cache *cache,
                         const gaac_kv_rows_out *rows, gaac_error *error)
{
    gaac_status status = check_device(cuda, error);
    if (status == GAAC_OK)
        status = check_cache(cache, error);
    if (status == GAAC_OK)
        status = check_rows(rows, error);
    if (status != GAAC_OK)
        return status;
    geometry sizes;
    make_geometry(&sizes, &cache->shape, cache->pool_bytes);
    *p = {};
    p->cache = view_of(cache);
    make_pieces(&p->pieces, &sizes, rows->k != nullptr, rows->v != nullptr);
    p->rows = *rows;
    p->f = make_factors();
    return GAAC_OK;
}

// Sets p->all_pieces, and the thread blocks for them: more than the device holds at once, so that those that end early
// make room, but not so many that filling the table of tags takes long.
static gaac_status count_pieces(decode_params *p, uint64_t items, const gaac_cuda *cuda, unsigned *blocks,
                                gaac_error *error)
{
    const uint64_t most_items = INT32_MAX / (p->pieces.heads * p->pieces.count);
    if (items > most_items)
        return gaac_fail(error, GAAC_ERROR_INVALID_ARGUMENT,
                         "%llu blocks are more than the %llu of this shape that one call can take: split it",
                         static_cast<unsigned long long>(items), static_cast<unsigned long long>(most_items));
    p->all_pieces = static_cast<uint32_t>(items) * p->pieces.heads * p->pieces.count;
    const uint32_t wanted = (p->all_pieces + decode_warps - 1) / decode_warps;
    const uint32_t most = static_cast<uint32_t>(cuda->multiprocessors) * decode_blocks * 16;
    *blocks = wanted < most ? wanted : most;
    return GAAC_OK;
}

} // namespace gaac

using namespace gaac;

gaac_status gaac_cuda_decode(const gaac_cuda *cuda, const gaac_cuda_cache *cache, const gaac_cuda_decode_args *args,
                             gaac_cuda_stream stream, gaac_error *error)
{
    if (args == nullptr)
        return gaac_fail(error, GAAC_ERROR_INVALID_ARGUMENT, "the arguments are NULL");
    decode_params p;
    gaac_status status = start(&p, cuda, cache, &args->rows, error);
    if (status != GAAC_OK || args->count == 0)
        return status;
    if (args->blocks == nullptr)
        return gaac_fail(error, GAAC_ERROR_INVALID_ARGUMENT, "blocks is NULL: it lists the blocks to decode");
    unsigned blocks = 0;
    if ((status = count_pieces(&p, args->count, cuda, &blocks, error)) != GAAC_OK)
        return status;
    p.blocks = args->blocks;
    p.k_offsets = args->k_offsets;
    p.v_offsets = args->v_offsets != nullptr ? args->v_offsets : args->k_offsets;
    decode_kernel<false><<<blocks, 32 * decode_warps, 0, stream>>>(p);
    return check_launch("gaac_cuda_decode", error);
}

gaac_status gaac_cuda_expand(const gaac_cuda *cuda, const gaac_cuda_cache *cache, const gaac_cuda_expand_args *args,
                             gaac_cuda_stream stream, gaac_error *error)
{
    if (args == nullptr)
        return gaac_fail(error, GAAC_ERROR_INVALID_ARGUMENT, "the arguments are NULL");
    decode_params p;
    gaac_status status = start(&p, cuda, cache, &args->rows, error);
    if (status != GAAC_OK || args->sequences == 0 || args->max_tokens == 0)
        return status;
    if (args->lengths == nullptr || args->row_start == nullptr || args->block_table == nullptr)
        return gaac_fail(error, GAAC_ERROR_INVALID_ARGUMENT,
                         "lengths, row_start and block_table must be device pointers");
    // The first wanted cell may be the last of its block.
    p.sequence_blocks = static_cast<uint32_t>((static_cast<uint64_t>(args->max_tokens) + 2 * GAAC_BLOCK_TOKENS - 2) /
                                              GAAC_BLOCK_TOKENS);
    const uint64_t items = static_cast<uint64_t>(args->sequences) * p.sequence_blocks;
    unsigned blocks = 0;
    if ((status = count_pieces(&p, items, cuda, &blocks, error)) != GAAC_OK)
        return status;
    p.first = args->first;
    p.lengths = args->lengths;
    p.row_start = args->row_start;
    p.block_table = args->block_table;
    p.block_table_stride = args->block_table_stride;
    decode_kernel<true><<<blocks, 32 * decode_warps, 0, stream>>>(p);
    return check_launch("gaac_cuda_expand", error);
}
