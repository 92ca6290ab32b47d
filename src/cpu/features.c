/* Which instruction sets the machine and its operating system have, and the kernel tables of the process. */
#include "attention/kernels.h"
#include "cpu/cpu.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static const char *const isa_names[GAAC_ISA_COUNT] = {"c", "avx2", "avx512", "avx512bf16", "amx", "neon", "neonbf16"};

#if defined(__x86_64__)

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

/* One CPUID leaf; zeros when the CPU doesn't have it. */
typedef struct leaf {
    unsigned eax, ebx, ecx, edx;
} leaf;

static leaf read_leaf(unsigned number, unsigned sub)
{
    leaf l = {0, 0, 0, 0};
    if (__get_cpuid_count(number, sub, &l.eax, &l.ebx, &l.ecx, &l.edx) == 0)
        return (leaf){0, 0, 0, 0};
    return l;
}

static bool has_bits(unsigned value, unsigned bits)
{
    return (value & bits) == bits;
}

/* XCR0: which register states the operating system saves. Only readable when CPUID says OSXSAVE. */
static unsigned read_xcr0(void)
{
    unsigned low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

/* Tile registers are large, so Linux wants to be asked before a process uses them. It refuses where a thread's
 * stack for signals could not hold them. */
static bool may_use_tiles(void)
{
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XTILEDATA = 18 };
#if defined(__linux__)
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XTILEDATA) == 0;
#else
    return false;
#endif
}

static gaac_isa find_isa(void)
{
    enum { XMM_YMM = 0x6, OPMASK_ZMM = 0xe0, TILES = 0x60000, AMX_BF16 = 1 << 22, AMX_TILE = 1 << 24 };
    const leaf basic = read_leaf(1, 0), extended = read_leaf(0x80000001, 0);
    const leaf features = read_leaf(7, 0), more = read_leaf(7, 1);

    if (!has_bits(basic.ecx, bit_OSXSAVE | bit_AVX))
        return GAAC_ISA_C;
    const unsigned states = read_xcr0();
    if (!has_bits(states, XMM_YMM) || !has_bits(basic.ecx, bit_FMA | bit_F16C | bit_POPCNT) ||
        !has_bits(features.ebx, bit_AVX2 | bit_BMI | bit_BMI2) || !has_bits(extended.ecx, bit_LZCNT))
        return GAAC_ISA_C;
    if (!has_bits(states, XMM_YMM | OPMASK_ZMM) ||
        !has_bits(features.ebx, bit_AVX512F | bit_AVX512BW | bit_AVX512VL | bit_AVX512DQ) ||
        !has_bits(features.ecx, bit_AVX512VBMI | bit_AVX512VBMI2))
        return GAAC_ISA_AVX2;
    if (!has_bits(more.eax, bit_AVX512BF16))
        return GAAC_ISA_AVX512;
    if (!has_bits(features.edx, AMX_BF16 | AMX_TILE) || !has_bits(states, TILES))
        return GAAC_ISA_AVX512BF16;
    return GAAC_ISA_AMX;
}

/* What the process may run of what the machine has. Asks the system where it wants to be asked, so only for a set that
 * is wanted: a process that may use tiles needs larger stacks for signals. */
static gaac_isa permitted(gaac_isa isa)
{
    return isa == GAAC_ISA_AMX && !may_use_tiles() ? GAAC_ISA_AVX512BF16 : isa;
}

/* Whether vdpbf16ps is worth having: Intel's cores start one every two cycles, and floats are faster there
 * (attention_avx512bf16.c). */
static bool has_fast_bf16(void)
{
    const leaf vendor = read_leaf(0, 0);
    return vendor.ebx == signature_AMD_ebx && vendor.ecx == signature_AMD_ecx && vendor.edx == signature_AMD_edx;
}

static gaac_isa preferred(gaac_isa best)
{
    return best == GAAC_ISA_AVX512BF16 && !has_fast_bf16() ? GAAC_ISA_AVX512 : best;
}

static void raise_codec(gaac_isa isa, gaac_codec_kernels *codec)
{
    if (isa >= GAAC_ISA_AVX2)
        gaac_codec_kernels_init_avx2(codec);
    if (isa >= GAAC_ISA_AVX512)
        gaac_codec_kernels_init_avx512(codec);
}

static void raise_attention(gaac_isa isa, gaac_attention_kernels *attention)
{
    if (isa >= GAAC_ISA_AVX2)
        gaac_attention_kernels_init_avx2(attention);
    if (isa >= GAAC_ISA_AVX512)
        gaac_attention_kernels_init_avx512(attention);
    if (isa == GAAC_ISA_AVX512BF16)
        gaac_attention_kernels_init_avx512bf16(attention);
    if (isa >= GAAC_ISA_AMX) /* few rows take what is there: AVX512's kernels */
        gaac_attention_kernels_init_amx(attention);
}

