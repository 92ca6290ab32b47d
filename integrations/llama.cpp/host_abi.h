/* The binary interface of ggml's backends, as far as this plug-in touches it: facts, not headers.
 *
 * The host's private header is not installed and the public one changes from release to release, so
 * the layouts stand here in our own words. tests/llama.cpp/abi_check.c compiles this file beside a
 * host's real headers and compares every size and offset. Known hosts:
 *
 *   backend API 2   ggml 0.21 to 0.25
 *   backend API 3   ggml 0.26 and 0.27: two more functions in the buffer type, so is_host moved
 *
 * Everything else is the same in both. Numbers of operations differ from release to release: they
 * are looked up by name at load (host.h). Element types are part of the GGUF file format and stable. */
#ifndef GAAC_LLAMA_HOST_ABI_H
#define GAAC_LLAMA_HOST_ABI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    HOST_MAX_DIMS = 4,
    HOST_MAX_SRC = 10,
    HOST_OP_PARAM_WORDS = 16,
    HOST_NAME_BYTES = 64,
};

enum host_type {
    HOST_TYPE_F32 = 0,
    HOST_TYPE_F16 = 1,
    HOST_TYPE_I32 = 26,
    HOST_TYPE_I64 = 27,
    HOST_TYPE_BF16 = 30,
};

enum host_status {
    HOST_STATUS_ALLOC_FAILED = -2,
    HOST_STATUS_FAILED = -1,
    HOST_STATUS_SUCCESS = 0,
};

enum host_device_type {
    HOST_DEVICE_CPU = 0,
    HOST_DEVICE_GPU = 1,
};

enum host_buffer_usage {
    HOST_USAGE_ANY = 0,
    HOST_USAGE_WEIGHTS = 1,
    HOST_USAGE_COMPUTE = 2,
};

enum {
    HOST_FLAG_COMPUTE = 16, /* a node without it is in the graph but must not be computed */
};

/* Opaque to us. */
typedef struct host_context host_context;
typedef struct host_graph host_graph;
typedef struct host_event host_event;
typedef uint8_t host_guid[16];

typedef struct host_tensor host_tensor;
typedef struct host_buffer host_buffer;
typedef struct host_buft host_buft;
typedef struct host_backend host_backend;
typedef struct host_device host_device;
typedef struct host_reg host_reg;

struct host_tensor {
    int32_t type;
    host_buffer *buffer; /* NULL for most views: theirs is view_src's */
    int64_t ne[HOST_MAX_DIMS];
    size_t nb[HOST_MAX_DIMS]; /* strides in bytes */
    int32_t op;
    int32_t op_params[HOST_OP_PARAM_WORDS];
    int32_t flags;
    host_tensor *src[HOST_MAX_SRC];
    host_tensor *view_src; /* never itself a view */
    size_t view_offs;
    void *data;
    char name[HOST_NAME_BYTES];
    void *extra;
    char padding[8];
};

typedef struct host_buffer_iface {
    void (*free_buffer)(host_buffer *buffer);
    void *(*get_base)(host_buffer *buffer);
    int (*init_tensor)(host_buffer *buffer, host_tensor *tensor);
    void (*memset_tensor)(host_buffer *buffer, host_tensor *tensor, uint8_t value, size_t offset, size_t size);
    void (*set_tensor)(host_buffer *buffer, host_tensor *tensor, const void *data, size_t offset, size_t size);
    void (*get_tensor)(host_buffer *buffer, const host_tensor *tensor, void *data, size_t offset, size_t size);
    void (*set_tensor_2d)(host_buffer *buffer, host_tensor *tensor, const void *data, size_t offset, size_t size,
                          size_t copies, size_t tensor_stride, size_t data_stride);
    void (*get_tensor_2d)(host_buffer *buffer, const host_tensor *tensor, void *data, size_t offset, size_t size,
                          size_t copies, size_t tensor_stride, size_t data_stride);
    bool (*cpy_tensor)(host_buffer *buffer, const host_tensor *src, host_tensor *dst);
    void (*clear)(host_buffer *buffer, uint8_t value);
    void (*reset)(host_buffer *buffer);
} host_buffer_iface;

/* The host allocates these (ggml_backend_buffer_init). A buffer of no bytes has no functions and no
 * context: the host makes such dummies of our type when it only measures. */
struct host_buffer {
    host_buffer_iface iface;
    host_buft *buft;
    void *context;
    size_t size;
    int usage;
};

typedef struct host_buft_iface_2 {
    const char *(*get_name)(host_buft *buft);
    host_buffer *(*alloc_buffer)(host_buft *buft, size_t size);
    size_t (*get_alignment)(host_buft *buft);
    size_t (*get_max_size)(host_buft *buft);
    size_t (*get_alloc_size)(host_buft *buft, const host_tensor *tensor);
    bool (*is_host)(host_buft *buft);
} host_buft_iface_2;

