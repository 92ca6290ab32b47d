// Decode attention: checking what is asked for, choosing the kernel, launching it.
#include "cuda/attention_host.cuh"
#include "cuda/attention_kernels.cuh"

#include <cmath>

namespace gaac
{

bool has_fast_kernel(const gaac_shape *shape)
{
    if (shape->head_dim_k != shape->head_dim_v)
        return false;
    switch (shape->head_dim_k) {
    case 64:
    case 96:
    case 128:
    case 192:
    case 256:
        return true;
    default:
        return false;
    }
}

gaac_status check_plan(const gaac_cuda_plan_args *args, gaac_error *error)
{
    if (args == nullptr)
        return gaac_fail(error, GAAC_ERROR_INVALID_ARGUMENT, "the plan's arguments are NULL");
    const gaac_status status = gaac_shape_check(&args->shape, error);
    if (status != GAAC_OK)
        return status;
    if (args->query_heads == 0 || args->query_heads % args->shape.kv_heads != 0)
        return gaac_fail(error, GAAC_ERROR_INVALID_ARGUMENT,
                         "query_heads is %u: it must be a multiple of kv_heads, which is %u", args->query_heads,
                         args->shape.kv_heads);
    if (args->query_tokens == 0 || args->query_tokens > GAAC_CUDA_MAX_QUERY_TOKENS)
        return gaac_fail(error, GAAC_ERROR_INVALID_ARGUMENT,
                         "query_tokens is %u: decode attention takes 1 to %d; for more, gaac_cuda_expand the cache and "
                         "call a prefill kernel",
                         args->query_tokens, GAAC_CUDA_MAX_QUERY_TOKENS);
    if (args->query_heads / args->shape.kv_heads > 65536)
        return gaac_fail(error, GAAC_ERROR_INVALID_ARGUMENT, "%u query heads of a KV head are too many",
                         args->query_heads / args->shape.kv_heads);
    const uint64_t items =
        static_cast<uint64_t>(args->sequences) * args->shape.kv_heads *
        (args->query_tokens * static_cast<uint64_t>(args->query_heads / args->shape.kv_heads) / 8 + 1);
    if (items > INT32_MAX)
        return gaac_fail(error, GAAC_ERROR_INVALID_ARGUMENT, "%u sequences are too many for one call", args->sequences);
    return GAAC_OK;
}

gaac_status check_workspace(const gaac_cuda_plan_args *args, const void *workspace, gaac_error *error)
{
    if (args->sequences > 0 && (workspace == nullptr || reinterpret_cast<uintptr_t>(workspace) % 256 != 0))
        return gaac_fail(error, GAAC_ERROR_INVALID_ARGUMENT,
                         "workspace must be device memory on a 256-byte boundary, of gaac_cuda_plan_bytes bytes");
    return GAAC_OK;
}

static uint32_t rows_of(const gaac_cuda_plan_args *args)
{
    return args->query_tokens * (args->query_heads / args->shape.kv_heads);
}

int columns_of(const gaac_cuda *cuda, const gaac_cuda_plan_args *args)
{
    // More than one of a wide head doesn't fit the registers: its rows are groups of work instead.
    if (rows_of(args) <= 8 || args->shape.head_dim_v > 128)
        return 1;
    int most = 1;
    switch (args->shape.head_dim_v) {
    case 64:
        most = attention_kernels<64>::most_columns(cuda);
        break;
    case 96:
        most = attention_kernels<96>::most_columns(cuda);
        break;
    case 128:
        most = attention_kernels<128>::most_columns(cuda);
        break;
    default:
        break;
    }
    const int wanted = rows_of(args) <= 16 ? 2 : 4;
    return wanted < most ? wanted : most;
}

plan_shape shape_of(const gaac_cuda *cuda, const gaac_cuda_plan_args *args)
{
    const int rows = 8 * columns_of(cuda, args);
    plan_shape shape;
    shape.sequences = static_cast<int>(args->sequences);
    shape.kv_heads = static_cast<int>(args->shape.kv_heads);
    shape.row_groups = (static_cast<int>(rows_of(args)) + rows - 1) / rows;
    shape.query_tokens = static_cast<int>(args->query_tokens);
    shape.window = args->window;
    shape.lengths = args->lengths;
    shape.query_start = args->query_start;
    return shape;
}

int ranks_of(const gaac_cuda *cuda)
{
    return cuda->multiprocessors < most_ranks ? cuda->multiprocessors : most_ranks;
}

workspace_layout workspace_of(const gaac_cuda *cuda, const gaac_cuda_plan_args *args)
{
    return layout_workspace(ranks_of(cuda), static_cast<int>(args->sequences), 8 * columns_of(cuda, args),
                            static_cast<int>(args->shape.head_dim_v));
}

gaac_status load_attention_kernels(const gaac_cuda *cuda, gaac_error *error)
{
    gaac_status status = load_plan_kernel(error);
    if (status == GAAC_OK)
        status = attention_kernels<64>::load(cuda, error);
    if (status == GAAC_OK)
        status = attention_kernels<96>::load(cuda, error);
    if (status == GAAC_OK)
        status = attention_kernels<128>::load(cuda, error);
    if (status == GAAC_OK)
        status = attention_kernels<192>::load(cuda, error);
    if (status == GAAC_OK)
        status = attention_kernels<256>::load(cuda, error);
    return status;
}

static bool is_aligned(const void *pointer, size_t stride_a, size_t stride_b, size_t element, size_t alignment)
{
    return pointer != nullptr && reinterpret_cast<uintptr_t>(pointer) % alignment == 0 &&
           stride_a * element % alignment == 0 && stride_b * element % alignment == 0;
}

gaac_status check_attention(const gaac_cuda_cache *cache, const gaac_cuda_attention_args *args, gaac_error *error)
{
    gaac_status status = check_cache(cache, error);
    if (status != GAAC_OK)
        return status;
    if (args == nullptr)
        return gaac_fail(error, GAAC_ERROR_INVALID_ARGUMENT, "the arguments are NULL");
    if ((status = check_plan(&args->plan, error)) != GAAC_OK)
        return status;
    const gaac_shape *planned = &args->plan.shape;
    if (planned->kv_heads != cache->shape.kv_heads || planned->head_dim_k != cache->shape.head_dim_k ||
        planned->head_dim_v != cache->shape.head_dim_v)
        return gaac_fail(error, GAAC_ERROR_INVALID_ARGUMENT, "the plan is for another shape than the cache's");
    if (args->plan.sequences == 0)
        return GAAC_OK;
    if (args->plan.lengths == nullptr)
        return gaac_fail(error, GAAC_ERROR_INVALID_ARGUMENT, "lengths is NULL");
    if (args->block_table == nullptr)
        return gaac_fail(error, GAAC_ERROR_INVALID_ARGUMENT, "block_table is NULL");
    if (!is_aligned(args->q, args->q_token_stride, args->q_head_stride, 2, 16))
        return gaac_fail(error, GAAC_ERROR_INVALID_ARGUMENT,
                         "q must lie on a 16-byte boundary, its strides be multiples of 8 elements");
    if (args->out_type != GAAC_CUDA_BF16 && args->out_type != GAAC_CUDA_F32)
        return gaac_fail(error, GAAC_ERROR_INVALID_ARGUMENT, "out_type is %d, no gaac_cuda_type",
                         static_cast<int>(args->out_type));
    const size_t element = args->out_type == GAAC_CUDA_F32 ? 4 : 2;
    if (!is_aligned(args->out, args->out_token_stride, args->out_head_stride, element, 8))
        return gaac_fail(error, GAAC_ERROR_INVALID_ARGUMENT,
                         "out must lie on an 8-byte boundary, and so must each of its rows");
    if (!(args->scale > 0) || std::isinf(args->scale))
        return gaac_fail(error, GAAC_ERROR_INVALID_ARGUMENT, "scale is %g: it must be above 0 and finite",
                         static_cast<double>(args->scale));
    if (!(args->softcap >= 0) || std::isinf(args->softcap))
        return gaac_fail(error, GAAC_ERROR_INVALID_ARGUMENT, "softcap is %g: it must be 0 (none) or above, and finite",
                         static_cast<double>(args->softcap));
    return GAAC_OK;
}

static attention_params params_of(const gaac_cuda *cuda, const gaac_cuda_cache *cache,
                                  const gaac_cuda_attention_args *args)
{
    constexpr float log2_e = 1.442695041f;
    geometry all;
    make_geometry(&all, &cache->shape, cache->pool_bytes);
    uint8_t *bytes = static_cast<uint8_t *>(args->workspace);
    const workspace_layout at = workspace_of(cuda, &args->plan);
    attention_params params;
    params.cache = view_of(cache);
    params.fixed_bytes = all.layout.fixed_bytes;
    params.raw_bytes = all.layout.raw_bytes;
    params.window_bytes = all.window_bytes;
    params.shape = shape_of(cuda, &args->plan);
    params.work = reinterpret_cast<const rank_work *>(bytes + at.work);
    params.counters = reinterpret_cast<uint32_t *>(bytes + at.counters);
    params.maxima = reinterpret_cast<float *>(bytes + at.maxima);
    params.totals = reinterpret_cast<float *>(bytes + at.totals);
    params.partial = reinterpret_cast<float *>(bytes + at.partial);
    params.block_table = args->block_table;
    params.block_table_stride = args->block_table_stride;
    params.q = args->q;
    params.q_token_stride = args->q_token_stride;
    params.q_head_stride = args->q_head_stride;
    params.out = args->out;
    params.out_token_stride = args->out_token_stride;
    params.out_head_stride = args->out_head_stride;
    params.lse = args->lse;
    params.slopes = args->slopes;
    params.sinks = args->sinks;
    params.scale_log2 = args->scale * log2_e;
    params.softcap = args->softcap * log2_e;
    params.softcap_in = args->softcap > 0 ? args->scale / args->softcap : 0;
    params.group = static_cast<int>(args->plan.query_heads / cache->shape.kv_heads);
    params.query_heads = static_cast<int>(args->plan.query_heads);
    params.out_f32 = args->out_type == GAAC_CUDA_F32;
    params.f = make_factors();
    return params;
}

} // namespace gaac

