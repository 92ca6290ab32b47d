#include "cuda/attention_launch.cuh"

namespace gaac
{
template struct attention_kernels<128>;
} // namespace gaac
