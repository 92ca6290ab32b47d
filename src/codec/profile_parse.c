/* Bytes to a profile. Nothing is believed before it is checked: lengths, the checksum, the text, every
 * member of the header, then the tensors. docs/profile.md has the rules.
 *
 * The JSON library takes memory from the C library, as for writing (see profile_write.c), and notes the place
 * of an error in a global, which nothing here reads: every place comes through cJSON_ParseWithOpts. */
#include "base/base.h"
#include "codec/codec_internal.h"
#include "codec/profile_internal.h"

#include <cjson/cJSON.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    LENGTH_BYTES = 8,   /* the header's length, in front of it */
    METADATA_KEYS = 12, /* of format version 1 */
    TENSOR_KEYS = 3,
    TENSOR_NAME = 48,
};

typedef struct parser {
    const uint8_t *file;
    size_t bytes;
    size_t header_bytes;
    const uint8_t *data;
    size_t data_bytes;
    char checksum[GAAC_PROFILE_CHECKSUM_DIGITS + 1];
    char *text; /* the header with an end; text_bytes of it are allocated */
    size_t text_bytes;
    cJSON *header;
    const cJSON *metadata;
    gaac_profile *profile;
    gaac_allocator allocator;
    gaac_error *error;
} parser;

#define CORRUPT(p, ...) ((void)gaac_fail((p)->error, GAAC_ERROR_CORRUPT, __VA_ARGS__), GAAC_ERROR_CORRUPT)

/* ---- the file as bytes ------------------------------------------------------------------------ */

static gaac_status check_lengths(parser *p)
{
    if (p->bytes < LENGTH_BYTES)
        return CORRUPT(p, "it has %zu bytes, too few for a GAAC profile: it is damaged or cut short", p->bytes);
    if (p->bytes > GAAC_PROFILE_MAX_FILE)
        return CORRUPT(p, "it has %zu bytes; a GAAC profile has at most %d", p->bytes, GAAC_PROFILE_MAX_FILE);
    uint64_t header_bytes = 0;
    for (unsigned i = 0; i < LENGTH_BYTES; i++)
        header_bytes |= (uint64_t)p->file[i] << 8 * i;
    if (header_bytes > GAAC_PROFILE_MAX_HEADER)
        return CORRUPT(p,
                       "its header claims %" PRIu64 " bytes, more than a GAAC profile has: is it another kind of file?",
                       header_bytes);
    if (header_bytes > p->bytes - LENGTH_BYTES)
        return CORRUPT(p, "it ends inside its header: it is cut short; copy it again or calibrate again");
    p->header_bytes = (size_t)header_bytes;
    p->data = p->file + LENGTH_BYTES + p->header_bytes;
    p->data_bytes = p->bytes - LENGTH_BYTES - p->header_bytes;
    return GAAC_OK;
}

static gaac_status check_checksum(parser *p)
{
    const uint8_t *header = p->file + LENGTH_BYTES;
    size_t offset = 0;
    if (!gaac_profile_find_checksum(header, p->header_bytes, &offset))
        return CORRUPT(p, "its header has no checksum: it is not a GAAC profile, or damaged; calibrate to make one");
    char digits[GAAC_PROFILE_CHECKSUM_DIGITS];
    gaac_profile_checksum_digits(gaac_profile_checksum(p->file, p->bytes, LENGTH_BYTES + offset), digits);
    memcpy(p->checksum, header + offset, sizeof digits);
    if (memcmp(digits, p->checksum, sizeof digits) != 0)
        return CORRUPT(p, "its checksum does not match: it is damaged or cut short; copy it again or calibrate again");
    return GAAC_OK;
}

/* An escaped NUL would end a string early in the JSON library's hands. Backslashes occur only in strings. */
static bool has_escaped_nul(const char *text)
{
    for (const char *at = strchr(text, '\\'); at != NULL && at[1] != '\0'; at = strchr(at + 2, '\\'))
        if (strncmp(at + 1, "u0000", 5) == 0)
            return true;
    return false;
}

static gaac_status parse_json(parser *p)
{
    p->text_bytes = p->header_bytes + 1;
    p->text = gaac_calloc(&p->allocator, p->text_bytes);
    if (p->text == NULL)
        return gaac_fail(p->error, GAAC_ERROR_OUT_OF_MEMORY, "no memory to read the header of a profile");
    memcpy(p->text, p->file + LENGTH_BYTES, p->header_bytes);
    if (!gaac_profile_text_is_sound(p->text, p->header_bytes) || has_escaped_nul(p->text))
        return CORRUPT(p, "its header is not text");
    if (p->text[0] != '{') /* the library would skip blanks and a byte order mark */
        return CORRUPT(p, "its header is not a JSON object");
    const char *end = p->text;
    p->header = cJSON_ParseWithOpts(p->text, &end, true);
    return p->header != NULL ? GAAC_OK
                             : CORRUPT(p, "its header is not JSON from byte %td on (or memory is short)",
                                       end - p->text); /* the library doesn't tell which */
}

