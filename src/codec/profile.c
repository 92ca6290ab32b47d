/* The profile as an object: what it holds, and what it lets in. */
#include "base/base.h"
#include "codec/codec_internal.h"
#include "codec/profile_internal.h"

#include <math.h>
#include <string.h>

const char *const gaac_profile_string_keys[PROFILE_STRINGS] = {"model_name", "model_hash", "rope_scaling", "text",
                                                               "date"};

/* Bytes of the well-formed UTF-8 sequence at `text`, or 0. Overlong forms, surrogates and what lies beyond
 * U+10FFFF are not well-formed (Unicode 15, table 3-7). */
static size_t utf8_sequence(const unsigned char *text, size_t left)
{
    const unsigned lead = text[0];
    if (lead < 0x80)
        return lead != 0 ? 1 : 0;
    const size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
    if (lead < 0xc2 || lead > 0xf4 || length > left)
        return 0;
    const unsigned lowest = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
    const unsigned highest = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
    if (text[1] < lowest || text[1] > highest)
        return 0;
    for (size_t i = 2; i < length; i++)
        if ((text[i] & 0xc0) != 0x80)
            return 0;
    return length;
}

bool gaac_profile_text_is_sound(const char *text, size_t bytes)
{
    size_t at = 0;
    while (at < bytes) {
        const size_t length = utf8_sequence((const unsigned char *)text + at, bytes - at);
        if (length == 0)
            return false;
        at += length;
    }
    return true;
}

static gaac_status set_string(gaac_profile *profile, unsigned which, const char *value, gaac_error *error)
{
    if (value == NULL)
        return GAAC_OK; /* "" from the start */
    const size_t bytes = strnlen(value, GAAC_PROFILE_STRING);
    if (bytes == GAAC_PROFILE_STRING || !gaac_profile_text_is_sound(value, bytes))
        return gaac_fail(error, GAAC_ERROR_INVALID_ARGUMENT, "the profile's %s must be UTF-8 of at most %d bytes",
                         gaac_profile_string_keys[which], GAAC_PROFILE_STRING - 1);
    memcpy(profile->strings[which], value, bytes);
    return GAAC_OK;
}

static gaac_status set_info(gaac_profile *profile, const gaac_profile_info *info, gaac_error *error)
{
    if (gaac_scheme_name(info->scheme) == NULL)
        return gaac_fail(error, GAAC_ERROR_INVALID_ARGUMENT, "there is no scheme %d", (int)info->scheme);
    if (!isfinite(info->rope_base) || signbit(info->rope_base))
        return gaac_fail(error, GAAC_ERROR_INVALID_ARGUMENT,
                         "the profile's rope_base must be a finite number, 0 where unknown");
    profile->scheme = info->scheme;
    profile->rope_base = info->rope_base;
    profile->tokens = info->tokens;
    const char *const values[PROFILE_STRINGS] = {
        [PROFILE_MODEL_NAME] = info->model_name,
        [PROFILE_MODEL_HASH] = info->model_hash,
        [PROFILE_ROPE_SCALING] = info->rope_scaling,
        [PROFILE_TEXT] = info->text,
        [PROFILE_DATE] = info->date,
    };
    gaac_status status = GAAC_OK;
    for (unsigned which = 0; which < PROFILE_STRINGS && status == GAAC_OK; which++)
        status = set_string(profile, which, values[which], error);
    return status;
}

gaac_status gaac_profile_create(gaac_profile **profile, const gaac_profile_info *info, const gaac_allocator *allocator,
                                gaac_error *error)
{
    *profile = NULL;
    const gaac_allocator hook = gaac_allocator_or_default(allocator);
    gaac_profile *made = gaac_calloc(&hook, sizeof *made);
    if (made == NULL)
        return gaac_fail(error, GAAC_ERROR_OUT_OF_MEMORY, "no memory for a profile");
    made->allocator = hook;
    const gaac_status status = set_info(made, info, error);
    if (status != GAAC_OK) {
        gaac_profile_destroy(made);
        return status;
    }
    *profile = made;
    return GAAC_OK;
}

void gaac_profile_destroy(gaac_profile *profile)
{
    if (profile == NULL)
        return;
    const gaac_allocator hook = profile->allocator;
    for (uint32_t i = 0; i < profile->count; i++)
        gaac_windows_destroy(profile->layers[i].windows);
    gaac_free(&hook, profile->layers, profile->capacity * sizeof *profile->layers);
    gaac_free(&hook, profile, sizeof *profile);
}

