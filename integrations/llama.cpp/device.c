#include "device.h"

#include "host.h"
#include "notice.h"
#include "ops.h"
#include "settings.h"
#include "stats.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static host_device device;
static host_reg registry;

/* ---- backend: what computes -------------------------------------------------------------------- */

static const char *backend_name(host_backend *backend)
{
    (void)backend;
    return "GAAC0";
}

static void backend_free(host_backend *backend)
{
    op_runner *runner = backend->context;
    workers_free(&runner->team);
    if (runner->cpu)
        host.call.backend_free(runner->cpu);
    free(runner->rows);
    free(runner);
    free(backend);
}

static bool plain_attention(const host_tensor *node)
{
    return config.test_unallocated && !buffer_store(node->src[1]) && !buffer_store(node->src[2]);
}

/* Nodes whose tensors are all plain memory come here when a buffer was handed to the host in the
 * middle of planning: the host had already given them to this device. */
static gaac_status compute_node(op_runner *runner, host_tensor *node, gaac_error *error)
{
    switch (host_op_of(node)) {
    case HOST_OP_NONE:
    case HOST_OP_VIEW:
    case HOST_OP_RESHAPE:
    case HOST_OP_PERMUTE:
    case HOST_OP_TRANSPOSE:
        return GAAC_OK;
    case HOST_OP_SET_ROWS:
        return buffer_store(node) ? set_rows_compute(runner, node, error) : delegate_node(runner, node, error);
    case HOST_OP_ROPE:
        if (buffer_store(node))
            return rope_compute(runner, node, error);
        return rope_fits_plain(node) ? rope_compute_plain(runner, node, error) : delegate_node(runner, node, error);
    case HOST_OP_FLASH_ATTN_EXT:
        if (buffer_store(node->src[1]))
            return flash_compute(runner, node, error);
        return plain_attention(node) ? flash_compute_plain(runner, node, error) : delegate_node(runner, node, error);
    default:
        return delegate_node(runner, node, error);
    }
}

static int host_status_of(gaac_status status)
{
    if (status == GAAC_OK)
        return HOST_STATUS_SUCCESS;
    return status == GAAC_ERROR_MEMORY_LIMIT || status == GAAC_ERROR_OUT_OF_MEMORY ? HOST_STATUS_ALLOC_FAILED
                                                                                   : HOST_STATUS_FAILED;
}

static void tell_failure(const host_tensor *node, gaac_status status, const gaac_error *error)
{
    const char *what = host.call.op_name(node->op);
    if (status == GAAC_ERROR_MEMORY_LIMIT)
        notice("the KV cache is full (%s): %s (GAAC_MEMORY, or a smaller -c or -np)", what, error->message);
    else
        notice("%s of %s failed: %s", what, node->name, error->message);
}

static int backend_graph_compute(host_backend *backend, host_graph *graph)
{
    op_runner *runner = backend->context;
    int count = host.call.graph_n_nodes(graph);
    stats_note_threads(runner->team.count);
    for (int i = 0; i < count; i++) {
        host_tensor *node = host.call.graph_node(graph, i);
        gaac_error error = {0};
        if (!(node->flags & HOST_FLAG_COMPUTE))
            continue;
        gaac_status status = compute_node(runner, node, &error);
        if (status != GAAC_OK) {
            tell_failure(node, status, &error);
            return host_status_of(status);
        }
    }
    return HOST_STATUS_SUCCESS;
}

static host_guid backend_guid = {'g',  'a',  'a',  'c',  0x4b, 0x56, 0x9a, 0x1e,
                                 0x83, 0x5c, 0x2f, 0x47, 0xd0, 0x66, 0xb1, 0x02};

static const host_backend_iface backend_iface = {
    .get_name = backend_name,
    .free = backend_free,
    .graph_compute = backend_graph_compute,
};

/* ---- device: what the host may give us ---------------------------------------------------------- */

static const char *device_name(host_device *self)
{
    (void)self;
    return "GAAC0";
}

static const char *device_description(host_device *self)
{
    (void)self;
    return "Compressed KV cache (lossless BF16)";
}

