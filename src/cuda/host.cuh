// The host side that all calls share: the handle, checks of arguments, CUDA's errors.
#ifndef GAAC_CUDA_HOST_CUH
#define GAAC_CUDA_HOST_CUH

#include "cuda/geometry.cuh"

extern "C" {
#include "base/base.h"
}

#include <cuda_runtime.h>

struct gaac_cuda {
    gaac_allocator allocator;
    int device;
    int capability; // 90 for 9.0
    int multiprocessors;
    size_t shared_bytes; // shared memory that a block may ask for
};

namespace gaac
{

// GAAC_OK when the handle's device is the calling thread's.
gaac_status check_device(const gaac_cuda *cuda, gaac_error *error);
// Shape, alignments, strides, counts of a cache.
gaac_status check_cache(const gaac_cuda_cache *cache, gaac_error *error);
// What the launch just made came to; `what` names the call.
gaac_status check_launch(const char *what, gaac_error *error);
// status of a CUDA call as ours.
gaac_status check_cuda(cudaError_t status, const char *what, gaac_error *error);

// Each file of kernels loads its own when a handle is made (attributes set, modules loaded), so that later calls only
// launch, also inside a graph's capture.
gaac_status load_encode_kernels(const gaac_cuda *cuda, gaac_error *error);
gaac_status load_decode_kernels(const gaac_cuda *cuda, gaac_error *error);
gaac_status load_calibration_kernels(const gaac_cuda *cuda, gaac_error *error);
gaac_status load_attention_kernels(const gaac_cuda *cuda, gaac_error *error);
gaac_status load_attention_reference_kernel(const gaac_cuda *cuda, gaac_error *error);

} // namespace gaac

#endif
