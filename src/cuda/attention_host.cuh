// What planning and attention share on the host: checks, and how rows are grouped.
#ifndef GAAC_CUDA_ATTENTION_HOST_CUH
#define GAAC_CUDA_ATTENTION_HOST_CUH

#include "cuda/attention_plan.cuh"
#include "cuda/host.cuh"

namespace gaac
{

gaac_status check_plan(const gaac_cuda_plan_args *args, gaac_error *error);
gaac_status check_workspace(const gaac_cuda_plan_args *args, const void *workspace, gaac_error *error);
// Cache, plan and all else that a call of attention gives, but for the workspace.
gaac_status check_attention(const gaac_cuda_cache *cache, const gaac_cuda_attention_args *args, gaac_error *error);

// Whether a kernel is built for the shape; the reference serves the others.
bool has_fast_kernel(const gaac_shape *shape);

// Groups of eight query rows that a kernel takes at once: 1, 2 or 4.
int columns_of(const gaac_cuda *cuda, const gaac_cuda_plan_args *args);
// CTAs that share the work.
int ranks_of(const gaac_cuda *cuda);
plan_shape shape_of(const gaac_cuda *cuda, const gaac_cuda_plan_args *args);
gaac_status load_plan_kernel(gaac_error *error);
workspace_layout workspace_of(const gaac_cuda *cuda, const gaac_cuda_plan_args *args);

} // namespace gaac

#endif
