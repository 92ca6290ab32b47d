/* Pools of equal units (slots of one size, raw blocks of one size) in reserved address space. */
#ifndef GAAC_CACHE_POOL_H
#define GAAC_CACHE_POOL_H

#include "base/base.h"

/* What all pools of a cache may take together. */
typedef struct gaac_budget {
    uint64_t limit;    /* of `used`, bytes; 0 = none */
    uint64_t reserve;  /* of the limit: kept for rewriting what is coded, which needs raw units for a while */
    uint64_t used;     /* bytes of units that are out, and of tables */
    uint64_t resident; /* bytes that units and tables take from the system, free units included. Free units
                          are taken again first, so this follows `used`. */
    uint64_t peak;     /* of `resident` */
} gaac_budget;

/* Counts bytes that have become resident. */
void gaac_budget_add_resident(gaac_budget *budget, uint64_t bytes);

/* Units are numbered from 0. A unit's memory becomes resident when it is first taken; of the units that
 * come back, a few stay resident to be taken again, and the others' pages go back to the system where
 * a unit covers whole pages, or once the pool is empty. */
typedef struct gaac_pool {
    gaac_allocator allocator;
    gaac_budget *budget;
    uint8_t *base;
    size_t reserved_bytes;
    size_t committed_bytes;
    uint32_t unit_bytes;
    uint32_t capacity; /* units */
    uint32_t touched;  /* units [0, touched) have been taken at least once */
    uint32_t used;     /* units out now */
    uint32_t *warm;    /* stack of free units that are resident */
    uint32_t *cold;    /* stack of free units whose pages went back */
    uint32_t warm_count, cold_count;
    bool avoids_huge;   /* units' pages went back one by one */
    size_t stack_bytes; /* of warm, and of cold */
} gaac_pool;

gaac_status gaac_pool_init(gaac_pool *pool, uint32_t unit_bytes, uint64_t units, gaac_budget *budget,
                           const gaac_allocator *allocator, gaac_error *error);
void gaac_pool_free(gaac_pool *pool);

typedef enum gaac_take {
    GAAC_TAKE_NEW,    /* for cells that had no memory: within the limit less the reserve */
    GAAC_TAKE_REOPEN, /* to rewrite a coded block: within the limit */
    GAAC_TAKE_SWAP    /* unchecked: the caller gives a larger unit back at once */
} gaac_take;

/* Takes a unit; its content is undefined. GAAC_ERROR_MEMORY_LIMIT or _OUT_OF_MEMORY. */
gaac_status gaac_pool_take(gaac_pool *pool, gaac_take take, uint32_t *unit, gaac_error *error);
void gaac_pool_give(gaac_pool *pool, uint32_t unit);

static inline uint8_t *gaac_pool_unit(const gaac_pool *pool, uint32_t unit)
{
    return pool->base + (size_t)unit * pool->unit_bytes;
}

#endif
