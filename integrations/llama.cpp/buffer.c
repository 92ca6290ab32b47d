#include "buffer.h"

#include "host.h"
#include "settings.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

typedef enum buffer_kind { BUFFER_EMPTY = 0, BUFFER_KV, BUFFER_SCRATCH, BUFFER_HOST } buffer_kind;

typedef struct buffer_state {
    void *base;
    size_t size;
    buffer_kind kind;
    kv_store *store; /* BUFFER_KV */
} buffer_state;

/* Tensors start on cache lines; nothing needs more. */
enum { BUFFER_ALIGNMENT = 128 };

static host_buft_2 type_2;
static host_buft_3 type_3;

host_buft *buffer_type(void)
{
    return host.api == 3 ? (host_buft *)&type_3 : (host_buft *)&type_2;
}

static buffer_state *state_of(const host_buffer *buffer)
{
    return buffer->context;
}

static host_buffer *buffer_of(const host_tensor *tensor)
{
    return host_root(tensor)->buffer;
}

bool buffer_is_ours(const host_tensor *tensor)
{
    host_buffer *buffer = buffer_of(tensor);
    return buffer && buffer->buft == buffer_type();
}

bool buffer_is_dummy(const host_tensor *tensor)
{
    return buffer_is_ours(tensor) && !buffer_of(tensor)->context;
}

kv_store *buffer_store(const host_tensor *tensor)
{
    host_buffer *buffer = buffer_of(tensor);
    if (!buffer || buffer->buft != buffer_type() || !buffer->context)
        return NULL;
    return state_of(buffer)->store;
}

/* ---- becoming something ---------------------------------------------------------------------- */

static bool give_memory(buffer_state *state)
{
    if (mprotect(state->base, state->size, PROT_READ | PROT_WRITE) == 0)
        return true;
    notice("no memory for %zu bytes", state->size);
    return false;
}

/* What the store holds, written to the addresses where the host believes it to be. Cells that were
 * never written are zero there already. */
static bool pour_out(const kv_store *store)
{
    gaac_error error = {0};
    for (uint32_t i = 0; i < store->tensor_count; i++) {
        const kv_tensor *tensor = &store->tensors[i];
        size_t row_bytes = tensor->width * sizeof(uint16_t);
        for (uint32_t stream = 0; stream < store->streams; stream++) {
            size_t start = stream * store->cells * row_bytes;
            if (kv_store_read(store, tensor, start, (char *)tensor->address + start, store->used[stream] * row_bytes,
                              &error) != GAAC_OK) {
                notice("can't read the cache back: %s", error.message);
                return false;
            }
        }
    }
    return true;
}

static bool become_host(host_buffer *buffer)
{
    buffer_state *state = state_of(buffer);
    if (state->kind != BUFFER_SCRATCH && !give_memory(state))
        return false;
    if (state->store && !pour_out(state->store))
        return false;
    kv_store_destroy(state->store);
    state->store = NULL;
    state->kind = BUFFER_HOST;
    buffer->buft = host.call.backend_cpu_buffer_type();
    return true;
}

void buffer_to_host(const host_tensor *tensor)
{
    become_host(buffer_of(tensor));
}

/* Why the tensor makes its buffer the host's. Recurrent states belong there and are no loss; tensors
 * that are no cache (a saved sequence kept "on the device") need no words. */
static void tell_other_tensor(const host_tensor *tensor, const char *reason)
{
    const char *type = host.call.type_name(tensor->type);
    if (strncmp(tensor->name, "cache_", 6) != 0)
        return;
    if (strncmp(tensor->name, "cache_r_", 8) == 0 || strncmp(tensor->name, "cache_s_", 8) == 0)
        notice_once(NOTICE_RECURRENT, "the model's recurrent state (%s, %s) stays with the CPU as it is", tensor->name,
                    type);
    else if (tensor->type != HOST_TYPE_BF16)
        notice_once(NOTICE_OTHER_TENSOR,
                    "the KV cache is %s (%s), not BF16: it stays uncompressed with the CPU; to compress it run with "
                    "-ctk bf16 -ctv bf16",
                    type, tensor->name);
    else
        notice_once(NOTICE_OTHER_TENSOR, "%s (%s) stays uncompressed with the CPU: %s", tensor->name, type, reason);
}

