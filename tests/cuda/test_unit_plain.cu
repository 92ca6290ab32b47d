// The plain decoder of a unit (src/cuda/unit_plain.cuh), lane by lane on the host, against the CPU library's
// definition. Any bytes decode to some values, so bytes at random are enough. Needs no GPU.
#include "cuda/unit_plain.cuh"

#define _Alignas alignas // C's name
extern "C" {
#include "codec/unit.h"
}
#undef _Alignas
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
        fprintf(stderr, "test_unit_plain: %s\n", what);
        exit(1);
    }
}

void fill(uint64_t *seed, void *bytes, size_t size)
{
    for (size_t i = 0; i < size; i++)
        static_cast<uint8_t *>(bytes)[i] = static_cast<uint8_t>(random_u64(seed) >> 40);
}

// decode_part_plain without its warp: one lane after another.
void decode(unsigned hv, gaac_part part, const uint8_t *fixed, const uint8_t *variable, uint32_t bytes, bool exceptions,
            const uint32_t *windows, uint8_t *fragments)
{
    uint32_t first = GAAC_TAG_BYTES * hv;
    for (unsigned lane = 0; lane < 32; lane++) {
        const unsigned position = lane_position(lane);
        const uint32_t tag = plain_tag(hv, variable, bytes, position);
        for (unsigned half = 0; half < hv; half++) {
            const plain_n n = plain_n_word(hv, part, half, variable, bytes, tag, first);
            for (unsigned j = 0; j < 4; j++) {
                const uint4 registers = plain_fragment(hv, part, half, j, position, fixed, n, windows);
                memcpy(fragments + (4 * half + j) * GAAC_FRAGMENT_BYTES + position * 16, &registers, 16);
            }
        }
        if (exceptions)
            plain_exceptions(hv, part, position, variable, bytes, reinterpret_cast<uint32_t *>(fragments));
        first += plain_count(tag);
    }
}

// Records at the end of a variable part, each of another element, half of them of the other part.
void put_exceptions(uint64_t *seed, unsigned hv, uint8_t *variable, uint32_t bytes, unsigned count)
{
    const uint32_t start = random_below(seed, 32768);
    for (unsigned i = 0; i < count; i++) {
        const uint32_t element = start + i * 5 * 331; // bits 8-19 but for the half, each once
        uint32_t record = random_below(seed, 256) | (element & 0x1f) << 8 | (element >> 5 & 0x3f) << 14;
        record |= hv == 2 ? (element >> 11 & 1) << 13 : 0;
        record |= random_below(seed, 2048) << 20; // ignored
        record |= i + 1 < count ? 0x80000000u : 0;
        memcpy(variable + bytes - 4 * (i + 1), &record, 4);
    }
}

void check(uint64_t *seed, unsigned hv, gaac_part part, unsigned turn)
{
    alignas(64) uint8_t fixed[GAAC_MAX_HV * GAAC_PART_FIXED_BYTES];
    alignas(64) uint16_t expected[GAAC_MAX_HV * 1024];
    alignas(64) uint8_t got[sizeof expected];
    alignas(64) uint32_t bases[GAAC_MAX_HV * GAAC_WORD_BYTES / 4], windows[8 * GAAC_MAX_HV * 4];
    fill(seed, fixed, sizeof fixed);
    fill(seed, windows, sizeof windows);
    for (unsigned position = 0; position < 32; position++) {
        const unsigned t = position >> 3, g = (position & 7) ^ 2 * t;
        for (unsigned half = 0; half < hv; half++)
            for (unsigned k = 0; k < 8; k++)
                bases[gaac_word_offset(half, k, position) / 4] =
                    windows[((part == GAAC_K ? t : g) * hv + half) * 4 + k / 2];
    }
    // Tags of any density.
    uint8_t tags[GAAC_MAX_HV * GAAC_TAG_BYTES];
    uint32_t stored = 0;
    for (unsigned i = 0; i < GAAC_TAG_BYTES * hv; i++) {
        tags[i] = static_cast<uint8_t>(random_u64(seed) >> 20 & (turn % 3 > 0 ? random_u64(seed) >> 30 : 0xff) &
                                       (turn % 3 > 1 ? random_u64(seed) >> 30 : 0xff));
        stored += plain_count(tags[i]);
    }
    const unsigned exceptions = turn % 4 == 0 ? 0 : random_below(seed, 40);
    const uint32_t bytes = (GAAC_TAG_BYTES * hv + stored + 4 * exceptions + 15) / 16 * 16;
    uint8_t *variable = static_cast<uint8_t *>(malloc(bytes)); // of its own: checkers see reads behind it
    require(variable != nullptr, "no memory");
    fill(seed, variable, bytes);
    memcpy(variable, tags, GAAC_TAG_BYTES * hv);
    put_exceptions(seed, hv, variable, bytes, exceptions);
    gaac_unit_tags spread;
    require(gaac_expand_tags_c(hv, GAAC_HAS_K | GAAC_HAS_V, variable, bytes, &spread), "the tags need more bytes");
    (part == GAAC_K ? gaac_decode_k_c : gaac_decode_v_c)(hv, fixed, &spread, bases, expected, nullptr);
    if (exceptions > 0)
        require(gaac_apply_exceptions(hv, part, variable, bytes, expected), "the exceptions have no end");
    decode(hv, part, fixed, variable, bytes, exceptions > 0, windows, got);
    require(memcmp(got, expected, hv * 2048) == 0, "a value is another");
    free(variable);
    // Cut short, nothing behind is read: for checkers of memory.
    const uint32_t cut = random_below(seed, bytes / 4) * 4;
    variable = static_cast<uint8_t *>(malloc(cut > 0 ? cut : 1));
    require(variable != nullptr, "no memory");
    fill(seed, variable, cut);
    decode(hv, part, fixed, variable, cut, true, windows, got);
    free(variable);
}

} // namespace

int main()
{
    uint64_t seed = 1;
    for (unsigned turn = 0; turn < 4000; turn++)
        check(&seed, 1 + turn % 2, turn / 2 % 2 == 0 ? GAAC_K : GAAC_V, turn / 4);
    return 0;
}
