/* Compiles only if integrations/llama.cpp/host_abi.h agrees with the headers of this host. */
#include "../../integrations/llama.cpp/host_abi.h"

#include "ggml-backend-impl.h"
#include "ggml-backend.h"
#include "ggml.h"

/* NOLINTBEGIN(bugprone-sizeof-expression): sizes of pointers are compared on purpose */
#define SAME_SIZE(ours, theirs) _Static_assert(sizeof(ours) == sizeof(theirs), "size of " #ours)
#define SAME_PLACE(ours, our_field, theirs, their_field)                                                               \
    _Static_assert(offsetof(ours, our_field) == offsetof(theirs, their_field) &&                                       \
                       sizeof(((ours *)0)->our_field) == sizeof(((theirs *)0)->their_field),                           \
                   #ours "." #our_field)
#define SAME(ours, theirs, field) SAME_PLACE(ours, field, theirs, field)
#define SAME_NUMBER(ours, theirs) _Static_assert((int)(ours) == (int)(theirs), #ours)

SAME_NUMBER(HOST_MAX_DIMS, GGML_MAX_DIMS);
SAME_NUMBER(HOST_MAX_SRC, GGML_MAX_SRC);
SAME_NUMBER(HOST_OP_PARAM_WORDS * 4, GGML_MAX_OP_PARAMS);
SAME_NUMBER(HOST_NAME_BYTES, GGML_MAX_NAME);
SAME_NUMBER(HOST_TYPE_F32, GGML_TYPE_F32);
SAME_NUMBER(HOST_TYPE_F16, GGML_TYPE_F16);
SAME_NUMBER(HOST_TYPE_I32, GGML_TYPE_I32);
SAME_NUMBER(HOST_TYPE_I64, GGML_TYPE_I64);
SAME_NUMBER(HOST_TYPE_BF16, GGML_TYPE_BF16);
SAME_NUMBER(HOST_STATUS_ALLOC_FAILED, GGML_STATUS_ALLOC_FAILED);
SAME_NUMBER(HOST_STATUS_FAILED, GGML_STATUS_FAILED);
SAME_NUMBER(HOST_STATUS_SUCCESS, GGML_STATUS_SUCCESS);
SAME_NUMBER(HOST_DEVICE_CPU, GGML_BACKEND_DEVICE_TYPE_CPU);
SAME_NUMBER(HOST_DEVICE_GPU, GGML_BACKEND_DEVICE_TYPE_GPU);
SAME_NUMBER(HOST_USAGE_ANY, GGML_BACKEND_BUFFER_USAGE_ANY);
SAME_NUMBER(HOST_USAGE_WEIGHTS, GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
SAME_NUMBER(HOST_USAGE_COMPUTE, GGML_BACKEND_BUFFER_USAGE_COMPUTE);
SAME_NUMBER(HOST_FLAG_COMPUTE, GGML_TENSOR_FLAG_COMPUTE);

SAME_SIZE(host_tensor, struct ggml_tensor);
SAME(host_tensor, struct ggml_tensor, type);
SAME(host_tensor, struct ggml_tensor, buffer);
SAME(host_tensor, struct ggml_tensor, ne);
SAME(host_tensor, struct ggml_tensor, nb);
SAME(host_tensor, struct ggml_tensor, op);
SAME(host_tensor, struct ggml_tensor, op_params);
SAME(host_tensor, struct ggml_tensor, flags);
SAME(host_tensor, struct ggml_tensor, src);
SAME(host_tensor, struct ggml_tensor, view_src);
SAME(host_tensor, struct ggml_tensor, view_offs);
SAME(host_tensor, struct ggml_tensor, data);
SAME(host_tensor, struct ggml_tensor, name);

SAME_SIZE(host_buffer_iface, struct ggml_backend_buffer_i);
SAME(host_buffer_iface, struct ggml_backend_buffer_i, free_buffer);
SAME(host_buffer_iface, struct ggml_backend_buffer_i, get_base);
SAME(host_buffer_iface, struct ggml_backend_buffer_i, init_tensor);
SAME(host_buffer_iface, struct ggml_backend_buffer_i, memset_tensor);
SAME(host_buffer_iface, struct ggml_backend_buffer_i, set_tensor);
SAME(host_buffer_iface, struct ggml_backend_buffer_i, get_tensor);
SAME(host_buffer_iface, struct ggml_backend_buffer_i, set_tensor_2d);
SAME(host_buffer_iface, struct ggml_backend_buffer_i, get_tensor_2d);
SAME(host_buffer_iface, struct ggml_backend_buffer_i, cpy_tensor);
SAME(host_buffer_iface, struct ggml_backend_buffer_i, clear);
SAME(host_buffer_iface, struct ggml_backend_buffer_i, reset);
SAME_SIZE(host_buffer, struct ggml_backend_buffer);
SAME(host_buffer, struct ggml_backend_buffer, buft);
SAME(host_buffer, struct ggml_backend_buffer, context);
SAME(host_buffer, struct ggml_backend_buffer, size);
SAME(host_buffer, struct ggml_backend_buffer, usage);

#if GGML_BACKEND_API_VERSION == 2
typedef host_buft_iface_2 host_buft_iface;
typedef host_buft_2 host_buft_whole;
#elif GGML_BACKEND_API_VERSION == 3
typedef host_buft_iface_3 host_buft_iface;
typedef host_buft_3 host_buft_whole;
SAME(host_buft_iface, struct ggml_backend_buffer_type_i, alloc_buffer_n);
SAME(host_buft_iface, struct ggml_backend_buffer_type_i, get_alloc_size_n);
#else
#error "a host with a backend API that the plug-in does not know"
#endif
SAME_SIZE(host_buft_iface, struct ggml_backend_buffer_type_i);
SAME(host_buft_iface, struct ggml_backend_buffer_type_i, get_name);
SAME(host_buft_iface, struct ggml_backend_buffer_type_i, alloc_buffer);
SAME(host_buft_iface, struct ggml_backend_buffer_type_i, get_alignment);
SAME(host_buft_iface, struct ggml_backend_buffer_type_i, get_max_size);
SAME(host_buft_iface, struct ggml_backend_buffer_type_i, get_alloc_size);
SAME(host_buft_iface, struct ggml_backend_buffer_type_i, is_host);
SAME_SIZE(host_buft_whole, struct ggml_backend_buffer_type);
SAME(host_buft_whole, struct ggml_backend_buffer_type, device);
SAME(host_buft_whole, struct ggml_backend_buffer_type, context);

SAME_SIZE(host_backend_iface, struct ggml_backend_i);
SAME(host_backend_iface, struct ggml_backend_i, get_name);
SAME(host_backend_iface, struct ggml_backend_i, free);
SAME(host_backend_iface, struct ggml_backend_i, synchronize);
SAME(host_backend_iface, struct ggml_backend_i, graph_compute);
SAME(host_backend_iface, struct ggml_backend_i, event_record);
SAME(host_backend_iface, struct ggml_backend_i, graph_optimize);
SAME_SIZE(host_backend, struct ggml_backend);
SAME(host_backend, struct ggml_backend, guid);
SAME(host_backend, struct ggml_backend, iface);
SAME(host_backend, struct ggml_backend, device);
SAME(host_backend, struct ggml_backend, context);

SAME_SIZE(host_device_props, struct ggml_backend_dev_props);
SAME(host_device_props, struct ggml_backend_dev_props, memory_free);
SAME(host_device_props, struct ggml_backend_dev_props, type);
SAME(host_device_props, struct ggml_backend_dev_props, device_id);
SAME(host_device_props, struct ggml_backend_dev_props, caps);
SAME(host_device_caps, struct ggml_backend_dev_caps, async);
SAME(host_device_caps, struct ggml_backend_dev_caps, events);

SAME_SIZE(host_device_iface, struct ggml_backend_device_i);
SAME(host_device_iface, struct ggml_backend_device_i, get_name);
SAME(host_device_iface, struct ggml_backend_device_i, get_description);
SAME(host_device_iface, struct ggml_backend_device_i, get_memory);
SAME(host_device_iface, struct ggml_backend_device_i, get_type);
SAME(host_device_iface, struct ggml_backend_device_i, get_props);
SAME(host_device_iface, struct ggml_backend_device_i, init_backend);
SAME(host_device_iface, struct ggml_backend_device_i, get_buffer_type);
SAME(host_device_iface, struct ggml_backend_device_i, get_host_buffer_type);
SAME(host_device_iface, struct ggml_backend_device_i, buffer_from_host_ptr);
SAME(host_device_iface, struct ggml_backend_device_i, supports_op);
SAME(host_device_iface, struct ggml_backend_device_i, supports_buft);
SAME(host_device_iface, struct ggml_backend_device_i, offload_op);
SAME(host_device_iface, struct ggml_backend_device_i, event_synchronize);
SAME_SIZE(host_device, struct ggml_backend_device);
SAME(host_device, struct ggml_backend_device, reg);
SAME(host_device, struct ggml_backend_device, context);

SAME_SIZE(host_reg_iface, struct ggml_backend_reg_i);
SAME(host_reg_iface, struct ggml_backend_reg_i, get_name);
SAME(host_reg_iface, struct ggml_backend_reg_i, get_device_count);
SAME(host_reg_iface, struct ggml_backend_reg_i, get_device);
SAME(host_reg_iface, struct ggml_backend_reg_i, get_proc_address);
SAME_SIZE(host_reg, struct ggml_backend_reg);
SAME(host_reg, struct ggml_backend_reg, api_version);
SAME(host_reg, struct ggml_backend_reg, iface);
SAME(host_reg, struct ggml_backend_reg, context);

SAME_SIZE(host_init_params, struct ggml_init_params);
SAME(host_init_params, struct ggml_init_params, mem_size);
SAME(host_init_params, struct ggml_init_params, mem_buffer);
SAME(host_init_params, struct ggml_init_params, no_alloc);
/* NOLINTEND(bugprone-sizeof-expression) */
