// Launching the kernels of one head_dim. Each attention_<head_dim>.cu makes those of its own.
#ifndef GAAC_CUDA_ATTENTION_LAUNCH_CUH
#define GAAC_CUDA_ATTENTION_LAUNCH_CUH

#include "cuda/attention_kernel.cuh"
#include "cuda/attention_kernels.cuh"

namespace gaac
{

// As many warps as shared memory holds, in fours so that each scheduler has the same number.
template <typename kind> int warps_for(const gaac_cuda *cuda)
{
    int warps = kind::warps;
    while (warps > 4 && kind::shared_bytes(warps) + static_shared_bytes > cuda->shared_bytes)
        warps -= 4;
    return warps;
}

template <int dim> gaac_status attention_kernels<dim>::load(const gaac_cuda *cuda, gaac_error *error)
{
    cudaError_t status = cudaSuccess;
    const auto load_one = [&](auto kind_value) {
        using kind = decltype(kind_value);
        if (status == cudaSuccess)
            status = cudaFuncSetAttribute(attention<kind>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                          static_cast<int>(kind::shared_bytes(warps_for<kind>(cuda))));
    };
    load_one(attention_kind<dim, 1, false>{});
    load_one(attention_kind<dim, 1, true>{});
    load_one(attention_kind<dim, 2, false>{});
    load_one(attention_kind<dim, 2, true>{});
    return check_cuda(status, "loading the attention kernels", error);
}

template <int dim>
void attention_kernels<dim>::launch(const gaac_cuda *cuda, int columns, bool general, const attention_params &params,
                                    int ranks, cudaStream_t stream)
{
    const auto launch_one = [&](auto kind_value) {
        using kind = decltype(kind_value);
        const int warps = warps_for<kind>(cuda);
        attention<kind>
            <<<static_cast<unsigned>(ranks), static_cast<unsigned>(warps) * 32, kind::shared_bytes(warps), stream>>>(
                params);
    };
    if (columns == 1 && !general)
        launch_one(attention_kind<dim, 1, false>{});
    else if (columns == 1)
        launch_one(attention_kind<dim, 1, true>{});
    else if (!general)
        launch_one(attention_kind<dim, 2, false>{});
    else
        launch_one(attention_kind<dim, 2, true>{});
}

} // namespace gaac

#endif
