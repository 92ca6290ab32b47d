/* Pools of equal units in reserved address space. */
#include "cache/pool.h"

enum {
    /* Access rights are granted in steps; pages become resident only when touched. */
    GAAC_COMMIT_STEP = 8 << 20,
    /* From here on a pool grows in huge pages, which are read 10% to 20% faster from far beyond the caches (no misses
     * of the translation buffer). Up to one of them is touched before it is needed: 6% of so much at most. */
    GAAC_SMALL_PAGES = 32 << 20,
    /* Free units that stay resident: enough for the tails that open and close while decoding. */
    GAAC_WARM_UNITS = 64,
};

static size_t round_up(size_t value, size_t step)
{
    return (value + step - 1) / step * step;
}

static bool whole_pages(const gaac_pool *pool)
{
    return pool->unit_bytes % gaac_page_bytes() == 0;
}

gaac_status gaac_pool_init(gaac_pool *pool, uint32_t unit_bytes, uint64_t units, gaac_budget *budget,
                           const gaac_allocator *allocator, gaac_error *error)
{
    *pool = (gaac_pool){.allocator = *allocator, .budget = budget, .unit_bytes = unit_bytes};
    if (units > UINT32_MAX)
        return gaac_fail(error, GAAC_ERROR_INVALID_ARGUMENT, "a cache of %llu blocks is too large; use fewer cells",
                         (unsigned long long)units);
    pool->capacity = (uint32_t)units;
    pool->reserved_bytes = round_up((size_t)units * unit_bytes, GAAC_COMMIT_STEP);
    pool->stack_bytes = round_up((size_t)units * sizeof(uint32_t), gaac_page_bytes());
    pool->base = gaac_memory_reserve(pool->reserved_bytes);
    pool->warm = gaac_memory_reserve(pool->stack_bytes);
    pool->cold = gaac_memory_reserve(pool->stack_bytes);
    if (pool->base == NULL || pool->warm == NULL || pool->cold == NULL ||
        !gaac_memory_commit(pool->warm, pool->stack_bytes) || !gaac_memory_commit(pool->cold, pool->stack_bytes)) {
        gaac_pool_free(pool);
        return gaac_fail(error, GAAC_ERROR_OUT_OF_MEMORY, "the system gave no %zu MiB of address space for the cache",
                         pool->reserved_bytes >> 20);
    }
    return GAAC_OK;
}

void gaac_pool_free(gaac_pool *pool)
{
    gaac_memory_release(pool->base, pool->reserved_bytes);
    gaac_memory_release(pool->warm, pool->stack_bytes);
    gaac_memory_release(pool->cold, pool->stack_bytes);
    pool->base = NULL;
    pool->warm = pool->cold = NULL;
}

void gaac_budget_add_resident(gaac_budget *budget, uint64_t bytes)
{
    budget->resident += bytes;
    if (budget->resident > budget->peak)
        budget->peak = budget->resident;
}

static void prefer_huge(gaac_pool *pool)
{
    if (pool->committed_bytes > GAAC_SMALL_PAGES)
        gaac_memory_prefer_huge(pool->base + GAAC_SMALL_PAGES, pool->committed_bytes - GAAC_SMALL_PAGES);
    pool->avoids_huge = false;
}

static gaac_status commit_through(gaac_pool *pool, uint32_t unit, gaac_error *error)
{
    const size_t end = ((size_t)unit + 1) * pool->unit_bytes;
    if (end <= pool->committed_bytes)
        return GAAC_OK;
    const size_t target = round_up(end, GAAC_COMMIT_STEP);
    if (!gaac_memory_commit(pool->base + pool->committed_bytes, target - pool->committed_bytes))
        return gaac_fail(error, GAAC_ERROR_OUT_OF_MEMORY, "the system gave no more memory for the cache");
    pool->committed_bytes = target;
    prefer_huge(pool); /* a pool grows when no unit is free: there are no holes */
    return GAAC_OK;
}

static gaac_status check_limit(const gaac_budget *budget, gaac_take take, uint32_t bytes, gaac_error *error)
{
    const uint64_t kept = take == GAAC_TAKE_NEW ? budget->reserve : 0;
    if (budget->limit == 0 || take == GAAC_TAKE_SWAP || budget->used + bytes + kept <= budget->limit)
        return GAAC_OK;
    return gaac_fail(error, GAAC_ERROR_MEMORY_LIMIT,
                     "the KV cache uses %.1f MiB, its limit is %.1f MiB; raise the limit or use a shorter context",
                     (double)budget->used / 1048576, (double)budget->limit / 1048576);
}

/* Takes a unit that is not resident: one whose pages went back, or the next never taken. */
static gaac_status take_new(gaac_pool *pool, uint32_t *unit, gaac_error *error)
{
    if (pool->cold_count > 0) {
        *unit = pool->cold[--pool->cold_count];
    } else {
        if (pool->touched == pool->capacity)
            return gaac_fail(error, GAAC_ERROR_OUT_OF_MEMORY, "a pool of %u units is full", pool->capacity);
        const gaac_status status = commit_through(pool, pool->touched, error);
        if (status != GAAC_OK)
            return status;
        *unit = pool->touched++;
    }
    gaac_budget_add_resident(pool->budget, pool->unit_bytes);
    return GAAC_OK;
}

gaac_status gaac_pool_take(gaac_pool *pool, gaac_take take, uint32_t *unit, gaac_error *error)
{
    gaac_status status = check_limit(pool->budget, take, pool->unit_bytes, error);
    if (status != GAAC_OK)
        return status;
    if (pool->warm_count > 0)
        *unit = pool->warm[--pool->warm_count];
    else
        status = take_new(pool, unit, error);
    if (status == GAAC_OK) {
        pool->used++;
        pool->budget->used += pool->unit_bytes;
    }
    return status;
}

/* Everything is free: all pages go back, and the numbering starts again. */
static void reset_pool(gaac_pool *pool)
{
    const uint32_t resident = pool->touched - pool->cold_count;
    pool->budget->resident -= (uint64_t)resident * pool->unit_bytes;
    gaac_memory_give_back(pool->base, pool->committed_bytes);
    pool->touched = pool->warm_count = pool->cold_count = 0;
    prefer_huge(pool);
}

/* Gives one unit's pages back. Until there are no holes any more the pool takes no new huge pages: the system joins
 * small pages into huge ones in the background where they are welcome, and would fill the holes again. */
static void give_back(gaac_pool *pool, uint32_t unit)
{
    if (!pool->avoids_huge)
        gaac_memory_avoid_huge(pool->base, pool->committed_bytes);
    pool->avoids_huge = true;
    gaac_memory_give_back(gaac_pool_unit(pool, unit), pool->unit_bytes);
    pool->cold[pool->cold_count++] = unit;
    pool->budget->resident -= pool->unit_bytes;
}

void gaac_pool_give(gaac_pool *pool, uint32_t unit)
{
    pool->used--;
    pool->budget->used -= pool->unit_bytes;
    if (pool->warm_count < GAAC_WARM_UNITS || !whole_pages(pool))
        pool->warm[pool->warm_count++] = unit;
    else
        give_back(pool, unit);
    if (pool->used == 0 &&
        (pool->warm_count > GAAC_WARM_UNITS || (size_t)pool->touched * pool->unit_bytes > GAAC_SMALL_PAGES))
        reset_pool(pool);
}
