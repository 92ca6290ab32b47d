/* GAAC: what every public header needs - status, errors, allocator, executor, shapes. */
#ifndef GAAC_COMMON_H
#define GAAC_COMMON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(GAAC_STATIC)
#define GAAC_API
#elif defined(_WIN32)
#define GAAC_API __declspec(dllexport)
#else
#define GAAC_API __attribute__((visibility("default")))
#endif

/* Tokens of a block: the unit of encoding, allocation and of the block table. */
#define GAAC_BLOCK_TOKENS 16

/* Largest head_dim (channels of one head) that a shape may have. */
#define GAAC_MAX_HEAD_DIM 1024

/* Largest number of KV heads that a shape may have. */
#define GAAC_MAX_KV_HEADS 256

/* What a call came to. Everything but GAAC_OK leaves the objects involved usable and unchanged
 * unless the function says otherwise. */
typedef enum gaac_status {
    GAAC_OK = 0,
    GAAC_ERROR_INVALID_ARGUMENT, /* the caller's arguments are off: the message says which */
    GAAC_ERROR_OUT_OF_MEMORY,    /* the allocator or the operating system gave no memory */
    GAAC_ERROR_MEMORY_LIMIT,     /* the cache's own limit (gaac_cache_config.memory_limit) is reached */
    GAAC_ERROR_CORRUPT,          /* bytes that are not what they claim to be (file, slot) */
    GAAC_ERROR_MISMATCH,         /* sound data that belongs to something else (another model) */
    GAAC_ERROR_IO,               /* the operating system refused to read or write a file */
    GAAC_ERROR_UNSUPPORTED       /* a valid request that this build or machine can't do */
} gaac_status;

/* Where a call leaves its message. Owned by the caller; written only when the call fails. Every
 * function that takes one accepts NULL. */
typedef struct gaac_error {
    gaac_status status;
    char message[256]; /* one line, no newline, says what was wrong and what to do */
} gaac_error;

/* A short constant name of a status ("memory limit"). Never NULL. Thread-safe. */
GAAC_API const char *gaac_status_name(gaac_status status);

/* Version of the library that is running, "MAJOR.MINOR.PATCH" (gaac/version.h has the one compiled
 * against). Thread-safe. */
GAAC_API const char *gaac_version(void);

/* The instruction set that the kernels of this process use: "c"; on x86-64 "avx2", "avx512", "avx512bf16" or
 * "amx"; on 64-bit Arm "neon" or "neonbf16". Decided once from the CPU and, if set, the environment variable
 * GAAC_CPU (which can only lower it; any other value is ignored here and refused by the tools). "amx" asks Linux
 * for the tile registers, after which stacks for signals (sigaltstack) need about 12 KiB in this process; where one is
 * smaller already, or the system refuses, the set below is taken. Attention leaves a thread's tile configuration as
 * it was, not the contents. Thread-safe. */
GAAC_API const char *gaac_cpu_isa(void);

/* Memory hook. allocate returns at least `bytes` bytes aligned to `alignment` (a power of two of at
 * least sizeof(void *)), or NULL. release gets the same size back. Both may be called from any
 * thread that calls the library. NULL where a gaac_allocator is asked for means the C library.
 * The cache's pools of slots and raw blocks are not allocated through it: they are reserved from
 * the operating system as address space and committed as needed (see gaac/cache.h). */
typedef struct gaac_allocator {
    void *(*allocate)(void *user, size_t bytes, size_t alignment);
    void (*release)(void *user, void *pointer, size_t bytes);
    void *user;
} gaac_allocator;

/* Runs `task(context, worker)` for each worker in [0, workers), concurrently where it can, and
 * returns when all have returned. worker 0 is the calling thread's. */
typedef void gaac_task(void *context, unsigned worker);
typedef struct gaac_executor {
    void (*run)(void *user, gaac_task *task, void *context, unsigned workers);
    void *user;
    unsigned workers; /* how many to ask for; at least 1 */
} gaac_executor;

/* A small pool of threads that sleep when idle, for callers without one of their own.
 * `workers` counts the calling thread: a pool of 1 starts no thread. One gaac_attention or other
 * call at a time may use a pool. */
typedef struct gaac_thread_pool gaac_thread_pool;
GAAC_API gaac_status gaac_thread_pool_create(gaac_thread_pool **pool, unsigned workers, const gaac_allocator *allocator,
                                             gaac_error *error);
GAAC_API void gaac_thread_pool_destroy(gaac_thread_pool *pool); /* NULL is fine */
GAAC_API gaac_executor gaac_thread_pool_executor(gaac_thread_pool *pool);

/* K and V of one layer. head_dims are multiples of 16 between 16 and GAAC_MAX_HEAD_DIM and may
 * differ; whole 64-channel halves are coded, a remainder of 16-48 channels is stored raw. */
typedef struct gaac_shape {
    uint32_t kv_heads;   /* 1 .. GAAC_MAX_KV_HEADS */
    uint32_t head_dim_k; /* channels of a key */
    uint32_t head_dim_v; /* channels of a value */
} gaac_shape;

/* GAAC_OK when the shape can be coded. The message names the field that can't. Thread-safe. */
GAAC_API gaac_status gaac_shape_check(const gaac_shape *shape, gaac_error *error);

/* Which of the two tensors of a layer. */
typedef enum gaac_part { GAAC_K = 0, GAAC_V = 1 } gaac_part;

/* BF16 bits (the upper half of a float) of one block or run of tokens. Element (token, head,
 * channel) of K is k[token * k_token_stride + head * k_head_stride + channel]; V likewise. Strides
 * are in elements. No alignment beyond uint16_t's is needed. */
typedef struct gaac_kv_rows {
    const uint16_t *k;
    const uint16_t *v;
    size_t k_token_stride, k_head_stride;
    size_t v_token_stride, v_head_stride;
} gaac_kv_rows;

typedef struct gaac_kv_rows_out {
    uint16_t *k;
    uint16_t *v;
    size_t k_token_stride, k_head_stride;
    size_t v_token_stride, v_head_stride;
} gaac_kv_rows_out;

#ifdef __cplusplus
}
#endif
#endif