/* A profile that knows the model has every layer, with the model's widths. */
static bool profile_fits(const kv_store *store)
{
    if (!config.profile || !kv_store_complete(store))
        return true;
    for (uint32_t i = 0; i < store->layer_count; i++) {
        const kv_layer *layer = &store->layers[i];
        gaac_profile_layer found;
        if (!gaac_profile_find_layer(config.profile, (uint32_t)layer->index, &found)) {
            notice("GAAC_PROFILE=%s is for another model: it has no layer %d; make one for this model with gaac "
                   "calibrate",
                   config.profile_path, layer->index);
            return false;
        }
        if ((size_t)found.shape.kv_heads * found.shape.head_dim_k != layer->width[GAAC_K] ||
            (size_t)found.shape.kv_heads * found.shape.head_dim_v != layer->width[GAAC_V]) {
            notice("GAAC_PROFILE=%s is for another model: its layer %d has %u heads of %u and %u channels, this "
                   "model's has rows of %zu and %zu; make one for this model with gaac calibrate",
                   config.profile_path, layer->index, found.shape.kv_heads, found.shape.head_dim_k,
                   found.shape.head_dim_v, layer->width[GAAC_K], layer->width[GAAC_V]);
            return false;
        }
    }
    return true;
}

/* ---- the host's view ------------------------------------------------------------------------- */

static void buffer_free(host_buffer *buffer)
{
    buffer_state *state = state_of(buffer);
    kv_store_destroy(state->store);
    munmap(state->base, state->size);
    free(state);
}

static void *buffer_base(host_buffer *buffer)
{
    return state_of(buffer)->base;
}

static int add_cache_tensor(host_buffer *buffer, const host_tensor *tensor)
{
    buffer_state *state = state_of(buffer);
    const char *reason;
    if (state->kind == BUFFER_EMPTY) {
        state->store = kv_store_create();
        state->kind = state->store ? BUFFER_KV : BUFFER_EMPTY;
    }
    if (!state->store)
        return HOST_STATUS_ALLOC_FAILED;
    if (kv_store_add(state->store, tensor, &reason))
        return profile_fits(state->store) ? HOST_STATUS_SUCCESS : HOST_STATUS_FAILED;
    tell_other_tensor(tensor, reason);
    return become_host(buffer) ? HOST_STATUS_SUCCESS : HOST_STATUS_ALLOC_FAILED;
}

static int buffer_init_tensor(host_buffer *buffer, host_tensor *tensor)
{
    buffer_state *state = state_of(buffer);
    gaac_part part;
    int layer;
    if (state->kind == BUFFER_HOST || state->kind == BUFFER_SCRATCH || tensor->view_src)
        return HOST_STATUS_SUCCESS;
    if (buffer->usage == HOST_USAGE_COMPUTE) {
        state->kind = BUFFER_SCRATCH;
        return give_memory(state) ? HOST_STATUS_SUCCESS : HOST_STATUS_ALLOC_FAILED;
    }
    if (kv_is_cache_tensor(tensor, &part, &layer))
        return add_cache_tensor(buffer, tensor);
    tell_other_tensor(tensor, "this device holds K and V of attention layers only");
    return become_host(buffer) ? HOST_STATUS_SUCCESS : HOST_STATUS_ALLOC_FAILED;
}

/* The K or V tensor that holds data + offset, with that position in *at; NULL: plain memory. */
static kv_tensor *locate(const host_buffer *buffer, const void *data, size_t offset, size_t *at)
{
    const buffer_state *state = state_of(buffer);
    const char *address = (const char *)data + offset;
    kv_tensor *tensor = state->store ? kv_store_find(state->store, address) : NULL;
    if (tensor)
        *at = (size_t)((uintptr_t)address - tensor->address);
    return tensor;
}

/* The interface has no way to report a failure: the line is all there is. Memory runs out here only
 * when a state is restored into a cache that is too small for it. */
static void tell_failure(gaac_status status, const gaac_error *error)
{
    if (status != GAAC_OK)
        notice("the KV cache could not take data from the host, what follows is wrong: %s", error->message);
}

static void buffer_memset_tensor(host_buffer *buffer, host_tensor *tensor, uint8_t value, size_t offset, size_t size)
{
    size_t at;
    gaac_error error;
    kv_tensor *kv = locate(buffer, tensor->data, offset, &at);
    if (kv)
        tell_failure(kv_store_fill(state_of(buffer)->store, kv, at, value, size, &error), &error);
    else
        memset((char *)tensor->data + offset, value, size);
}

static void buffer_set_tensor(host_buffer *buffer, host_tensor *tensor, const void *data, size_t offset, size_t size)
{
    size_t at;
    gaac_error error;
    kv_tensor *kv = locate(buffer, tensor->data, offset, &at);
    if (kv)
        tell_failure(kv_store_write(state_of(buffer)->store, kv, at, data, size, &error), &error);
    else
        memcpy((char *)tensor->data + offset, data, size);
}

