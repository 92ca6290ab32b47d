/* Allocation through the hook, and address space that is reserved first and committed as needed. */
#include "base/base.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static void *default_allocate(void *user, size_t bytes, size_t alignment)
{
    (void)user;
    void *pointer = NULL;
    return posix_memalign(&pointer, alignment, bytes) == 0 ? pointer : NULL;
}

static void default_release(void *user, void *pointer, size_t bytes)
{
    (void)user;
    (void)bytes;
    free(pointer);
}

gaac_allocator gaac_allocator_or_default(const gaac_allocator *allocator)
{
    return allocator != NULL ? *allocator : (gaac_allocator){default_allocate, default_release, NULL};
}

void *gaac_calloc(const gaac_allocator *allocator, size_t bytes)
{
    void *pointer = allocator->allocate(allocator->user, bytes, 64);
    return pointer != NULL ? memset(pointer, 0, bytes) : NULL;
}

void gaac_free(const gaac_allocator *allocator, void *pointer, size_t bytes)
{
    if (pointer != NULL)
        allocator->release(allocator->user, pointer, bytes);
}

size_t gaac_page_bytes(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

void *gaac_memory_reserve(size_t bytes)
{
    /* A huge page more, so that a range can start on one; what is left over at both ends goes back. */
    uint8_t *address =
        mmap(NULL, bytes + GAAC_HUGE_PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (address == MAP_FAILED)
        return NULL;
    const size_t before = (GAAC_HUGE_PAGE - (uintptr_t)address % GAAC_HUGE_PAGE) % GAAC_HUGE_PAGE;
    if (before != 0)
        (void)munmap(address, before);
    (void)munmap(address + before + bytes, GAAC_HUGE_PAGE - before);
    return address + before;
}

void gaac_memory_prefer_huge(void *address, size_t bytes)
{
#ifdef MADV_HUGEPAGE
    (void)madvise(address, bytes, MADV_HUGEPAGE); /* where the system refuses, small pages serve */
#else
    (void)address;
    (void)bytes;
#endif
}

void gaac_memory_avoid_huge(void *address, size_t bytes)
{
#ifdef MADV_NOHUGEPAGE
    (void)madvise(address, bytes, MADV_NOHUGEPAGE);
#else
    (void)address;
    (void)bytes;
#endif
}

bool gaac_memory_commit(void *address, size_t bytes)
{
    return mprotect(address, bytes, PROT_READ | PROT_WRITE) == 0;
}

void gaac_memory_give_back(void *address, size_t bytes)
{
    /* Were it refused, the pages would merely stay; callers that count on zeros clear them anyway. */
    (void)madvise(address, bytes, MADV_DONTNEED);
}

void gaac_memory_release(void *address, size_t bytes)
{
    if (address != NULL)
        (void)munmap(address, bytes);
}
