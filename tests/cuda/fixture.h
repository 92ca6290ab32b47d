/* What the GPU tests share: device memory, and caches whose blocks the CPU library encoded. CUDA's failures end the
 * test. */
#ifndef GAAC_TESTS_CUDA_FIXTURE_H
#define GAAC_TESTS_CUDA_FIXTURE_H

#include "codec/codec_internal.h"
#include "gaac/codec.h"
#include "gaac/gaac_cuda.h"
#include "random_kv.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <cuda_runtime_api.h>

/* The handle of device 0. */
extern gaac_cuda *gpu;

/* Makes `gpu`. Without a GPU ends the program with 77: skipped. Call it first in main. */
void gpu_start(void);
/* Ends what gpu_start began and gives back all device memory; returns `failed` for main to return. */
int gpu_stop(int failed);
/* The environment has GAAC_TEST_SMALL: few and small cases, since a checker slows every access. */
bool gpu_small(void);

/* Of a CUDA call. */
#define assert_cuda(call) gpu_check((call), #call, __FILE__, __LINE__)
void gpu_check(cudaError_t status, const char *call, const char *file, int line);
/* Of one of the library's calls, whose last argument is &gpu_error. */
extern gaac_error gpu_error;
#define assert_gaac(call) gpu_check_gaac((call), #call, __FILE__, __LINE__)
void gpu_check_gaac(gaac_status status, const char *call, const char *file, int line);

/* Host memory, zeroed, 64-byte aligned, for free(). Ends the program where there is none. */
void *host_memory(size_t bytes);

/* Device memory, zeroed. Copies wait for all work before them. */
void *gpu_allocate(size_t bytes);
void *gpu_upload(const void *host, size_t bytes); /* new memory with these bytes */
void gpu_free(void *device);
void gpu_write(void *device, const void *host, size_t bytes);
void gpu_read(void *host, const void *device, size_t bytes);

/* ---- values ---------------------------------------------------------------------------------- */

/* Rows of K and V on the host, dense: [token][head][channel]. `rows` points into them. */
typedef struct kv {
    gaac_shape shape;
    size_t tokens, k_row, v_row; /* elements of a token's row */
    uint16_t *k, *v;
    gaac_kv_rows rows;
} kv;
kv kv_random(uint64_t *seed, random_kind kind, gaac_shape shape, size_t tokens);
void kv_free(kv *values);
gaac_kv_rows kv_at(const kv *values, size_t token); /* rows from a token on */
/* Makes these keys like those that an epoch's windows are calibrated on: they drift, values do not. */
void kv_drift(kv *values, size_t first, size_t tokens, uint32_t epoch);

/* ---- caches ---------------------------------------------------------------------------------- */

enum { GPU_EPOCHS = 4 };

/* A cache on the device, with a copy on the host in which blocks are made. */
typedef struct gpu_cache {
    gaac_cuda_cache cache; /* device pointers */
    gaac_cuda_sizes sizes;
    gaac_layout layout;
    uint32_t epochs;
    gaac_windows *windows[GPU_EPOCHS]; /* calibrated on different values */
    gaac_codec *codec[GPU_EPOCHS];
    /* The host's copy. */
    uint8_t *slots, *raw;
    uint32_t *entries, *raw_used;
} gpu_cache;

/* Bytes that the pools of caches made from now on get beyond what calibration says: blocks with exceptions need it. */
extern uint32_t gpu_pool_room;

/* All blocks empty. Windows are calibrated by the CPU on values of kv_random and lie on the device. */
gpu_cache gpu_cache_make(uint64_t *seed, gaac_shape shape, uint32_t blocks, uint32_t raw_blocks, uint32_t epochs);
void gpu_cache_free(gpu_cache *c);

/* In the host's copy: all blocks are empty again. */
void gpu_cache_clear(gpu_cache *c);
/* Into the host's copy: a block of 16 rows, coded with an epoch's windows; where that does not fit, raw (false). */
bool gpu_cache_code(gpu_cache *c, uint32_t block, const gaac_kv_rows *rows, uint32_t epoch);
/* Into the host's copy, raw, in the next free raw block. */
void gpu_cache_keep_raw(gpu_cache *c, uint32_t block, const gaac_kv_rows *rows);
/* The host's copy to the device, and back. */
void gpu_cache_to_device(const gpu_cache *c);
void gpu_cache_from_device(gpu_cache *c);

/* The values of a block in the host's copy, raw or coded, decoded by the CPU. rows: 16 of them. */
void gpu_cache_values(const gpu_cache *c, uint32_t block, const gaac_kv_rows_out *rows);

/* The numbers 0 .. count - 1 shuffled. */
void shuffle(uint64_t *seed, int32_t *numbers, uint32_t count);

/* Float of BF16 bits, and the nearest BF16 bits of a float (ties to even; no NaN). */
float float_of(uint16_t bits);
uint16_t bits_of(float value);

#endif