typedef struct host_buft_iface_3 {
    const char *(*get_name)(host_buft *buft);
    host_buffer *(*alloc_buffer)(host_buft *buft, size_t size);
    host_buffer *(*alloc_buffer_n)(host_buft *buft, host_tensor **tensors, int count);
    size_t (*get_alignment)(host_buft *buft);
    size_t (*get_max_size)(host_buft *buft);
    size_t (*get_alloc_size)(host_buft *buft, const host_tensor *tensor);
    size_t (*get_alloc_size_n)(host_buft *buft, host_tensor **tensors, int count);
    bool (*is_host)(host_buft *buft);
} host_buft_iface_3;

typedef struct host_buft_2 {
    host_buft_iface_2 iface;
    host_device *device;
    void *context;
} host_buft_2;

typedef struct host_buft_3 {
    host_buft_iface_3 iface;
    host_device *device;
    void *context;
} host_buft_3;

typedef struct host_backend_iface {
    const char *(*get_name)(host_backend *backend);
    void (*free)(host_backend *backend);
    void (*set_tensor_async)(host_backend *backend, host_tensor *tensor, const void *data, size_t offset, size_t size);
    void (*get_tensor_async)(host_backend *backend, const host_tensor *tensor, void *data, size_t offset, size_t size);
    void (*set_tensor_2d_async)(host_backend *backend, host_tensor *tensor, const void *data, size_t offset,
                                size_t size, size_t copies, size_t tensor_stride, size_t data_stride);
    void (*get_tensor_2d_async)(host_backend *backend, const host_tensor *tensor, void *data, size_t offset,
                                size_t size, size_t copies, size_t tensor_stride, size_t data_stride);
    bool (*cpy_tensor_async)(host_backend *from, host_backend *to, const host_tensor *src, host_tensor *dst);
    void (*synchronize)(host_backend *backend);
    void *(*graph_plan_create)(host_backend *backend, const host_graph *graph);
    void (*graph_plan_free)(host_backend *backend, void *plan);
    void (*graph_plan_update)(host_backend *backend, void *plan, const host_graph *graph);
    int (*graph_plan_compute)(host_backend *backend, void *plan);
    int (*graph_compute)(host_backend *backend, host_graph *graph);
    void (*event_record)(host_backend *backend, host_event *event);
    void (*event_wait)(host_backend *backend, host_event *event);
    void (*graph_optimize)(void); /* its arguments differ between ggml 0.21 and 0.25.1: always NULL here */
} host_backend_iface;

struct host_backend {
    host_guid *guid;
    host_backend_iface iface;
    host_device *device;
    void *context;
};

/* mmap_support is newer than some API 2 hosts; it lies in what is padding there. */
typedef struct host_device_caps {
    bool async;
    bool host_buffer;
    bool buffer_from_host_ptr;
    bool events;
    bool mmap_support;
} host_device_caps;

typedef struct host_device_props {
    const char *name;
    const char *description;
    size_t memory_free;
    size_t memory_total;
    int type;
    const char *device_id;
    host_device_caps caps;
} host_device_props;

typedef struct host_device_iface {
    const char *(*get_name)(host_device *device);
    const char *(*get_description)(host_device *device);
    void (*get_memory)(host_device *device, size_t *free, size_t *total);
    int (*get_type)(host_device *device);
    void (*get_props)(host_device *device, host_device_props *props);
    host_backend *(*init_backend)(host_device *device, const char *params);
    host_buft *(*get_buffer_type)(host_device *device);
    host_buft *(*get_host_buffer_type)(host_device *device);
    host_buffer *(*buffer_from_host_ptr)(host_device *device, void *pointer, size_t size, size_t max_tensor_size);
    bool (*supports_op)(host_device *device, const host_tensor *op);
    bool (*supports_buft)(host_device *device, host_buft *buft);
    bool (*offload_op)(host_device *device, const host_tensor *op);
    host_event *(*event_new)(host_device *device);
    void (*event_free)(host_device *device, host_event *event);
    void (*event_synchronize)(host_device *device, host_event *event);
} host_device_iface;

struct host_device {
    host_device_iface iface;
    host_reg *reg;
    void *context;
};

typedef struct host_reg_iface {
    const char *(*get_name)(host_reg *reg);
    size_t (*get_device_count)(host_reg *reg);
    host_device *(*get_device)(host_reg *reg, size_t index);
    void *(*get_proc_address)(host_reg *reg, const char *name);
} host_reg_iface;

struct host_reg {
    int api_version;
    host_reg_iface iface;
    void *context;
};

/* What ggml_init takes. */
typedef struct host_init_params {
    size_t mem_size;
    void *mem_buffer;
    bool no_alloc;
} host_init_params;

#endif