/* What the system could give now without swapping, in bytes; 0 when it doesn't say. */
static size_t available_memory(void)
{
    unsigned long long kib = 0;
    char line[128];
    FILE *file = fopen("/proc/meminfo", "r");
    while (file && fgets(line, sizeof line, file)) {
        if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1)
            break;
    }
    if (file)
        fclose(file);
    if (kib)
        return (size_t)kib * 1024;
    long pages = sysconf(_SC_AVPHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    return pages > 0 && page > 0 ? (size_t)pages * (size_t)page : 0;
}

static void device_memory(host_device *self, size_t *free_bytes, size_t *total_bytes)
{
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    (void)self;
    *free_bytes = available_memory();
    *total_bytes = pages > 0 && page > 0 ? (size_t)pages * (size_t)page : *free_bytes;
    if (!config.memory_limit)
        return;
    uint64_t used = stats_resident();
    uint64_t left = used < config.memory_limit ? config.memory_limit - used : 0;
    *free_bytes = left < *free_bytes ? (size_t)left : *free_bytes;
    *total_bytes = config.memory_limit < *total_bytes ? (size_t)config.memory_limit : *total_bytes;
}

/* A device of type GPU may own the KV cache; an ACCEL may not. */
static int device_type(host_device *self)
{
    (void)self;
    return HOST_DEVICE_GPU;
}

static void device_props(host_device *self, host_device_props *props)
{
    props->name = device_name(self);
    props->description = device_description(self);
    props->type = device_type(self);
    props->device_id = NULL;
    device_memory(self, &props->memory_free, &props->memory_total);
    props->caps = (host_device_caps){.mmap_support = true}; /* weights stay with the CPU, mapped */
}

static host_backend *device_init_backend(host_device *self, const char *params)
{
    (void)params;
    host_backend *backend = calloc(1, sizeof *backend);
    op_runner *state = calloc(1, sizeof *state);
    if (!backend || !state) {
        free(backend);
        free(state);
        return NULL;
    }
    workers_init(&state->team);
    *backend = (host_backend){&backend_guid, backend_iface, self, state};
    stats_device_opened();
    return backend;
}

static host_buft *device_buffer_type(host_device *self)
{
    (void)self;
    return buffer_type();
}

static bool device_supports_buft(host_device *self, host_buft *buft)
{
    (void)self;
    return buft == buffer_type() || host.call.backend_buft_is_host(buft);
}

static bool device_offload_op(host_device *self, const host_tensor *op)
{
    (void)self;
    (void)op;
    return false;
}

/* ---- which operations --------------------------------------------------------------------------- */

static void hand_over(const host_tensor *tensor)
{
    if (buffer_store(tensor))
        buffer_to_host(tensor);
}

/* The first attention over a layer tells its heads; the host asks for all layers before it writes any. */
static bool supports_attention(const host_tensor *op)
{
    const host_tensor *k = op->src[1], *v = op->src[2];
    gaac_shape shape;
    const char *objection = flash_objection(op, &shape);
    if (config.test_unallocated && !host_root(k)->buffer && !host_root(v)->buffer)
        return !objection;
    if (buffer_is_dummy(k) || buffer_is_dummy(v))
        return true;
    if (!buffer_store(k) && !buffer_store(v))
        return false;
    const host_tensor *ours = buffer_store(k) ? k : v;
    kv_view view;
    if (!objection && flash_views_pair(op) && kv_view_of(k, &view)) {
        gaac_error error;
        if (kv_store_learn(view.store, view.tensor->layer, &shape, &error) == GAAC_OK)
            return true;
        objection = "its heads can't be changed for lack of memory";
    }
    if (!objection)
        objection = host_root(k) == host_root(v) ? "its V is a part of K (MLA)" : "its K and V are not one layer's";
    notice_once(NOTICE_SHAPE,
                "the attention over %s (head_dim %lld and %lld) can't run on the compressed cache: %s; the KV cache "
                "stays uncompressed with the CPU",
                host_root(ours)->name, (long long)k->ne[0], (long long)v->ne[0], objection);
    hand_over(ours);
    return false;
}

