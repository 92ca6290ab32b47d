// The writing side of the API: checks of arguments and launches. write_kernel.cuh and copy_kernels.cuh do the work.
#include "cuda/append_kernel.cuh"
#include "cuda/copy_kernels.cuh"
#include "cuda/host.cuh"
#include "cuda/write_kernel.cuh"

#include <cstring>

namespace gaac
{

// All that a thread block may have without being asked for: write_launch_of never needs more.
static_assert(sizeof(write_shared) + write_warps * (sizeof(warp_memory) + image_rounds * sizeof(variable_image)) +
                      sizeof(uint32_t) * GAAC_MAX_KV_HEADS * 2 * (GAAC_MAX_HEAD_DIM / 128) <=
                  48 << 10,
              "shared memory of the largest shape");

// Sequences, and blocks of a list, that a call may have: numbers of tasks stay below 2^32.
constexpr uint32_t most_listed = 1u << 28;

constexpr uint32_t append_turns = 2; // of a multiprocessor, in which append_blocks is the faster one

static bool is_wide(const void *pointer, size_t token_stride, size_t head_stride)
{
    return reinterpret_cast<uintptr_t>(pointer) % 16 == 0 && token_stride % 8 == 0 && head_stride % 8 == 0;
}

static gaac_status check_rows(const gaac_kv_rows *rows, gaac_error *error)
{
    if (rows->k == nullptr || rows->v == nullptr)
        return gaac_fail(error, GAAC_ERROR_INVALID_ARGUMENT, "rows.%s is NULL", rows->k == nullptr ? "k" : "v");
    if ((reinterpret_cast<uintptr_t>(rows->k) | reinterpret_cast<uintptr_t>(rows->v)) % 2 != 0)
        return gaac_fail(error, GAAC_ERROR_INVALID_ARGUMENT, "rows.k and rows.v must be aligned as uint16_t");
    return GAAC_OK;
}

static gaac_status check_epoch(const gaac_cuda_cache *cache, uint32_t epoch, gaac_error *error)
{
    if (epoch >= cache->epochs)
        return gaac_fail(error, GAAC_ERROR_INVALID_ARGUMENT, "epoch is %u: the cache has %u", epoch, cache->epochs);
    return GAAC_OK;
}

// What every call has.
static gaac_status check_call(const gaac_cuda *cuda, const gaac_cuda_cache *cache, gaac_error *error)
{
    const gaac_status status = check_device(cuda, error);
    return status == GAAC_OK ? check_cache(cache, error) : status;
}
static gaac_status check_call(const gaac_cuda *cuda, const gaac_cuda_cache *cache, const void *args, gaac_error *error)
{
    const gaac_status status = check_call(cuda, cache, error);
    if (status == GAAC_OK && args == nullptr)
        return gaac_fail(error, GAAC_ERROR_INVALID_ARGUMENT, "args is NULL");
    return status;
}

static write_call make_write_call(const gaac_cuda_cache *cache, const gaac_kv_rows *rows)
{
    write_call call;
    memset(&call, 0, sizeof call);
    make_geometry(&call.sizes, &cache->shape, cache->pool_bytes);
    call.cache = view_of(cache);
    call.rows = *rows;
    call.wide = is_wide(rows->k, rows->k_token_stride, rows->k_head_stride) &&
                is_wide(rows->v, rows->v_token_stride, rows->v_head_stride);
    return call;
}

// Tasks that find no thread block of their own are taken in turn; more thread blocks than a few a multiprocessor would
// only start and end.
static gaac_status launch_write(const gaac_cuda *cuda, write_call *call, uint64_t tasks, gaac_cuda_stream stream,
                                const char *what, gaac_error *error)
{
    const write_launch launch = write_launch_of(call->sizes);
    const uint64_t most = static_cast<uint64_t>(cuda->multiprocessors) * 16;
    const uint32_t grid = static_cast<uint32_t>(tasks < most ? tasks : most);
    call->rounds = launch.rounds;
    void *arguments[] = {call};
    const cudaError_t status = cudaLaunchKernel(reinterpret_cast<const void *>(write_blocks), dim3(grid),
                                                dim3(32 * launch.warps), arguments, launch.shared_bytes, stream);
    return status == cudaSuccess ? check_launch(what, error) : check_cuda(status, what, error);
}

// An append of few tokens. Kernels' choice: thread blocks of append_blocks are that large that a multiprocessor has one
// at a time; when they come in more than a few turns, throughput counts more than how long one takes.
static gaac_status launch_append(const gaac_cuda *cuda, write_call *call, uint64_t tasks, gaac_cuda_stream stream,
                                 gaac_error *error)
{
    static const char what[] = "gaac_cuda_append";
    append_call few;
    memset(&few, 0, sizeof few);
    few.write = *call;
    if (!call->wide || tasks > append_turns * static_cast<uint64_t>(cuda->multiprocessors) || !make_pieces(&few))
        return launch_write(cuda, call, tasks, stream, what, error);
    void *arguments[] = {&few};
    const cudaError_t status =
        cudaLaunchKernel(reinterpret_cast<const void *>(append_blocks), dim3(static_cast<uint32_t>(tasks)),
                         dim3(32 * few.pieces), arguments, sizeof(append_shared), stream);
    return status == cudaSuccess ? check_launch(what, error) : check_cuda(status, what, error);
}

static gaac_status launch_copy(const void *kernel, copy_call *call, uint32_t threads, gaac_cuda_stream stream,
                               const char *what, gaac_error *error)
{
    void *arguments[] = {call};
    const cudaError_t status =
        cudaLaunchKernel(kernel, dim3(call->count), dim3(threads), arguments, sizeof(uint32_t), stream);
    return status == cudaSuccess ? check_launch(what, error) : check_cuda(status, what, error);
}

static copy_call make_copy_call(const gaac_cuda_cache *cache, const int32_t *from, const int32_t *to, uint32_t count)
{
    geometry sizes;
    make_geometry(&sizes, &cache->shape, cache->pool_bytes);
    copy_call call;
    memset(&call, 0, sizeof call);
    call.cache = view_of(cache);
    call.entries = sizes.entries;
    call.fixed_bytes = sizes.layout.fixed_bytes;
    call.raw_bytes = sizes.layout.raw_bytes;
    call.from = from;
    call.to = to;
    call.count = count;
    return call;
}

static gaac_status check_count(const char *name, uint32_t count, gaac_error *error)
{
    if (count > most_listed)
        return gaac_fail(error, GAAC_ERROR_INVALID_ARGUMENT, "%s is %u: it must be at most %u", name, count,
                         most_listed);
    return GAAC_OK;
}

gaac_status load_encode_kernels(const gaac_cuda *, gaac_error *error)
{
    cudaFuncAttributes attributes;
    for (const void *kernel :
         {reinterpret_cast<const void *>(write_blocks), reinterpret_cast<const void *>(append_blocks),
          reinterpret_cast<const void *>(copy_blocks), reinterpret_cast<const void *>(release_blocks)}) {
        const gaac_status status =
            check_cuda(cudaFuncGetAttributes(&attributes, kernel), "loading the kernels that write blocks", error);
        if (status != GAAC_OK)
            return status;
    }
    return GAAC_OK;
}

} // namespace gaac

