#include "kv_dump.h"

#include <string.h>

#include "data_error.h"

static gaac_status check_kind(const npy_file *npy, gaac_error *error)
{
    if (strcmp(npy->type, "<u2") != 0)
        return data_error(error, GAAC_ERROR_CORRUPT,
                          "elements are of type '%s'; a KV dump holds BF16 bits as little-endian uint16 ('<u2')",
                          npy->type);
    if (npy->fortran_order)
        return data_error(error, GAAC_ERROR_CORRUPT,
                          "the array is in Fortran order; save numpy.ascontiguousarray(a) instead");
    if (npy->dimensions != 5 || npy->shape[1] != 2)
        return data_error(error, GAAC_ERROR_CORRUPT,
                          "%u dimensions%s; a KV dump is [layer][2 = K, V][token][KV head][head_dim]", npy->dimensions,
                          npy->dimensions == 5 ? ", of which the second is not 2" : "");
    if (!npy->shape[0] || !npy->shape[2])
        return data_error(error, GAAC_ERROR_CORRUPT, "holds no %s; dump the cache after the model has read a text",
                          npy->shape[0] ? "tokens" : "layers");
    return GAAC_OK;
}

static gaac_status check_size(const npy_file *npy, gaac_error *error)
{
    uint64_t bytes = sizeof(uint16_t);
    for (unsigned i = 0; i < npy->dimensions; i++) {
        if (npy->shape[i] && bytes > UINT64_MAX / npy->shape[i])
            return data_error(error, GAAC_ERROR_CORRUPT, "the shape in its header is impossibly large; dump again");
        bytes *= npy->shape[i];
    }
    if (npy->data_bytes != bytes)
        return data_error(error, GAAC_ERROR_CORRUPT, "%s: %llu bytes of data where its shape needs %llu; copy it again",
                          npy->data_bytes < bytes ? "truncated" : "too long", (unsigned long long)npy->data_bytes,
                          (unsigned long long)bytes);
    return GAAC_OK;
}

/* Checks what dump->npy holds; closes it when it is no dump. */
static gaac_status check_dump(kv_dump *dump, gaac_error *error)
{
    npy_file *npy = &dump->npy;
    gaac_status status = check_kind(npy, error);
    if (status == GAAC_OK && (npy->shape[3] > UINT32_MAX || npy->shape[4] > UINT32_MAX || npy->shape[0] > UINT32_MAX))
        status = data_error(error, GAAC_ERROR_CORRUPT, "the shape in its header is impossibly large; dump again");
    if (status == GAAC_OK) {
        dump->layers = (uint32_t)npy->shape[0];
        dump->tokens = npy->shape[2];
        dump->shape = (gaac_shape){(uint32_t)npy->shape[3], (uint32_t)npy->shape[4], (uint32_t)npy->shape[4]};
        status = gaac_shape_check(&dump->shape, error);
        if (status != GAAC_OK)
            status = GAAC_ERROR_CORRUPT; /* here the shape is the file's, not an argument */
        if (status != GAAC_OK && error)
            error->status = status;
    }
    if (status == GAAC_OK)
        status = check_size(npy, error);
    if (status == GAAC_OK && (uintptr_t)npy->data % _Alignof(uint16_t) != 0)
        status = data_error(error, GAAC_ERROR_CORRUPT, "its data starts at an odd byte; save it with numpy.save");
    if (status != GAAC_OK) {
        npy_close(npy);
        return status;
    }
    dump->data = npy->data;
    return GAAC_OK;
}

gaac_status kv_dump_open(kv_dump *dump, const char *path, gaac_error *error)
{
    *dump = (kv_dump){0};
    const gaac_status status = npy_open(&dump->npy, path, error);
    return status == GAAC_OK ? check_dump(dump, error) : status;
}

gaac_status kv_dump_parse(kv_dump *dump, const void *bytes, size_t size, gaac_error *error)
{
    *dump = (kv_dump){0};
    const gaac_status status = npy_parse(&dump->npy, bytes, size, error);
    return status == GAAC_OK ? check_dump(dump, error) : status;
}

void kv_dump_close(kv_dump *dump)
{
    npy_close(&dump->npy);
}

size_t kv_dump_token_stride(const kv_dump *dump)
{
    return (size_t)dump->shape.kv_heads * dump->shape.head_dim_k;
}

const uint16_t *kv_dump_head(const kv_dump *dump, uint32_t layer, gaac_part part, uint64_t token, uint32_t head)
{
    const size_t row = ((size_t)layer * 2 + (size_t)part) * dump->tokens + token;
    return dump->data + row * kv_dump_token_stride(dump) + (size_t)head * dump->shape.head_dim_k;
}

gaac_kv_rows kv_dump_rows(const kv_dump *dump, uint32_t layer, uint64_t token)
{
    const size_t stride = kv_dump_token_stride(dump);
    return (gaac_kv_rows){.k = kv_dump_head(dump, layer, GAAC_K, token, 0),
                          .v = kv_dump_head(dump, layer, GAAC_V, token, 0),
                          .k_token_stride = stride,
                          .k_head_stride = dump->shape.head_dim_k,
                          .v_token_stride = stride,
                          .v_head_stride = dump->shape.head_dim_v};
}
