/* ggml's flash attention on the CPU, with keys and values laid out as llama.cpp's KV cache has them. */
#ifndef GAAC_BENCH_GGML_ATTENTION_H
#define GAAC_BENCH_GGML_ATTENTION_H

#include "gaac/gaac.h"

#include "ggml-backend.h"
#include "ggml.h"

/* What is computed: the last query_tokens of `tokens` cells, each seeing those up to itself. */
typedef struct attention_shape {
    uint32_t kv_heads, gqa, head_dim, query_tokens;
    uint64_t tokens;
} attention_shape;

/* The CPU backend of a folder of ggml libraries, and its threads. */
typedef struct ggml_host {
    ggml_backend_t backend;
    struct ggml_threadpool *threads;
    void (*free_threads)(struct ggml_threadpool *threads);
} ggml_host;

/* False when the folder has no CPU backend, or one without what this needs. */
bool ggml_host_open(ggml_host *host, const char *folder, int threads);
void ggml_host_close(ggml_host *host);

/* One graph of one operation. */
typedef struct ggml_attention {
    const ggml_host *host;
    struct ggml_context *context;
    ggml_backend_buffer_t buffer;
    struct ggml_cgraph *graph;
    struct ggml_tensor *out;
} ggml_attention;

/* Keys, values: [tokens][kv_heads][head_dim] BF16, converted to `type`. q: [query_tokens][query heads][head_dim].
 * False when there is no memory or the backend can't do it. */
bool ggml_attention_create(ggml_attention *attention, const ggml_host *host, const attention_shape *shape,
                           enum ggml_type type, const uint16_t *keys, const uint16_t *values, const float *q);
void ggml_attention_destroy(ggml_attention *attention);
/* Computes it. The output, until the next run: [query_tokens][query heads][head_dim]. */
bool ggml_attention_run(const ggml_attention *attention);
const float *ggml_attention_output(const ggml_attention *attention);

#endif
