/* The kernel tables of this process: one of codec kernels, one of attention kernels, chosen once from
 * the CPU's features (and GAAC_CPU, which can only choose another set that the CPU has). No caller asks about the CPU.
 * The choice is the best set, but AVX512 where the best is AVX512BF16 and the CPU is not AMD's: its BF16 instructions
 * are slow there. */
#ifndef GAAC_CPU_CPU_H
#define GAAC_CPU_CPU_H

#include "codec/unit.h"

/* attention/kernels.h defines it; the codec, which includes this header, lies below that room. */
typedef struct gaac_attention_kernels gaac_attention_kernels;

/* Plain C, then one ladder for each family of CPUs: a set contains those below it in its own ladder. */
typedef enum gaac_isa {
    GAAC_ISA_C = 0,
    GAAC_ISA_AVX2, /* x86-64 */
    GAAC_ISA_AVX512,
    GAAC_ISA_AVX512BF16,
    GAAC_ISA_AMX,
    GAAC_ISA_NEON, /* 64-bit Arm */
    GAAC_ISA_NEONBF16,
    GAAC_ISA_COUNT
} gaac_isa;

/* What this machine can run, without the environment's cap. GAAC_ISA_C everywhere; AVX2 means AVX2, FMA, BMI2,
 * F16C; AVX512 means F, BW, VL, DQ, VBMI, VBMI2; AVX512BF16 adds BF16; AMX adds tiles of BF16. NEON means Advanced
 * SIMD, NEONBF16 adds FEAT_BF16. */
bool gaac_isa_supported(gaac_isa isa);
const char *gaac_isa_name(gaac_isa isa);

/* The tables for one instruction set, for tests and benchmarks: what that set lacks of its own comes
 * from the one below it. isa must be supported. */
void gaac_cpu_tables(gaac_isa isa, gaac_codec_kernels *codec, gaac_attention_kernels *attention);

/* The tables in use. Thread-safe; the same pointers for the life of the process. */
const gaac_codec_kernels *gaac_cpu_codec(void);
const gaac_attention_kernels *gaac_cpu_attention(void);

/* Each overrides the entries that it has. Only called when the set is supported. */
void gaac_codec_kernels_init_avx2(gaac_codec_kernels *kernels);
void gaac_codec_kernels_init_avx512(gaac_codec_kernels *kernels);
void gaac_codec_kernels_init_neon(gaac_codec_kernels *kernels);
void gaac_attention_kernels_init_avx2(gaac_attention_kernels *kernels);
void gaac_attention_kernels_init_avx512(gaac_attention_kernels *kernels);
void gaac_attention_kernels_init_avx512bf16(gaac_attention_kernels *kernels);
void gaac_attention_kernels_init_amx(gaac_attention_kernels *kernels);
void gaac_attention_kernels_init_neon(gaac_attention_kernels *kernels);
void gaac_attention_kernels_init_neonbf16(gaac_attention_kernels *kernels);

#endif
