// Handle, geometry and the checks that all calls share.
#include "cuda/host.cuh"

#include <cstring>

namespace gaac
{

gaac_status check_cuda(cudaError_t status, const char *what, gaac_error *error)
{
    if (status == cudaSuccess)
        return GAAC_OK;
    (void)cudaGetLastError(); // it is told here, not by the next call
    const bool memory = status == cudaErrorMemoryAllocation;
    return gaac_fail(error, memory ? GAAC_ERROR_OUT_OF_MEMORY : GAAC_ERROR_UNSUPPORTED, "%s: CUDA says: %s", what,
                     cudaGetErrorString(status));
}

gaac_status check_launch(const char *what, gaac_error *error)
{
    return check_cuda(cudaGetLastError(), what, error);
}

gaac_status check_device(const gaac_cuda *cuda, gaac_error *error)
{
    if (cuda == nullptr)
        return gaac_fail(error, GAAC_ERROR_INVALID_ARGUMENT, "the handle is NULL: make one with gaac_cuda_create");
    int device = -1;
    const gaac_status status = check_cuda(cudaGetDevice(&device), "asking for the current device", error);
    if (status != GAAC_OK)
        return status;
    if (device != cuda->device)
        return gaac_fail(error, GAAC_ERROR_INVALID_ARGUMENT,
                         "the current device is %d, the handle's is %d: call cudaSetDevice first", device,
                         cuda->device);
    return GAAC_OK;
}

void make_geometry(geometry *out, const gaac_shape *shape, uint32_t pool_bytes)
{
    memset(out, 0, sizeof *out);
    gaac_layout_init(&out->layout, shape);
    for (uint32_t u = 0; u < out->layout.units; u++) {
        const gaac_unit *unit = &out->layout.unit[u];
        out->window_k[u] = out->head_window_bytes;
        out->head_window_bytes += unit->has_k ? window_k_bytes * unit->hv : 0;
        out->window_v[u] = out->head_window_bytes;
        out->head_window_bytes += unit->has_v ? window_v_bytes * unit->hv : 0;
    }
    out->window_bytes = (out->head_window_bytes * shape->kv_heads + 127) / 128 * 128;
    out->entries = out->layout.coded_units * shape->kv_heads;
    out->slot_bytes = out->layout.fixed_bytes + pool_bytes;
}

cache_view view_of(const gaac_cuda_cache *cache)
{
    cache_view view;
    view.slots = static_cast<uint8_t *>(cache->slots);
    view.slot_stride = cache->slot_stride;
    view.entries = cache->entries;
    view.entry_stride = cache->entry_stride;
    view.raw = static_cast<uint8_t *>(cache->raw);
    view.raw_used = cache->raw_used;
    view.raw_blocks = cache->raw_blocks;
    view.blocks = cache->blocks;
    view.pool_bytes = cache->pool_bytes;
    view.epochs = cache->epochs;
    view.windows = static_cast<const uint8_t *>(cache->windows);
    view.counters = cache->counters;
    return view;
}

static gaac_status check_pool(const gaac_shape *shape, uint32_t pool_bytes, gaac_error *error)
{
    const gaac_status status = gaac_shape_check(shape, error);
    if (status != GAAC_OK)
        return status;
    if (shape->head_dim_k < GAAC_HALF_CHANNELS && shape->head_dim_v < GAAC_HALF_CHANNELS)
        return gaac_fail(error, GAAC_ERROR_UNSUPPORTED, "head_dim %u and %u: nothing is coded below 64 channels",
                         shape->head_dim_k, shape->head_dim_v);
    if (pool_bytes % 128 != 0 || pool_bytes > GAAC_MAX_POOL_BYTES)
        return gaac_fail(error, GAAC_ERROR_INVALID_ARGUMENT,
                         "pool_bytes is %u: it must be a multiple of 128, at most %d", pool_bytes, GAAC_MAX_POOL_BYTES);
    return GAAC_OK;
}

static bool aligned(const void *pointer, uintptr_t alignment)
{
    return pointer != nullptr && reinterpret_cast<uintptr_t>(pointer) % alignment == 0;
}

gaac_status check_cache(const gaac_cuda_cache *cache, gaac_error *error)
{
    if (cache == nullptr)
        return gaac_fail(error, GAAC_ERROR_INVALID_ARGUMENT, "the cache is NULL");
    const gaac_status status = check_pool(&cache->shape, cache->pool_bytes, error);
    if (status != GAAC_OK)
        return status;
    geometry sizes;
    make_geometry(&sizes, &cache->shape, cache->pool_bytes);
    if (cache->blocks == 0 || cache->blocks > INT32_MAX)
        return gaac_fail(error, GAAC_ERROR_INVALID_ARGUMENT, "blocks is %u: it must be 1 to 2^31 - 1", cache->blocks);
    if (!aligned(cache->slots, 128) || !aligned(cache->raw, 128) || !aligned(cache->windows, 128))
        return gaac_fail(error, GAAC_ERROR_INVALID_ARGUMENT,
                         "slots, raw and windows must be device memory on 128-byte boundaries");
    if (!aligned(cache->entries, 8) || !aligned(cache->raw_used, 4) || !aligned(cache->counters, 8))
        return gaac_fail(error, GAAC_ERROR_INVALID_ARGUMENT,
                         "entries, raw_used and counters must be device memory on 8-byte boundaries");
    if (cache->slot_stride % 128 != 0 || cache->slot_stride < sizes.slot_bytes)
        return gaac_fail(error, GAAC_ERROR_INVALID_ARGUMENT,
                         "slot_stride is %llu: it must be a multiple of 128, at least %u",
                         static_cast<unsigned long long>(cache->slot_stride), sizes.slot_bytes);
    // Kernels read the entries of a head's two units at once.
    const bool pairs = sizes.layout.coded_units % 2 == 0;
    if (cache->entry_stride < sizes.entries || (pairs && cache->entry_stride % 2 != 0))
        return gaac_fail(error, GAAC_ERROR_INVALID_ARGUMENT, "entry_stride is %llu: it must be at least %u%s",
                         static_cast<unsigned long long>(cache->entry_stride), sizes.entries, pairs ? " and even" : "");
    if (cache->raw_blocks == 0 || cache->raw_blocks > INT32_MAX - 1)
        return gaac_fail(error, GAAC_ERROR_INVALID_ARGUMENT,
                         "raw_blocks is %u: open blocks are raw, so at least one for each sequence is needed",
                         cache->raw_blocks);
    if (cache->epochs == 0 || cache->epochs > GAAC_CUDA_MAX_EPOCHS)
        return gaac_fail(error, GAAC_ERROR_INVALID_ARGUMENT, "epochs is %u: it must be 1 to %d", cache->epochs,
                         GAAC_CUDA_MAX_EPOCHS);
    return GAAC_OK;
}

} // namespace gaac

