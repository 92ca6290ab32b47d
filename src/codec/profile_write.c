/* A profile to bytes: safetensors (8 bytes of header length, a JSON header, the tensors).
 *
 * The JSON library takes its memory from the C library: its allocation hooks are global to the process and
 * not thread-safe, so they are left alone. All else comes from the profile's allocator. */
#include "base/base.h"
#include "codec/codec_internal.h"
#include "codec/profile_internal.h"

#include <cjson/cJSON.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- checksum --------------------------------------------------------------------------------- */

static bool is_lower_hex(const uint8_t *text, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (!((text[i] >= '0' && text[i] <= '9') || (text[i] >= 'a' && text[i] <= 'f')))
            return false;
    return true;
}

bool gaac_profile_find_checksum(const uint8_t *file, size_t bytes, size_t *offset)
{
    static const char key[] = "\"checksum\":\"";
    const size_t key_bytes = sizeof key - 1, digits = GAAC_PROFILE_CHECKSUM_DIGITS;
    unsigned found = 0;
    for (size_t at = 0; at + key_bytes + digits + 1 <= bytes; at++)
        if (file[at] == '"' && memcmp(file + at, key, key_bytes) == 0 && is_lower_hex(file + at + key_bytes, digits) &&
            file[at + key_bytes + digits] == '"') {
            found++;
            *offset = at + key_bytes;
        }
    return found == 1;
}

uint64_t gaac_profile_checksum(const uint8_t *file, size_t bytes, size_t offset)
{
    static const char zeros[] = "0000000000000000";
    uint64_t crc = gaac_crc64(0, file, offset);
    crc = gaac_crc64(crc, zeros, GAAC_PROFILE_CHECKSUM_DIGITS);
    const size_t rest = offset + GAAC_PROFILE_CHECKSUM_DIGITS;
    return gaac_crc64(crc, file + rest, bytes - rest);
}

void gaac_profile_checksum_digits(uint64_t checksum, char digits[GAAC_PROFILE_CHECKSUM_DIGITS])
{
    for (unsigned i = 0; i < GAAC_PROFILE_CHECKSUM_DIGITS; i++)
        digits[i] = "0123456789abcdef"[checksum >> 4 * (GAAC_PROFILE_CHECKSUM_DIGITS - 1 - i) & 15];
}

/* ---- header ----------------------------------------------------------------------------------- */

enum { NUMBER_TEXT = 48 }; /* longest text of a double or a uint64_t, with room */

/* The shortest of 15 to 17 digits that reads back as the same double. The locale may have its own decimal
 * point (of any length): whatever is no digit, sign or exponent becomes one dot. */
static void print_double(double value, char text[NUMBER_TEXT])
{
    char printed[NUMBER_TEXT];
    for (int digits = 15; digits <= 17; digits++) {
        (void)snprintf(printed, sizeof printed, "%.*g", digits, value);
        if (strtod(printed, NULL) == value)
            break;
    }
    char *out = text;
    for (const char *in = printed; *in != '\0'; in++) {
        if (strchr("0123456789+-e", *in) != NULL)
            *out++ = *in;
        else if (out == text || out[-1] != '.')
            *out++ = '.';
    }
    *out = '\0';
}

enum { LAYER_TEXT = 32 }; /* longest "index:kv_heads:head_dim_k:head_dim_v," is 25 */

static bool add_layer_list(cJSON *metadata, const gaac_profile *profile)
{
    const size_t bytes = (size_t)profile->count * LAYER_TEXT;
    char *text = gaac_calloc(&profile->allocator, bytes);
    if (text == NULL)
        return false;
    size_t at = 0;
    for (uint32_t i = 0; i < profile->count; i++) {
        const profile_layer *layer = &profile->layers[i];
        const int length =
            snprintf(text + at, bytes - at, "%s%" PRIu32 ":%" PRIu32 ":%" PRIu32 ":%" PRIu32, i == 0 ? "" : ",",
                     layer->index, layer->shape.kv_heads, layer->shape.head_dim_k, layer->shape.head_dim_v);
        at += (size_t)length;
    }
    const bool added = cJSON_AddStringToObject(metadata, "layers", text) != NULL;
    gaac_free(&profile->allocator, text, bytes);
    return added;
}

static bool add_metadata(cJSON *header, const gaac_profile *profile)
{
    char rope_base[NUMBER_TEXT], tokens[NUMBER_TEXT], version[NUMBER_TEXT];
    cJSON *metadata = cJSON_AddObjectToObject(header, "__metadata__");
    print_double(profile->rope_base, rope_base);
    (void)snprintf(tokens, sizeof tokens, "%" PRIu64, profile->tokens);
    (void)snprintf(version, sizeof version, "%d", GAAC_PROFILE_FORMAT_VERSION);
    bool added = metadata != NULL && cJSON_AddStringToObject(metadata, "format", GAAC_PROFILE_FORMAT) != NULL &&
                 cJSON_AddStringToObject(metadata, "format_version", version) != NULL &&
                 cJSON_AddStringToObject(metadata, "checksum", "0000000000000000") != NULL &&
                 cJSON_AddStringToObject(metadata, "scheme", gaac_scheme_name(profile->scheme)) != NULL &&
                 cJSON_AddStringToObject(metadata, "rope_base", rope_base) != NULL &&
                 cJSON_AddStringToObject(metadata, "tokens", tokens) != NULL && add_layer_list(metadata, profile);
    for (unsigned which = 0; which < PROFILE_STRINGS && added; which++)
        added = cJSON_AddStringToObject(metadata, gaac_profile_string_keys[which], profile->strings[which]) != NULL;
    return added;
}

