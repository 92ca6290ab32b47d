/* The K and V tensors of one host buffer, kept in a gaac_cache.
 *
 * The host sees addresses in a range that has no memory behind it; this room turns a range of bytes
 * there into (layer, K or V, sequence, cells). The heads of a layer are not in the tensor, only their
 * product with head_dim: kv_store_learn brings them, from the first attention that the host plans.
 * The gaac_cache is made when the first byte is written. One thread at a time, except where noted. */
#ifndef GAAC_LLAMA_KV_STORE_H
#define GAAC_LLAMA_KV_STORE_H

#include "gaac/cache.h"
#include "host_abi.h"

/* One tensor cache_[<tag>]k_l<layer> or v_l<layer>: [width, cells, streams] of BF16. */
typedef struct kv_tensor {
    uintptr_t address;
    size_t bytes;
    size_t width;   /* elements of a row: kv_heads * head_dim */
    uint32_t layer; /* position in kv_store.layers */
    gaac_part part;
} kv_tensor;

typedef struct kv_layer {
    int index; /* the model's own number */
    bool has[2];
    size_t width[2];
    bool shape_known;
    gaac_shape shape;
} kv_layer;

typedef struct kv_store {
    kv_tensor *tensors;
    kv_layer *layers;
    uint32_t tensor_count, layer_count, capacity; /* capacity of tensors; layers has as many */
    uint64_t cells;                               /* of a stream */
    uint32_t streams;                             /* a stream is a sequence of the gaac_cache */
    uint64_t *used;                               /* [streams] one past the highest cell that was written */
    gaac_cache *cache;                            /* NULL until the first write */
    struct kv_store *next;                        /* list of all stores, for the statistics (stats.h) */
} kv_store;

/* A K or V tensor by its name and type, whether or not it has memory. */
bool kv_is_cache_tensor(const host_tensor *tensor, gaac_part *part, int *layer);

kv_store *kv_store_create(void); /* NULL when there is no memory */
void kv_store_destroy(kv_store *store);

/* Adds a tensor that the host has placed. False with a reason when this store can't hold it. */
bool kv_store_add(kv_store *store, const host_tensor *tensor, const char **reason);

/* The tensor that holds this address, or NULL. */
kv_tensor *kv_store_find(const kv_store *store, const void *address);

/* Both tensors of every layer are here. */
bool kv_store_complete(const kv_store *store);

/* Tells the heads of a layer. A cache that was made with another guess is made anew. */
gaac_status kv_store_learn(kv_store *store, uint32_t layer, const gaac_shape *shape, gaac_error *error);

/* Makes the gaac_cache if there is none. */
gaac_status kv_store_open(kv_store *store, gaac_error *error);

/* Any range of bytes of one tensor; offset from its start. fill writes one byte all over. */
gaac_status kv_store_read(const kv_store *store, const kv_tensor *tensor, size_t offset, void *data, size_t size,
                          gaac_error *error);
gaac_status kv_store_write(kv_store *store, const kv_tensor *tensor, size_t offset, const void *data, size_t size,
                           gaac_error *error);
gaac_status kv_store_fill(kv_store *store, const kv_tensor *tensor, size_t offset, uint8_t value, size_t size,
                          gaac_error *error);

/* Whole rows to the cells that `rows` names, counted over all streams (stream * cells + cell). */
gaac_status kv_store_write_rows(kv_store *store, const kv_tensor *tensor, const int64_t *rows, size_t count,
                                const uint16_t *values, gaac_error *error);

/* Copies rows between two tensors of the same width, in the same store or not. Runs that are zero on
 * both sides, as cells that were never written are, take no memory. */
gaac_status kv_store_copy(const kv_store *from, const kv_tensor *from_tensor, size_t from_offset, kv_store *to,
                          const kv_tensor *to_tensor, size_t to_offset, size_t size, gaac_error *error);

/* Forgets everything. Touches no memory that was not in use. */
void kv_store_clear(kv_store *store);

#endif
