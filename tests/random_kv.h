/* Random BF16 for tests: values as a model's KV has them, and the corners. */
#ifndef GAAC_TESTS_RANDOM_KV_H
#define GAAC_TESTS_RANDOM_KV_H

#include <stddef.h>
#include <stdint.h>

/* xorshift64*: the tests' own, so that a seed means the same everywhere. */
static inline uint64_t random_u64(uint64_t *state)
{
    uint64_t x = *state;
    x ^= x >> 12;
    x ^= x << 25;
    x ^= x >> 27;
    *state = x;
    return x * UINT64_C(2685821657736338717);
}

static inline unsigned random_below(uint64_t *state, unsigned bound)
{
    return (unsigned)((random_u64(state) >> 33) % bound);
}

/* A value whose exponent falls off from a per-channel top, as in real KV: half at the top, a quarter one
 * below, and so on. */
static inline uint16_t random_kv_value(uint64_t *state, unsigned channel)
{
    const uint64_t bits = random_u64(state);
    unsigned depth = 0;
    while (depth < 40 && (bits >> depth & 1) != 0)
        depth++;
    const unsigned top = 118 + channel * 7 % 13;
    return (uint16_t)((bits >> 48 & 0x807f) | (top - depth) << 7);
}

typedef enum random_kind {
    RANDOM_KV,
    RANDOM_OUTLIERS,
    RANDOM_BITS,
    RANDOM_ZEROS,
    RANDOM_SPECIAL,
    RANDOM_KINDS
} random_kind;

/* Fills `count` elements of rows of `channels`. */
static inline void random_fill(uint64_t *state, random_kind kind, uint16_t *out, size_t count, unsigned channels)
{
    static const uint16_t special[] = {0x0000, 0x8000, 0x0001, 0x807f, 0x7f80, 0xff80, 0x7fc1, 0xffff, 0x0080, 0x7f7f};
    for (size_t i = 0; i < count; i++) {
        const uint16_t value = random_kv_value(state, (unsigned)(i % channels));
        switch (kind) {
        case RANDOM_KV:
            out[i] = value;
            break;
        case RANDOM_OUTLIERS:
            out[i] = random_below(state, 400) == 0 ? (uint16_t)random_u64(state) : value;
            break;
        case RANDOM_BITS:
            out[i] = (uint16_t)random_u64(state);
            break;
        case RANDOM_ZEROS:
            out[i] = 0;
            break;
        default:
            out[i] = random_below(state, 4) == 0 ? special[random_below(state, 10)] : value;
        }
    }
}

#endif