static void buffer_get_tensor(host_buffer *buffer, const host_tensor *tensor, void *data, size_t offset, size_t size)
{
    size_t at;
    gaac_error error;
    kv_tensor *kv = locate(buffer, tensor->data, offset, &at);
    if (kv)
        tell_failure(kv_store_read(state_of(buffer)->store, kv, at, data, size, &error), &error);
    else
        memcpy(data, (const char *)tensor->data + offset, size);
}

/* Streams of a cache are copied onto each other this way. The layouts are the same: the host checks. */
static bool buffer_cpy_tensor(host_buffer *buffer, const host_tensor *src, host_tensor *dst)
{
    size_t size = host.call.nbytes(src), from_at = 0, to_at = 0;
    if (!buffer_is_ours(src))
        return false; /* the host copies through set_tensor */
    host_buffer *from = buffer_of(src);
    kv_tensor *from_kv = locate(from, src->data, 0, &from_at);
    kv_tensor *to_kv = locate(buffer, dst->data, 0, &to_at);
    gaac_error error;
    if (from_kv && to_kv && from_kv->width == to_kv->width)
        tell_failure(
            kv_store_copy(state_of(from)->store, from_kv, from_at, state_of(buffer)->store, to_kv, to_at, size, &error),
            &error);
    else if (from_kv && !to_kv)
        tell_failure(kv_store_read(state_of(from)->store, from_kv, from_at, dst->data, size, &error), &error);
    else if (to_kv && !from_kv)
        tell_failure(kv_store_write(state_of(buffer)->store, to_kv, to_at, src->data, size, &error), &error);
    else if (from_kv)
        return false;
    else
        memcpy(dst->data, src->data, size);
    return true;
}

static void buffer_clear(host_buffer *buffer, uint8_t value)
{
    buffer_state *state = state_of(buffer);
    if (state->kind == BUFFER_EMPTY)
        return; /* nothing is placed; fresh memory is zero */
    if (state->kind == BUFFER_KV && value == 0) {
        kv_store_clear(state->store);
        return;
    }
    if (state->kind == BUFFER_KV) {
        notice_once(NOTICE_OTHER_WRITE, "the host fills the KV cache with %u: it goes on uncompressed with the CPU",
                    value);
        if (!become_host(buffer))
            return;
    }
    if (value != 0 || madvise(state->base, state->size, MADV_DONTNEED) != 0)
        memset(state->base, value, state->size);
}

static const host_buffer_iface buffer_iface = {
    .free_buffer = buffer_free,
    .get_base = buffer_base,
    .init_tensor = buffer_init_tensor,
    .memset_tensor = buffer_memset_tensor,
    .set_tensor = buffer_set_tensor,
    .get_tensor = buffer_get_tensor,
    .cpy_tensor = buffer_cpy_tensor,
    .clear = buffer_clear,
};

/* ---- the type -------------------------------------------------------------------------------- */

static const char *type_name(host_buft *buft)
{
    (void)buft;
    return "GAAC0";
}

/* Address space only. NORESERVE: a compute buffer takes pages as they are touched. */
static host_buffer *type_alloc(host_buft *buft, size_t size)
{
    buffer_state *state = calloc(1, sizeof *state);
    if (!state)
        return NULL;
    state->size = size;
    state->base = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    host_buffer *buffer =
        state->base != MAP_FAILED ? host.call.backend_buffer_init(buft, buffer_iface, state, size) : NULL;
    if (!buffer) {
        notice("no address space for a buffer of %zu bytes", size);
        if (state->base != MAP_FAILED)
            munmap(state->base, size);
        free(state);
    }
    return buffer;
}

static size_t type_alignment(host_buft *buft)
{
    (void)buft;
    return BUFFER_ALIGNMENT;
}

static bool type_is_host(host_buft *buft)
{
    (void)buft;
    return false; /* else the host would read K and V where no memory is */
}

void buffer_type_init(host_device *device)
{
    type_2 = (host_buft_2){.iface = {.get_name = type_name,
                                     .alloc_buffer = type_alloc,
                                     .get_alignment = type_alignment,
                                     .is_host = type_is_host},
                           .device = device};
    type_3 = (host_buft_3){.iface = {.get_name = type_name,
                                     .alloc_buffer = type_alloc,
                                     .get_alignment = type_alignment,
                                     .is_host = type_is_host},
                           .device = device};
}
