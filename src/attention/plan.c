/* Cutting an attention call into tasks. */
#include "attention/plan.h"

enum {
    /* Rows that share one decoding of a tile. 96 rows of scores (24 KiB) beside a step's tiles stay in the
     * second-level cache, and decoding costs a few percent of their arithmetic. */
    BATCH_ROWS = 96,
    /* Sums of a task that takes more than one head: they are gone through at every step, and share the first- and
     * second-level caches with tiles. */
    TASK_SUM_BYTES = 64 << 10,
    /* Tasks a worker: enough that a worker that starts late or is disturbed leaves its share to others. */
    TASKS_A_WORKER = 4,
    /* Steps that a split is worth: below, merging and preparing cost more than the worker saves. */
    MIN_SPLIT_STEPS = 2
};

static uint64_t divide_up(uint64_t a, uint64_t b)
{
    return (a + b - 1) / b;
}

/* Splits that the context is long enough for. */
static uint64_t most_splits(uint64_t steps)
{
    return steps > MIN_SPLIT_STEPS ? steps / MIN_SPLIT_STEPS : 1;
}

static void choose_heads(gaac_attention_plan *plan, uint32_t head_dim_v, uint64_t steps, unsigned workers)
{
    const uint64_t head_bytes = (uint64_t)plan->batch_rows * head_dim_v * sizeof(float);
    const uint64_t most = head_bytes < TASK_SUM_BYTES ? TASK_SUM_BYTES / head_bytes : 1;
    uint64_t runs = divide_up(plan->kv_heads, most);
    if (workers > 1) {
        const uint64_t wanted = (uint64_t)TASKS_A_WORKER * workers;
        const uint64_t needed = divide_up(wanted, plan->batches * most_splits(steps));
        runs = runs > needed ? runs : needed;
    }
    runs = runs < plan->kv_heads ? runs : plan->kv_heads;
    plan->task_heads = (uint32_t)divide_up(plan->kv_heads, runs);
    plan->head_runs = (uint32_t)divide_up(plan->kv_heads, plan->task_heads);
}

static uint32_t choose_splits(uint64_t groups, uint64_t steps, unsigned workers)
{
    if (workers <= 1 || groups >= (uint64_t)TASKS_A_WORKER * workers)
        return 1;
    uint64_t splits = divide_up((uint64_t)TASKS_A_WORKER * workers, groups);
    const uint64_t most = most_splits(steps);
    while (splits < most && groups * splits % workers != 0)
        splits++;
    return (uint32_t)(splits < most ? splits : most);
}

void gaac_plan_init(gaac_attention_plan *plan, const gaac_attention_args *args, const gaac_shape *shape,
                    unsigned workers)
{
    plan->kv_heads = shape->kv_heads;
    plan->group = args->query_heads / plan->kv_heads;
    const uint32_t most = plan->group < BATCH_ROWS ? BATCH_ROWS / plan->group : 1;
    plan->batches = args->query_tokens / most + (args->query_tokens % most != 0);
    plan->batch_tokens = args->query_tokens / plan->batches + (args->query_tokens % plan->batches != 0);
    plan->batches = args->query_tokens / plan->batch_tokens + (args->query_tokens % plan->batch_tokens != 0);
    plan->batch_rows = plan->batch_tokens * plan->group;
    plan->blocks = gaac_blocks_of(args->cells);
    const uint64_t steps = plan->blocks / GAAC_STEP_TILES;
    choose_heads(plan, shape->head_dim_v, steps, workers);
    const uint64_t groups = (uint64_t)plan->batches * plan->head_runs;
    plan->splits = choose_splits(groups, steps, workers);
    plan->tasks = groups * plan->splits;
}

gaac_attention_place gaac_plan_place(const gaac_attention_plan *plan, uint32_t query_tokens, uint64_t task)
{
    gaac_attention_place place;
    const uint64_t group = task / plan->splits;
    place.split = (uint32_t)(task % plan->splits);
    const uint32_t run = (uint32_t)(group % plan->head_runs);
    place.first_head = run * plan->task_heads;
    const uint32_t heads_left = plan->kv_heads - place.first_head;
    place.heads = heads_left < plan->task_heads ? heads_left : plan->task_heads;
    place.batch = plan->batches - 1 - (uint32_t)(group / plan->head_runs);
    place.group_index = (uint64_t)place.batch * plan->head_runs + run;
    place.first_token = place.batch * plan->batch_tokens;
    const uint32_t left = query_tokens - place.first_token;
    place.tokens = left < plan->batch_tokens ? left : plan->batch_tokens;
    place.rows = place.tokens * plan->group;
    return place;
}

void gaac_plan_split(const gaac_attention_plan *plan, uint64_t blocks, uint32_t split, uint64_t *first, uint64_t *count)
{
    /* In whole steps, the remainder spread one by one. */
    const uint64_t steps = (blocks + GAAC_STEP_TILES - 1) / GAAC_STEP_TILES;
    const uint64_t base = steps / plan->splits, extra = steps % plan->splits;
    const uint64_t first_step = split * base + (split < extra ? split : extra);
    const uint64_t end_step = first_step + base + (split < extra);
    const uint64_t end = end_step * GAAC_STEP_TILES < blocks ? end_step * GAAC_STEP_TILES : blocks;
    *first = first_step * GAAC_STEP_TILES < end ? first_step * GAAC_STEP_TILES : end;
    *count = end - *first;
}
