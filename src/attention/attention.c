/* gaac_attention: checks, memory, workers. */
#include "attention/attention.h"

#include "attention/task.h"
#include "base/base.h"
#include "cpu/cpu.h"

#include <stdatomic.h>

/* One call in flight. */
typedef struct run {
    gaac_attention_call call;
    const gaac_allocator *allocator;
    uint8_t *memory;
    size_t memory_bytes;
    uint8_t *scratch; /* [workers][scratch_bytes] */
    size_t scratch_bytes;
    uint64_t *live_room;    /* [batches, or workers without splits][plan.blocks], additive masks only */
    gaac_live_blocks *live; /* [batches], with splits */
    float *partial_acc;     /* [tasks][task_heads][batch_rows][head_dim_v], with splits */
    gaac_softmax_state *partial_states;
    atomic_uint *open_splits; /* [batches * head_runs], with splits: those not yet done */
    atomic_uint_fast64_t next_task;
    atomic_bool corrupt;
} run;

gaac_status gaac_attention_check(const gaac_cache *cache, const gaac_attention_args *args, gaac_error *error)
{
    if (cache == NULL || args == NULL)
        return gaac_fail(error, GAAC_ERROR_INVALID_ARGUMENT, "attention: the cache or the arguments are NULL");
    if (!gaac_cache_has(cache, args->layer, args->sequence))
        return gaac_fail(error, GAAC_ERROR_INVALID_ARGUMENT, "attention: the cache has no layer %u, sequence %u",
                         args->layer, args->sequence);
    if (args->cells > gaac_cache_cells(cache))
        return gaac_fail(error, GAAC_ERROR_INVALID_ARGUMENT, "attention: %llu cells, but a sequence has only %llu",
                         (unsigned long long)args->cells, (unsigned long long)gaac_cache_cells(cache));
    const uint32_t kv_heads = gaac_cache_layout(cache, args->layer)->shape.kv_heads;
    if (args->query_heads == 0 || args->query_heads % kv_heads != 0)
        return gaac_fail(error, GAAC_ERROR_INVALID_ARGUMENT,
                         "attention: %u query heads; it must be a multiple of the cache's %u KV heads",
                         args->query_heads, kv_heads);
    if (args->query_tokens != 0 && (args->q == NULL || args->out == NULL))
        return gaac_fail(error, GAAC_ERROR_INVALID_ARGUMENT, "attention: q or out is NULL");
    if ((unsigned)args->mask_kind > GAAC_MASK_ADDITIVE_F16)
        return gaac_fail(error, GAAC_ERROR_INVALID_ARGUMENT, "attention: unknown mask kind %d", (int)args->mask_kind);
    if (args->mask_kind == GAAC_MASK_ADDITIVE_F16 && args->mask == NULL && args->cells != 0)
        return gaac_fail(error, GAAC_ERROR_INVALID_ARGUMENT, "attention: an additive mask is asked for but is NULL");
    return GAAC_OK;
}

static size_t place_bytes(size_t *offset, size_t bytes)
{
    const size_t at = *offset;
    *offset += (bytes + 63) / 64 * 64;
    return at;
}

/* One allocation for the whole call. */
static bool allocate(run *r, unsigned workers)
{
    const gaac_attention_plan *plan = &r->call.plan;
    const bool split = plan->splits > 1;
    const size_t groups = (size_t)plan->batches * plan->head_runs;
    const size_t lists = r->call.args->mask_kind != GAAC_MASK_ADDITIVE_F16 ? 0 : split ? plan->batches : workers;
    const size_t rows = split ? (size_t)plan->tasks * plan->task_heads * plan->batch_rows : 0;
    size_t bytes = 0;
    r->scratch_bytes = gaac_task_scratch_bytes(&r->call);
    const size_t scratch = place_bytes(&bytes, r->scratch_bytes * workers);
    const size_t live_room = place_bytes(&bytes, lists * plan->blocks * sizeof *r->live_room);
    const size_t live = place_bytes(&bytes, split ? plan->batches * sizeof *r->live : 0);
    const size_t acc = place_bytes(&bytes, rows * r->call.layout->shape.head_dim_v * sizeof(float));
    const size_t states = place_bytes(&bytes, rows * sizeof *r->partial_states);
    const size_t open_splits = place_bytes(&bytes, split ? groups * sizeof *r->open_splits : 0);
    r->memory_bytes = bytes;
    r->memory = r->allocator->allocate(r->allocator->user, bytes, 64);
    if (r->memory == NULL)
        return false;
    r->scratch = r->memory + scratch;
    r->live_room = (uint64_t *)(void *)(r->memory + live_room);
    r->live = (gaac_live_blocks *)(void *)(r->memory + live);
    r->partial_acc = (float *)(void *)(r->memory + acc);
    r->partial_states = (gaac_softmax_state *)(void *)(r->memory + states);
    r->open_splits = (atomic_uint *)(void *)(r->memory + open_splits);
    return true;
}

