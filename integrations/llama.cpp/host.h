/* The host (ggml) as resolved at run time: its version, its functions, its operation numbers. */
#ifndef GAAC_LLAMA_HOST_H
#define GAAC_LLAMA_HOST_H

#include "host_abi.h"

/* Operations by meaning; the host's numbers are looked up by name. */
typedef enum host_op {
    HOST_OP_OTHER = 0,
    HOST_OP_NONE,
    HOST_OP_VIEW,
    HOST_OP_RESHAPE,
    HOST_OP_PERMUTE,
    HOST_OP_TRANSPOSE,
    HOST_OP_MUL_MAT,
    HOST_OP_SET_ROWS,
    HOST_OP_ROPE,
    HOST_OP_FLASH_ATTN_EXT,
    HOST_OP_KINDS
} host_op;

/* Functions of the host, by their names without "ggml_". All are set once host_open has succeeded. */
typedef struct host_functions {
    const char *(*version)(void);
    const char *(*op_name)(int op);
    const char *(*type_name)(int type);
    size_t (*nbytes)(const host_tensor *tensor);
    host_context *(*init)(host_init_params params);
    void (*free)(host_context *context);
    size_t (*tensor_overhead)(void);
    size_t (*graph_overhead)(void);
    host_tensor *(*new_tensor_3d)(host_context *context, int type, int64_t ne0, int64_t ne1, int64_t ne2);
    host_tensor *(*view_tensor)(host_context *context, host_tensor *tensor);
    host_graph *(*new_graph)(host_context *context);
    void (*graph_add_node)(host_graph *graph, host_tensor *node);
    int (*graph_n_nodes)(host_graph *graph);
    host_tensor *(*graph_node)(host_graph *graph, int index);
    size_t (*backend_reg_count)(void);
    host_reg *(*backend_reg_get)(size_t index);
    void *(*backend_reg_get_proc_address)(host_reg *reg, const char *name);
    bool (*backend_buft_is_host)(host_buft *buft);
    host_buffer *(*backend_buffer_init)(host_buft *buft, host_buffer_iface iface, void *context, size_t size);
    host_buft *(*backend_cpu_buffer_type)(void);
    host_device *(*backend_dev_by_type)(int type);
    host_reg *(*backend_dev_backend_reg)(host_device *device);
    host_backend *(*backend_init_by_type)(int type, const char *params);
    void (*backend_free)(host_backend *backend);
    int (*backend_graph_compute)(host_backend *backend, host_graph *graph);
} host_functions;

typedef struct host_info {
    host_functions call;
    int api; /* 2 or 3 */
    char version[32];
} host_info;

/* One host a process. Set by host_open, constant afterwards. */
extern host_info host;

/* Finds the host, checks its version, fills `host`. caller: an address inside the library that called
 * us. False with a line in `message` when the host is missing something or is of an unknown version. */
bool host_open(const void *caller, char *message, size_t message_bytes);

/* The meaning of an operation number. */
host_op host_op_of(const host_tensor *tensor);

/* The tensor that owns the memory: itself, or the source of a view. */
static inline const host_tensor *host_root(const host_tensor *tensor)
{
    return tensor->view_src ? tensor->view_src : tensor;
}

/* The address of `name` in the library that holds `address` or in its dependencies, or NULL. */
void *host_symbol_near(const void *address, const char *name);

#endif
