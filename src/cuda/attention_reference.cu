// Attention by the simplest kernel that is right: one CTA for each query row and query head walks over the blocks that
// the query sees, reads every element by itself, and sums in double precision.
#include "cuda/element.cuh"
#include "cuda/host.cuh"

namespace gaac
{
namespace
{

constexpr unsigned reference_threads = 128;
constexpr unsigned threads_of_cell = reference_threads / GAAC_BLOCK_TOKENS;
constexpr unsigned channels_of_thread = GAAC_MAX_HEAD_DIM / reference_threads;

struct reference_params {
    geometry layout;
    cache_view cache;
    gaac_cuda_attention_args args;
    uint32_t window_stride; // from epoch to epoch
};

// A block as one KV head has it.
struct head_block {
    bool raw;
    const uint8_t *fixed;    // the head's fixed area, or its part of the raw block
    const uint8_t *pool;     // coded only
    const uint32_t *entries; // coded only: the head's
    const uint8_t *windows;  // coded only: the head's, of the entry's epoch
};

// False where there is no block.
__device__ bool find_block(const reference_params &p, int32_t block, unsigned head, head_block *out)
{
    if (block < 0 || static_cast<uint32_t>(block) >= p.cache.blocks)
        return false;
    const gaac_layout &layout = p.layout.layout;
    const uint32_t *entries = p.cache.entries + static_cast<uint64_t>(block) * p.cache.entry_stride;
    const uint32_t entry = entries[head * layout.coded_units];
    if (entry_is_empty(entry))
        return false;
    out->raw = entry_is_raw(entry);
    if (out->raw) {
        out->fixed = p.cache.raw + static_cast<uint64_t>(entry & ~entry_raw) * layout.raw_bytes +
                     static_cast<uint64_t>(head) * layout.head_raw_bytes;
        return true;
    }
    const uint8_t *slot = p.cache.slots + static_cast<uint64_t>(block) * p.cache.slot_stride;
    out->fixed = slot + static_cast<uint64_t>(head) * layout.head_fixed_bytes;
    out->pool = slot + layout.fixed_bytes;
    out->entries = entries + head * layout.coded_units;
    out->windows = p.cache.windows +
                   static_cast<uint64_t>(entry >> entry_epoch_shift & entry_epoch_mask) * p.window_stride +
                   static_cast<uint64_t>(head) * p.layout.head_window_bytes;
    return true;
}

__device__ coded_unit find_unit(const reference_params &p, const head_block &block, unsigned u)
{
    const gaac_unit &unit = p.layout.layout.unit[u];
    const uint32_t entry = block.entries[unit.entry];
    coded_unit out;
    out.hv = unit.hv;
    out.fixed[GAAC_K] = block.fixed + unit.fixed_offset;
    out.fixed[GAAC_V] = block.fixed + unit.fixed_v_offset;
    out.variable = block.pool + gaac_entry_offset(entry);
    out.variable_bytes = gaac_entry_length(entry);
    out.exceptions = gaac_entry_exceptions(entry);
    out.windows[GAAC_K] = reinterpret_cast<const uint32_t *>(block.windows + p.layout.window_k[u]);
    out.windows[GAAC_V] = reinterpret_cast<const uint32_t *>(block.windows + p.layout.window_v[u]);
    return out;
}

__device__ float float_of(uint32_t bits)
{
    return __uint_as_float(bits << 16);
}

// BF16 nearest to a float, ties to even; a NaN stays one.
__device__ uint16_t bits_of(float value)
{
    const uint32_t word = __float_as_uint(value);
    if (isnan(value))
        return static_cast<uint16_t>(word >> 16 | 0x40);
    return static_cast<uint16_t>((word + 0x7fff + (word >> 16 & 1)) >> 16);
}

// lane_start: [unit][lane], where the lanes' stored bytes begin.
__device__ float read_element(const reference_params &p, const head_block &block, gaac_part part, unsigned token,
                              unsigned channel, const uint32_t (*lane_start)[GAAC_LANES])
{
    unsigned u = 0;
    for (;; u++) {
        const gaac_unit &unit = p.layout.layout.unit[u];
        if ((part == GAAC_K ? unit.has_k : unit.has_v) && channel < static_cast<unsigned>(unit.channel) + unit.channels)
            break;
    }
    const gaac_unit &unit = p.layout.layout.unit[u];
    const element_place at = element_at(part, unit.fragments, token, channel - unit.channel);
    if (block.raw)
        return float_of(
            element_of_fragments(part, at, block.fixed + (part == GAAC_K ? unit.raw_k_offset : unit.raw_v_offset)));
    if (unit.hv == 0)
        return float_of(
            element_of_fragments(part, at, block.fixed + (part == GAAC_K ? unit.fixed_offset : unit.fixed_v_offset)));
    return float_of(element_of_unit(part, at, find_unit(p, block, u), lane_start[u][4 * at.g + at.t]));
}

__global__ void __launch_bounds__(reference_threads)
    attention_reference_kernel(const __grid_constant__ reference_params p)
{
    __shared__ uint32_t lane_start[GAAC_MAX_UNITS][GAAC_LANES];
    __shared__ double scores[GAAC_BLOCK_TOKENS];

    const gaac_cuda_attention_args &args = p.args;
    const gaac_cuda_plan_args &plan = args.plan;
    const gaac_shape &shape = plan.shape;
    const unsigned query_head = blockIdx.x % plan.query_heads;
    const unsigned query = blockIdx.x / plan.query_heads % plan.query_tokens;
    const unsigned sequence = blockIdx.x / plan.query_heads / plan.query_tokens;
    const unsigned head = query_head / (plan.query_heads / shape.kv_heads);
    int32_t row = static_cast<int32_t>(sequence * plan.query_tokens), queries = static_cast<int32_t>(plan.query_tokens);
    if (plan.query_start != nullptr) {
        row = plan.query_start[sequence];
        queries = plan.query_start[sequence + 1] - row;
    }
    if (static_cast<int32_t>(query) >= queries)
        return;
    row += static_cast<int32_t>(query);

    // The cells that it sees: first .. own.
    const int64_t length = plan.lengths[sequence];
    const int64_t own = length <= 0 ? -1 : length - queries + query;
    const int64_t first = plan.window == 0 || own < plan.window ? 0 : own - plan.window + 1;
    const uint16_t *q = args.q + static_cast<size_t>(row) * args.q_token_stride + query_head * args.q_head_stride;
    const double slope = args.slopes == nullptr ? 0 : args.slopes[query_head];

    double most = -INFINITY, sum = 0, total[channels_of_thread] = {};
    if (args.sinks != nullptr) {
        most = args.sinks[query_head];
        sum = 1;
    }
    for (int64_t start = first / GAAC_BLOCK_TOKENS * GAAC_BLOCK_TOKENS; start <= own; start += GAAC_BLOCK_TOKENS) {
        head_block block;
        if (!find_block(p, args.block_table[sequence * args.block_table_stride + start / GAAC_BLOCK_TOKENS], head,
                        &block))
            continue;
        for (unsigned i = threadIdx.x; !block.raw && i < p.layout.layout.units * GAAC_LANES; i += reference_threads)
            if (p.layout.layout.unit[i / GAAC_LANES].hv > 0) {
                const coded_unit unit = find_unit(p, block, i / GAAC_LANES);
                lane_start[i / GAAC_LANES][i % GAAC_LANES] = element_lane_start(unit.hv, unit.variable, i % GAAC_LANES);
            }
        __syncthreads();

        const unsigned token = threadIdx.x / threads_of_cell;
        const int64_t cell = start + token;
        const bool seen = cell >= first && cell <= own;
        double score = 0;
        for (unsigned channel = threadIdx.x % threads_of_cell; seen && channel < shape.head_dim_k;
             channel += threads_of_cell)
            score +=
                static_cast<double>(float_of(q[channel])) * read_element(p, block, GAAC_K, token, channel, lane_start);
        for (unsigned step = 1; step < threads_of_cell; step *= 2)
            score += __shfl_xor_sync(0xffffffffu, score, step);
        score *= args.scale;
        if (args.softcap != 0)
            score = args.softcap * tanh(score / args.softcap);
        score += slope * static_cast<double>(cell - own);
        if (threadIdx.x % threads_of_cell == 0)
            scores[token] = seen ? score : -INFINITY;
        __syncthreads();

        double highest = most;
        for (unsigned t = 0; t < GAAC_BLOCK_TOKENS; t++)
            highest = fmax(highest, scores[t]);
        const double rescale = highest == -INFINITY ? 1 : exp(most - highest);
        most = highest;
        sum *= rescale;
        for (unsigned i = 0; i < channels_of_thread; i++)
            total[i] *= rescale;
        for (unsigned t = 0; t < GAAC_BLOCK_TOKENS; t++) {
            if (start + t < first || start + t > own)
                continue;
            const double weight = highest == -INFINITY ? 0 : exp(scores[t] - highest);
            sum += weight;
            for (unsigned i = 0; i < channels_of_thread; i++) {
                const unsigned channel = threadIdx.x + i * reference_threads;
                if (channel < shape.head_dim_v)
                    total[i] += weight * read_element(p, block, GAAC_V, t, channel, lane_start);
            }
        }
        __syncthreads();
    }

    for (unsigned i = 0; i < channels_of_thread; i++) {
        const unsigned channel = threadIdx.x + i * reference_threads;
        if (channel >= shape.head_dim_v)
            break;
        const float value = sum == 0 ? 0.0f : static_cast<float>(total[i] / sum);
        const size_t at =
            static_cast<size_t>(row) * args.out_token_stride + query_head * args.out_head_stride + channel;
        if (args.out_type == GAAC_CUDA_F32)
            static_cast<float *>(args.out)[at] = value;
        else
            static_cast<uint16_t *>(args.out)[at] = bits_of(value);
    }
    if (args.lse != nullptr && threadIdx.x == 0)
        args.lse[static_cast<size_t>(row) * plan.query_heads + query_head] = static_cast<float>(most + log(sum));
}

gaac_status check_reference(const gaac_cuda_cache *cache, const gaac_cuda_attention_args *args, gaac_error *error)
{
    if (args == nullptr)
        return gaac_fail(error, GAAC_ERROR_INVALID_ARGUMENT, "the arguments are NULL");
    const gaac_cuda_plan_args *plan = &args->plan;
    const gaac_shape *shape = &plan->shape;
    if (shape->kv_heads != cache->shape.kv_heads || shape->head_dim_k != cache->shape.head_dim_k ||
        shape->head_dim_v != cache->shape.head_dim_v)
        return gaac_fail(error, GAAC_ERROR_INVALID_ARGUMENT,
                         "the plan's shape (%u heads, %u and %u channels) is not the cache's (%u, %u, %u)",
                         shape->kv_heads, shape->head_dim_k, shape->head_dim_v, cache->shape.kv_heads,
                         cache->shape.head_dim_k, cache->shape.head_dim_v);
    if (plan->query_heads == 0 || plan->query_heads % shape->kv_heads != 0)
        return gaac_fail(error, GAAC_ERROR_INVALID_ARGUMENT, "query_heads is %u: it must be a multiple of %u",
                         plan->query_heads, shape->kv_heads);
    if (plan->query_tokens == 0 || plan->query_tokens > GAAC_CUDA_MAX_QUERY_TOKENS)
        return gaac_fail(error, GAAC_ERROR_INVALID_ARGUMENT, "query_tokens is %u: it must be 1 to %d",
                         plan->query_tokens, GAAC_CUDA_MAX_QUERY_TOKENS);
    if (plan->sequences > INT32_MAX / plan->query_heads / plan->query_tokens)
        return gaac_fail(error, GAAC_ERROR_INVALID_ARGUMENT, "%u sequences: too many for one call", plan->sequences);
    if (plan->lengths == nullptr || args->block_table == nullptr || args->q == nullptr || args->out == nullptr)
        return gaac_fail(error, GAAC_ERROR_INVALID_ARGUMENT, "lengths, block_table, q and out must not be NULL");
    if (!(args->scale > 0) || !(args->softcap >= 0))
        return gaac_fail(error, GAAC_ERROR_INVALID_ARGUMENT, "scale must be above 0 and softcap not below");
    if (args->out_type != GAAC_CUDA_BF16 && args->out_type != GAAC_CUDA_F32)
        return gaac_fail(error, GAAC_ERROR_INVALID_ARGUMENT, "out_type is %d: it must be BF16 or F32",
                         static_cast<int>(args->out_type));
    return GAAC_OK;
}

} // namespace

gaac_status load_attention_reference_kernel(const gaac_cuda *cuda, gaac_error *error)
{
    (void)cuda;
    cudaFuncAttributes attributes;
    return check_cuda(cudaFuncGetAttributes(&attributes, attention_reference_kernel),
                      "loading the reference attention kernel", error);
}

} // namespace gaac

using namespace gaac;

gaac_status gaac_cuda_attention_reference(const gaac_cuda *cuda, const gaac_cuda_cache *cache,
                                          const gaac_cuda_attention_args *args, gaac_cuda_stream stream,
                                          gaac_error *error)
{
    gaac_status status = check_device(cuda, error);
    if (status == GAAC_OK)
        status = check_cache(cache, error);
    if (status == GAAC_OK)
        status = check_reference(cache, args, error);
    if (status != GAAC_OK || args->plan.sequences == 0)
        return status;
    reference_params p;
    make_geometry(&p.layout, &cache->shape, cache->pool_bytes);
    p.cache = view_of(cache);
    p.args = *args;
    p.window_stride = p.layout.window_bytes;
    const unsigned ctas = args->plan.sequences * args->plan.query_tokens * args->plan.query_heads;
    attention_reference_kernel<<<ctas, reference_threads, 0, stream>>>(p);
    return check_launch("gaac_cuda_attention_reference", error);
}
