/* What a fuzz target defines: libFuzzer calls it, and so does replay.c for the files of a corpus. */
#ifndef GAAC_FUZZ_TARGET_H
#define GAAC_FUZZ_TARGET_H

#include <stddef.h>
#include <stdint.h>

/* Aborts on what must not be. Returns 0. */
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

#endif
