/* GAAC profile: calibrated windows and slot capacities of a model's layers, as a safetensors file.
 *
 * Tensors (all U8 or U32, little endian): "layers.<i>.windows" [bytes] as gaac_windows_table orders
 * it, "pool_bytes" [layers] U32. The metadata of the header carries the fields below, as strings,
 * and a checksum over the whole file. docs/profile.md specifies the file. */
#ifndef GAAC_PROFILE_H
#define GAAC_PROFILE_H

#include "gaac/codec.h"

#ifdef __cplusplus
extern "C" {
#endif

#define GAAC_PROFILE_FORMAT_VERSION 1

typedef struct gaac_profile gaac_profile; /* immutable once finished: then thread-safe */

/* What a profile says of itself. Strings are UTF-8, at most 1023 bytes, "" where unknown. */
typedef struct gaac_profile_info {
    const char *model_name;
    const char *model_hash;   /* of the file that it was made from, or "" */
    double rope_base;         /* 0 where unknown */
    const char *rope_scaling; /* "none", "linear:4", "yarn:...", or "" */
    const char *text;         /* name of the text it was calibrated on */
    uint64_t tokens;          /* tokens counted a layer */
    const char *date;         /* ISO 8601, UTC */
    gaac_scheme scheme;
} gaac_profile_info;

/* One layer, as profiles take and give it. */
typedef struct gaac_profile_layer {
    gaac_shape shape;
    const gaac_windows *windows; /* borrowed from the profile, or from the caller on add (copied) */
    uint32_t pool_bytes;         /* capacity of a slot's pool */
    uint32_t index;              /* the model's own layer number (layers without a KV cache are absent) */
} gaac_profile_layer;

GAAC_API gaac_status gaac_profile_create(gaac_profile **profile, const gaac_profile_info *info,
                                         const gaac_allocator *allocator, gaac_error *error);
/* Layers are added in rising index order. */
GAAC_API gaac_status gaac_profile_add_layer(gaac_profile *profile, const gaac_profile_layer *layer, gaac_error *error);
GAAC_API void gaac_profile_destroy(gaac_profile *profile); /* NULL is fine */

/* The strings belong to the profile. */
GAAC_API void gaac_profile_get_info(const gaac_profile *profile, gaac_profile_info *info);
GAAC_API uint32_t gaac_profile_layers(const gaac_profile *profile);
/* The n-th layer; false past the end. */
GAAC_API bool gaac_profile_get_layer(const gaac_profile *profile, uint32_t n, gaac_profile_layer *layer);
/* The layer with that index of the model; false if the profile has none. */
GAAC_API bool gaac_profile_find_layer(const gaac_profile *profile, uint32_t index, gaac_profile_layer *layer);

/* Writes to memory from the allocator (caller releases *bytes with *size), or to a file: a
 * temporary beside it is renamed over it, so a crash never leaves half a profile. */
GAAC_API gaac_status gaac_profile_serialize(const gaac_profile *profile, uint8_t **bytes, size_t *size,
                                            gaac_error *error);
GAAC_API gaac_status gaac_profile_save(const gaac_profile *profile, const char *path, gaac_error *error);

/* Reads and checks everything: size, header, JSON, metadata, shapes, offsets, window ranges,
 * checksum. Any bytes are safe; damage is GAAC_ERROR_CORRUPT, another format version
 * GAAC_ERROR_UNSUPPORTED. */
GAAC_API gaac_status gaac_profile_parse(gaac_profile **profile, const uint8_t *bytes, size_t size,
                                        const gaac_allocator *allocator, gaac_error *error);
GAAC_API gaac_status gaac_profile_load(gaac_profile **profile, const char *path, const gaac_allocator *allocator,
                                       gaac_error *error);

#ifdef __cplusplus
}
#endif
#endif
