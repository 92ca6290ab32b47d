/* How fast some threads together read memory: plain loads over a buffer far larger than the caches. */
#ifndef GAAC_TOOL_READ_BANDWIDTH_H
#define GAAC_TOOL_READ_BANDWIDTH_H

#include "gaac/common.h"

typedef struct read_bandwidth read_bandwidth;

/* Allocates the buffer (at least 1 GiB and four times the last-level cache, huge pages where the system has them),
 * each worker's part touched by itself, and finds out which order of loads is fastest. The executor is used by
 * every pass: worker i must be the same thread each time, as in a gaac_thread_pool. Never NULL. */
read_bandwidth *read_bandwidth_create(const gaac_executor *executor);
void read_bandwidth_destroy(read_bandwidth *reader);

/* Reads all of it once: 1e9 bytes a second. */
double read_bandwidth_pass(read_bandwidth *reader);
size_t read_bandwidth_bytes(const read_bandwidth *reader);

#endif
