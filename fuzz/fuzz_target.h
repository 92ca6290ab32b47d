/* What a fuzz target defines, and what it checks and reads with. libFuzzer calls the target, and so does
 * replay.c for the files of a corpus. */
#ifndef GAAC_FUZZ_TARGET_H
#define GAAC_FUZZ_TARGET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Aborts on what must not be. Returns 0. */
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

/* Ends the program with one line unless the condition holds: libFuzzer then keeps the input. */
#define REQUIRE(holds) ((holds) ? (void)0 : fuzz_fail(#holds, __FILE__, __LINE__))

_Noreturn static inline void fuzz_fail(const char *what, const char *file, int line)
{
    (void)fprintf(stderr, "%s:%d: does not hold: %s\n", file, line, what);
    abort();
}

/* Memory of exactly this size, so that a sanitizer sees one byte too many; 64-byte aligned. Released with free(). */
static inline void *fuzz_alloc(size_t bytes)
{
    void *memory = NULL;
    if (posix_memalign(&memory, 64, bytes > 0 ? bytes : 1) != 0)
        fuzz_fail("enough memory", __FILE__, __LINE__);
    return memory;
}

/* An input that is read from the front. Past its end it reads as zero. */
typedef struct fuzz_input {
    const uint8_t *at;
    size_t left;
} fuzz_input;

static inline unsigned fuzz_byte(fuzz_input *input)
{
    if (input->left == 0)
        return 0;
    input->left--;
    return *input->at++;
}

static inline unsigned fuzz_below(fuzz_input *input, unsigned bound)
{
    return fuzz_byte(input) % bound;
}

static inline void fuzz_bytes(fuzz_input *input, void *out, size_t bytes)
{
    const size_t there = bytes < input->left ? bytes : input->left;
    if (there > 0)
        memcpy(out, input->at, there);
    memset((uint8_t *)out + there, 0, bytes - there);
    input->at += there;
    input->left -= there;
}

#endif
