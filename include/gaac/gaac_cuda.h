/* GAAC on CUDA GPUs: encode, decode and fused paged attention over device memory.
 *
 * A kernel library that engines call: it allocates no device memory, never synchronises, never copies
 * between host and device, and reads sequence lengths, block tables and work lists on the device, so
 * that every call with a stream can be captured in a CUDA graph and replayed. Everything below that is
 * called a device pointer is memory of the handle's device; the caller owns it and keeps it alive until
 * the stream has passed the call.
 *
 * Errors: arguments that the host can see are checked before anything is launched. What happens on the
 * device (blocks that stay raw, raw memory that runs out) is counted in gaac_cuda_counters. Faults of
 * the CUDA runtime are GAAC_ERROR_UNSUPPORTED with CUDA's own text in the message.
 *
 * The bytes of a slot are those of docs/format.md: a slot that the CPU encoded decodes here, and the
 * other way round. Slots and entries are trusted: bytes that come from outside are checked with
 * gaac_decode_block (gaac/codec.h) before they are copied to the device. */
#ifndef GAAC_CUDA_H
#define GAAC_CUDA_H

#include "gaac/common.h"

#ifdef __cplusplus
extern "C" {
#endif

/* cudaStream_t, so that this header needs none of CUDA's. NULL is the default stream. */
typedef struct CUstream_st *gaac_cuda_stream;

/* What the library knows of one device. Immutable once made: thread-safe. */
typedef struct gaac_cuda gaac_cuda;

/* Looks at the device and picks its kernels. GAAC_ERROR_UNSUPPORTED where there is no such device, or it
 * is older than compute capability 8.0. Loads all kernels, so that later calls only launch. `device`
 * becomes the calling thread's current device; calls below need it to be current. */
GAAC_API gaac_status gaac_cuda_create(gaac_cuda **cuda, int device, const gaac_allocator *allocator, gaac_error *error);
GAAC_API void gaac_cuda_destroy(gaac_cuda *cuda); /* NULL is fine */

/* ---- the cache of one layer ------------------------------------------------------------------ */

/* Bytes and counts that a shape and a slot's pool capacity lead to. */
typedef struct gaac_cuda_sizes {
    size_t slot_bytes;         /* fixed parts and pool; a multiple of 128 */
    size_t entries_per_block;  /* uint32_t */
    size_t raw_bytes;          /* a block as BF16 in fragment order; a multiple of 128 */
    size_t window_table_bytes; /* the bases as profiles store them: gaac_windows_table (gaac/codec.h) */
    size_t window_bytes;       /* the same made ready for the kernels: one epoch of gaac_cuda_cache.windows */
    size_t histogram_counts;   /* uint32_t of a histogram: gaac_cuda_histogram_add */
} gaac_cuda_sizes;

/* pool_bytes: a multiple of 128, at most 65,536 (gaac_calibrate or a profile gives a multiple of 64: round
 * up). Needs no device. Thread-safe. */
GAAC_API gaac_status gaac_cuda_get_sizes(const gaac_shape *shape, uint32_t pool_bytes, gaac_cuda_sizes *sizes,
                                         gaac_error *error);

/* Counted on the device since the caller zeroed them; read them with a copy to the host. */
typedef struct gaac_cuda_counters {
    uint64_t encoded;    /* blocks that went into a slot */
    uint64_t fallbacks;  /* complete blocks that did not fit and stay raw */
    uint64_t lost;       /* appends to blocks that found no free raw block: their tokens are gone, and the block stays
                            empty until it begins anew. An engine that sees this above 0 gave too few raw blocks
                            and must recompute */
    uint64_t pool_bytes; /* sum over the encoded blocks of what they took in their pools */
    uint64_t exceptions; /* sum over the encoded blocks */
    uint64_t stored_n;   /* 4-bit groups, likewise */
    uint64_t reopened;   /* coded blocks that a write decoded again */
    uint64_t reserved;
} gaac_cuda_counters;

#define GAAC_CUDA_MAX_EPOCHS 128

/* One layer's cache in device memory. A physical block (an index below `blocks`, as engines' block tables
 * hold them) always owns its slot; while it is open or does not fit it also holds a raw block, taken from
 * and given back to a bitmap by the kernels. Raw blocks may serve several layers of one shape, if all of
 * them name the same raw, raw_used and raw_blocks.
 *
 * Zero-fill entries, raw_used and counters before the first use: a zero entry is an empty block. slots,
 * raw and windows need no initial value.
 *
 * entries: [blocks][kv_heads][coded units of a head], docs/format.md section 2. Bits 24-30 hold the epoch;
 * with bit 31 set the block is raw and bits 0-30 are the index of its raw block (the same for all its
 * entries). Rows may be spread (entry_stride), so that entries can lie inside an engine's own pages. */
typedef struct gaac_cuda_cache {
    gaac_shape shape;
    uint32_t pool_bytes;  /* capacity of a slot's pool: as for gaac_cuda_get_sizes */
    uint32_t blocks;      /* physical blocks */
    void *slots;          /* device, 128-byte aligned: block b at slots + b * slot_stride */
    uint64_t slot_stride; /* bytes, a multiple of 128, at least slot_bytes */
    uint32_t *entries;    /* device: block b at entries + b * entry_stride */
    uint64_t entry_stride;
    void *raw;                    /* device, 128-byte aligned: raw block i at raw + i * raw_bytes */
    uint32_t *raw_used;           /* device: bit i of word i / 32 */
    uint32_t raw_blocks;          /* at most 2^31 - 2 */
    uint32_t epochs;              /* sets in windows; 1 .. GAAC_CUDA_MAX_EPOCHS */
    const void *windows;          /* device, 128-byte aligned, [epochs][window_bytes] */
    gaac_cuda_counters *counters; /* device */
} gaac_cuda_cache;

/* ---- windows and calibration ----------------------------------------------------------------- */

/* Makes a window table ready for the kernels. table: device, window_table_bytes, in the order of
 * gaac_windows_table; copy a profile's there. Bases that docs/format.md does not allow are made even, or
 * cut to 240, so that no table can lead a kernel astray. windows: device, 128-byte aligned, window_bytes:
 * one epoch of gaac_cuda_cache.windows, not in use by a call in flight on another stream. */
GAAC_API gaac_status gaac_cuda_set_windows(const gaac_cuda *cuda, const gaac_shape *shape, const uint8_t *table,
                                           void *windows, gaac_cuda_stream stream, gaac_error *error);

/* Counts exponents: adds `tokens` rows to counts (device, histogram_counts of uint32_t, zeroed by the
 * caller before the first call): K [head][channel][256], then V [token parity][head][channel][256]. Row 0
 * counts as even. rows: device pointers. At most 2^31 tokens in all. */
GAAC_API gaac_status gaac_cuda_histogram_add(const gaac_cuda *cuda, const gaac_shape *shape, const gaac_kv_rows *rows,
                                             uint32_t tokens, uint32_t *counts, gaac_cuda_stream stream,
                                             gaac_error *error);
/* The same from complete blocks of a cache, raw or coded: how a cache calibrates itself, or starts a new
 * epoch. blocks: device [count]; negative ones are skipped. */
GAAC_API gaac_status gaac_cuda_histogram_add_blocks(const gaac_cuda *cuda, const gaac_cuda_cache *cache,
                                                    const int32_t *blocks, uint32_t count, uint32_t *counts,
                                                    gaac_cuda_stream stream, gaac_error *error);
/* Chooses windows as gaac_windows_choose does, to the byte. exception_weight: 0 means the default, 10.
 * table: device, window_table_bytes, written. Follow it with gaac_cuda_set_windows. */
GAAC_API gaac_status gaac_cuda_choose_windows(const gaac_cuda *cuda, const gaac_shape *shape, const uint32_t *counts,
                                              double exception_weight, uint8_t *table, gaac_cuda_stream stream,
                                              gaac_error *error);

/* ---- writing --------------------------------------------------------------------------------- */

/* New tokens of many sequences, prefill chunks and single tokens alike: each block that they touch is
 * completed and encoded into its slot, or stays raw while it is open (or does not fit). Tokens that a
 * touched block held before the first new one are kept, whether it was raw or coded (a coded block that
 * is written into is decoded first, so engines may roll back and overwrite); tokens behind the last new
 * one are forgotten. Blocks of different sequences must differ: a shared block must be copied first
 * (gaac_cuda_copy_blocks). A block that begins anew reuses the raw block that it still holds. */
typedef struct gaac_cuda_append_args {
    gaac_kv_rows rows; /* device pointers; strides in elements. 16-byte aligned rows and strides that
                          are multiples of 8 are faster */
    uint32_t sequences;
    uint32_t tokens;            /* most rows in all: bounds the launch */
    const int32_t *query_start; /* device [sequences + 1]: rows query_start[s] .. query_start[s + 1] - 1 are
                                   sequence s's; NULL: one row each, row s, and all `sequences` rows can be read,
                                   those of skipped sequences too */
    const int32_t *lengths;     /* device [sequences]: tokens of the sequence with the new ones; those of a
                                   sequence with no rows are not looked at, 0 skips it */
    const int32_t *block_table; /* device: block i of sequence s at block_table[s * block_table_stride + i];
                                   a negative one skips that block */
    size_t block_table_stride;
    uint32_t epoch; /* of the windows to encode with */
    bool keep_raw;  /* encode nothing: complete blocks stay raw (while waiting for a calibration,
                       or to compare with coded ones) */
} gaac_cuda_append_args;
GAAC_API gaac_status gaac_cuda_append(const gaac_cuda *cuda, const gaac_cuda_cache *cache,
                                      const gaac_cuda_append_args *args, gaac_cuda_stream stream, gaac_error *error);

/* Encodes listed blocks, from rows or from what they hold. */
typedef struct gaac_cuda_encode_args {
    gaac_kv_rows rows;        /* device pointers to offset 0. k and v NULL: each block's own values (it is raw and
                                 complete, say because it waited for a calibration, or coded in another epoch) */
    const int64_t *k_offsets; /* device [count]: elements from rows.k to the block's first token; its 16 tokens
                                 are k_token_stride apart: a dense tensor, or pages of a multiple of 16 tokens */
    const int64_t *v_offsets; /* likewise; NULL: as k_offsets */
    const int32_t *blocks;    /* device [count]: all different; negative ones are skipped */
    uint32_t count;
    uint32_t epoch;
    bool keep_raw; /* from rows: store them as raw blocks */
} gaac_cuda_encode_args;
GAAC_API gaac_status gaac_cuda_encode(const gaac_cuda *cuda, const gaac_cuda_cache *cache,
                                      const gaac_cuda_encode_args *args, gaac_cuda_stream stream, gaac_error *error);

/* Copies blocks from[i] to to[i] within the cache, raw ones with their raw block: copy on write, forks.
 * Both device [count]; pairs with a negative one are skipped. No block may be in `to` twice, or in both. */
GAAC_API gaac_status gaac_cuda_copy_blocks(const gaac_cuda *cuda, const gaac_cuda_cache *cache, const int32_t *from,
                                           const int32_t *to, uint32_t count, gaac_cuda_stream stream,
                                           gaac_error *error);
/* Makes blocks empty and gives their raw blocks back. Not needed before a block is reused by
 * gaac_cuda_append or gaac_cuda_encode. Device [count]; negative ones are skipped. */
GAAC_API gaac_status gaac_cuda_release_blocks(const gaac_cuda *cuda, const gaac_cuda_cache *cache,
                                              const int32_t *blocks, uint32_t count, gaac_cuda_stream stream,
                                              gaac_error *error);

/* ---- reading --------------------------------------------------------------------------------- */

/* Decodes listed blocks to BF16 rows: for copies, saved states, an engine's own kernels. All 16 tokens of a
 * block are written, those never written with whatever lies there. */
typedef struct gaac_cuda_decode_args {
    gaac_kv_rows_out rows;    /* device pointers; k or v may be NULL: that part is left out */
    const int64_t *k_offsets; /* device [count]: elements from rows.k to where the block's first token goes;
                                 NULL: block i at row 16 i */
    const int64_t *v_offsets; /* likewise; NULL: as for K */
    const int32_t *blocks;    /* device [count]; negative and empty ones are skipped */
    uint32_t count;
} gaac_cuda_decode_args;
GAAC_API gaac_status gaac_cuda_decode(const gaac_cuda *cuda, const gaac_cuda_cache *cache,
                                      const gaac_cuda_decode_args *args, gaac_cuda_stream stream, gaac_error *error);

/* Expands cells first[s] .. lengths[s] - 1 of sequences into rows, for an engine's own prefill kernel:
 * cell c of sequence s becomes row row_start[s] + c - first[s]. Only those rows are written. */
typedef struct gaac_cuda_expand_args {
    gaac_kv_rows_out rows; /* device pointers; k or v may be NULL */
    uint32_t sequences;
    uint32_t max_tokens;        /* most cells of one sequence: bounds the launch */
    const int32_t *first;       /* device [sequences], or NULL for 0 */
    const int32_t *lengths;     /* device [sequences] */
    const int64_t *row_start;   /* device [sequences] */
    const int32_t *block_table; /* device, as in gaac_cuda_append_args */
    size_t block_table_stride;
} gaac_cuda_expand_args;
GAAC_API gaac_status gaac_cuda_expand(const gaac_cuda *cuda, const gaac_cuda_cache *cache,
                                      const gaac_cuda_expand_args *args, gaac_cuda_stream stream, gaac_error *error);

/* ---- attention ------------------------------------------------------------------------------- */

/* Split-KV decode attention: softmax(scale * Q K^T + masks) V over coded blocks, raw blocks and the open
 * tail in one softmax, F32 inside. Q is BF16, K Q is summed by tensor cores in F32, P is rounded to BF16
 * for P V, as FlashAttention does. Coded and raw blocks give the same bits. The parts of a sequence are
 * merged in a fixed order: the same plan gives the same bits. */

#define GAAC_CUDA_MAX_QUERY_TOKENS 8

/* What decides how work is split. */
typedef struct gaac_cuda_plan_args {
    gaac_shape shape;
    uint32_t query_heads; /* a multiple of kv_heads; head h reads KV head h / (query_heads / kv_heads) */
    uint32_t sequences;
    uint32_t query_tokens;      /* most query tokens of one sequence: 1 .. GAAC_CUDA_MAX_QUERY_TOKENS */
    const int32_t *query_start; /* device [sequences + 1]: first query row of each sequence; NULL: sequence s has
                                   exactly query_tokens rows from s * query_tokens on */
    const int32_t *lengths;     /* device [sequences]: cells of the sequence, its query tokens included; 0 or less:
                                   an empty sequence, whose output is zeros */
    uint32_t window;            /* 0 = none; else a query at cell p sees cells p - window + 1 .. p */
} gaac_cuda_plan_args;

/* Bytes of the workspace for such a plan (device pointers and their contents play no part). */
GAAC_API gaac_status gaac_cuda_plan_bytes(const gaac_cuda *cuda, const gaac_cuda_plan_args *args, size_t *bytes,
                                          gaac_error *error);
/* Splits the work, on the device, into workspace (device, 256-byte aligned, gaac_cuda_plan_bytes). A plan
 * serves any number of gaac_cuda_attention calls that follow it on the stream with the same arguments and
 * unchanged lengths: once a step, for all layers of one shape. */
GAAC_API gaac_status gaac_cuda_plan(const gaac_cuda *cuda, const gaac_cuda_plan_args *args, void *workspace,
                                    gaac_cuda_stream stream, gaac_error *error);

typedef enum gaac_cuda_type { GAAC_CUDA_BF16 = 0, GAAC_CUDA_F32 = 1 } gaac_cuda_type;

typedef struct gaac_cuda_attention_args {
    gaac_cuda_plan_args plan;   /* as given to gaac_cuda_plan */
    void *workspace;            /* as left by gaac_cuda_plan; not shared by calls that may overlap */
    const int32_t *block_table; /* device, as in gaac_cuda_append_args; that of a cell which a query sees must be a
                                   block: attention skips none */
    size_t block_table_stride;
    const uint16_t *q; /* device, BF16 [rows][query_heads][head_dim_k]; strides in elements, 16-byte aligned */
    size_t q_token_stride, q_head_stride;
    void *out; /* device, [rows][query_heads][head_dim_v] of out_type; strides in elements, 8-byte aligned. A
                  query that sees nothing gets zeros */
    size_t out_token_stride, out_head_stride;
    gaac_cuda_type out_type;
    float *lse;          /* device [rows][query_heads] log of the softmax's sum (sinks counted), or NULL */
    float scale;         /* of the scores, above 0; usually 1 / sqrt(head_dim_k) */
    float softcap;       /* 0 = none; else scores s become softcap * tanh(s * scale / softcap) */
    const float *slopes; /* device [query_heads] ALiBi slopes, or NULL: slope * (cell - query's cell) is added */
    const float *sinks;  /* device [query_heads] attention sinks (a logit without a value), or NULL */
} gaac_cuda_attention_args;
GAAC_API gaac_status gaac_cuda_attention(const gaac_cuda *cuda, const gaac_cuda_cache *cache,
                                         const gaac_cuda_attention_args *args, gaac_cuda_stream stream,
                                         gaac_error *error);

/* Which attention kernel a call would take: "bulk" (bulk copies, compute capability 9.0 on), "async"
 * (cp.async), or "general" (any shape, slow, or no handle). Thread-safe. */
GAAC_API const char *gaac_cuda_attention_kernel(const gaac_cuda *cuda, const gaac_shape *shape);

/* The same attention by the simplest kernel that is right, with nothing shared with the fast ones but the
 * format: what they are tested against. Serves shapes without a fast kernel. Needs no plan; workspace and
 * strides as above. */
GAAC_API gaac_status gaac_cuda_attention_reference(const gaac_cuda *cuda, const gaac_cuda_cache *cache,
                                                   const gaac_cuda_attention_args *args, gaac_cuda_stream stream,
                                                   gaac_error *error);

#ifdef __cplusplus
}
#endif
#endif
