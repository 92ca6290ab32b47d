// The reader of single elements (src/cuda/element.cuh), run on the host over blocks that the CPU library encoded: what
// the reference attention reads is what was written. Needs no GPU.
#include "cuda/element.cuh"

extern "C" {
#include "gaac/codec.h"
}
#include "random_kv.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

using namespace gaac;

namespace
{

void require(bool condition, const char *what)
{
    if (!condition) {
        fprintf(stderr, "test_element: %s\n", what);
        exit(1);
    }
}

// The window words of geometry.cuh's order, from a window table (docs/format.md, sections 4, 5 and 7).
std::vector<uint32_t> window_words(const geometry &layout, const uint8_t *table)
{
    const gaac_shape &shape = layout.layout.shape;
    std::vector<uint32_t> words(layout.window_bytes / 4);
    const uint8_t *v_table = table + shape.kv_heads * shape.head_dim_k;
    const uint32_t v_parity = shape.kv_heads * shape.head_dim_v;
    for (uint32_t head = 0; head < shape.kv_heads; head++)
        for (uint32_t u = 0; u < layout.layout.units; u++) {
            const gaac_unit &unit = layout.layout.unit[u];
            uint32_t *out = words.data() + head * layout.head_window_bytes / 4;
            const uint8_t *k = table + head * shape.head_dim_k + unit.channel;
            const uint8_t *v = v_table + head * shape.head_dim_v + unit.channel;
            for (unsigned group = 0; group < 8; group++)
                for (unsigned f = 0; unit.hv > 0 && f < unit.fragments; f++) {
                    const unsigned at = group * unit.fragments + f; // [group][half][j]
                    const unsigned k_channel = 4 * at, v_channel = 2 * at;
                    if (unit.has_k && group < 4)
                        out[layout.window_k[u] / 4 + at] = uint32_t{k[k_channel]} << 7 |
                                                           uint32_t{k[k_channel + 2]} << 15 |
                                                           uint32_t{k[k_channel + 1]} << 23 | k[k_channel + 3] >> 1;
                    if (unit.has_v)
                        out[layout.window_v[u] / 4 + at] =
                            uint32_t{v[v_channel]} << 7 | uint32_t{v[v_channel + 1]} << 15 |
                            uint32_t{v[v_parity + v_channel]} << 23 | v[v_parity + v_channel + 1] >> 1;
                }
        }
    return words;
}

struct block {
    const geometry *layout;
    const uint8_t *slot;
    const uint32_t *entries, *words;
};

uint16_t read(const block &b, gaac_part part, uint32_t head, const gaac_unit &unit, unsigned u, unsigned token,
              unsigned channel)
{
    const gaac_layout &layout = b.layout->layout;
    const uint8_t *fixed = b.slot + head * layout.head_fixed_bytes;
    const element_place at = element_at(part, unit.fragments, token, channel);
    if (unit.hv == 0)
        return element_of_fragments(part, at, fixed + (part == GAAC_K ? unit.fixed_offset : unit.fixed_v_offset));
    const uint32_t entry = b.entries[head * layout.coded_units + unit.entry];
    const uint32_t *words = b.words + head * b.layout->head_window_bytes / 4;
    const coded_unit coded = {unit.hv,
                              {fixed + unit.fixed_offset, fixed + unit.fixed_v_offset},
                              b.slot + layout.fixed_bytes + gaac_entry_offset(entry),
                              gaac_entry_length(entry),
                              gaac_entry_exceptions(entry),
                              {words + b.layout->window_k[u] / 4, words + b.layout->window_v[u] / 4}};
    return element_of_unit(part, at, coded, element_lane_start(unit.hv, coded.variable, 4 * at.g + at.t));
}

// Returns the exceptions that were read.
uint32_t check_shape(const gaac_shape &shape, random_kind kind, uint64_t seed)
{
    const size_t tokens = 64 * GAAC_BLOCK_TOKENS, k_row = shape.kv_heads * shape.head_dim_k,
                 v_row = shape.kv_heads * shape.head_dim_v;
    std::vector<uint16_t> k(tokens * k_row), v(tokens * v_row);
    random_fill(&seed, RANDOM_KV, k.data(), k.size(), static_cast<unsigned>(k_row));
    random_fill(&seed, RANDOM_KV, v.data(), v.size(), static_cast<unsigned>(v_row));
    const gaac_kv_rows rows = {k.data(), v.data(), k_row, shape.head_dim_k, v_row, shape.head_dim_v};
    gaac_windows *windows;
    uint32_t pool_bytes;
    require(gaac_calibrate(&shape, &rows, tokens, GAAC_SCHEME_PRODUCTION, nullptr, &windows, &pool_bytes, nullptr) ==
                GAAC_OK,
            "calibration failed");
    pool_bytes = pool_bytes / 128 * 128 + 512;
    const gaac_codec_config config = {shape, GAAC_SCHEME_PRODUCTION, windows, pool_bytes, nullptr};
    gaac_codec *codec;
    require(gaac_codec_create(&codec, &config, nullptr) == GAAC_OK, "no codec");
    geometry layout;
    make_geometry(&layout, &shape, pool_bytes);
    size_t table_bytes;
    const std::vector<uint32_t> words = window_words(layout, gaac_windows_table(windows, &table_bytes));
    uint8_t *slot = static_cast<uint8_t *>(aligned_alloc(64, gaac_codec_slot_bytes(codec)));
    std::vector<uint32_t> entries(gaac_codec_entry_count(codec));
    uint32_t coded = 0, exceptions = 0;
    for (unsigned turn = 0; turn < 6; turn++) {
        random_fill(&seed, kind, k.data(), GAAC_BLOCK_TOKENS * k_row, static_cast<unsigned>(k_row));
        random_fill(&seed, kind, v.data(), GAAC_BLOCK_TOKENS * v_row, static_cast<unsigned>(v_row));
        gaac_block_info info;
        require(gaac_encode_block(codec, &rows, slot, entries.data(), &info, nullptr) == GAAC_OK, "encoding failed");
        if (!info.coded)
            continue;
        coded++;
        exceptions += info.exceptions;
        const block b = {&layout, slot, entries.data(), words.data()};
        for (uint32_t head = 0; head < shape.kv_heads; head++)
            for (uint32_t u = 0; u < layout.layout.units; u++)
                for (unsigned token = 0; token < GAAC_BLOCK_TOKENS; token++)
                    for (unsigned c = 0; c < layout.layout.unit[u].channels; c++) {
                        const gaac_unit &unit = layout.layout.unit[u];
                        if (unit.has_k)
                            require(read(b, GAAC_K, head, unit, u, token, c) ==
                                        k[token * k_row + head * shape.head_dim_k + unit.channel + c],
                                    "an element of K is another");
                        if (unit.has_v)
                            require(read(b, GAAC_V, head, unit, u, token, c) ==
                                        v[token * v_row + head * shape.head_dim_v + unit.channel + c],
                                    "an element of V is another");
                    }
    }
    require(coded > 0, "no block was coded");
    free(slot);
    gaac_codec_destroy(codec);
    gaac_windows_destroy(windows);
    return exceptions;
}

} // namespace

int main()
{
    const gaac_shape shapes[] = {{1, 64, 64},   {2, 128, 128}, {3, 80, 80},  {2, 96, 96},  {1, 112, 112},
                                 {2, 256, 256}, {1, 192, 128}, {1, 64, 128}, {1, 128, 80}, {1, 576, 512}};
    uint32_t exceptions = 0;
    uint64_t seed = 1;
    for (const gaac_shape &shape : shapes)
        for (const random_kind kind : {RANDOM_KV, RANDOM_OUTLIERS})
            exceptions += check_shape(shape, kind, seed++);
    require(exceptions > 100, "hardly an exception was read");
    printf("%u exceptions read\n", exceptions);
    return 0;
}
