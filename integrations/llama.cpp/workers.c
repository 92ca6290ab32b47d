/* Whose threads compute.
 *
 * ggml's CPU backend in stock builds is an OpenMP program: its workers spin for a while after each
 * graph, waiting for the next. A pool of ours beside them would fight for the same cores. So our
 * tasks run as a parallel region of the very same OpenMP runtime, called from the same thread with
 * the same number of threads: the runtime hands them to the team that is already spinning.
 *
 * A host whose CPU backend does not use OpenMP has a thread pool of its own, which we can't borrow;
 * then gaac's pool, which sleeps when idle, has to do. */
#include "workers.h"

#include "host.h"
#include "settings.h"

#include <pthread.h>
#include <string.h>
#include <unistd.h>

/* The entry that GCC compiles `#pragma omp parallel` into; LLVM's runtime has it too. */
typedef void gomp_parallel(void (*body)(void *), void *data, unsigned threads, unsigned flags);

static struct {
    pthread_once_t once;
    gomp_parallel *parallel;
    int (*thread_num)(void);
    int (*num_threads)(void);
} openmp = {.once = PTHREAD_ONCE_INIT};

/* The runtime is the one that the CPU backend's own library depends on: another library of the
 * process may have brought a different one. */
static void find_openmp(void)
{
    host_device *cpu = host.call.backend_dev_by_type(HOST_DEVICE_CPU);
    if (!cpu)
        return;
    const void *inside =
        host.call.backend_reg_get_proc_address(host.call.backend_dev_backend_reg(cpu), "ggml_backend_set_n_threads");
    void *parallel = host_symbol_near(inside, "GOMP_parallel");
    void *thread_num = host_symbol_near(inside, "omp_get_thread_num");
    void *num_threads = host_symbol_near(inside, "omp_get_num_threads");
    if (!parallel || !thread_num || !num_threads)
        return;
    memcpy(&openmp.parallel, &parallel, sizeof parallel);
    memcpy(&openmp.thread_num, &thread_num, sizeof thread_num);
    memcpy(&openmp.num_threads, &num_threads, sizeof num_threads);
}

typedef struct team_work {
    gaac_task *task;
    void *context;
    unsigned workers;
} team_work;

/* The runtime may give fewer threads than asked for (OMP_THREAD_LIMIT): they share the workers out. */
static void team_body(void *data)
{
    const team_work *work = data;
    unsigned step = (unsigned)openmp.num_threads();
    for (unsigned worker = (unsigned)openmp.thread_num(); worker < work->workers; worker += step)
        work->task(work->context, worker);
}

static void run_on_team(void *user, gaac_task *task, void *context, unsigned workers)
{
    team_work work = {task, context, workers};
    (void)user;
    if (workers > 1)
        openmp.parallel(team_body, &work, workers, 0);
    else
        task(context, 0);
}

static void run_inline(void *user, gaac_task *task, void *context, unsigned workers)
{
    (void)user;
    for (unsigned worker = 0; worker < workers; worker++)
        task(context, worker);
}

void workers_init(worker_team *team)
{
    pthread_once(&openmp.once, find_openmp);
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    *team = (worker_team){.count = cores > 0 ? (unsigned)cores : 1};
    if (config.threads)
        team->count = config.threads;
}

void workers_free(worker_team *team)
{
    gaac_thread_pool_destroy(team->pool);
    team->pool = NULL;
}

void workers_set_count(worker_team *team, int count)
{
    if (!config.threads && count > 0)
        team->count = (unsigned)count;
}

gaac_executor workers_executor(worker_team *team)
{
    if (team->count == 1)
        return (gaac_executor){run_inline, NULL, 1};
    if (openmp.parallel)
        return (gaac_executor){run_on_team, NULL, team->count};
    if (!team->pool || team->pool_count != team->count) {
        gaac_thread_pool_destroy(team->pool);
        team->pool = NULL;
        team->pool_count = team->count;
        if (gaac_thread_pool_create(&team->pool, team->count, NULL, NULL) != GAAC_OK)
            return (gaac_executor){run_inline, NULL, 1};
    }
    return gaac_thread_pool_executor(team->pool);
}

const char *workers_kind(void)
{
    return openmp.parallel ? "the host's OpenMP team" : "own pool";
}