/* Writes into a KV tensor that don't fit mean that the host uses it in another way than we know. Of a
 * dummy, whatever type of cache it stands for, the host must hear yes or it stops the program. */
static bool supports_write(const host_tensor *op, bool fits)
{
    if (buffer_is_dummy(op))
        return true;
    if (!buffer_store(op))
        return false;
    if (fits)
        return true;
    if (host_op_of(op) == HOST_OP_SET_ROWS && op->ne[0] == 1)
        notice_once(NOTICE_FLASH_OFF, "flash attention is off, so the KV cache stays uncompressed with the CPU: run "
                                      "with -fa on");
    else
        notice_once(NOTICE_OTHER_WRITE,
                    "%s writes %s in a way that the compressed cache doesn't know: the cache goes "
                    "on uncompressed with the CPU",
                    host.call.op_name(op->op), host_root(op)->name);
    hand_over(op);
    return false;
}

/* Anything else: the host's CPU computes it. Reads get copies of the rows; matrix products over K or
 * V are attention without flash attention, for which the whole cache had better be the CPU's. */
static bool decline(const host_tensor *op)
{
    for (int i = 0; i < HOST_MAX_SRC && op->src[i]; i++) {
        if (!buffer_store(op->src[i]))
            continue;
        if (host_op_of(op) == HOST_OP_MUL_MAT) {
            notice_once(NOTICE_FLASH_OFF, "flash attention is off, so the KV cache stays uncompressed with the CPU: "
                                          "run with -fa on");
            hand_over(op->src[i]);
        } else if (!buffer_store(op)) {
            notice_once(NOTICE_OTHER_READ, "%s reads %s: the CPU gets uncompressed copies for it, which is slow",
                        host.call.op_name(op->op), host_root(op->src[i])->name);
        }
    }
    return supports_write(op, false);
}

static bool device_supports_op(host_device *self, const host_tensor *op)
{
    (void)self;
    switch (host_op_of(op)) {
    case HOST_OP_NONE:
    case HOST_OP_VIEW:
    case HOST_OP_RESHAPE:
    case HOST_OP_PERMUTE:
    case HOST_OP_TRANSPOSE:
        return true;
    case HOST_OP_SET_ROWS:
        return supports_write(op, set_rows_fits(op));
    case HOST_OP_ROPE:
        return supports_write(op, rope_fits(op)) || (!buffer_is_ours(op) && rope_fits_plain(op));
    case HOST_OP_FLASH_ATTN_EXT:
        return supports_attention(op);
    default:
        return decline(op);
    }
}

/* ---- registry ----------------------------------------------------------------------------------- */

static const char *registry_name(host_reg *self)
{
    (void)self;
    return "GAAC";
}

static size_t registry_count(host_reg *self)
{
    (void)self;
    return 1;
}

static host_device *registry_device(host_reg *self, size_t index)
{
    (void)self;
    return index == 0 ? &device : NULL;
}

static void set_threads(host_backend *backend, int threads)
{
    op_runner *runner = backend->context;
    workers_set_count(&runner->team, threads);
}

static void *registry_function(host_reg *self, const char *name)
{
    (void)self;
    void (*function)(host_backend *, int) = set_threads;
    void *result = NULL;
    if (strcmp(name, "ggml_backend_set_n_threads") == 0)
        memcpy(&result, &function, sizeof result);
    return result;
}

host_reg *device_registry(void)
{
    device = (host_device){
        .iface = {.get_name = device_name,
                  .get_description = device_description,
                  .get_memory = device_memory,
                  .get_type = device_type,
                  .get_props = device_props,
                  .init_backend = device_init_backend,
                  .get_buffer_type = device_buffer_type,
                  .supports_op = device_supports_op,
                  .supports_buft = device_supports_buft,
                  .offload_op = device_offload_op},
        .reg = &registry,
    };
    registry = (host_reg){
        .api_version = host.api,
        .iface = {.get_name = registry_name,
                  .get_device_count = registry_count,
                  .get_device = registry_device,
                  .get_proc_address = registry_function},
    };
    buffer_type_init(&device);
    return &registry;
}