static gaac_status check_layer(const gaac_profile *profile, uint32_t index, uint32_t pool_bytes, gaac_error *error)
{
    if (profile->count == GAAC_PROFILE_MAX_LAYERS)
        return gaac_fail(error, GAAC_ERROR_INVALID_ARGUMENT, "a profile has at most %d layers",
                         GAAC_PROFILE_MAX_LAYERS);
    if (index == UINT32_MAX || (profile->count > 0 && index <= profile->layers[profile->count - 1].index))
        return gaac_fail(error, GAAC_ERROR_INVALID_ARGUMENT, "layer %u does not follow in rising order", index);
    if (pool_bytes % GAAC_SLOT_ALIGN != 0 || pool_bytes > GAAC_MAX_POOL_BYTES)
        return gaac_fail(error, GAAC_ERROR_INVALID_ARGUMENT,
                         "layer %u: pool_bytes is %u; it must be a multiple of %d up to %d", index, pool_bytes,
                         GAAC_SLOT_ALIGN, GAAC_MAX_POOL_BYTES);
    return GAAC_OK;
}

/* Room for one more layer. */
static bool grow(gaac_profile *profile)
{
    if (profile->count < profile->capacity)
        return true;
    const uint32_t capacity = profile->capacity == 0 ? 32 : 2 * profile->capacity;
    profile_layer *layers = gaac_calloc(&profile->allocator, capacity * sizeof *layers);
    if (layers == NULL)
        return false;
    if (profile->count > 0)
        memcpy(layers, profile->layers, profile->count * sizeof *layers);
    gaac_free(&profile->allocator, profile->layers, profile->capacity * sizeof *layers);
    profile->layers = layers;
    profile->capacity = capacity;
    return true;
}

gaac_status gaac_profile_take_layer(gaac_profile *profile, const gaac_shape *shape, uint32_t index, uint32_t pool_bytes,
                                    gaac_windows *windows, gaac_error *error)
{
    gaac_status status = check_layer(profile, index, pool_bytes, error);
    if (status == GAAC_OK && !grow(profile))
        status = gaac_fail(error, GAAC_ERROR_OUT_OF_MEMORY, "no memory for the layers of a profile");
    if (status != GAAC_OK) {
        gaac_windows_destroy(windows);
        return status;
    }
    profile->layers[profile->count++] = (profile_layer){*shape, windows, pool_bytes, index};
    return GAAC_OK;
}

gaac_status gaac_profile_add_layer(gaac_profile *profile, const gaac_profile_layer *layer, gaac_error *error)
{
    gaac_status status = gaac_shape_check(&layer->shape, error);
    if (status != GAAC_OK)
        return status;
    if (layer->windows == NULL)
        return gaac_fail(error, GAAC_ERROR_INVALID_ARGUMENT, "layer %u has no windows: calibrate first", layer->index);
    if (layer->windows->scheme != profile->scheme ||
        memcmp(&layer->windows->shape, &layer->shape, sizeof layer->shape) != 0)
        return gaac_fail(error, GAAC_ERROR_MISMATCH, "layer %u: the windows are for another shape or scheme",
                         layer->index);
    gaac_windows *copy;
    status = gaac_windows_from_table(&copy, &layer->shape, profile->scheme, layer->windows->table,
                                     layer->windows->bytes, &profile->allocator, error);
    if (status != GAAC_OK)
        return status;
    return gaac_profile_take_layer(profile, &layer->shape, layer->index, layer->pool_bytes, copy, error);
}

void gaac_profile_get_info(const gaac_profile *profile, gaac_profile_info *info)
{
    *info = (gaac_profile_info){
        .model_name = profile->strings[PROFILE_MODEL_NAME],
        .model_hash = profile->strings[PROFILE_MODEL_HASH],
        .rope_base = profile->rope_base,
        .rope_scaling = profile->strings[PROFILE_ROPE_SCALING],
        .text = profile->strings[PROFILE_TEXT],
        .tokens = profile->tokens,
        .date = profile->strings[PROFILE_DATE],
        .scheme = profile->scheme,
    };
}

uint32_t gaac_profile_layers(const gaac_profile *profile)
{
    return profile->count;
}

bool gaac_profile_get_layer(const gaac_profile *profile, uint32_t n, gaac_profile_layer *layer)
{
    if (n >= profile->count)
        return false;
    const profile_layer *from = &profile->layers[n];
    *layer = (gaac_profile_layer){from->shape, from->windows, from->pool_bytes, from->index};
    return true;
}

bool gaac_profile_find_layer(const gaac_profile *profile, uint32_t index, gaac_profile_layer *layer)
{
    uint32_t low = 0, high = profile->count;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (profile->layers[middle].index < index)
            low = middle + 1;
        else
            high = middle;
    }
    return low < profile->count && profile->layers[low].index == index && gaac_profile_get_layer(profile, low, layer);
}
