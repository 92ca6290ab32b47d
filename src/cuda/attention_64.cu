#include "cuda/attention_launch.cuh"

namespace gaac
{
template struct attention_kernels<64>;
} // namespace gaac
