// A warp and one unit of a block: gathering its values in fragment order, storing new tokens into a raw block,
// encoding.
#ifndef GAAC_CUDA_UNIT_ENCODE_CUH
#define GAAC_CUDA_UNIT_ENCODE_CUH

#include "cuda/half_code.cuh"
#include "cuda/raw_blocks.cuh"
#include "cuda/unit_plain.cuh"

namespace gaac
{

// Where a block's values come from: rows, or a raw block. Never indexed by part, which would put it into local memory.
struct block_source {
    const uint16_t *k, *v; // rows of head 0 of the first token
    bool wide;             // rows and strides allow loads of 16 bytes
    const uint8_t *raw;    // the raw block; NULL: rows
};

// Values of one part of a unit.
struct part_source {
    const uint16_t *rows; // of the unit's first channel
    uint64_t stride;
    bool wide;
    const uint8_t *fragments; // or NULL
    unsigned rows_from;       // of a part that lies in both: the first token that is taken from the rows
};

__device__ __forceinline__ uint32_t raw_part_offset(const gaac_unit &unit, unsigned part)
{
    return part == GAAC_K ? unit.raw_k_offset : unit.raw_v_offset;
}
__device__ __forceinline__ uint32_t fixed_part_offset(const gaac_unit &unit, unsigned part)
{
    return part == GAAC_K ? unit.fixed_offset : unit.fixed_v_offset;
}
__device__ __forceinline__ bool unit_has(const gaac_unit &unit, unsigned part)
{
    return part == GAAC_K ? unit.has_k : unit.has_v;
}

__device__ __forceinline__ part_source source_of(const block_source &source, const gaac_kv_rows &rows,
                                                 const geometry &sizes, const gaac_unit &unit, uint32_t head,
                                                 unsigned part)
{
    part_source found;
    found.rows = part == GAAC_K ? source.k + head * rows.k_head_stride : source.v + head * rows.v_head_stride;
    found.rows += unit.channel;
    found.stride = part == GAAC_K ? rows.k_token_stride : rows.v_token_stride;
    found.wide = source.wide;
    found.rows_from = GAAC_BLOCK_TOKENS;
    found.fragments =
        source.raw == nullptr ? nullptr : source.raw + head * sizes.layout.head_raw_bytes + raw_part_offset(unit, part);
    return found;
}

// Starts to fetch a part of a coded unit, so that only its first half waits for memory: a lane has a line of 128 bytes
// (a token's row of 128 channels may lie in two), or two tokens' rows of 64.
__device__ __forceinline__ void fetch_part(const part_source &source, unsigned hv, unsigned lane)
{
    const void *line = source.rows + lane / 2 * source.stride + lane % 2 * 32 * hv;
    if (source.fragments != nullptr)
        line = source.fragments + lane * 64 * hv;
#ifdef __CUDA_ARCH__
    asm volatile("prefetch.global.L2 [%0];" ::"l"(line));
#else
    (void)line;
#endif
}

// ---- gathering --------------------------------------------------------------------------------

// A lane's place in a part of a coded unit, from half to half: one pointer, whatever the values come from, so that the
// loop over halves has few registers to hold.
struct lane_source {
    const uint8_t *at;
    uint64_t row;  // bytes from a token's row to the next
    uint32_t step; // bytes from a half to the next
    bool raw, wide;
};
__device__ __forceinline__ lane_source lane_source_of(const part_source &source, unsigned part, unsigned hv,
                                                      unsigned lane)
{
    const unsigned g = lane >> 2, t = lane & 3;
    lane_source found;
    found.raw = source.fragments != nullptr;
    found.wide = source.wide;
    found.row = 2 * source.stride;
    if (found.raw) {
        found.at = source.fragments + lane_position(lane) * 16;
        found.step = 4 * GAAC_FRAGMENT_BYTES;
    } else {
        // K: 16 channels a half of tokens g and g + 8. V: 8 channels of tokens 2t, 2t + 1, 2t + 8, 2t + 9.
        const unsigned token = part == GAAC_K ? g : 2 * t, channel = part == GAAC_K ? 16 * hv * t : 8 * hv * g;
        found.at = reinterpret_cast<const uint8_t *>(source.rows) + token * found.row + 2 * channel;
        found.step = part == GAAC_K ? 32 : 16;
    }
    return found;
}

// Eight elements.
template <bool wide> __device__ __forceinline__ uint4 load_eight(const uint8_t *bytes)
{
    if (wide)
        return *reinterpret_cast<const uint4 *>(bytes);
    const uint16_t *at = reinterpret_cast<const uint16_t *>(bytes);
    return make_uint4(at[0] | static_cast<uint32_t>(at[1]) << 16, at[2] | static_cast<uint32_t>(at[3]) << 16,
                      at[4] | static_cast<uint32_t>(at[5]) << 16, at[6] | static_cast<uint32_t>(at[7]) << 16);
}

template <bool wide> __device__ __forceinline__ void gather_k_rows(const lane_source &source, uint32_t pairs[16])
{
#pragma unroll
    for (unsigned s = 0; s < 2; s++)
#pragma unroll
        for (unsigned i = 0; i < 2; i++) {
            const uint4 x = load_eight<wide>(source.at + 8 * s * source.row + 16 * i);
            pairs[8 * i + 2 * s] = x.x;
            pairs[8 * i + 2 * s + 1] = x.y;
            pairs[8 * i + 4 + 2 * s] = x.z;
            pairs[8 * i + 4 + 2 * s + 1] = x.w;
        }
}

// Rows of 8 channels of tokens 2t, 2t + 1, 2t + 8, 2t + 9 as pairs of tokens.
__device__ __forceinline__ void order_v_rows(const uint4 rows[4], uint32_t pairs[16])
{
#pragma unroll
    for (unsigned s = 0; s < 2; s++) {
        const uint4 x = rows[2 * s], y = rows[2 * s + 1];
        pairs[2 * s] = __byte_perm(x.x, y.x, 0x5410);
        pairs[2 * s + 1] = __byte_perm(x.x, y.x, 0x7632);
        pairs[4 + 2 * s] = __byte_perm(x.y, y.y, 0x5410);
        pairs[4 + 2 * s + 1] = __byte_perm(x.y, y.y, 0x7632);
        pairs[8 + 2 * s] = __byte_perm(x.z, y.z, 0x5410);
        pairs[8 + 2 * s + 1] = __byte_perm(x.z, y.z, 0x7632);
        pairs[12 + 2 * s] = __byte_perm(x.w, y.w, 0x5410);
        pairs[12 + 2 * s + 1] = __byte_perm(x.w, y.w, 0x7632);
    }
}

template <bool wide> __device__ __forceinline__ void gather_v_rows(const lane_source &source, uint32_t pairs[16])
{
    uint4 rows[4];
#pragma unroll
    for (unsigned i = 0; i < 4; i++)
        rows[i] = load_eight<wide>(source.at + (8 * (i >> 1) + (i & 1)) * source.row);
    order_v_rows(rows, pairs);
}

// The registers of a fragment as pairs, and back: the same for both directions.
__device__ __forceinline__ uint4 exchange_middle(unsigned part, uint4 x)
{
    return part == GAAC_K ? make_uint4(x.x, x.z, x.y, x.w) : x;
}

// A lane's 16 registers of the next half.
__device__ __forceinline__ void gather_half(lane_source *source, unsigned part, uint32_t pairs[16])
{
    if (source->raw) {
#pragma unroll
        for (unsigned j = 0; j < 4; j++) {
            const uint4 x =
                exchange_middle(part, *reinterpret_cast<const uint4 *>(source->at + j * GAAC_FRAGMENT_BYTES));
            pairs[4 * j] = x.x;
            pairs[4 * j + 1] = x.y;
            pairs[4 * j + 2] = x.z;
            pairs[4 * j + 3] = x.w;
        }
    } else if (part == GAAC_K) {
        if (source->wide)
            gather_k_rows<true>(*source, pairs);
        else
            gather_k_rows<false>(*source, pairs);
    } else if (source->wide) {
        gather_v_rows<true>(*source, pairs);
    } else {
        gather_v_rows<false>(*source, pairs);
    }
    source->at += source->step;
}

// A lane's values of a part whose tokens from rows_from on lie in rows that allow wide loads, and those before in
// fragments, by half. What a half or a place lacks is 0.
struct mixed_part {
    uint4 fresh[2][4], held[2][4];
};

// Of the rows; source.rows: where token 0 would be.
__device__ __forceinline__ void load_fresh(const part_source &source, unsigned part, unsigned hv, unsigned lane,
                                           mixed_part *found)
{
    const unsigned g = lane >> 2, t = lane & 3;
    const unsigned first = part == GAAC_K ? g : 2 * t, odd = part == GAAC_K ? 0 : 1;
    const unsigned channel = part == GAAC_K ? 16 * hv * t : 8 * hv * g;
    const unsigned next = part == GAAC_K ? 8 : 0, step = part == GAAC_K ? 16 : 8; // vector, half
    const uint16_t *row = source.rows + first * source.stride + channel;
#pragma unroll
    for (unsigned i = 0; i < 4; i++) {
        const uint16_t *at = row + (i >> 1) * 8 * source.stride + (i & 1) * (odd * source.stride + next);
        const bool is_fresh = first + 8 * (i >> 1) + (i & 1) * odd >= source.rows_from;
        found->fresh[0][i] = found->fresh[1][i] = make_uint4(0, 0, 0, 0);
        if (is_fresh)
            found->fresh[0][i] = *reinterpret_cast<const uint4 *>(at);
        if (is_fresh && hv > 1)
            found->fresh[1][i] = *reinterpret_cast<const uint4 *>(at + step);
    }
}

// Of a part's fragments, or, with NULL, nothing.
__device__ __forceinline__ void load_held(const uint8_t *fragments, unsigned hv, unsigned lane, mixed_part *found)
{
    const uint8_t *at = fragments + lane_position(lane) * 16;
#pragma unroll
    for (unsigned i = 0; i < 8; i++) {
        found->held[i / 4][i % 4] = make_uint4(0, 0, 0, 0);
        if (fragments != nullptr && i < 4 * hv)
            found->held[i / 4][i % 4] = *reinterpret_cast<const uint4 *>(at + i * GAAC_FRAGMENT_BYTES);
    }
}

// A half's registers.
__device__ __forceinline__ void order_mixed(const uint4 fresh[4], const uint4 held[4], unsigned part,
                                            unsigned rows_from, unsigned lane, uint32_t pairs[16])
{
    const unsigned g = lane >> 2, t = lane & 3;
    uint32_t mask[2]; // of what is fresh, tokens below 8 and above
    if (part == GAAC_K) {
#pragma unroll
        for (unsigned i = 0; i < 4; i++) {
            const unsigned at = 8 * (i & 1) + 2 * (i >> 1);
            const uint4 x = fresh[i];
            pairs[at] = x.x;
            pairs[at + 1] = x.y;
            pairs[at + 4] = x.z;
            pairs[at + 5] = x.w;
        }
        mask[0] = g >= rows_from ? ~0u : 0;
        mask[1] = g + 8 >= rows_from ? ~0u : 0;
    } else {
        order_v_rows(fresh, pairs);
#pragma unroll
        for (unsigned s = 0; s < 2; s++)
            mask[s] = (2 * t + 8 * s >= rows_from ? 0xffffu : 0) | (2 * t + 8 * s + 1 >= rows_from ? 0xffff0000u : 0);
    }
#pragma unroll
    for (unsigned j = 0; j < 4; j++) {
        const uint4 x = exchange_middle(part, held[j]);
        pairs[4 * j] = half::select_bits(mask[0], pairs[4 * j], x.x);
        pairs[4 * j + 1] = half::select_bits(mask[0], pairs[4 * j + 1], x.y);
        pairs[4 * j + 2] = half::select_bits(mask[1], pairs[4 * j + 2], x.z);
        pairs[4 * j + 3] = half::select_bits(mask[1], pairs[4 * j + 3], x.w);
    }
}

// Token and channel of the unit of register r, half hi of fragment f at a lane.
struct element_place {
    unsigned token, channel;
};
__device__ __forceinline__ element_place place_of(unsigned part, unsigned fragments, unsigned f, unsigned lane,
                                                  unsigned r, unsigned hi)
{
    const unsigned g = lane >> 2, t = lane & 3;
    if (part == GAAC_K)
        return {g + 8 * (r & 1), 4 * fragments * t + 4 * f + 2 * (r >> 1) + hi};
    return {2 * t + 8 * (r >> 1) + hi, 2 * fragments * g + 2 * f + (r & 1)};
}

__device__ __forceinline__ uint32_t load_element(const part_source &source, unsigned part, unsigned fragments,
                                                 unsigned f, unsigned lane, unsigned r, unsigned hi)
{
    const element_place at = place_of(part, fragments, f, lane, r, hi);
    if (source.fragments != nullptr && at.token < source.rows_from)
        return reinterpret_cast<const uint16_t *>(source.fragments +
                                                  f * GAAC_FRAGMENT_BYTES)[lane_position(lane) * 8 + 2 * r + hi];
    return source.rows[at.token * source.stride + at.channel];
}

// A part of a coded unit into fragment order.
__device__ __forceinline__ void store_halves(const part_source &source, unsigned part, unsigned hv, unsigned lane,
                                             uint8_t *out)
{
    out += lane_position(lane) * 16;
    lane_source from = lane_source_of(source, part, hv, lane);
#pragma unroll 1
    for (unsigned h = 0; h < hv; h++) {
        uint32_t pairs[16];
        gather_half(&from, part, pairs);
#pragma unroll
        for (unsigned j = 0; j < 4; j++)
            *reinterpret_cast<uint4 *>(out + (4 * h + j) * GAAC_FRAGMENT_BYTES) =
                exchange_middle(part, make_uint4(pairs[4 * j], pairs[4 * j + 1], pairs[4 * j + 2], pairs[4 * j + 3]));
    }
}

// A part of a remainder likewise, which is what a slot keeps of it too.
__device__ __forceinline__ void store_remainder(const part_source &source, unsigned part, unsigned fragments,
                                                unsigned lane, uint8_t *out)
{
    out += lane_position(lane) * 16;
#pragma unroll 1
    for (unsigned f = 0; f < fragments; f++)
#pragma unroll 1
        for (unsigned r = 0; r < 4; r++)
            *reinterpret_cast<uint32_t *>(out + f * GAAC_FRAGMENT_BYTES + 4 * r) =
                load_element(source, part, fragments, f, lane, r, 0) |
                load_element(source, part, fragments, f, lane, r, 1) << 16;
}

// Four channels of the source's first row, 4 * lane and on, of lanes that a part of so many fragments has channels for.
__device__ __forceinline__ uint2 load_four(const part_source &source, unsigned fragments, unsigned lane)
{
    if (lane >= 4 * fragments)
        return make_uint2(0, 0);
    const uint16_t *row = source.rows + 4 * lane;
    if (source.wide)
        return *reinterpret_cast<const uint2 *>(row);
    return make_uint2(row[0] | static_cast<uint32_t>(row[1]) << 16, row[2] | static_cast<uint32_t>(row[3]) << 16);
}

// Stores tokens `first` to `last` - 1 of a part, which lie in rows from token `first` on, into a raw block's fragments.
// x: of the first, from load_four.
__device__ __forceinline__ void store_tokens(part_source source, unsigned part, unsigned fragments, unsigned first,
                                             unsigned last, unsigned lane, uint2 x, uint8_t *out)
{
    if (lane >= 4 * fragments)
        return;
#pragma unroll 1
    for (unsigned token = first;;) {
        if (part == GAAC_K) {
            const unsigned t = lane / fragments, f = lane % fragments;
            uint32_t *at = reinterpret_cast<uint32_t *>(out + f * GAAC_FRAGMENT_BYTES +
                                                        gaac_position(token & 7, t) * 16 + (token >> 3) * 4);
            at[0] = x.x;
            at[2] = x.y;
        } else {
#pragma unroll
            for (unsigned i = 0; i < 2; i++) { // channels 4 * lane + 2i, + 1
                const unsigned g = (2 * lane + i) / fragments, f = (2 * lane + i) % fragments;
                uint16_t *at = reinterpret_cast<uint16_t *>(out + f * GAAC_FRAGMENT_BYTES +
                                                            gaac_position(g, token >> 1 & 3) * 16 + (token >> 3) * 8) +
                               (token & 1);
                const uint32_t both = i == 0 ? x.x : x.y;
                at[0] = static_cast<uint16_t>(both);
                at[2] = static_cast<uint16_t>(both >> 16);
            }
        }
        if (++token >= last)
            return;
        source.rows += source.stride;
        x = load_four(source, fragments, lane);
    }
}

// ---- encoding ---------------------------------------------------------------------------------

// What encoding a unit came to, until the block's pool is laid out. Bits 0-9: stored N bytes; 10-13: halves that have
// exceptions, as in entries; 14: hv is 2; 16-28: exceptions.
__device__ __forceinline__ uint32_t make_need(unsigned hv, uint32_t stored, uint32_t flags, uint32_t exceptions)
{
    return stored | flags << 10 | (hv - 1) << 14 | exceptions << 16;
}
__device__ __forceinline__ uint32_t need_stored(uint32_t need)
{
    return need & 0x3ff;
}
__device__ __forceinline__ uint32_t need_flags(uint32_t need)
{
    return need >> 10 & 0xf;
}
__device__ __forceinline__ uint32_t need_exceptions(uint32_t need)
{
    return need >> 16;
}
// Tags and stored N bytes: how many bytes they are.
__device__ __forceinline__ uint32_t need_head(uint32_t need)
{
    return GAAC_TAG_BYTES * (1 + (need >> 14 & 1)) + need_stored(need);
}
// The variable part, in units of GAAC_POOL_ALIGN.
__device__ __forceinline__ uint32_t need_length(uint32_t need)
{
    return (need_head(need) + 4 * need_exceptions(need) + GAAC_POOL_ALIGN - 1) / GAAC_POOL_ALIGN;
}

// A unit's variable part in shared memory, before it has its place.
constexpr unsigned kept_records = 32; // the exceptions of a unit that are kept; those of one with more are found again
struct variable_image {
    uint32_t need;
    uint32_t unused[3];
    uint8_t head[GAAC_MAX_HV * (GAAC_TAG_BYTES + 2 * 128)];
    uint32_t records[kept_records]; // from the end down
};

// What a warp notes of the halves of a unit, by part * hv + half.
struct half_notes {
    uint32_t n[2 * GAAC_MAX_HV][32];
    uint32_t outside[2 * GAAC_MAX_HV][32]; // of halves that have exceptions
};

__device__ __forceinline__ uint32_t sum_of_lanes_below(uint32_t value, unsigned lane, uint32_t *total)
{
    uint32_t sum = value;
#pragma unroll
    for (unsigned step = 1; step < 32; step *= 2) {
        const uint32_t below = __shfl_up_sync(all_lanes, sum, step);
        sum += lane >= step ? below : 0;
    }
    *total = __shfl_sync(all_lanes, sum, 31);
    return sum - value;
}

// Code words of half h; those of half 0 wait for half 1's first, which lies beside them. codes: where the part has
// them.
__device__ __forceinline__ void store_codes(unsigned hv, unsigned h, unsigned position, const uint32_t code[3],
                                            uint32_t waiting[3], uint8_t *codes)
{
    if (hv == 1) {
        codes -= GAAC_WORD_BYTES;
        *reinterpret_cast<uint2 *>(codes + gaac_code_offset(1, 0, 0, position)) = make_uint2(code[0], code[1]);
        *reinterpret_cast<uint32_t *>(codes + gaac_code_offset(1, 0, 2, position)) = code[2];
    } else if (h == 0) {
        waiting[0] = code[0];
        waiting[1] = code[1];
        waiting[2] = code[2];
    } else {
        codes -= 2 * GAAC_WORD_BYTES;
        *reinterpret_cast<uint4 *>(codes + gaac_code_offset(2, 0, 0, position)) =
            make_uint4(waiting[0], waiting[1], waiting[2], code[0]);
        *reinterpret_cast<uint2 *>(codes + gaac_code_offset(2, 1, 1, position)) = make_uint2(code[1], code[2]);
    }
}

// Writes the exceptions of a lane's half; returns the number of the next.
__device__ __forceinline__ uint32_t store_records(const part_source &source, unsigned part, unsigned hv, unsigned h,
                                                  unsigned lane, uint32_t outside, uint32_t number, uint32_t count,
                                                  uint32_t limit, uint32_t *end)
{
    for (; outside != 0; outside &= outside - 1, number++) {
        const unsigned i = __ffs(outside) - 1, k = i >> 2, hi = i & 1;
        const unsigned r = gaac_word_register(static_cast<gaac_part>(part), k & 1, i >> 1 & 1);
        const uint32_t value = load_element(source, part, 4 * hv, 4 * h + (k >> 1), lane, r, hi);
        if (number < limit)
            end[-1 - static_cast<int>(number)] = (value >> 7 & 0xff) | hi << 8 | (4 * (k >> 1) + r) << 9 | h << 13 |
                                                 part << 14 | lane_position(lane) << 15 |
                                                 (number + 1 < count ? 0x80000000u : 0);
    }
    return number;
}

// What a lane has of a half besides its words.
struct lane_code {
    uint32_t code[3], n;
    uint32_t stored;  // a bit for each byte of n that is stored
    uint32_t outside; // a bit for each exception; 0 in all lanes unless `any`
    bool any;         // an exception in any lane
};

// Encodes a half. words: of the half, in the slot.
__device__ __forceinline__ lane_code encode_half(const uint32_t pairs[16], uint4 bases, unsigned position,
                                                 uint8_t *words)
{
    uint32_t word[8], offset[8];
    const uint32_t base[4] = {bases.x, bases.y, bases.z, bases.w};
    lane_code found;
    const uint32_t seen = half::split_words(pairs, base, word, offset);
    uint4 *out = reinterpret_cast<uint4 *>(words + gaac_word_offset(0, 0, position));
    out[0] = make_uint4(word[0], word[1], word[2], word[3]);
    out[gaac_word_offset(0, 4, 0) / 16] = make_uint4(word[4], word[5], word[6], word[7]);
    found.outside = 0;
    found.any = __any_sync(all_lanes, (seen & half::above_nibbles) != 0);
    if (found.any) {
        uint32_t excluded[4];
        found.outside = half::set_outside_apart(base, offset, excluded);
        found.stored = half::pack_codes(offset, excluded, found.code, &found.n);
    } else {
        found.stored = half::pack_codes(offset, nullptr, found.code, &found.n);
    }
    return found;
}

// Encodes a coded unit: the fixed parts to their place in the slot, the rest to image, of its exceptions no more than
// the image keeps. With `end` not NULL all exceptions go below it instead. windows: the head's. Returns what make_need
// makes.
__device__ __forceinline__ uint32_t encode_unit(const geometry &sizes, const gaac_kv_rows &rows, uint32_t u,
                                                uint32_t head, const block_source &source, const uint8_t *windows,
                                                unsigned lane, uint8_t *slot, half_notes *notes, variable_image *image,
                                                uint8_t *end)
{
    const gaac_unit &unit = sizes.layout.unit[u];
    const unsigned hv = unit.hv, position = lane_position(lane);
    uint32_t tag = 0, flags = 0, exceptions = 0;
    if (unit.has_k)
        fetch_part(source_of(source, rows, sizes, unit, head, GAAC_K), hv, lane);
    if (unit.has_v)
        fetch_part(source_of(source, rows, sizes, unit, head, GAAC_V), hv, lane);
#pragma unroll 1
    for (unsigned part = unit.has_k ? 0 : 1; part < (unit.has_v ? 2 : 1); part++) {
        lane_source values = lane_source_of(source_of(source, rows, sizes, unit, head, part), part, hv, lane);
        uint8_t *fixed = slot + head * sizes.layout.head_fixed_bytes + fixed_part_offset(unit, part);
        const uint4 *bases =
            reinterpret_cast<const uint4 *>(windows + (part == GAAC_K ? sizes.window_k[u] : sizes.window_v[u]));
        bases += (part == GAAC_K ? lane & 3 : lane >> 2) * hv;
        uint32_t waiting[3] = {0, 0, 0};
#pragma unroll 1
        for (unsigned h = 0; h < hv; h++) {
            uint32_t pairs[16];
            const uint4 base = *bases++;
            gather_half(&values, part, pairs);
            const lane_code found = encode_half(pairs, base, position, fixed);
            fixed += GAAC_WORD_BYTES; // of the next half; at the end, codes
            const unsigned i = part * hv + h;
            if (found.any) {
                notes->outside[i][lane] = found.outside;
                flags |= 1u << (2 * part + h);
                exceptions += __popc(found.outside);
            }
            store_codes(hv, h, position, found.code, waiting, fixed);
            notes->n[i][lane] = found.n;
            tag |= found.stored << 4 * i;
        }
    }

    uint32_t total;
    const uint32_t before = sum_of_lanes_below(__popc(tag) | exceptions << 16, lane, &total);
    if (hv == 2)
        reinterpret_cast<uint16_t *>(image->head)[position] = static_cast<uint16_t>(tag);
    else
        image->head[position] = static_cast<uint8_t>(tag);
    uint8_t *next = image->head + GAAC_TAG_BYTES * hv + (before & 0xffff);
#pragma unroll 1
    for (unsigned i = 0; i < 2 * hv; i++) {
        const uint32_t n = notes->n[i][lane];
#pragma unroll
        for (unsigned byte = 0; byte < 4; byte++)
            if (tag >> (4 * i + byte) & 1)
                *next++ = static_cast<uint8_t>(n >> 8 * byte);
    }
    if (flags != 0) {
        uint32_t number = before >> 16;
#pragma unroll 1
        for (unsigned i = 0; i < 2 * hv; i++) {
            const unsigned part = i / hv, h = i % hv;
            if (flags >> (2 * part + h) & 1)
                number = store_records(
                    source_of(source, rows, sizes, unit, head, part), part, hv, h, lane, notes->outside[i][lane],
                    number, total >> 16, end == nullptr ? kept_records : 0xffffffffu,
                    end == nullptr ? image->records + kept_records : reinterpret_cast<uint32_t *>(end));
        }
    }
    const uint32_t need = make_need(hv, total & 0xffff, flags, total >> 16);
    if (lane == 0)
        image->need = need;
    __syncwarp();
    return need;
}

// An image to its place in the pool. recorded: the exceptions are there already.
__device__ __forceinline__ void store_image(const variable_image *image, unsigned lane, uint8_t *variable,
                                            bool recorded)
{
    const uint32_t need = image->need, head = need_head(need), exceptions = need_exceptions(need);
    const uint32_t words = need_length(need) * (GAAC_POOL_ALIGN / 4);
    uint32_t *out = reinterpret_cast<uint32_t *>(variable);
    const uint32_t *in = reinterpret_cast<const uint32_t *>(image->head);
#pragma unroll 1
    for (uint32_t i = lane; i < words; i += 32) {
        uint32_t value = 0;
        if (4 * i < head) {
            value = in[i];
            if (head - 4 * i < 4)
                value &= (1u << 8 * (head & 3)) - 1;
        } else if (i >= words - exceptions) {
            if (recorded)
                continue;
            value = image->records[kept_records - (words - i)];
        }
        out[i] = value;
    }
}

// A part of a unit that lies coded in a slot, decoded into a raw block's fragments.
__device__ __forceinline__ void reopen_part(const geometry &sizes, uint32_t u, uint32_t head, unsigned part,
                                            const uint8_t *slot, uint32_t entry, const uint8_t *windows, unsigned lane,
                                            uint8_t *out)
{
    const gaac_unit &unit = sizes.layout.unit[u];
    const uint8_t *fixed = slot + head * sizes.layout.head_fixed_bytes + fixed_part_offset(unit, part);
    if (unit.hv > 0) {
        decode_part_plain(
            unit.hv, static_cast<gaac_part>(part), fixed, slot + sizes.layout.fixed_bytes + gaac_entry_offset(entry),
            gaac_entry_length(entry), (gaac_entry_exceptions(entry) >> 2 * part & 3) != 0,
            reinterpret_cast<const uint32_t *>(windows + (part == GAAC_K ? sizes.window_k[u] : sizes.window_v[u])),
            out);
        return;
    }
    for (unsigned f = 0; f < unit.fragments; f++)
        reinterpret_cast<uint4 *>(out + f * GAAC_FRAGMENT_BYTES)[lane] =
            reinterpret_cast<const uint4 *>(fixed + f * GAAC_FRAGMENT_BYTES)[lane];
}

} // namespace gaac

#endif
