/* A library that looks like a ggml of the version FAKE_VERSION and backend API FAKE_API, as far as the
 * plug-in looks at a host while it is loaded. It lies between the plug-in and versions that don't exist. */
#define HOST_FUNCTION __attribute__((visibility("default")))

#include "../../integrations/llama.cpp/host_abi.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

HOST_FUNCTION void *load(const char *path);
HOST_FUNCTION const char *ggml_version(void);
HOST_FUNCTION const char *ggml_op_name(int op);
HOST_FUNCTION const char *ggml_type_name(int type);
HOST_FUNCTION size_t ggml_backend_reg_count(void);
HOST_FUNCTION host_reg *ggml_backend_reg_get(size_t index);

const char *ggml_version(void)
{
    return getenv("FAKE_VERSION");
}

const char *ggml_op_name(int op)
{
    static const char *const names[] = {"NONE",    "ADD",      "VIEW", "RESHAPE",        "PERMUTE", "TRANSPOSE",
                                        "MUL_MAT", "SET_ROWS", "ROPE", "FLASH_ATTN_EXT", "GLU"};
    return names[op];
}

const char *ggml_type_name(int type)
{
    return type == HOST_TYPE_BF16 ? "bf16" : "i64";
}

size_t ggml_backend_reg_count(void)
{
    return 1;
}

host_reg *ggml_backend_reg_get(size_t index)
{
    static host_reg registered;
    const char *api = getenv("FAKE_API");
    (void)index;
    registered.api_version = api ? atoi(api) : 0;
    return &registered;
}

/* The rest is only looked up. */
#define UNUSED(name)                                                                                                   \
    HOST_FUNCTION void name(void);                                                                                     \
    void name(void)                                                                                                    \
    {                                                                                                                  \
        abort();                                                                                                       \
    }

UNUSED(ggml_nbytes)
UNUSED(ggml_init)
UNUSED(ggml_free)
UNUSED(ggml_tensor_overhead)
UNUSED(ggml_graph_overhead)
UNUSED(ggml_new_tensor_3d)
UNUSED(ggml_view_tensor)
UNUSED(ggml_new_graph)
UNUSED(ggml_graph_add_node)
UNUSED(ggml_graph_n_nodes)
UNUSED(ggml_graph_node)
UNUSED(ggml_backend_reg_get_proc_address)
UNUSED(ggml_backend_buft_is_host)
UNUSED(ggml_backend_buffer_init)
UNUSED(ggml_backend_cpu_buffer_type)
UNUSED(ggml_backend_dev_by_type)
UNUSED(ggml_backend_dev_backend_reg)
UNUSED(ggml_backend_init_by_type)
UNUSED(ggml_backend_free)
UNUSED(ggml_backend_graph_compute)

/* Loads a plug-in the way a host does: called from inside this library. */
void *load(const char *path)
{
    host_reg *(*init)(void);
    void *plugin = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    void *symbol = plugin ? dlsym(plugin, "ggml_backend_init") : NULL;
    if (!symbol)
        return NULL;
    memcpy(&init, &symbol, sizeof init);
    host_reg *volatile loaded = init(); /* no tail call: the plug-in looks at who called */
    return loaded;
}
