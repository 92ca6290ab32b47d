#include "kv_store.h"

#include "settings.h"
#include "stats.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    RUN_ROWS = GAAC_BLOCK_TOKENS, /* rows that bulk operations hold at once: a block */
    /* Without its own number, self-calibration starts when this many tokens of a layer are complete.
     * A profile that is to be kept deserves twice the default; a short cache gives what it can. */
    CALIBRATE_TOKENS = 4096,
};

/* ---- names ----------------------------------------------------------------------------------- */

/* cache_k_l7, cache_v_l7, or with a tag in front of the letter: cache_<tag>k_l7. */
static bool parse_name(const char *name, gaac_part *part, int *layer)
{
    if (strncmp(name, "cache_", 6) != 0)
        return false;
    const char *tail = NULL;
    for (const char *at = strstr(name + 5, "_l"); at; at = strstr(at + 1, "_l"))
        tail = at;
    if (!tail || tail < name + 7 || (tail[-1] != 'k' && tail[-1] != 'v'))
        return false;
    char *end;
    long number = strtol(tail + 2, &end, 10);
    if (end == tail + 2 || *end || number < 0 || number > 1000000)
        return false;
    *part = tail[-1] == 'k' ? GAAC_K : GAAC_V;
    *layer = (int)number;
    return true;
}

bool kv_is_cache_tensor(const host_tensor *tensor, gaac_part *part, int *layer)
{
    return tensor->type == HOST_TYPE_BF16 && !tensor->view_src && tensor->ne[3] == 1 &&
           parse_name(tensor->name, part, layer);
}

/* ---- the tensors of a store ------------------------------------------------------------------ */

kv_store *kv_store_create(void)
{
    kv_store *store = calloc(1, sizeof *store);
    if (store)
        stats_register(store);
    return store;
}

void kv_store_destroy(kv_store *store)
{
    if (!store)
        return;
    stats_unregister(store);
    gaac_cache_destroy(store->cache);
    free(store->tensors);
    free(store->layers);
    free(store->used);
    free(store);
}

static bool grow(kv_store *store)
{
    if (store->tensor_count < store->capacity)
        return true;
    uint32_t capacity = store->capacity ? 2 * store->capacity : 32;
    kv_tensor *tensors = realloc(store->tensors, capacity * sizeof *tensors);
    if (tensors)
        store->tensors = tensors;
    kv_layer *layers = realloc(store->layers, capacity * sizeof *layers);
    if (layers)
        store->layers = layers;
    if (!tensors || !layers)
        return false;
    store->capacity = capacity;
    return true;
}

static kv_layer *layer_for(kv_store *store, int index)
{
    for (uint32_t i = 0; i < store->layer_count; i++) {
        if (store->layers[i].index == index)
            return &store->layers[i];
    }
    kv_layer *layer = &store->layers[store->layer_count++];
    *layer = (kv_layer){.index = index};
    return layer;
}

/* All tensors of a cache have the same number of cells and streams. */
static bool same_extent(kv_store *store, const host_tensor *tensor)
{
    if (store->tensor_count == 0) {
        store->cells = (uint64_t)tensor->ne[1];
        store->streams = (uint32_t)tensor->ne[2];
        store->used = calloc(store->streams, sizeof *store->used);
    }
    return store->used && store->cells == (uint64_t)tensor->ne[1] && store->streams == (uint32_t)tensor->ne[2];
}

bool kv_store_add(kv_store *store, const host_tensor *tensor, const char **reason)
{
    gaac_part part;
    int index;
    size_t width = (size_t)tensor->ne[0];
    *reason = "it is not a BF16 K or V tensor";
    if (!kv_is_cache_tensor(tensor, &part, &index))
        return false;
    *reason = "its rows are not a multiple of 16 elements";
    if (width % 16 != 0 || tensor->nb[1] != width * sizeof(uint16_t))
        return false;
    *reason = "there is no memory for its bookkeeping";
    if (!grow(store))
        return false;
    *reason = "it differs from the other layers in cells or streams";
    if (!same_extent(store, tensor))
        return false;
    kv_layer *layer = layer_for(store, index);
    *reason = "its layer has two of them";
    if (layer->has[part])
        return false;
    layer->has[part] = true;
    layer->width[part] = width;
    store->tensors[store->tensor_count++] =
        (kv_tensor){.address = (uintptr_t)tensor->data,
                    .bytes = width * sizeof(uint16_t) * store->cells * store->streams,
                    .width = width,
                    .layer = (uint32_t)(layer - store->layers),
                    .part = part};
    return true;
}

kv_tensor *kv_store_find(const kv_store *store, const void *address)
{
    uintptr_t at = (uintptr_t)address;
    for (uint32_t i = 0; i < store->tensor_count; i++) {
        kv_tensor *tensor = &store->tensors[i];
        if (at >= tensor->address && at - tensor->address < tensor->bytes)
            return tensor;
    }
    return NULL;
}