/* ---- metadata --------------------------------------------------------------------------------- */

/* A string of the metadata, or NULL with the error set. */
static const char *metadata_string(const parser *p, const char *key)
{
    const char *value = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(p->metadata, key));
    if (value == NULL)
        (void)gaac_fail(p->error, GAAC_ERROR_CORRUPT, "its metadata has no string %s", key);
    return value;
}

/* Reads a decimal number without sign or leading zeros and moves past it. */
static bool read_decimal(const char **text, uint64_t most, uint64_t *value)
{
    const char *at = *text;
    *value = 0;
    if (*at < '0' || *at > '9' || (*at == '0' && at[1] >= '0' && at[1] <= '9'))
        return false;
    for (; *at >= '0' && *at <= '9'; at++) {
        const unsigned digit = (unsigned)(*at - '0');
        if (*value > (most - digit) / 10)
            return false;
        *value = *value * 10 + digit;
    }
    *text = at;
    return true;
}

static bool read_whole_decimal(const char *text, uint64_t *value)
{
    return read_decimal(&text, UINT64_MAX, value) && *text == '\0';
}

/* What must be right before anything else has a meaning. */
static gaac_status check_format(parser *p)
{
    p->metadata = cJSON_GetObjectItemCaseSensitive(p->header, "__metadata__");
    if (!cJSON_IsObject(p->metadata))
        return CORRUPT(p, "its header has no __metadata__: it is not a GAAC profile");
    const char *format = metadata_string(p, "format");
    if (format == NULL)
        return GAAC_ERROR_CORRUPT;
    if (strcmp(format, GAAC_PROFILE_FORMAT) != 0)
        return CORRUPT(p, "its format is not \"" GAAC_PROFILE_FORMAT "\": it is another kind of file");
    const char *version = metadata_string(p, "format_version");
    uint64_t number;
    if (version == NULL)
        return GAAC_ERROR_CORRUPT;
    if (!read_whole_decimal(version, &number))
        return CORRUPT(p, "its format_version is not a number");
    if (number != GAAC_PROFILE_FORMAT_VERSION)
        return gaac_fail(p->error, GAAC_ERROR_UNSUPPORTED,
                         "it has format version %" PRIu64
                         "; this gaac reads version %d: update gaac or calibrate again",
                         number, GAAC_PROFILE_FORMAT_VERSION);
    return GAAC_OK;
}

static bool read_scheme(const char *name, gaac_scheme *scheme)
{
    for (int i = 0; gaac_scheme_name((gaac_scheme)i) != NULL; i++)
        if (strcmp(name, gaac_scheme_name((gaac_scheme)i)) == 0) {
            *scheme = (gaac_scheme)i;
            return true;
        }
    return false;
}

/* A finite number >= 0 as JSON writes numbers. The JSON library reads it: strtod alone follows the locale. */
static bool read_rope_base(const char *text, double *value)
{
    if (*text < '0' || *text > '9') /* no sign and no blanks */
        return false;
    const char *end = NULL;
    cJSON *number = cJSON_ParseWithOpts(text, &end, true);
    const bool good = cJSON_IsNumber(number) && end != NULL && *end == '\0' && isfinite(number->valuedouble);
    if (good)
        *value = number->valuedouble;
    cJSON_Delete(number);
    return good && strpbrk(text, " \t\r\n") == NULL;
}

/* Everything but the layers. With METADATA_KEYS members, each of which is looked up by one of as many
 * names, none is there twice and none is foreign. */
