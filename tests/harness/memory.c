/* Guarded memory and random bits of the harness. */
#include "harness_internal.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { GUARD_BYTES = 256, GUARD = 0xa5, FRESH = 0x5a };

struct harness_buffer {
    struct harness_buffer *next;
    uint8_t *mapping;
    size_t mapped;
    uint8_t *end; /* of the readable bytes */
    size_t bytes;
};

uint64_t harness_random(harness *h)
{
    /* splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014) */
    uint64_t z = h->state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

uint32_t harness_below(harness *h, uint32_t bound)
{
    return (uint32_t)((harness_random(h) >> 32) * bound >> 32);
}

void harness_random_bytes(harness *h, void *bytes, size_t size)
{
    uint8_t *out = bytes;
    for (size_t i = 0; i < size; i += 8) {
        const uint64_t word = harness_random(h);
        memcpy(out + i, &word, size - i < 8 ? size - i : 8);
    }
}

static void lay_guards(struct harness_buffer *buffer, size_t bytes)
{
    buffer->bytes = bytes;
    memset(buffer->end - bytes - GUARD_BYTES, GUARD, GUARD_BYTES);
}

void *harness_memory(harness *h, size_t bytes)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const size_t readable = (bytes + GUARD_BYTES + page - 1) / page * page;
    struct harness_buffer *buffer = calloc(1, sizeof *buffer);
    uint8_t *mapping = mmap(NULL, readable + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (buffer == NULL || mapping == MAP_FAILED || mprotect(mapping + readable, page, PROT_NONE) != 0) {
        fprintf(stderr, "harness: no memory for a guarded buffer of %zu bytes\n", bytes);
        exit(2);
    }
    *buffer = (struct harness_buffer){h->buffers, mapping, readable + page, mapping + readable, 0};
    h->buffers = buffer;
    lay_guards(buffer, bytes);
    memset(buffer->end - bytes, FRESH, bytes);
    return buffer->end - bytes;
}

void *harness_resize(harness *h, void *memory, size_t bytes)
{
    for (struct harness_buffer *buffer = h->buffers; buffer != NULL; buffer = buffer->next) {
        if (buffer->end - buffer->bytes == (uint8_t *)memory) {
            lay_guards(buffer, bytes);
            return buffer->end - bytes;
        }
    }
    fprintf(stderr, "harness: harness_resize of memory that is not the harness's\n");
    exit(2);
}

bool harness_guards(harness *h, const char *what)
{
    bool intact = true;
    for (struct harness_buffer *buffer = h->buffers; buffer != NULL; buffer = buffer->next) {
        uint8_t *guard = buffer->end - buffer->bytes - GUARD_BYTES;
        for (size_t i = 0; i < GUARD_BYTES && intact; i++) {
            if (guard[i] != GUARD) {
                harness_fail(h, "%s wrote %zu bytes before a buffer of %zu", what, GUARD_BYTES - i, buffer->bytes);
                intact = false;
            }
        }
        memset(guard, GUARD, GUARD_BYTES);
    }
    return intact;
}

void harness_release_memory(harness *h)
{
    while (h->buffers != NULL) {
        struct harness_buffer *buffer = h->buffers;
        h->buffers = buffer->next;
        munmap(buffer->mapping, buffer->mapped);
        free(buffer);
    }
}
