// Launching the kernels of one head_dim. Each attention_<head_dim>.cu makes those of its own.
#ifndef GAAC_CUDA_ATTENTION_LAUNCH_CUH
#define GAAC_CUDA_ATTENTION_LAUNCH_CUH

#include "cuda/attention_kernel.cuh"
#include "cuda/attention_kernels.cuh"

namespace gaac
{

// As many warps as shared memory holds: in fours, so that each scheduler has the same number, while there are that
// many.
template <typename kind> int warps_for(const gaac_cuda *cuda)
{
    int warps = kind::warps;
    while (warps > 1 && kind::shared_bytes(warps) + kind::static_shared_bytes > cuda->shared_bytes)
        warps -= warps > 8 ? 4 : 1;
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
    if constexpr (dim <= 128) {
        load_one(attention_kind<dim, 2, false>{});
        load_one(attention_kind<dim, 2, true>{});
        load_one(attention_kind<dim, 4, true>{});
    }
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
    if constexpr (dim <= 128)
        if (columns == 4) {
            launch_one(attention_kind<dim, 4, true>{});
            return;
        } else if (columns == 2) {
            if (general)
                launch_one(attention_kind<dim, 2, true>{});
            else
                launch_one(attention_kind<dim, 2, false>{});
            return;
        }
    if (general)
        launch_one(attention_kind<dim, 1, true>{});
    else
        launch_one(attention_kind<dim, 1, false>{});
}

} // namespace gaac

#endif