bool kv_store_complete(const kv_store *store)
{
    for (uint32_t i = 0; i < store->layer_count; i++) {
        if (!store->layers[i].has[GAAC_K] || !store->layers[i].has[GAAC_V])
            return false;
    }
    return store->layer_count > 0;
}

/* ---- shapes and the cache -------------------------------------------------------------------- */

/* A layer that no attention has named yet: as many heads as a known layer has, else heads of 16
 * channels, which every width allows. Any choice is exact; learning the truth makes the cache anew. */
static gaac_shape guess_shape(const kv_store *store, const kv_layer *layer)
{
    uint32_t heads = 0;
    for (uint32_t i = 0; i < store->layer_count && !heads; i++)
        heads = store->layers[i].shape_known ? store->layers[i].shape.kv_heads : 0;
    for (unsigned attempt = 0; attempt < 2; attempt++, heads = (uint32_t)(layer->width[GAAC_K] / 16)) {
        gaac_shape shape = {heads, 0, 0};
        if (heads && layer->width[GAAC_K] % heads == 0 && layer->width[GAAC_V] % heads == 0) {
            shape.head_dim_k = (uint32_t)(layer->width[GAAC_K] / heads);
            shape.head_dim_v = (uint32_t)(layer->width[GAAC_V] / heads);
            if (gaac_shape_check(&shape, NULL) == GAAC_OK)
                return shape;
        }
    }
    return (gaac_shape){1, (uint32_t)layer->width[GAAC_K], (uint32_t)layer->width[GAAC_V]};
}

static uint32_t calibration_tokens(const kv_store *store)
{
    if (!config.calibrate_path)
        return 0;
    uint64_t most = store->cells / 4 * 3 / GAAC_BLOCK_TOKENS * GAAC_BLOCK_TOKENS;
    return most < GAAC_BLOCK_TOKENS ? GAAC_BLOCK_TOKENS : most < CALIBRATE_TOKENS ? (uint32_t)most : CALIBRATE_TOKENS;
}

static gaac_status make_cache(kv_store *store, gaac_cache **cache, gaac_error *error)
{
    gaac_shape *shapes = malloc(store->layer_count * sizeof *shapes);
    uint32_t *indices = malloc(store->layer_count * sizeof *indices);
    gaac_status status = GAAC_ERROR_OUT_OF_MEMORY;
    if (shapes && indices) {
        for (uint32_t i = 0; i < store->layer_count; i++) {
            const kv_layer *layer = &store->layers[i];
            shapes[i] = layer->shape_known ? layer->shape : guess_shape(store, layer);
            indices[i] = (uint32_t)layer->index;
        }
        gaac_cache_config wanted = {.shapes = shapes,
                                    .layer_indices = indices,
                                    .layers = store->layer_count,
                                    .sequences = store->streams,
                                    .tokens_per_sequence = store->cells,
                                    .mode = config.mode,
                                    .profile = config.profile,
                                    .memory_limit = stats_memory_share(store),
                                    .calibration_tokens = calibration_tokens(store)};
        status = gaac_cache_create(cache, &wanted, error);
    } else {
        *error = (gaac_error){status, "no memory for the list of layers"};
    }
    free(shapes);
    free(indices);
    return status;
}

gaac_status kv_store_open(kv_store *store, gaac_error *error)
{
    return store->cache ? GAAC_OK : make_cache(store, &store->cache, error);
}

/* Moves every row that is not zero into a cache of the shapes known now. */
static gaac_status remake_cache(kv_store *store, gaac_error *error)
{
    kv_store old = *store;
    gaac_status status = make_cache(store, &store->cache, error);
    for (uint32_t i = 0; status == GAAC_OK && i < store->tensor_count; i++) {
        const kv_tensor *tensor = &store->tensors[i];
        size_t row_bytes = tensor->width * sizeof(uint16_t);
        for (uint32_t stream = 0; status == GAAC_OK && stream < store->streams; stream++) {
            size_t start = stream * store->cells * row_bytes;
            status = kv_store_copy(&old, tensor, start, store, tensor, start, store->used[stream] * row_bytes, error);
        }
    }
    gaac_cache *loser = status == GAAC_OK ? old.cache : store->cache;
    if (status != GAAC_OK)
        store->cache = old.cache;
    if (loser != store->cache)
        gaac_cache_destroy(loser);
    return status;
}

