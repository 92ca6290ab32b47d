/* The choice of the instruction set: against what the system says, and under GAAC_CPU. */
#include "attention/kernels.h"
#include "cpu/cpu.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#if defined(__aarch64__)

/* The ID registers say it too, and Linux lets programs read them (so does qemu, whose /proc/cpuinfo is that of
 * the machine below it). */
static gaac_isa system_isa(void)
{
    uint64_t pfr0, isar1;
    __asm__("mrs %0, ID_AA64PFR0_EL1" : "=r"(pfr0));
    __asm__("mrs %0, ID_AA64ISAR1_EL1" : "=r"(isar1));
    if ((pfr0 >> 20 & 15) == 15)
        return GAAC_ISA_C;
    return (isar1 >> 44 & 15) != 0 ? GAAC_ISA_NEONBF16 : GAAC_ISA_NEON;
}

static gaac_isa system_choice(void)
{
    return system_isa();
}

static const gaac_isa ladder[] = {GAAC_ISA_C, GAAC_ISA_NEON, GAAC_ISA_NEONBF16};

#else

/* Whether the line of that name in /proc/cpuinfo, the first core's, has the word. */
static bool system_says(const char *name, const char *word)
{
    static char line[8192];
    char spaced[64];
    FILE *file = fopen("/proc/cpuinfo", "r");
    if (file == NULL)
        return false;
    while (fgets(line, sizeof line, file) != NULL && strncmp(line, name, strlen(name)) != 0)
        continue;
    fclose(file);
    line[strcspn(line, "\n")] = ' ';
    snprintf(spaced, sizeof spaced, " %s ", word);
    return strstr(line, spaced) != NULL;
}

/* Whether Linux lists every one of the flags: it leaves out those whose registers it doesn't save. */
static bool system_has(const char *const *flags)
{
    for (; *flags != NULL; flags++)
        if (!system_says("flags", *flags))
            return false;
    return true;
}

enum { ARCH_GET_XCOMP_PERM = 0x1022, ARCH_REQ_XCOMP_PERM = 0x1023, XTILEDATA = 18 };

/* Whether a process has asked for tile registers that takes the set by that name. */
static bool asks_for_tiles(const char *name)
{
    int status;
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        unsigned long states = 0;
        setenv("GAAC_CPU", name, 1);
        (void)gaac_cpu_isa();
        if (syscall(SYS_arch_prctl, ARCH_GET_XCOMP_PERM, &states) != 0)
            states = 0;
        _exit((int)(states >> XTILEDATA & 1));
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status) != 0;
}

static gaac_isa system_isa(void)
{
    static const char *const avx2[] = {"avx2", "fma", "bmi1", "bmi2", "f16c", "popcnt", "abm", NULL};
    static const char *const avx512[] = {"avx512f",    "avx512bw",     "avx512vl", "avx512dq",
                                         "avx512vbmi", "avx512_vbmi2", NULL};
    static const char *const bf16[] = {"avx512_bf16", NULL};
    static const char *const amx[] = {"amx_tile", "amx_bf16", NULL};
    if (!system_has(avx2))
        return GAAC_ISA_C;
    if (!system_has(avx512))
        return GAAC_ISA_AVX2;
    if (!system_has(bf16))
        return GAAC_ISA_AVX512;
    return system_has(amx) && syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XTILEDATA) == 0 ? GAAC_ISA_AMX
                                                                                           : GAAC_ISA_AVX512BF16;
}

/* The permission that AMX needs costs its process larger signal stacks. Runs first: a process passes its own on. */
static void only_amx_asks_for_tiles(void **state)
{
    (void)state;
    assert_false(asks_for_tiles("c"));
    assert_false(asks_for_tiles("avx2"));
    assert_false(asks_for_tiles("avx512"));
    const bool asked = asks_for_tiles("amx");
    assert_int_equal(asked, system_isa() == GAAC_ISA_AMX);
}

/* BF16 without tiles is for AMD's CPUs. */
static gaac_isa system_choice(void)
{
    const gaac_isa best = system_isa();
    return best == GAAC_ISA_AVX512BF16 && !system_says("vendor_id", "AuthenticAMD") ? GAAC_ISA_AVX512 : best;
}

static const gaac_isa ladder[] = {GAAC_ISA_C, GAAC_ISA_AVX2, GAAC_ISA_AVX512, GAAC_ISA_AVX512BF16, GAAC_ISA_AMX};

#endif

/* Whether the machine has the set: those of its own family up to the best. */
static bool system_runs(gaac_isa isa)
{
    for (size_t i = 0; i < sizeof ladder / sizeof *ladder && ladder[i] <= system_isa(); i++)
        if (ladder[i] == isa)
            return true;
    return false;
}

/* What a fresh process with this GAAC_CPU (NULL: unset) chooses. The choice is made once, so each value needs
 * a process of its own; it must not have been made here before. */
static gaac_isa chosen_with(const char *value)
{
    const pid_t child = fork();
    if (child == 0) {
        if (value == NULL)
            unsetenv("GAAC_CPU");
        else
            setenv("GAAC_CPU", value, 1);
        const char *name = gaac_cpu_isa();
        for (unsigned isa = 0; isa < GAAC_ISA_COUNT; isa++) {
            gaac_codec_kernels codec;
            gaac_attention_kernels attention;
            if (strcmp(name, gaac_isa_name((gaac_isa)isa)) != 0)
                continue;
            gaac_cpu_tables((gaac_isa)isa, &codec, &attention);
            const bool same =
                memcmp(&codec, gaac_cpu_codec(), sizeof codec) == 0 && gaac_cpu_attention()->score == attention.score;
            _exit(same ? (int)isa : 99);
        }
        _exit(98);
    }
    int status = -1;
    assert_true(child > 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_true(WEXITSTATUS(status) < GAAC_ISA_COUNT);
    return (gaac_isa)WEXITSTATUS(status);
}

static void choice_is_the_fastest_of_the_machine(void **state)
{
    (void)state;
    assert_int_equal(chosen_with(NULL), system_choice());
}

static void environment_takes_what_the_machine_has(void **state)
{
    (void)state;
    const gaac_isa fastest = system_choice();
    for (unsigned isa = 0; isa < GAAC_ISA_COUNT; isa++)
        assert_int_equal(chosen_with(gaac_isa_name((gaac_isa)isa)), system_runs((gaac_isa)isa) ? isa : fastest);
    assert_int_equal(chosen_with(""), fastest);
    assert_int_equal(chosen_with("AVX2"), fastest);
    assert_int_equal(chosen_with("sse9"), fastest);
}

static void support_is_that_of_the_family(void **state)
{
    (void)state;
    for (unsigned isa = 0; isa < GAAC_ISA_COUNT; isa++)
        assert_int_equal(gaac_isa_supported((gaac_isa)isa), system_runs((gaac_isa)isa));
    assert_string_equal(gaac_isa_name(GAAC_ISA_AVX512BF16), "avx512bf16");
    assert_string_equal(gaac_isa_name(GAAC_ISA_NEONBF16), "neonbf16");
    assert_string_equal(gaac_isa_name(GAAC_ISA_COUNT), "unknown");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#if !defined(__aarch64__)
        cmocka_unit_test(only_amx_asks_for_tiles), /* first: the others ask */
#endif
        cmocka_unit_test(choice_is_the_fastest_of_the_machine),
        cmocka_unit_test(environment_takes_what_the_machine_has),
        cmocka_unit_test(support_is_that_of_the_family), /* last: it makes this process's own choice */
    };
    return cmocka_run_group_tests_name("cpu", tests, NULL, NULL);
}
