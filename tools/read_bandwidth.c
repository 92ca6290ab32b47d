#include "read_bandwidth.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tool.h"

/* A cache line, which is also the widest vector. Aliases anything, as memory that is only read may. */
typedef uint64_t cache_line __attribute__((vector_size(64), aligned(64), may_alias));

enum {
    HUGE_PAGE = 2 << 20,
    LINES = 4, /* a turn of a stream: independent accumulators, half a KiB of loads in flight with two streams */
    TUNING_PASSES = 2
};

/* Reads `streams` equal parts side by side, LINES lines of each in turn, and prefetches `ahead` bytes. Which is
 * fastest depends on the machine's prefetchers: all are tried. */
#define READ_LOOP(streams, ahead)                                                                                      \
    for (size_t offset = 0; offset < bytes / (streams); offset += LINES * sizeof(cache_line)) {                        \
        for (size_t stream = 0; stream < (streams); stream++) {                                                        \
            const uint8_t *at = data + stream * (bytes / (streams)) + offset;                                          \
            const cache_line *line = (const cache_line *)(const void *)at;                                             \
            if ((ahead) != 0) {                                                                                        \
                for (unsigned i = 0; i < LINES; i++)                                                                   \
                    __builtin_prefetch(at + (ahead) + i * sizeof(cache_line), 0, 3);                                   \
            }                                                                                                          \
            a ^= line[0];                                                                                              \
            b ^= line[1];                                                                                              \
            c ^= line[2];                                                                                              \
            d ^= line[3];                                                                                              \
        }                                                                                                              \
    }

/* The whole loop, once per instruction set: the compiler makes of a cache_line what that set has. */
#define DEFINE_READER(name, attributes)                                                                                \
    attributes static uint64_t name(const uint8_t *data, size_t bytes, unsigned order)                                 \
    {                                                                                                                  \
        cache_line a = {0}, b = {0}, c = {0}, d = {0};                                                                 \
        switch (order) {                                                                                               \
        case 0:                                                                                                        \
            READ_LOOP(1, 0)                                                                                            \
            break;                                                                                                     \
        case 1:                                                                                                        \
            READ_LOOP(1, 2048)                                                                                         \
            break;                                                                                                     \
        case 2:                                                                                                        \
            READ_LOOP(2, 0)                                                                                            \
            break;                                                                                                     \
        case 3:                                                                                                        \
            READ_LOOP(4, 0)                                                                                            \
            break;                                                                                                     \
        case 4:                                                                                                        \
            READ_LOOP(4, 1024)                                                                                         \
            break;                                                                                                     \
        default:                                                                                                       \
            READ_LOOP(8, 0)                                                                                            \
            break;                                                                                                     \
        }                                                                                                              \
        a ^= b ^ c ^ d;                                                                                                \
        return a[0] ^ a[1] ^ a[2] ^ a[3] ^ a[4] ^ a[5] ^ a[6] ^ a[7];                                                  \
    }
enum { ORDERS = 6 };

typedef uint64_t read_function(const uint8_t *data, size_t bytes, unsigned order);

DEFINE_READER(read_baseline, )
#if defined(__x86_64__)
DEFINE_READER(read_avx2, __attribute__((target("avx2"))))
DEFINE_READER(read_avx512, __attribute__((target("avx512f"))))
#endif

static read_function *widest(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f"))
        return read_avx512;
    if (__builtin_cpu_supports("avx2"))
        return read_avx2;
#endif
    return read_baseline;
}

struct read_bandwidth {
    gaac_executor executor;
    read_function *read;
    uint8_t *mapping, *data;
    size_t mapping_bytes, bytes_each; /* of a worker */
    unsigned order;
    uint64_t *sums; /* of each worker, 64 bytes apart: what was read has to go somewhere */
};

static size_t bytes_of_all(void)
{
    const size_t least = (size_t)1 << 30;
    size_t bytes = least;
#ifdef _SC_LEVEL3_CACHE_SIZE
    const long cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
    if (cache > 0 && 4 * (size_t)cache > bytes)
        bytes = 4 * (size_t)cache;
#endif
    /* Not more than an eighth of the memory, unless that is less than the least that says something. */
    const size_t most = (size_t)sysconf(_SC_PHYS_PAGES) / 8 * (size_t)sysconf(_SC_PAGESIZE);
    return bytes < most ? bytes : most > least ? most : least;
}

static void touch(void *context, unsigned worker)
{
    read_bandwidth *reader = context;
    memset(reader->data + worker * reader->bytes_each, (int)worker + 1, reader->bytes_each);
}

static void read_part(void *context, unsigned worker)
{
    read_bandwidth *reader = context;
    const uint8_t *part = reader->data + worker * reader->bytes_each;
    reader->sums[8 * worker] += reader->read(part, reader->bytes_each, reader->order);
}

static void run(read_bandwidth *reader, gaac_task *task)
{
    if (reader->executor.workers > 1)
        reader->executor.run(reader->executor.user, task, reader, reader->executor.workers);
    else
        task(reader, 0);
}

double read_bandwidth_pass(read_bandwidth *reader)
{
    const double start = tool_seconds();
    run(reader, read_part);
    return 1e-9 * (double)read_bandwidth_bytes(reader) / (tool_seconds() - start);
}

size_t read_bandwidth_bytes(const read_bandwidth *reader)
{
    return reader->bytes_each * reader->executor.workers;
}

static void choose_order(read_bandwidth *reader)
{
    double best = 0;
    unsigned best_order = 0;
    for (unsigned pass = 0; pass < TUNING_PASSES * ORDERS; pass++) {
        reader->order = pass % ORDERS;
        const double speed = read_bandwidth_pass(reader);
        if (speed > best) {
            best = speed;
            best_order = reader->order;
        }
    }
    reader->order = best_order;
}

read_bandwidth *read_bandwidth_create(const gaac_executor *executor)
{
    read_bandwidth *reader = tool_alloc(sizeof *reader);
    reader->executor = *executor;
    reader->read = widest();
    reader->bytes_each = bytes_of_all() / executor->workers / HUGE_PAGE * HUGE_PAGE;
    reader->sums = tool_alloc(executor->workers * 8 * sizeof *reader->sums);
    reader->mapping_bytes = read_bandwidth_bytes(reader) + HUGE_PAGE;
    reader->mapping =
        mmap(NULL, reader->mapping_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (reader->mapping == MAP_FAILED)
        exit(tool_fail(TOOL_FAILED, "no memory for %zu bytes to measure the read bandwidth; close something",
                       reader->mapping_bytes));
    const size_t off = (uintptr_t)reader->mapping % HUGE_PAGE;
    reader->data = reader->mapping + (off ? HUGE_PAGE - off : 0);
    (void)madvise(reader->mapping, reader->mapping_bytes, MADV_HUGEPAGE); /* refused: small pages, a little slower */
    run(reader, touch);
    choose_order(reader);
    return reader;
}

void read_bandwidth_destroy(read_bandwidth *reader)
{
    if (!reader)
        return;
    (void)munmap(reader->mapping, reader->mapping_bytes);
    free(reader->sums);
    free(reader);
}
