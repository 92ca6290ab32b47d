/* Finding the host. One binary serves every host, so nothing is linked against ggml: llama-server has
 * libggml-base.so.0, Python wheels have libggml-base.so and open it RTLD_LOCAL. The library that calls
 * us depends on the right one by construction, so that is where the search starts. */
#include "host.h"

#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <string.h>

host_info host;

static int op_numbers[HOST_OP_KINDS];

typedef struct host_symbol {
    const char *name;
    size_t offset; /* of the pointer in host_functions */
} host_symbol;

#define HOST_SYMBOL(field)                                                                                             \
    {                                                                                                                  \
        "ggml_" #field, offsetof(host_functions, field)                                                                \
    }

static const host_symbol symbols[] = {
    HOST_SYMBOL(version),
    HOST_SYMBOL(op_name),
    HOST_SYMBOL(type_name),
    HOST_SYMBOL(nbytes),
    HOST_SYMBOL(init),
    HOST_SYMBOL(free),
    HOST_SYMBOL(tensor_overhead),
    HOST_SYMBOL(graph_overhead),
    HOST_SYMBOL(new_tensor_3d),
    HOST_SYMBOL(view_tensor),
    HOST_SYMBOL(new_graph),
    HOST_SYMBOL(graph_add_node),
    HOST_SYMBOL(graph_n_nodes),
    HOST_SYMBOL(graph_node),
    HOST_SYMBOL(backend_reg_count),
    HOST_SYMBOL(backend_reg_get),
    HOST_SYMBOL(backend_reg_get_proc_address),
    HOST_SYMBOL(backend_buft_is_host),
    HOST_SYMBOL(backend_buffer_init),
    HOST_SYMBOL(backend_cpu_buffer_type),
    HOST_SYMBOL(backend_dev_by_type),
    HOST_SYMBOL(backend_dev_backend_reg),
    HOST_SYMBOL(backend_init_by_type),
    HOST_SYMBOL(backend_free),
    HOST_SYMBOL(backend_graph_compute),
};

/* ---- libraries and symbols ------------------------------------------------------------------- */

/* A handle of a library that is already loaded, or NULL. The count that dlopen adds is kept: the
 * library must not go away under us. */
static void *loaded_library(const char *path)
{
    return path && *path ? dlopen(path, RTLD_NOW | RTLD_NOLOAD) : NULL;
}

void *host_symbol_near(const void *address, const char *name)
{
    Dl_info info;
    if (!address || !dladdr(address, &info))
        return NULL;
    void *library = loaded_library(info.dli_fname);
    if (!library)
        library = dlopen(NULL, RTLD_NOW); /* the program itself */
    return library ? dlsym(library, name) : NULL;
}

typedef struct library_search {
    const char *const *names; /* NULL-terminated, best first */
    const char *symbol;
    void *found;
} library_search;

static int search_library(struct dl_phdr_info *info, size_t size, void *user)
{
    library_search *search = user;
    (void)size;
    const char *slash = strrchr(info->dlpi_name, '/');
    const char *base = slash ? slash + 1 : info->dlpi_name;
    for (size_t i = 0; search->names[i]; i++) {
        if (strcmp(base, search->names[i]) != 0)
            continue;
        void *library = loaded_library(info->dlpi_name);
        void *symbol = library ? dlsym(library, search->symbol) : NULL;
        if (symbol) {
            search->found = symbol;
            return 1;
        }
    }
    return 0;
}

static void *find_host_symbol(const void *caller, const char *name)
{
    static const char *const libraries[] = {"libggml-base.so.0", "libggml-base.so", "libggml.so.0", "libggml.so", NULL};
    void *symbol = host_symbol_near(caller, name);
    if (!symbol)
        symbol = dlsym(RTLD_DEFAULT, name);
    if (!symbol) {
        library_search search = {libraries, name, NULL};
        dl_iterate_phdr(search_library, &search);
        symbol = search.found;
    }
    return symbol;
}

