/* The threads that gaac's attention runs on, beside ggml's. */
#ifndef GAAC_LLAMA_WORKERS_H
#define GAAC_LLAMA_WORKERS_H

#include "gaac/common.h"

/* Belongs to one backend; used by one thread at a time. */
typedef struct worker_team {
    unsigned count;         /* that the host asked for, or GAAC_THREADS */
    gaac_thread_pool *pool; /* used when the host has no OpenMP; made at first use */
    unsigned pool_count;
} worker_team;

void workers_init(worker_team *team);
void workers_free(worker_team *team);

/* What llama.cpp calls before each graph. GAAC_THREADS wins over it. */
void workers_set_count(worker_team *team, int count);

/* The executor for the next call. */
gaac_executor workers_executor(worker_team *team);

/* "OpenMP team of the host" or "own pool": for the statistics. */
const char *workers_kind(void);

#endif