using namespace gaac;

gaac_status gaac_cuda_append(const gaac_cuda *cuda, const gaac_cuda_cache *cache, const gaac_cuda_append_args *args,
                             gaac_cuda_stream stream, gaac_error *error)
{
    gaac_status status = check_call(cuda, cache, args, error);
    if (status == GAAC_OK)
        status = check_rows(&args->rows, error);
    if (status == GAAC_OK)
        status = check_epoch(cache, args->epoch, error);
    if (status == GAAC_OK)
        status = check_count("sequences", args->sequences, error);
    if (status != GAAC_OK)
        return status;
    if (args->lengths == nullptr || args->block_table == nullptr)
        return gaac_fail(error, GAAC_ERROR_INVALID_ARGUMENT, "%s is NULL",
                         args->lengths == nullptr ? "lengths" : "block_table");
    if (args->tokens > INT32_MAX)
        return gaac_fail(error, GAAC_ERROR_INVALID_ARGUMENT, "tokens is %u: it must be at most 2^31 - 1", args->tokens);
    if (args->sequences == 0 || args->tokens == 0)
        return GAAC_OK;
    write_call call = make_write_call(cache, &args->rows);
    call.keep_raw = args->keep_raw;
    call.epoch = args->epoch;
    call.query_start = args->query_start;
    call.lengths = args->lengths;
    call.block_table = args->block_table;
    call.block_table_stride = args->block_table_stride;
    call.sequences = args->sequences;
    const uint64_t tasks = args->query_start == nullptr
                               ? args->sequences
                               : args->tokens / GAAC_BLOCK_TOKENS + 2 * static_cast<uint64_t>(args->sequences);
    return launch_append(cuda, &call, tasks, stream, error);
}

