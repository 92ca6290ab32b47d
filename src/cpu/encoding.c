/* The end of a vector encoder's work, in plain C: exceptions are rare. */
#include "cpu/encoding.h"

/* The elements of a word in the order that the definition lists them: A.lo, A.hi, B.lo, B.hi. */
static const struct element {
    unsigned b, hi, byte; /* register B; upper half; byte of N */
} elements[4] = {{0, 0, 1}, {0, 1, 3}, {1, 0, 2}, {1, 1, 0}};

static void add_word(gaac_exceptions *exceptions, gaac_part part, unsigned h, unsigned k, unsigned position,
                     unsigned outside, const uint16_t *fragments)
{
    for (unsigned i = 0; i < 4; i++) {
        if ((outside >> elements[i].byte & 1) == 0)
            continue;
        const unsigned s = k & 1, b = elements[i].b, hi = elements[i].hi;
        const unsigned r = part == GAAC_K ? s + 2 * b : 2 * s + b;
        const unsigned fragment = 4 * h + (k >> 1);
        const uint16_t value = fragments[fragment * GAAC_FRAGMENT_ELEMENTS + position * 8 + 2 * r + hi];
        if (exceptions->count < sizeof exceptions->records / sizeof exceptions->records[0])
            exceptions->records[exceptions->count] = (uint32_t)(value >> 7 & 0xff) | hi << 8 | (4 * (k >> 1) + r) << 9 |
                                                     h << 13 | (unsigned)part << 14 | position << 15;
        exceptions->count++;
        exceptions->flags |= 1u << (2 * (unsigned)part + h);
    }
}

static void add_position(gaac_exceptions *exceptions, unsigned hv, unsigned parts, unsigned position,
                         const gaac_encoding *encoding, const uint16_t *const fragments[2])
{
    for (unsigned part = 0; part < 2; part++) {
        if ((parts >> part & 1) == 0)
            continue;
        for (unsigned i = 0; i < 2 * hv; i++) {
            unsigned k = 4 * (i & 1);
            for (unsigned outside = encoding->outside[part][i >> 1][i & 1][position]; outside != 0; outside >>= 4, k++)
                if ((outside & 15) != 0)
                    add_word(exceptions, (gaac_part)part, i >> 1, k, position, outside, fragments[part]);
        }
    }
}

/* The lanes that have elements outside, a bit each. */
static uint32_t find_lanes(unsigned hv, unsigned parts, const gaac_encoding *encoding)
{
    uint64_t hit[GAAC_LANES / 4] = {0}; /* four positions each */
    uint32_t lanes = 0;
    for (unsigned part = 0; part < 2; part++)
        for (unsigned i = 0; i < 2 * hv && (parts >> part & 1) != 0; i++)
            for (unsigned quad = 0; quad < GAAC_LANES / 4; quad++) {
                uint64_t four;
                memcpy(&four, &encoding->outside[part][i >> 1][i & 1][4 * quad], sizeof four);
                hit[quad] |= four;
            }
    for (unsigned quad = 0; quad < GAAC_LANES / 4; quad++)
        for (unsigned p = 4 * quad; hit[quad] != 0; hit[quad] >>= 16, p++)
            if ((hit[quad] & 0xffff) != 0) {
                const unsigned t = p >> 3, g = (p & 7) ^ 2 * t;
                lanes |= UINT32_C(1) << (4 * g + t);
            }
    return lanes;
}

void gaac_exceptions_collect(gaac_exceptions *exceptions, unsigned hv, unsigned parts, const gaac_encoding *encoding,
                             const uint16_t *const fragments[2])
{
    exceptions->count = 0;
    exceptions->flags = 0;
    for (uint32_t lanes = find_lanes(hv, parts, encoding); lanes != 0; lanes &= lanes - 1) {
        const unsigned lane = (unsigned)__builtin_ctz(lanes);
        add_position(exceptions, hv, parts, gaac_position(lane >> 2, lane & 3), encoding, fragments);
    }
}

void gaac_exceptions_write(const gaac_exceptions *exceptions, const gaac_unit_info *info, uint8_t *variable)
{
    for (uint32_t i = 0; i < exceptions->count; i++) {
        const uint32_t more = i + 1 < exceptions->count ? UINT32_C(0x80000000) : 0;
        const uint32_t record = exceptions->records[i] | more;
        memcpy(variable + info->bytes - 4 * (i + 1), &record, sizeof record);
    }
}
