/* Buffers of the device: address space that the host places tensors in.
 *
 * A buffer becomes one of three things, by the first tensors that arrive:
 *   KV      BF16 K and V tensors, kept in a kv_store; their addresses have no memory behind them
 *   scratch a compute buffer (attention outputs): plain memory
 *   host    anything else that a host keeps with us because we are a GPU to it (recurrent states, F16
 *           or quantized K and V, K without V): plain memory, handed over to the host's CPU backend for
 *           good by giving the buffer the CPU's type. A KV buffer can still become one later, with all
 *           that it holds, when the host wants to do with it what this device can't. */
#ifndef GAAC_LLAMA_BUFFER_H
#define GAAC_LLAMA_BUFFER_H

#include "kv_store.h"
#include "notice.h"

/* The device's buffer type, in the host's layout. buffer_type_init first. */
void buffer_type_init(host_device *device);
host_buft *buffer_type(void);

/* The tensor's memory belongs to a buffer of this device (dummies of no bytes count). */
bool buffer_is_ours(const host_tensor *tensor);

/* The tensor stands in a dummy of this device: the host measures what a context would take. */
bool buffer_is_dummy(const host_tensor *tensor);

/* The store behind a tensor or view, or NULL: not ours, a dummy, or not a KV buffer. */
kv_store *buffer_store(const host_tensor *tensor);

/* Hands the buffer of a KV tensor over to the host's CPU backend. The caller has told why. */
void buffer_to_host(const host_tensor *tensor);

#endif
