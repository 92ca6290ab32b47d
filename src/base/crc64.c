/* CRC-64/XZ: polynomial 0x42F0E1EBA9EA3693 (ECMA-182), reflected, all ones in and out. It guards
 * profiles against damage; nothing here defends against an adversary. */
#include "base/base.h"

uint64_t gaac_crc64(uint64_t crc, const void *bytes, size_t size)
{
    /* Four bits at a time: 16 entries are computed here rather than stored, since profiles are small. */
    uint64_t table[16];
    for (unsigned i = 0; i < 16; i++) {
        uint64_t value = i;
        for (unsigned bit = 0; bit < 4; bit++)
            value = (value >> 1) ^ (value & 1 ? UINT64_C(0xC96C5795D7870F42) : 0);
        table[i] = value;
    }
    const uint8_t *byte = bytes;
    crc = ~crc;
    for (size_t i = 0; i < size; i++) {
        crc ^= byte[i];
        crc = (crc >> 4) ^ table[crc & 15];
        crc = (crc >> 4) ^ table[crc & 15];
    }
    return ~crc;
}