using namespace gaac;

gaac_status gaac_cuda_get_sizes(const gaac_shape *shape, uint32_t pool_bytes, gaac_cuda_sizes *sizes, gaac_error *error)
{
    const gaac_status status = check_pool(shape, pool_bytes, error);
    if (status != GAAC_OK)
        return status;
    if (sizes == nullptr)
        return gaac_fail(error, GAAC_ERROR_INVALID_ARGUMENT, "there is nowhere to put the sizes: sizes is NULL");
    geometry all;
    make_geometry(&all, shape, pool_bytes);
    sizes->slot_bytes = all.slot_bytes;
    sizes->entries_per_block = all.entries;
    sizes->raw_bytes = all.layout.raw_bytes;
    sizes->window_table_bytes = static_cast<size_t>(shape->kv_heads) * (shape->head_dim_k + 2 * shape->head_dim_v);
    sizes->window_bytes = all.window_bytes;
    sizes->histogram_counts =
        static_cast<size_t>(shape->kv_heads) * 256 * (shape->head_dim_k + 2 * static_cast<size_t>(shape->head_dim_v));
    return GAAC_OK;
}

gaac_status gaac_cuda_create(gaac_cuda **cuda, int device, const gaac_allocator *allocator, gaac_error *error)
{
    if (cuda == nullptr)
        return gaac_fail(error, GAAC_ERROR_INVALID_ARGUMENT, "there is nowhere to put the handle: cuda is NULL");
    *cuda = nullptr;
    const cudaError_t chosen = cudaSetDevice(device);
    (void)cudaGetLastError();
    if (chosen == cudaErrorInsufficientDriver || chosen == cudaErrorNoDevice)
        return gaac_fail(error, GAAC_ERROR_UNSUPPORTED,
                         "no NVIDIA GPU can be used: there is no driver, or one too old for CUDA %d, or no device (%s)",
                         CUDART_VERSION / 1000, cudaGetErrorString(chosen));
    gaac_status status = check_cuda(chosen, "choosing the device", error);
    if (status != GAAC_OK)
        return status;
    int major = 0, minor = 0, multiprocessors = 0, shared = 0;
    cudaError_t asked = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    if (asked == cudaSuccess)
        asked = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
    if (asked == cudaSuccess)
        asked = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
    if (asked == cudaSuccess)
        asked = cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    status = check_cuda(asked, "asking what the device can do", error);
    if (status != GAAC_OK)
        return status;
    if (major < 8)
        return gaac_fail(error, GAAC_ERROR_UNSUPPORTED,
                         "device %d has compute capability %d.%d: BF16 tensor cores need 8.0", device, major, minor);
    const gaac_allocator hook = gaac_allocator_or_default(allocator);
    gaac_cuda *handle = static_cast<gaac_cuda *>(hook.allocate(hook.user, sizeof *handle, alignof(gaac_cuda)));
    if (handle == nullptr)
        return gaac_fail(error, GAAC_ERROR_OUT_OF_MEMORY, "no memory for a handle");
    handle->allocator = hook;
    handle->device = device;
    handle->capability = 10 * major + minor;
    handle->multiprocessors = multiprocessors;
    handle->shared_bytes = static_cast<size_t>(shared);
    if ((status = load_encode_kernels(handle, error)) != GAAC_OK ||
        (status = load_decode_kernels(handle, error)) != GAAC_OK ||
        (status = load_calibration_kernels(handle, error)) != GAAC_OK ||
        (status = load_attention_kernels(handle, error)) != GAAC_OK ||
        (status = load_attention_reference_kernel(handle, error)) != GAAC_OK) {
        gaac_cuda_destroy(handle);
        return status;
    }
    *cuda = handle;
    return GAAC_OK;
}

void gaac_cuda_destroy(gaac_cuda *cuda)
{
    if (cuda != nullptr) {
        const gaac_allocator hook = cuda->allocator;
        hook.release(hook.user, cuda, sizeof *cuda);
    }
}