gaac_status gaac_cuda_encode(const gaac_cuda *cuda, const gaac_cuda_cache *cache, const gaac_cuda_encode_args *args,
                             gaac_cuda_stream stream, gaac_error *error)
{
    gaac_status status = check_call(cuda, cache, args, error);
    if (status != GAAC_OK)
        return status;
    const bool own = args->rows.k == nullptr && args->rows.v == nullptr;
    if (!own)
        status = check_rows(&args->rows, error);
    if (status == GAAC_OK)
        status = check_epoch(cache, args->epoch, error);
    if (status == GAAC_OK)
        status = check_count("count", args->count, error);
    if (status != GAAC_OK)
        return status;
    if (!own && args->k_offsets == nullptr)
        return gaac_fail(error, GAAC_ERROR_INVALID_ARGUMENT, "k_offsets is NULL: rows need it");
    if (own && args->keep_raw)
        return gaac_fail(error, GAAC_ERROR_INVALID_ARGUMENT,
                         "keep_raw is for rows: without them blocks hold their values already");
    if (args->count == 0)
        return GAAC_OK;
    if (args->blocks == nullptr)
        return gaac_fail(error, GAAC_ERROR_INVALID_ARGUMENT, "blocks is NULL");
    write_call call = make_write_call(cache, &args->rows);
    call.keep_raw = args->keep_raw;
    call.epoch = args->epoch;
    call.k_offsets = own ? nullptr : args->k_offsets;
    call.v_offsets = own ? nullptr : args->v_offsets;
    call.blocks = args->blocks;
    call.count = args->count;
    return launch_write(cuda, &call, args->count, stream, "gaac_cuda_encode", error);
}

gaac_status gaac_cuda_copy_blocks(const gaac_cuda *cuda, const gaac_cuda_cache *cache, const int32_t *from,
                                  const int32_t *to, uint32_t count, gaac_cuda_stream stream, gaac_error *error)
{
    gaac_status status = check_call(cuda, cache, error);
    if (status == GAAC_OK)
        status = check_count("count", count, error);
    if (status != GAAC_OK || count == 0)
        return status;
    if (from == nullptr || to == nullptr)
        return gaac_fail(error, GAAC_ERROR_INVALID_ARGUMENT, "%s is NULL", from == nullptr ? "from" : "to");
    copy_call call = make_copy_call(cache, from, to, count);
    return launch_copy(reinterpret_cast<const void *>(copy_blocks), &call, copy_threads, stream,
                       "gaac_cuda_copy_blocks", error);
}

gaac_status gaac_cuda_release_blocks(const gaac_cuda *cuda, const gaac_cuda_cache *cache, const int32_t *blocks,
                                     uint32_t count, gaac_cuda_stream stream, gaac_error *error)
{
    gaac_status status = check_call(cuda, cache, error);
    if (status == GAAC_OK)
        status = check_count("count", count, error);
    if (status != GAAC_OK || count == 0)
        return status;
    if (blocks == nullptr)
        return gaac_fail(error, GAAC_ERROR_INVALID_ARGUMENT, "blocks is NULL");
    copy_call call = make_copy_call(cache, blocks, nullptr, count);
    return launch_copy(reinterpret_cast<const void *>(release_blocks), &call, release_threads, stream,
                       "gaac_cuda_release_blocks", error);
}