static gaac_status read_metadata(parser *p)
{
    gaac_profile_info info = {0};
    const char *strings[PROFILE_STRINGS];
    if (cJSON_GetArraySize(p->metadata) != METADATA_KEYS)
        return CORRUPT(p, "its metadata has %d members; version %d has %d", cJSON_GetArraySize(p->metadata),
                       GAAC_PROFILE_FORMAT_VERSION, METADATA_KEYS);
    for (unsigned which = 0; which < PROFILE_STRINGS; which++) {
        strings[which] = metadata_string(p, gaac_profile_string_keys[which]);
        if (strings[which] == NULL)
            return GAAC_ERROR_CORRUPT;
        if (strlen(strings[which]) >= GAAC_PROFILE_STRING)
            return CORRUPT(p, "its %s is longer than %d bytes", gaac_profile_string_keys[which],
                           GAAC_PROFILE_STRING - 1);
    }
    const char *scheme = metadata_string(p, "scheme"), *rope_base = metadata_string(p, "rope_base");
    const char *tokens = metadata_string(p, "tokens"), *checksum = metadata_string(p, "checksum");
    if (scheme == NULL || rope_base == NULL || tokens == NULL || checksum == NULL)
        return GAAC_ERROR_CORRUPT;
    if (strcmp(checksum, p->checksum) != 0)
        return CORRUPT(p, "its checksum is not where it seemed to be");
    if (!read_scheme(scheme, &info.scheme))
        return CORRUPT(p, "its scheme is none that version %d has", GAAC_PROFILE_FORMAT_VERSION);
    if (!read_rope_base(rope_base, &info.rope_base))
        return CORRUPT(p, "its rope_base is not a finite number, 0 or more (or memory is short)");
    if (!read_whole_decimal(tokens, &info.tokens))
        return CORRUPT(p, "its tokens is not a number");
    info.model_name = strings[PROFILE_MODEL_NAME];
    info.model_hash = strings[PROFILE_MODEL_HASH];
    info.rope_scaling = strings[PROFILE_ROPE_SCALING];
    info.text = strings[PROFILE_TEXT];
    info.date = strings[PROFILE_DATE];
    return gaac_profile_create(&p->profile, &info, &p->allocator, p->error);
}

/* ---- tensors ---------------------------------------------------------------------------------- */

static bool is_whole(const cJSON *number, size_t expected)
{
    return cJSON_IsNumber(number) && number->valuedouble == (double)expected;
}

/* Finds a tensor, which must have one dimension and lie at *at, and moves *at past it. */
static gaac_status find_tensor(const parser *p, const char *name, const char *dtype, size_t elements,
                               size_t element_bytes, size_t *at, const uint8_t **data)
{
    const cJSON *tensor = cJSON_GetObjectItemCaseSensitive(p->header, name);
    if (!cJSON_IsObject(tensor) || cJSON_GetArraySize(tensor) != TENSOR_KEYS)
        return CORRUPT(p, "it has no sound tensor %s", name);
    const char *type = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(tensor, "dtype"));
    const cJSON *shape = cJSON_GetObjectItemCaseSensitive(tensor, "shape");
    const cJSON *offsets = cJSON_GetObjectItemCaseSensitive(tensor, "data_offsets");
    if (type == NULL || strcmp(type, dtype) != 0)
        return CORRUPT(p, "tensor %s does not have the type %s", name, dtype);
    if (!cJSON_IsArray(shape) || cJSON_GetArraySize(shape) != 1 || !is_whole(cJSON_GetArrayItem(shape, 0), elements))
        return CORRUPT(p, "tensor %s does not have the shape [%zu]", name, elements);
    const size_t bytes = elements * element_bytes; /* at most GAAC_MAX_KV_HEADS * 3 * 2 * GAAC_MAX_HEAD_DIM */
    if (!cJSON_IsArray(offsets) || cJSON_GetArraySize(offsets) != 2 || !is_whole(cJSON_GetArrayItem(offsets, 0), *at) ||
        !is_whole(cJSON_GetArrayItem(offsets, 1), *at + bytes))
        return CORRUPT(p, "tensor %s does not lie at bytes %zu to %zu", name, *at, *at + bytes);
    if (*at + bytes > p->data_bytes)
        return CORRUPT(p, "tensor %s passes the end of the file", name);
    *data = p->data + *at;
    *at += bytes;
    return GAAC_OK;
}

/* One "index:kv_heads:head_dim_k:head_dim_v" of the list. */
static bool read_layer(const char **text, uint32_t *index, gaac_shape *shape)
{
    uint32_t *const fields[4] = {index, &shape->kv_heads, &shape->head_dim_k, &shape->head_dim_v};
    for (unsigned i = 0; i < 4; i++) {
        uint64_t value;
        if (i > 0 && *(*text)++ != ':')
            return false;
        if (!read_decimal(text, UINT32_MAX, &value))
            return false;
        *fields[i] = (uint32_t)value;
    }
    return true;
}

