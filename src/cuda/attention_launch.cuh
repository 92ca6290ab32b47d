// Launching the kernels of one head_dim. Each attention_<head_dim>.cu makes those of its own.
#ifndef GAAC_CUDA_ATTENTION_LAUNCH_CUH
#define GAAC_CUDA_ATTENTION_LAUNCH_CUH

#include "cuda/attention_host.cuh"
#include "cuda/attention_kernel.cuh"
#include "cuda/attention_kernels.cuh"

namespace gaac
{

// As many warps as shared memory holds: in fours, so that each scheduler has the same number, while there are many. 0:
// it does not hold one.
template <typename kind> int warps_for(const gaac_cuda *cuda)
{
    int warps = kind::warps;
    while (warps > 0 && kind::shared_bytes(warps, ranks_of(cuda)) + kind::static_shared_bytes > cuda->shared_bytes)
        warps -= warps > 8 ? 4 : 1;
    return warps;
}

template <int dim> int attention_kernels<dim>::most_columns(const gaac_cuda *cuda)
{
    if constexpr (dim <= 128) {
        if (warps_for<attention_kind<dim, 4, true>>(cuda) > 0)
            return 4;
        if (warps_for<attention_kind<dim, 2, true>>(cuda) > 0 && warps_for<attention_kind<dim, 2, false>>(cuda) > 0)
            return 2;
    }
    return 1;
}

template <int dim> gaac_status attention_kernels<dim>::load(const gaac_cuda *cuda, gaac_error *error)
{
    cudaError_t status = cudaSuccess;
    bool fits = true;
    const auto load_one = [&](auto kind_value) {
        using kind = decltype(kind_value);
        const int warps = warps_for<kind>(cuda);
        fits &= warps > 0;
        if (status == cudaSuccess && warps > 0)
            status = cudaFuncSetAttribute(attention<kind>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                          static_cast<int>(kind::shared_bytes(warps, ranks_of(cuda))));
    };
    load_one(attention_kind<dim, 1, false>{});
    load_one(attention_kind<dim, 1, true>{});
    if (!fits)
        return gaac_fail(error, GAAC_ERROR_UNSUPPORTED,
                         "attention for head_dim %d needs more shared memory than the %zu bytes that a thread block "
                         "of this device may have",
                         dim, cuda->shared_bytes);
    if constexpr (dim <= 128) {
        if (most_columns(cuda) >= 2) {
            load_one(attention_kind<dim, 2, false>{});
            load_one(attention_kind<dim, 2, true>{});
        }
        if (most_columns(cuda) == 4)
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
        attention<kind><<<static_cast<unsigned>(ranks), static_cast<unsigned>(warps) * 32,
                          kind::shared_bytes(warps, ranks), stream>>>(params);
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
