// The fast attention kernels by head_dim, as the host side calls them.
#ifndef GAAC_CUDA_ATTENTION_KERNELS_CUH
#define GAAC_CUDA_ATTENTION_KERNELS_CUH

#include "cuda/attention_params.cuh"
#include "cuda/host.cuh"

namespace gaac
{

template <int dim> struct attention_kernels {
    static gaac_status load(const gaac_cuda *cuda, gaac_error *error);
    // Groups of eight query rows that the device's shared memory has room for: 4, 2 or 1.
    static int most_columns(const gaac_cuda *cuda);
    // columns: groups of eight query rows, 1 or, up to head_dim 128, 2. general: anything but one query token that sees
    // all.
    static void launch(const gaac_cuda *cuda, int columns, bool general, const attention_params &params, int ranks,
                       cudaStream_t stream);
};

extern template struct attention_kernels<64>;
extern template struct attention_kernels<96>;
extern template struct attention_kernels<128>;
extern template struct attention_kernels<192>;
extern template struct attention_kernels<256>;

} // namespace gaac

#endif