static bool add_numbers(cJSON *object, const char *name, const double *numbers, int count)
{
    cJSON *array = cJSON_CreateDoubleArray(numbers, count);
    if (array != NULL && cJSON_AddItemToObject(object, name, array))
        return true;
    cJSON_Delete(array);
    return false;
}

/* A tensor of one dimension. */
static bool add_tensor(cJSON *header, const char *name, const char *dtype, size_t elements, size_t start, size_t end)
{
    const double shape[1] = {(double)elements}, offsets[2] = {(double)start, (double)end};
    cJSON *tensor = cJSON_AddObjectToObject(header, name);
    return tensor != NULL && cJSON_AddStringToObject(tensor, "dtype", dtype) != NULL &&
           add_numbers(tensor, "shape", shape, 1) && add_numbers(tensor, "data_offsets", offsets, 2);
}

static bool add_tensors(cJSON *header, const gaac_profile *profile)
{
    size_t at = (size_t)profile->count * sizeof(uint32_t);
    if (!add_tensor(header, "pool_bytes", "U32", profile->count, 0, at))
        return false;
    for (uint32_t i = 0; i < profile->count; i++) {
        char name[NUMBER_TEXT];
        const size_t bytes = profile->layers[i].windows->bytes;
        (void)snprintf(name, sizeof name, "layers.%" PRIu32 ".windows", profile->layers[i].index);
        if (!add_tensor(header, name, "U8", bytes, at, at + bytes))
            return false;
        at += bytes;
    }
    return true;
}

/* The header's text, from the C library (cJSON_free), or NULL. */
static char *print_header(const gaac_profile *profile)
{
    char *text = NULL;
    cJSON *header = cJSON_CreateObject();
    if (header != NULL && add_metadata(header, profile) && add_tensors(header, profile))
        text = cJSON_PrintUnformatted(header);
    cJSON_Delete(header);
    return text;
}

/* ---- file ------------------------------------------------------------------------------------- */

static void store_le(uint8_t *to, uint64_t value, unsigned bytes)
{
    for (unsigned i = 0; i < bytes; i++)
        to[i] = (uint8_t)(value >> 8 * i);
}

static size_t data_bytes(const gaac_profile *profile)
{
    size_t bytes = (size_t)profile->count * sizeof(uint32_t);
    for (uint32_t i = 0; i < profile->count; i++)
        bytes += profile->layers[i].windows->bytes;
    return bytes;
}

static void store_data(const gaac_profile *profile, uint8_t *data)
{
    for (uint32_t i = 0; i < profile->count; i++, data += sizeof(uint32_t))
        store_le(data, profile->layers[i].pool_bytes, sizeof(uint32_t));
    for (uint32_t i = 0; i < profile->count; i++) {
        const gaac_windows *windows = profile->layers[i].windows;
        memcpy(data, windows->table, windows->bytes);
        data += windows->bytes;
    }
}

static gaac_status assemble(const gaac_profile *profile, const char *header, size_t text_bytes, uint8_t **bytes,
                            size_t *size, gaac_error *error)
{
    const size_t header_bytes = (text_bytes + 7) / 8 * 8; /* padded with spaces: the data is aligned */
    const size_t data = data_bytes(profile), total = sizeof(uint64_t) + header_bytes + data;
    if (header_bytes > GAAC_PROFILE_MAX_HEADER || total > GAAC_PROFILE_MAX_FILE)
        return gaac_fail(error, GAAC_ERROR_INVALID_ARGUMENT, "the profile would take %zu bytes; at most %d are allowed",
                         total, GAAC_PROFILE_MAX_FILE);
    uint8_t *file = gaac_calloc(&profile->allocator, total);
    if (file == NULL)
        return gaac_fail(error, GAAC_ERROR_OUT_OF_MEMORY, "no memory to write a profile of %zu bytes", total);
    store_le(file, header_bytes, sizeof(uint64_t));
    uint8_t *text = file + sizeof(uint64_t);
    memset(text, ' ', header_bytes);
    memcpy(text, header, text_bytes);
    store_data(profile, text + header_bytes);
    size_t offset = 0;
    (void)gaac_profile_find_checksum(text, header_bytes, &offset); /* it is there: add_metadata put it */
    char digits[GAAC_PROFILE_CHECKSUM_DIGITS];
    gaac_profile_checksum_digits(gaac_profile_checksum(file, total, sizeof(uint64_t) + offset), digits);
    memcpy(text + offset, digits, sizeof digits);
    *bytes = file;
    *size = total;
    return GAAC_OK;
}

gaac_status gaac_profile_serialize(const gaac_profile *profile, uint8_t **bytes, size_t *size, gaac_error *error)
{
    *bytes = NULL;
    *size = 0;
    if (profile->count == 0)
        return gaac_fail(error, GAAC_ERROR_INVALID_ARGUMENT, "the profile has no layers: add some first");
    char *header = print_header(profile);
    if (header == NULL)
        return gaac_fail(error, GAAC_ERROR_OUT_OF_MEMORY, "no memory for the header of a profile");
    const gaac_status status = assemble(profile, header, strlen(header), bytes, size, error);
    cJSON_free(header);
    return status;
}
