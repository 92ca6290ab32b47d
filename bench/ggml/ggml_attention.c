#include "ggml_attention.h"

#include "tool.h"

#include "ggml-cpu.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The program is linked with ggml's base library alone; the CPU backend is loaded, so its functions are asked for. */
typedef struct ggml_threadpool *threadpool_new(struct ggml_threadpool_params *params);
typedef void backend_set_threadpool(ggml_backend_t backend, struct ggml_threadpool *threads);

static void no_log(enum ggml_log_level level, const char *text, void *user)
{
    (void)user;
    if (level >= GGML_LOG_LEVEL_WARN)
        fputs(text, stderr);
}

/* `function` points to a pointer to a function. ISO C converts no other pointer to one. */
static bool find(ggml_backend_reg_t registry, const char *name, void *function)
{
    void *address = ggml_backend_reg_get_proc_address(registry, name);
    memcpy(function, &address, sizeof address);
    return address != NULL;
}

bool ggml_host_open(ggml_host *host, const char *folder, int threads)
{
    *host = (ggml_host){0};
    ggml_log_set(no_log, NULL);
    if (ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU) == NULL)
        ggml_backend_load_all_from_path(folder);
    ggml_backend_dev_t device = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    if (device == NULL)
        return false;
    ggml_backend_reg_t registry = ggml_backend_dev_backend_reg(device);
    ggml_backend_set_n_threads_t set_threads;
    threadpool_new *new_pool;
    backend_set_threadpool *set_pool;
    if (!find(registry, "ggml_backend_set_n_threads", &set_threads) ||
        !find(registry, "ggml_threadpool_new", &new_pool) ||
        !find(registry, "ggml_threadpool_free", &host->free_threads) ||
        !find(registry, "ggml_backend_cpu_set_threadpool", &set_pool))
        return false;
    struct ggml_threadpool_params params = ggml_threadpool_params_default(threads);
    host->backend = ggml_backend_dev_init(device, NULL);
    host->threads = new_pool(&params);
    if (host->backend == NULL || host->threads == NULL)
        return false;
    set_threads(host->backend, threads);
    set_pool(host->backend, host->threads);
    return true;
}

void ggml_host_close(ggml_host *host)
{
    if (host->backend != NULL)
        ggml_backend_free(host->backend);
    if (host->threads != NULL)
        host->free_threads(host->threads);
    *host = (ggml_host){0};
}

/* Rows of BF16 in any type that ggml can convert to. */
static void set_rows(struct ggml_tensor *tensor, const uint16_t *rows)
{
    const int64_t width = tensor->ne[0], count = tensor->ne[1];
    const size_t row_bytes = ggml_row_size(tensor->type, width);
    float *row = tool_alloc((size_t)width * sizeof *row);
    uint8_t *converted = tool_alloc(row_bytes);
    for (int64_t i = 0; i < count; i++) {
        for (int64_t j = 0; j < width; j++) {
            const uint32_t bits = (uint32_t)rows[i * width + j] << 16;
            memcpy(&row[j], &bits, sizeof bits);
        }
        ggml_quantize_chunk(tensor->type, row, converted, 0, 1, width, NULL);
        ggml_backend_tensor_set(tensor, converted, (size_t)i * row_bytes, row_bytes);
    }
    free(converted);
    free(row);
}

static void set_causal_mask(struct ggml_tensor *mask, const attention_shape *shape)
{
    const uint64_t first = shape->tokens - shape->query_tokens;
    const ggml_fp16_t hidden = ggml_fp32_to_fp16(-INFINITY), seen = ggml_fp32_to_fp16(0);
    ggml_fp16_t *row = tool_alloc(shape->tokens * sizeof *row);
    for (uint32_t token = 0; token < shape->query_tokens; token++) {
        for (uint64_t cell = 0; cell < shape->tokens; cell++)
            row[cell] = cell <= first + token ? seen : hidden;
        ggml_backend_tensor_set(mask, row, token * shape->tokens * sizeof *row, shape->tokens * sizeof *row);
    }
    free(row);
}

/* [head_dim, tokens, heads] of a cache of rows, as llama.cpp's graph makes it. */
static struct ggml_tensor *heads_of(struct ggml_context *context, struct ggml_tensor *rows, int64_t head_dim)
{
    struct ggml_tensor *heads = ggml_reshape_3d(context, rows, head_dim, rows->ne[0] / head_dim, rows->ne[1]);
    return ggml_permute(context, heads, 0, 2, 1, 3);
}

bool ggml_attention_create(ggml_attention *attention, const ggml_host *host, const attention_shape *shape,
                           enum ggml_type type, const uint16_t *keys, const uint16_t *values, const float *q)
{
    const int64_t dim = shape->head_dim, cells = (int64_t)shape->tokens, tokens = shape->query_tokens;
    const int64_t row = dim * shape->kv_heads, query_row = row * shape->gqa;
    *attention = (ggml_attention){.host = host};
    struct ggml_init_params params = {16 * ggml_tensor_overhead() + ggml_graph_overhead(), NULL, true};
    struct ggml_context *context = attention->context = ggml_init(params);
    if (context == NULL)
        return false;
    struct ggml_tensor *k = ggml_new_tensor_2d(context, type, row, cells);
    struct ggml_tensor *v = ggml_new_tensor_2d(context, type, row, cells);
    struct ggml_tensor *queries = ggml_new_tensor_2d(context, GGML_TYPE_F32, query_row, tokens);
    struct ggml_tensor *mask = ggml_new_tensor_2d(context, GGML_TYPE_F16, cells, tokens);
    attention->out = ggml_flash_attn_ext(context, heads_of(context, queries, dim), heads_of(context, k, dim),
                                         heads_of(context, v, dim), mask, 1 / sqrtf((float)dim), 0, 0);
    attention->graph = ggml_new_graph(context);
    ggml_build_forward_expand(attention->graph, attention->out);
    attention->buffer = ggml_backend_alloc_ctx_tensors(context, host->backend);
    if (attention->buffer == NULL || !ggml_backend_supports_op(host->backend, attention->out))
        return false;
    set_rows(k, keys);
    set_rows(v, values);
    ggml_backend_tensor_set(queries, q, 0, ggml_nbytes(queries));
    set_causal_mask(mask, shape);
    return true;
}

void ggml_attention_destroy(ggml_attention *attention)
{
    ggml_backend_buffer_free(attention->buffer);
    ggml_free(attention->context);
    *attention = (ggml_attention){0};
}

bool ggml_attention_run(const ggml_attention *attention)
{
    return ggml_backend_graph_compute(attention->host->backend, attention->graph) == GGML_STATUS_SUCCESS;
}

const float *ggml_attention_output(const ggml_attention *attention)
{
    return ggml_get_data_f32(attention->out);
}