gaac_status kv_store_learn(kv_store *store, uint32_t layer, const gaac_shape *shape, gaac_error *error)
{
    kv_layer *known = &store->layers[layer];
    if (known->shape_known && memcmp(&known->shape, shape, sizeof *shape) == 0)
        return GAAC_OK;
    known->shape = *shape;
    known->shape_known = true;
    stats_cache_held();
    gaac_shape current;
    if (!store->cache ||
        (gaac_cache_shape(store->cache, layer, &current) && memcmp(&current, shape, sizeof *shape) == 0))
        return GAAC_OK;
    return remake_cache(store, error);
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* A run of whole rows inside one stream. */
typedef struct row_run {
    uint32_t stream;
    uint64_t cell;
    size_t count;
} row_run;

/* The longest run that starts at row `row` (over all streams) and has at most `count` rows. */
static row_run run_at(const kv_store *store, uint64_t row, size_t count)
{
    uint64_t cell = row % store->cells;
    uint64_t left = store->cells - cell;
    return (row_run){(uint32_t)(row / store->cells), cell, count < left ? count : (size_t)left};
}

static gaac_status read_run(const kv_store *store, const kv_tensor *tensor, row_run run, uint16_t *rows,
                            gaac_error *error)
{
    if (!store->cache) {
        memset(rows, 0, run.count * tensor->width * sizeof *rows);
        return GAAC_OK;
    }
    return gaac_cache_read(store->cache, tensor->layer, tensor->part, run.stream, run.cell, run.count, rows,
                           tensor->width, error);
}

static void note_used(kv_store *store, uint32_t stream, uint64_t end)
{
    if (end > store->used[stream])
        store->used[stream] = end;
}

static gaac_status write_run(kv_store *store, const kv_tensor *tensor, row_run run, const uint16_t *rows,
                             gaac_error *error)
{
    gaac_status status = kv_store_open(store, error);
    if (status != GAAC_OK)
        return status;
    note_used(store, run.stream, run.cell + run.count);
    return gaac_cache_write(store->cache, tensor->layer, tensor->part, run.stream, run.cell, NULL, run.count, rows,
                            tensor->width, error);
}

gaac_status kv_store_write_rows(kv_store *store, const kv_tensor *tensor, const int64_t *rows, size_t count,
                                const uint16_t *values, gaac_error *error)
{
    gaac_status status = kv_store_open(store, error);
    int64_t cells[256];
    for (size_t done = 0; status == GAAC_OK && done < count;) {
        uint64_t stream = (uint64_t)rows[done] / store->cells;
        size_t batch = 0;
        if (rows[done] < 0 || stream >= store->streams) {
            snprintf(error->message, sizeof error->message, "row %lld is outside the cache", (long long)rows[done]);
            return error->status = GAAC_ERROR_INVALID_ARGUMENT;
        }
        while (done + batch < count && batch < sizeof cells / sizeof *cells && rows[done + batch] >= 0 &&
               (uint64_t)rows[done + batch] / store->cells == stream) {
            cells[batch] = (int64_t)((uint64_t)rows[done + batch] % store->cells);
            note_used(store, (uint32_t)stream, (uint64_t)cells[batch] + 1);
            batch++;
        }
        status = gaac_cache_write(store->cache, tensor->layer, tensor->part, (uint32_t)stream, 0, cells, batch,
                                  values + done * tensor->width, tensor->width, error);
        done += batch;
    }
    return status;
}

/* ---- bytes ----------------------------------------------------------------------------------- */

/* Ranges of bytes are worked through in pieces of at most RUN_ROWS rows of one stream; the first and
 * the last row of a range may be partial. */
typedef struct piece {
    row_run run;
    size_t skip;  /* bytes of the first row before the range */
    size_t bytes; /* of the range in this piece */
} piece;

static piece piece_at(const kv_store *store, const kv_tensor *tensor, size_t offset, size_t size)
{
    size_t row_bytes = tensor->width * sizeof(uint16_t);
    size_t skip = offset % row_bytes;
    size_t rows = (skip + size + row_bytes - 1) / row_bytes;
    /* Pieces end on the boundaries of blocks, so that a block is written by one call. */
    uint64_t first = offset / row_bytes;
    size_t most = RUN_ROWS - (size_t)(first % store->cells % RUN_ROWS);
    row_run run = run_at(store, first, rows < most ? rows : most);
    size_t bytes = run.count * row_bytes - skip;
    return (piece){run, skip, bytes < size ? bytes : size};
}

static uint16_t *piece_buffer(const kv_tensor *tensor, gaac_error *error)
{
    uint16_t *rows = malloc(RUN_ROWS * tensor->width * sizeof *rows);
    if (!rows)
        *error = (gaac_error){GAAC_ERROR_OUT_OF_MEMORY, "no memory for 16 rows of the cache"};
    return rows;
}

gaac_status kv_store_read(const kv_store *store, const kv_tensor *tensor, size_t offset, void *data, size_t size,
                          gaac_error *error)
{
    uint16_t *rows = piece_buffer(tensor, error);
    if (!rows)
        return GAAC_ERROR_OUT_OF_MEMORY;
    gaac_status status = GAAC_OK;
    char *out = data;
    while (status == GAAC_OK && size > 0) {
        piece part = piece_at(store, tensor, offset, size);
        status = read_run(store, tensor, part.run, rows, error);
        if (status == GAAC_OK)
            memcpy(out, (const char *)rows + part.skip, part.bytes);
        out += part.bytes;
        offset += part.bytes;
        size -= part.bytes;
    }
    free(rows);
    return status;
}

gaac_status kv_store_write(kv_store *store, const kv_tensor *tensor, size_t offset, const void *data, size_t size,
                           gaac_error *error)
{
    uint16_t *rows = piece_buffer(tensor, error);
    if (!rows)
        return GAAC_ERROR_OUT_OF_MEMORY;
    gaac_status status = GAAC_OK;
    const char *in = data;
    while (status == GAAC_OK && size > 0) {
        piece part = piece_at(store, tensor, offset, size);
        if (part.bytes < part.run.count * tensor->width * sizeof *rows)
            status = read_run(store, tensor, part.run, rows, error);
        memcpy((char *)rows + part.skip, in, part.bytes);
        if (status == GAAC_OK)
            status = write_run(store, tensor, part.run, rows, error);
        in += part.bytes;
        offset += part.bytes;
        size -= part.bytes;
    }
    free(rows);
    return status;
}

static bool all_equal(const uint16_t *rows, size_t bytes, uint8_t value)
{
    const uint8_t *data = (const uint8_t *)rows;
    return bytes == 0 || (data[0] == value && memcmp(data, data + 1, bytes - 1) == 0);
}

gaac_status kv_store_fill(kv_store *store, const kv_tensor *tensor, size_t offset, uint8_t value, size_t size,
                          gaac_error *error)
{
    uint16_t *rows = piece_buffer(tensor, error);
    if (!rows)
        return GAAC_ERROR_OUT_OF_MEMORY;
    gaac_status status = GAAC_OK;
    while (status == GAAC_OK && size > 0) {
        piece part = piece_at(store, tensor, offset, size);
        status = kv_store_read(store, tensor, offset, rows, part.bytes, error);
        /* The host zeroes rows that were never used as well: they stay without memory. */
        if (status == GAAC_OK && !all_equal(rows, part.bytes, value)) {
            memset(rows, value, part.bytes);
            status = kv_store_write(store, tensor, offset, rows, part.bytes, error);
        }
        offset += part.bytes;
        size -= part.bytes;
    }
    free(rows);
    return status;
}

static bool never_used(const kv_store *store, const kv_tensor *tensor, size_t offset)
{
    uint64_t row = offset / (tensor->width * sizeof(uint16_t));
    return row % store->cells >= store->used[row / store->cells];
}

/* One piece of at most RUN_ROWS rows; rows and present have room for it. */
static gaac_status copy_piece(const kv_store *from, const kv_tensor *from_tensor, size_t from_offset, kv_store *to,
                              const kv_tensor *to_tensor, size_t to_offset, size_t bytes, uint16_t *rows,
                              uint16_t *present, gaac_error *error)
{
    gaac_status status = kv_store_read(from, from_tensor, from_offset, rows, bytes, error);
    if (status == GAAC_OK && all_equal(rows, bytes, 0)) {
        status = kv_store_read(to, to_tensor, to_offset, present, bytes, error);
        if (status == GAAC_OK && all_equal(present, bytes, 0))
            return GAAC_OK;
    }
    return status == GAAC_OK ? kv_store_write(to, to_tensor, to_offset, rows, bytes, error) : status;
}

gaac_status kv_store_copy(const kv_store *from, const kv_tensor *from_tensor, size_t from_offset, kv_store *to,
                          const kv_tensor *to_tensor, size_t to_offset, size_t size, gaac_error *error)
{
    uint16_t *rows = piece_buffer(to_tensor, error);
    uint16_t *present = rows ? piece_buffer(to_tensor, error) : NULL;
    gaac_status status = present ? GAAC_OK : GAAC_ERROR_OUT_OF_MEMORY;
    while (status == GAAC_OK && size > 0) {
        size_t bytes = piece_at(to, to_tensor, to_offset, size).bytes;
        if (!never_used(from, from_tensor, from_offset) || !never_used(to, to_tensor, to_offset))
            status = copy_piece(from, from_tensor, from_offset, to, to_tensor, to_offset, bytes, rows, present, error);
        from_offset += bytes;
        to_offset += bytes;
        size -= bytes;
    }
    free(rows);
    free(present);
    return status;
}

void kv_store_clear(kv_store *store)
{
    stats_note_peak();
    stats_keep_profile(store);
    memset(store->used, 0, store->streams * sizeof *store->used);
    if (store->cache)
        gaac_cache_drop(store->cache, GAAC_ALL_SEQUENCES, 0, store->cells);
}
