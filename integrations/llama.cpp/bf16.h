/* BF16 and F16 conversions, the same bits as ggml's. */
#ifndef GAAC_LLAMA_BF16_H
#define GAAC_LLAMA_BF16_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Round to nearest even; a NaN keeps its upper payload and becomes quiet. */
static inline uint16_t bf16_from_f32(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    uint32_t quiet = (bits >> 16) | 0x40u;
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

static inline float f32_from_bf16(uint16_t value)
{
    uint32_t bits = (uint32_t)value << 16;
    float result;
    memcpy(&result, &bits, sizeof result);
    return result;
}

/* Exact; a signalling NaN becomes quiet, as the hardware's conversion makes it. */
static inline float f32_from_f16(uint16_t value)
{
    uint32_t sign = (uint32_t)(value & 0x8000u) << 16;
    uint32_t exponent = (value >> 10) & 0x1fu;
    uint32_t mantissa = value & 0x3ffu;
    uint32_t bits;
    float result;
    if (exponent == 0) { /* zero or subnormal: mantissa * 2^-24 */
        result = (float)mantissa * 0x1p-24f;
        memcpy(&bits, &result, sizeof bits);
        bits |= sign;
    } else if (exponent == 31) {
        bits = sign | 0x7f800000u | (mantissa << 13) | (mantissa ? 0x400000u : 0);
    } else {
        bits = sign | ((exponent + 112) << 23) | (mantissa << 13);
    }
    memcpy(&result, &bits, sizeof result);
    return result;
}

static inline void bf16_row_from_f32(uint16_t *restrict out, const float *restrict in, size_t count)
{
    for (size_t i = 0; i < count; i++)
        out[i] = bf16_from_f32(in[i]);
}

#endif