#elif defined(__aarch64__) && defined(__linux__)

#include <asm/hwcap.h>
#include <sys/auxv.h>

static gaac_isa find_isa(void)
{
    if ((getauxval(AT_HWCAP) & HWCAP_ASIMD) == 0)
        return GAAC_ISA_C;
    return getauxval(AT_HWCAP2) & HWCAP2_BF16 ? GAAC_ISA_NEONBF16 : GAAC_ISA_NEON;
}

static gaac_isa preferred(gaac_isa best)
{
    return best;
}

static gaac_isa permitted(gaac_isa isa)
{
    return isa;
}

static void raise_codec(gaac_isa isa, gaac_codec_kernels *codec)
{
    if (isa >= GAAC_ISA_NEON)
        gaac_codec_kernels_init_neon(codec);
}

static void raise_attention(gaac_isa isa, gaac_attention_kernels *attention)
{
    if (isa >= GAAC_ISA_NEON)
        gaac_attention_kernels_init_neon(attention);
    if (isa >= GAAC_ISA_NEONBF16)
        gaac_attention_kernels_init_neonbf16(attention);
}

#else

static gaac_isa find_isa(void)
{
    return GAAC_ISA_C;
}

static gaac_isa preferred(gaac_isa best)
{
    return best;
}

static gaac_isa permitted(gaac_isa isa)
{
    return isa;
}

static void raise_codec(gaac_isa isa, gaac_codec_kernels *codec)
{
    (void)isa;
    (void)codec;
}

static void raise_attention(gaac_isa isa, gaac_attention_kernels *attention)
{
    (void)isa;
    (void)attention;
}

#endif

/* The CPU-feature cache: the library's only state. Written once, under `once`. */
static struct {
    pthread_once_t once;
    gaac_isa machine; /* the best that the machine has */
    gaac_isa chosen;  /* the fastest of those that it has, or what GAAC_CPU says */
    gaac_codec_kernels codec;
    gaac_attention_kernels attention;
} cpu = {.once = PTHREAD_ONCE_INIT};

void gaac_cpu_tables(gaac_isa isa, gaac_codec_kernels *codec, gaac_attention_kernels *attention)
{
    gaac_codec_kernels_init_c(codec);
    gaac_attention_kernels_init_c(attention);
    raise_codec(isa, codec);
    raise_attention(isa, attention);
}

/* Whether a machine whose best set is `best` runs `isa`. */
static bool contains(gaac_isa best, gaac_isa isa)
{
    const gaac_isa lowest = best >= GAAC_ISA_NEON ? GAAC_ISA_NEON : GAAC_ISA_AVX2; /* of best's ladder */
    return isa == GAAC_ISA_C || (isa >= lowest && isa <= best);
}

/* The set that GAAC_CPU names, if the machine has it, else the fastest. */
static gaac_isa capped(gaac_isa best)
{
    const char *cap = getenv("GAAC_CPU");
    if (cap == NULL)
        return preferred(best);
    for (unsigned isa = 0; isa < GAAC_ISA_COUNT; isa++)
        if (contains(best, (gaac_isa)isa) && strcmp(cap, isa_names[isa]) == 0)
            return (gaac_isa)isa;
    return preferred(best);
}

static void fill_cache(void)
{
    cpu.machine = find_isa();
    cpu.chosen = capped(cpu.machine);
    const gaac_isa may = permitted(cpu.chosen);
    if (may != cpu.chosen) {
        cpu.machine = may;
        cpu.chosen = preferred(may);
    }
    gaac_cpu_tables(cpu.chosen, &cpu.codec, &cpu.attention);
}

bool gaac_isa_supported(gaac_isa isa)
{
    pthread_once(&cpu.once, fill_cache);
    return contains(cpu.machine, isa) && permitted(isa) == isa;
}

const char *gaac_isa_name(gaac_isa isa)
{
    return (unsigned)isa < GAAC_ISA_COUNT ? isa_names[isa] : "unknown";
}

const char *gaac_cpu_isa(void)
{
    pthread_once(&cpu.once, fill_cache);
    return isa_names[cpu.chosen];
}

const gaac_codec_kernels *gaac_cpu_codec(void)
{
    pthread_once(&cpu.once, fill_cache);
    return &cpu.codec;
}

const gaac_attention_kernels *gaac_cpu_attention(void)
{
    pthread_once(&cpu.once, fill_cache);
    return &cpu.attention;
}