/* With splits every batch's list must be known before the first task. They are few then. */
static void prepare_splits(run *r)
{
    const gaac_attention_plan *plan = &r->call.plan;
    const gaac_attention_args *args = r->call.args;
    for (uint32_t batch = 0; batch < plan->batches; batch++) {
        const uint32_t first = batch * plan->batch_tokens, left = args->query_tokens - first;
        r->live[batch] = gaac_mask_live_blocks(args, first, left < plan->batch_tokens ? left : plan->batch_tokens, 0,
                                               args->query_heads, r->live_room + batch * plan->blocks);
    }
    for (size_t i = 0; i < (size_t)plan->batches * plan->head_runs; i++)
        atomic_init(&r->open_splits[i], plan->splits);
}

static gaac_partial partial_of(const run *r, const gaac_attention_place *place, uint32_t split)
{
    const size_t task = (size_t)place->group_index * r->call.plan.splits + split;
    const size_t row = task * r->call.plan.task_heads * r->call.plan.batch_rows;
    return (gaac_partial){r->partial_acc + row * r->call.layout->shape.head_dim_v, r->partial_states + row};
}

static void run_whole(run *r, const gaac_attention_place *place, const gaac_task_scratch *scratch, unsigned worker)
{
    const uint32_t group = r->call.plan.group;
    const gaac_live_blocks live =
        gaac_mask_live_blocks(r->call.args, place->first_token, place->tokens, place->first_head * group,
                              place->heads * group, r->live_room + worker * r->call.plan.blocks);
    const gaac_partial partial = {scratch->acc, scratch->states};
    if (gaac_task_run(&r->call, place, &live, 0, live.count, scratch, &partial))
        gaac_partial_finish(&r->call, place, &partial);
    else
        atomic_store(&r->corrupt, true);
}

static void run_split(run *r, const gaac_attention_place *place, const gaac_task_scratch *scratch)
{
    const gaac_live_blocks *live = &r->live[place->batch];
    const gaac_partial partial = partial_of(r, place, place->split);
    uint64_t first, count;
    gaac_plan_split(&r->call.plan, live->count, place->split, &first, &count);
    if (!gaac_task_run(&r->call, place, live, first, count, scratch, &partial))
        atomic_store(&r->corrupt, true);
    if (atomic_fetch_sub(&r->open_splits[place->group_index], 1) != 1)
        return;
    /* The last to finish merges all, always from the first split on. */
    const gaac_partial into = partial_of(r, place, 0);
    for (uint32_t split = 1; split < r->call.plan.splits; split++) {
        const gaac_partial from = partial_of(r, place, split);
        gaac_partial_merge(place->heads * place->rows, r->call.layout->shape.head_dim_v, &into, &from);
    }
    gaac_partial_finish(&r->call, place, &into);
}

static void work(void *context, unsigned worker)
{
    run *r = context;
    gaac_task_scratch scratch;
    gaac_task_scratch_place(&r->call, r->scratch + worker * r->scratch_bytes, &scratch);
    uint64_t task;
    while ((task = atomic_fetch_add(&r->next_task, 1)) < r->call.plan.tasks) {
        const gaac_attention_place place = gaac_plan_place(&r->call.plan, r->call.args->query_tokens, task);
        if (r->call.plan.splits > 1)
            run_split(r, &place, &scratch);
        else
            run_whole(r, &place, &scratch, worker);
    }
}

gaac_status gaac_attention_with(const gaac_codec_kernels *codec_kernels, const gaac_attention_kernels *kernels,
                                const gaac_cache *cache, const gaac_attention_args *args, const gaac_executor *executor,
                                gaac_error *error)
{
    const gaac_status status = gaac_attention_check(cache, args, error);
    if (status != GAAC_OK || args->query_tokens == 0)
        return status;

    unsigned workers = executor != NULL && executor->workers > 1 ? executor->workers : 1;
    run r = {.call = {cache, gaac_cache_layout(cache, args->layer), args, codec_kernels, kernels, {0}},
             .allocator = gaac_cache_allocator(cache)};
    gaac_plan_init(&r.call.plan, args, &r.call.layout->shape, workers);
    workers = workers < r.call.plan.tasks ? workers : (unsigned)r.call.plan.tasks;
    if (!allocate(&r, workers))
        return gaac_fail(error, GAAC_ERROR_OUT_OF_MEMORY, "attention: no memory for %zu bytes of scratch",
                         r.memory_bytes);
    if (r.call.plan.splits > 1)
        prepare_splits(&r);
    if (workers > 1)
        executor->run(executor->user, work, &r, workers);
    else
        work(&r, 0);
    gaac_free(r.allocator, r.memory, r.memory_bytes);
    if (atomic_load(&r.corrupt))
        return gaac_fail(error, GAAC_ERROR_CORRUPT, "attention: a coded block of layer %u, sequence %u is damaged",
                         args->layer, args->sequence);
    return GAAC_OK;
}

gaac_status gaac_attention(const gaac_cache *cache, const gaac_attention_args *args, const gaac_executor *executor,
                           gaac_error *error)
{
    return gaac_attention_with(gaac_cpu_codec(), gaac_cpu_attention(), cache, args, executor, error);
}