using namespace gaac;

const char *gaac_cuda_attention_kernel(const gaac_cuda *cuda, const gaac_shape *shape)
{
    if (cuda == nullptr || !has_fast_kernel(shape))
        return "general";
#ifdef GAAC_CUDA_ASYNC_COPIES
    return "async";
#else
    return cuda->capability >= 90 ? "bulk" : "async";
#endif
}

gaac_status gaac_cuda_attention(const gaac_cuda *cuda, const gaac_cuda_cache *cache,
                                const gaac_cuda_attention_args *args, gaac_cuda_stream stream, gaac_error *error)
{
    gaac_status status = check_device(cuda, error);
    if (status == GAAC_OK)
        status = check_attention(cache, args, error);
    if (status != GAAC_OK || args->plan.sequences == 0)
        return status;
    if (!has_fast_kernel(&cache->shape))
        return gaac_cuda_attention_reference(cuda, cache, args, stream, error);
    if ((status = check_workspace(&args->plan, args->workspace, error)) != GAAC_OK)
        return status;
    const attention_params params = params_of(cuda, cache, args);
    const int columns = columns_of(cuda, &args->plan), ranks = ranks_of(cuda);
    const bool general = columns > 2 || args->plan.query_tokens > 1 || args->plan.query_start != nullptr ||
                         args->plan.window != 0 || args->softcap > 0 || args->slopes != nullptr;
    switch (cache->shape.head_dim_k) {
    case 64:
        attention_kernels<64>::launch(cuda, columns, general, params, ranks, stream);
        break;
    case 96:
        attention_kernels<96>::launch(cuda, columns, general, params, ranks, stream);
        break;
    case 128:
        attention_kernels<128>::launch(cuda, columns, general, params, ranks, stream);
        break;
    case 192:
        attention_kernels<192>::launch(cuda, columns, general, params, ranks, stream);
        break;
    default:
        attention_kernels<256>::launch(cuda, columns, general, params, ranks, stream);
        break;
    }
    return check_launch("attention", error);
}
