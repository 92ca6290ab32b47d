/* A pool of threads that sleep when idle. A run bumps a ticket number; threads that see a new ticket work
 * and count themselves out. Both sides look for a short while before they sleep: calls of attention follow
 * each other within microseconds while a model runs a layer, and waking costs as much as a small call. */
#include "base/base.h"

#include <pthread.h>
#include <stdatomic.h>

#if defined(__x86_64__) || defined(__i386__)
#define CPU_RELAX() __builtin_ia32_pause()
#else
#define CPU_RELAX() ((void)0)
#endif

enum {
    SPINS = 1000 /* about 20-40 us of PAUSE on current x86: less than a time slice, more than a wake-up */
};

typedef struct member {
    gaac_thread_pool *pool;
    unsigned index; /* 1 .. threads */
    pthread_t thread;
} member;

struct gaac_thread_pool {
    gaac_allocator allocator;
    unsigned threads; /* beside the caller's */
    pthread_mutex_t mutex;
    pthread_cond_t wake, done;
    atomic_uint ticket;  /* changes with every run, and to stop */
    atomic_uint working; /* threads that have not finished the current run */
    bool stop;           /* these four are written before the ticket, under the mutex */
    gaac_task *task;
    void *context;
    unsigned workers;
    member members[];
};

static size_t pool_bytes(unsigned threads)
{
    return sizeof(gaac_thread_pool) + threads * sizeof(member);
}

/* The workers whose turn falls to one of the pool's threads: usually one. */
static void run_share(const gaac_thread_pool *pool, unsigned index)
{
    for (unsigned worker = index; worker < pool->workers; worker += pool->threads + 1)
        pool->task(pool->context, worker);
}

static unsigned wait_for_ticket(gaac_thread_pool *pool, unsigned last)
{
    for (unsigned spin = 0; spin < SPINS; spin++) {
        const unsigned ticket = atomic_load_explicit(&pool->ticket, memory_order_acquire);
        if (ticket != last)
            return ticket;
        CPU_RELAX();
    }
    pthread_mutex_lock(&pool->mutex);
    while (atomic_load_explicit(&pool->ticket, memory_order_acquire) == last)
        pthread_cond_wait(&pool->wake, &pool->mutex);
    pthread_mutex_unlock(&pool->mutex);
    return atomic_load_explicit(&pool->ticket, memory_order_acquire);
}

static void *thread_main(void *argument)
{
    const member *self = argument;
    gaac_thread_pool *pool = self->pool;
    unsigned ticket = 0;
    for (;;) {
        ticket = wait_for_ticket(pool, ticket);
        if (pool->stop)
            return NULL;
        run_share(pool, self->index);
        if (atomic_fetch_sub_explicit(&pool->working, 1, memory_order_acq_rel) == 1) {
            pthread_mutex_lock(&pool->mutex);
            pthread_cond_signal(&pool->done);
            pthread_mutex_unlock(&pool->mutex);
        }
    }
}

/* Everything that the threads will read must be written before. */
static void publish(gaac_thread_pool *pool)
{
    pthread_mutex_lock(&pool->mutex);
    atomic_fetch_add_explicit(&pool->ticket, 1, memory_order_release);
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->mutex);
}

static void wait_until_done(gaac_thread_pool *pool)
{
    for (unsigned spin = 0; spin < SPINS; spin++) {
        if (atomic_load_explicit(&pool->working, memory_order_acquire) == 0)
            return;
        CPU_RELAX();
    }
    pthread_mutex_lock(&pool->mutex);
    while (atomic_load_explicit(&pool->working, memory_order_acquire) != 0)
        pthread_cond_wait(&pool->done, &pool->mutex);
    pthread_mutex_unlock(&pool->mutex);
}

static void pool_run(void *user, gaac_task *task, void *context, unsigned workers)
{
    gaac_thread_pool *pool = user;
    pool->task = task;
    pool->context = context;
    pool->workers = workers;
    if (pool->threads == 0 || workers <= 1) {
        for (unsigned worker = 0; worker < workers; worker++)
            task(context, worker);
        return;
    }
    atomic_store_explicit(&pool->working, pool->threads, memory_order_relaxed);
    publish(pool);
    run_share(pool, 0);
    wait_until_done(pool);
}

static void stop_threads(gaac_thread_pool *pool, unsigned started)
{
    if (started == 0)
        return;
    pool->stop = true;
    publish(pool);
    for (unsigned i = 0; i < started; i++)
        pthread_join(pool->members[i].thread, NULL);
}

static void release(gaac_thread_pool *pool)
{
    const gaac_allocator allocator = pool->allocator;
    pthread_cond_destroy(&pool->done);
    pthread_cond_destroy(&pool->wake);
    pthread_mutex_destroy(&pool->mutex);
    gaac_free(&allocator, pool, pool_bytes(pool->threads));
}

gaac_status gaac_thread_pool_create(gaac_thread_pool **out, unsigned workers, const gaac_allocator *allocator,
                                    gaac_error *error)
{
    if (out == NULL || workers == 0 || workers > 4096)
        return gaac_fail(error, GAAC_ERROR_INVALID_ARGUMENT,
                         "thread pool: %u workers (it must be 1 to 4096), or no place for the result", workers);
    const gaac_allocator memory = gaac_allocator_or_default(allocator);
    gaac_thread_pool *pool = gaac_calloc(&memory, pool_bytes(workers - 1));
    if (pool == NULL)
        return gaac_fail(error, GAAC_ERROR_OUT_OF_MEMORY, "thread pool: no memory for %u workers", workers);
    pool->allocator = memory;
    pool->threads = workers - 1;
    pthread_mutex_init(&pool->mutex, NULL);
    pthread_cond_init(&pool->wake, NULL);
    pthread_cond_init(&pool->done, NULL);
    for (unsigned i = 0; i < pool->threads; i++) {
        pool->members[i].pool = pool;
        pool->members[i].index = i + 1;
        if (pthread_create(&pool->members[i].thread, NULL, thread_main, &pool->members[i]) != 0) {
            stop_threads(pool, i);
            release(pool);
            return gaac_fail(error, GAAC_ERROR_OUT_OF_MEMORY,
                             "thread pool: the system refused thread %u of %u; ask for fewer workers", i + 1,
                             workers - 1);
        }
    }
    *out = pool;
    return GAAC_OK;
}

void gaac_thread_pool_destroy(gaac_thread_pool *pool)
{
    if (pool == NULL)
        return;
    stop_threads(pool, pool->threads);
    release(pool);
}

gaac_executor gaac_thread_pool_executor(gaac_thread_pool *pool)
{
    return (gaac_executor){pool_run, pool, pool->threads + 1};
}