static bool resolve_all(const void *caller, char *message, size_t message_bytes)
{
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
        void *symbol = find_host_symbol(caller, symbols[i].name);
        if (!symbol) {
            snprintf(message, message_bytes,
                     "the host has no function %s; this plug-in works in llama.cpp builds whose ggml is a shared "
                     "library, version 0.21 to 0.27",
                     symbols[i].name);
            return false;
        }
        memcpy((char *)&host.call + symbols[i].offset, &symbol, sizeof symbol);
    }
    return true;
}

/* ---- version --------------------------------------------------------------------------------- */

typedef struct known_host {
    int api, first_minor, last_minor; /* of ggml 0.minor */
} known_host;

static const known_host known_hosts[] = {{2, 21, 25}, {3, 26, 27}};

static bool check_version(char *message, size_t message_bytes)
{
    int major = -1, minor = -1;
    snprintf(host.version, sizeof host.version, "%s", host.call.version());
    bool parsed = sscanf(host.version, "%d.%d", &major, &minor) == 2;
    /* Backends that are registered carry the host's own number as their first field, in every version. */
    int api = host.call.backend_reg_count() > 0 ? host.call.backend_reg_get(0)->api_version : 0;
    for (size_t i = 0; parsed && i < sizeof known_hosts / sizeof *known_hosts; i++) {
        const known_host *known = &known_hosts[i];
        if (major == 0 && minor >= known->first_minor && minor <= known->last_minor &&
            (api == 0 || api == known->api)) {
            host.api = known->api;
            return true;
        }
    }
    snprintf(message, message_bytes,
             "this llama.cpp has ggml %s, backend API %d, which this plug-in does not know (it knows API 2 with ggml "
             "0.21-0.25 and API 3 with 0.26-0.27): use a llama.cpp of those versions or a newer gaac",
             host.version, api);
    return false;
}

/* ---- operations ------------------------------------------------------------------------------ */

static const char *const op_names[HOST_OP_KINDS] = {
    [HOST_OP_NONE] = "NONE",         [HOST_OP_VIEW] = "VIEW",           [HOST_OP_RESHAPE] = "RESHAPE",
    [HOST_OP_PERMUTE] = "PERMUTE",   [HOST_OP_TRANSPOSE] = "TRANSPOSE", [HOST_OP_MUL_MAT] = "MUL_MAT",
    [HOST_OP_SET_ROWS] = "SET_ROWS", [HOST_OP_ROPE] = "ROPE",           [HOST_OP_FLASH_ATTN_EXT] = "FLASH_ATTN_EXT",
};

/* Walks the host's numbers only as far as the last name that we want: its table ends without a mark.
 * "GLU" is the last operation of every known host; it comes after all of ours. */
static bool map_operations(char *message, size_t message_bytes)
{
    int missing = HOST_OP_KINDS - 1;
    for (int number = 0; missing > 0; number++) {
        const char *name = host.call.op_name(number);
        for (int kind = 1; kind < HOST_OP_KINDS; kind++) {
            if (strcmp(name, op_names[kind]) == 0) {
                op_numbers[kind] = number;
                missing--;
            }
        }
        if (missing > 0 && strcmp(name, "GLU") == 0) {
            snprintf(message, message_bytes,
                     "ggml %s lacks an operation that the KV cache needs (FLASH_ATTN_EXT, "
                     "SET_ROWS, ROPE)",
                     host.version);
            return false;
        }
    }
    return true;
}

host_op host_op_of(const host_tensor *tensor)
{
    for (int kind = 1; kind < HOST_OP_KINDS; kind++) {
        if (op_numbers[kind] == tensor->op)
            return (host_op)kind;
    }
    return HOST_OP_OTHER;
}

static bool check_types(char *message, size_t message_bytes)
{
    if (strcmp(host.call.type_name(HOST_TYPE_BF16), "bf16") == 0 &&
        strcmp(host.call.type_name(HOST_TYPE_I64), "i64") == 0)
        return true;
    snprintf(message, message_bytes, "ggml %s numbers its element types in a way this plug-in does not know",
             host.version);
    return false;
}

bool host_open(const void *caller, char *message, size_t message_bytes)
{
    return resolve_all(caller, message, message_bytes) && check_version(message, message_bytes) &&
           map_operations(message, message_bytes) && check_types(message, message_bytes);
}