/* What is an invalid argument to the codec is damage in a file. */
static gaac_status layer_failed(const parser *p, gaac_status status, const char *where, const gaac_error *reason)
{
    return gaac_fail(p->error, status == GAAC_ERROR_OUT_OF_MEMORY ? status : GAAC_ERROR_CORRUPT, "%s%.180s", where,
                     reason->message);
}

static gaac_status read_windows(const parser *p, uint32_t index, const gaac_shape *shape, uint32_t pool_bytes,
                                size_t *at)
{
    char name[TENSOR_NAME], where[TENSOR_NAME];
    const size_t bytes = gaac_windows_table_bytes(shape, p->profile->scheme);
    gaac_error reason = {GAAC_OK, ""};
    gaac_windows *windows;
    (void)snprintf(where, sizeof where, "layer %" PRIu32 ": ", index);
    (void)snprintf(name, sizeof name, "layers.%" PRIu32 ".windows", index);
    gaac_status status = gaac_shape_check(shape, &reason);
    if (status != GAAC_OK)
        return layer_failed(p, status, where, &reason);
    const uint8_t *table = NULL;
    status = find_tensor(p, name, "U8", bytes, 1, at, &table);
    if (status != GAAC_OK)
        return status;
    status = gaac_windows_from_table(&windows, shape, p->profile->scheme, table, bytes, &p->allocator, &reason);
    if (status != GAAC_OK)
        return layer_failed(p, status, where, &reason);
    status = gaac_profile_take_layer(p->profile, shape, index, pool_bytes, windows, &reason);
    return status == GAAC_OK ? GAAC_OK : layer_failed(p, status, "", &reason);
}

static uint32_t load_u32(const uint8_t *bytes)
{
    return bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24;
}

/* Layers as the header counts them: a member each, and two that are no windows. */
static gaac_status count_layers(const parser *p, uint32_t *layers)
{
    const int members = cJSON_GetArraySize(p->header);
    if (members < 3 || members - 2 > GAAC_PROFILE_MAX_LAYERS)
        return CORRUPT(p, "its header has %d members; it must have windows of 1 to %d layers, pool_bytes and metadata",
                       members, GAAC_PROFILE_MAX_LAYERS);
    *layers = (uint32_t)members - 2;
    return GAAC_OK;
}

/* The tensors lie one after another: pool_bytes, then the windows in the order of the layers. As many
 * members as different names are looked up: none is there twice and none is foreign. */
static gaac_status read_layers(parser *p)
{
    const char *list = metadata_string(p, "layers");
    if (list == NULL)
        return GAAC_ERROR_CORRUPT;
    uint32_t layers = 0;
    size_t at = 0;
    const uint8_t *pools = NULL;
    gaac_status status = count_layers(p, &layers);
    if (status == GAAC_OK)
        status = find_tensor(p, "pool_bytes", "U32", layers, sizeof(uint32_t), &at, &pools);
    for (uint32_t i = 0; i < layers && status == GAAC_OK; i++) {
        uint32_t index = 0;
        gaac_shape shape = {0};
        if ((i > 0 && *list++ != ',') || !read_layer(&list, &index, &shape))
            return CORRUPT(p, "its list of layers is wrong at number %" PRIu32 " of %" PRIu32, i + 1, layers);
        status = read_windows(p, index, &shape, load_u32(pools + (size_t)i * sizeof(uint32_t)), &at);
    }
    if (status != GAAC_OK)
        return status;
    if (*list != '\0')
        return CORRUPT(p, "its list of layers goes on after number %" PRIu32, layers);
    if (at != p->data_bytes)
        return CORRUPT(p, "%zu bytes follow its last tensor", p->data_bytes - at);
    return GAAC_OK;
}

/* ----------------------------------------------------------------------------------------------- */

gaac_status gaac_profile_parse(gaac_profile **profile, const uint8_t *bytes, size_t size,
                               const gaac_allocator *allocator, gaac_error *error)
{
    *profile = NULL;
    parser p = {.file = bytes, .bytes = size, .allocator = gaac_allocator_or_default(allocator), .error = error};
    static gaac_status (*const steps[])(parser *) = {check_lengths, check_checksum, parse_json,
                                                     check_format,  read_metadata,  read_layers};
    gaac_status status = GAAC_OK;
    for (unsigned i = 0; i < sizeof steps / sizeof *steps && status == GAAC_OK; i++)
        status = steps[i](&p);
    cJSON_Delete(p.header);
    gaac_free(&p.allocator, p.text, p.text_bytes);
    if (status != GAAC_OK)
        gaac_profile_destroy(p.profile);
    else
        *profile = p.profile;
    return status;
}
