/* The format: magic "GGUF", u32 version, u64 tensors, u64 pairs, then pairs of a string (u64 length, bytes), a u32
 * type and a value. Specification: docs/gguf.md of the ggml project. */
#include "gguf.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define XXH_STATIC_LINKING_ONLY /* an XXH3 state of automatic storage */
#include <xxhash.h>

#include "data_error.h"

enum { TYPE_FLOAT32 = 6, TYPE_STRING = 8, TYPE_ARRAY = 9, TYPE_FLOAT64 = 12, TYPES = 13 };

/* Bytes of a value of each type; 0 for strings and arrays. */
static const uint8_t type_bytes[TYPES] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

/* Arrays of arrays exist in the format but nest shallowly; deeper is damage. */
enum { MOST_NESTING = 4 };

typedef struct mapping {
    uint8_t *bytes;
    size_t size;
} mapping;

typedef struct cursor {
    const uint8_t *at;
    size_t left;
} cursor;

typedef struct text {
    const char *bytes;
    size_t length;
} text;

/* Without O_NONBLOCK a pipe would wait here for its writer; regular files don't mind it. */
static gaac_status map_model(mapping *map, const char *path, gaac_error *error)
{
    const int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (descriptor < 0)
        return data_error(error, GAAC_ERROR_IO, "can't be opened (%s); check the path of the model", strerror(errno));
    struct stat status;
    gaac_status result = GAAC_OK;
    if (fstat(descriptor, &status) != 0 || !S_ISREG(status.st_mode)) {
        result = data_error(error, GAAC_ERROR_IO, "not a regular file; give a model.gguf");
    } else if (status.st_size == 0) {
        result = data_error(error, GAAC_ERROR_CORRUPT, "the file is empty; download the model again");
    } else {
        map->size = (size_t)status.st_size;
        map->bytes = mmap(NULL, map->size, PROT_READ, MAP_PRIVATE, descriptor, 0);
        if (map->bytes == MAP_FAILED)
            result = data_error(error, GAAC_ERROR_IO, "can't be mapped (%s); copy it to a local disk", strerror(errno));
    }
    close(descriptor);
    return result;
}

/* ---- reading -------------------------------------------------------------------------------- */

static bool take_bytes(cursor *c, uint64_t bytes, const uint8_t **out)
{
    if (bytes > c->left)
        return false;
    *out = c->at;
    c->at += bytes;
    c->left -= (size_t)bytes;
    return true;
}

static bool take_number(cursor *c, unsigned bytes, uint64_t *value)
{
    const uint8_t *at;
    if (!take_bytes(c, bytes, &at))
        return false;
    *value = 0;
    for (unsigned i = 0; i < bytes; i++)
        *value |= (uint64_t)at[i] << 8 * i;
    return true;
}

static bool take_text(cursor *c, text *out)
{
    uint64_t length;
    const uint8_t *at;
    if (!take_number(c, 8, &length) || !take_bytes(c, length, &at))
        return false;
    *out = (text){(const char *)at, (size_t)length};
    return true;
}

static bool skip_value(cursor *c, uint64_t type, unsigned depth)
{
    const uint8_t *ignored;
    text string;
    uint64_t inner, count;
    if (type == TYPE_STRING)
        return take_text(c, &string);
    if (type != TYPE_ARRAY)
        return type < TYPES && take_bytes(c, type_bytes[type], &ignored);
    if (depth == MOST_NESTING || !take_number(c, 4, &inner) || !take_number(c, 8, &count) || inner >= TYPES)
        return false;
    if (type_bytes[inner])
        return count <= c->left / type_bytes[inner] && take_bytes(c, count * type_bytes[inner], &ignored);
    for (; count; count--) /* each takes at least eight bytes, so this ends with the file at the latest */
        if (!skip_value(c, inner, depth + 1))
            return false;
    return true;
}

/* A value of a number's type as a double and, where it is a whole number, exactly. */
static bool take_scalar(cursor *c, uint64_t type, double *real, uint64_t *whole)
{
    if (type >= TYPES || !type_bytes[type] || !take_number(c, type_bytes[type], whole))
        return false;
    float single;
    if (type == TYPE_FLOAT32) {
        const uint32_t bits = (uint32_t)*whole;
        memcpy(&single, &bits, sizeof single);
        *real = (double)single;
    } else if (type == TYPE_FLOAT64) {
        memcpy(real, whole, sizeof *real);
    } else {
        *real = (double)*whole;
    }
    return true;
}

/* ---- the pairs that matter ------------------------------------------------------------------ */

typedef struct rope_keys {
    char type[32];
    double factor;
} rope_keys;

/* Bytes of the UTF-8 sequence at `at`, or 0 where there is none. */
static size_t utf8_sequence(const unsigned char *at, size_t left)
{
    const unsigned lead = at[0], second = left > 1 ? at[1] : 0;
    const size_t length = lead < 0x80 ? 1 : lead < 0xc2 ? 0 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : lead < 0xf5 ? 4 : 0;
    if (length > left || (lead == 0xe0 && second < 0xa0) || (lead == 0xed && second > 0x9f) ||
        (lead == 0xf0 && second < 0x90) || (lead == 0xf4 && second > 0x8f))
        return 0; /* cut off, overlong, a surrogate or past U+10FFFF */
    for (size_t i = 1; i < length; i++)
        if ((at[i] & 0xc0) != 0x80)
            return 0;
    return length;
}

/* As a line of UTF-8, which is what a profile takes: control characters become spaces, bytes that are no UTF-8
 * question marks. Too long a text ends before the character that doesn't fit. */
static void copy_text(char *to, size_t size, text from)
{
    size_t length = 0, step;
    for (size_t i = 0; i < from.length; i += step) {
        const unsigned char *at = (const unsigned char *)from.bytes + i;
        const size_t sequence = utf8_sequence(at, from.length - i);
        step = sequence ? sequence : 1;
        if (step > size - 1 - length)
            break;
        memcpy(to + length, at, step);
        if (!sequence)
            to[length] = '?';
        else if (*at < ' ')
            to[length] = ' ';
        length += step;
    }
    to[length] = 0;
}

/* Keys of the model carry its architecture in front, whatever that is. */
static bool ends_with(text key, const char *end)
{
    const size_t length = strlen(end);
    return key.length > length && !memcmp(key.bytes + key.length - length, end, length) &&
           !memchr(key.bytes, '.', key.length - length);
}

static bool key_is(text key, const char *wanted)
{
    return key.length == strlen(wanted) && !memcmp(key.bytes, wanted, key.length);
}

static bool take_text_pair(cursor *c, text key, gguf_info *info, rope_keys *rope)
{
    text value;
    if (!take_text(c, &value))
        return false;
    if (key_is(key, "general.name"))
        copy_text(info->name, sizeof info->name, value);
    else if (key_is(key, "general.architecture"))
        copy_text(info->architecture, sizeof info->architecture, value);
    else if (ends_with(key, ".rope.scaling.type"))
        copy_text(rope->type, sizeof rope->type, value);
    return true;
}

static bool take_pair(cursor *c, gguf_info *info, rope_keys *rope)
{
    text key;
    uint64_t type, whole;
    double real;
    if (!take_text(c, &key) || !take_number(c, 4, &type))
        return false;
    if (type == TYPE_STRING)
        return take_text_pair(c, key, info, rope);
    const bool base = ends_with(key, ".rope.freq_base"), factor = ends_with(key, ".rope.scaling.factor"),
               linear = ends_with(key, ".rope.scale_linear"), context = ends_with(key, ".context_length"),
               blocks = ends_with(key, ".block_count");
    if (type == TYPE_ARRAY || !(base || factor || linear || context || blocks))
        return skip_value(c, type, 0);
    if (!take_scalar(c, type, &real, &whole))
        return false;
    if (base && (!isfinite(real) || signbit(real)))
        return false; /* no base of a rotation, and nothing that a profile can say */
    if (base)
        info->rope_base = real;
    if (factor || linear)
        rope->factor = real;
    if (linear && !*rope->type)
        memcpy(rope->type, "linear", sizeof "linear");
    if (context)
        info->context_length = whole;
    if (blocks)
        info->layers = whole;
    return true;
}

static gaac_status read_pairs(gguf_info *info, cursor c, gaac_error *error)
{
    uint64_t magic, version, tensors, pairs;
    if (!take_number(&c, 4, &magic) || magic != 0x46554747) /* "GGUF" */
        return data_error(error, GAAC_ERROR_CORRUPT, "not a GGUF model file; give the model.gguf that llama.cpp runs");
    if (!take_number(&c, 4, &version))
        return data_error(error, GAAC_ERROR_CORRUPT, "truncated GGUF file; download the model again");
    if (version != 2 && version != 3)
        return data_error(error, GAAC_ERROR_UNSUPPORTED,
                          "GGUF version %u; versions 2 and 3 (little endian) can be read: convert the model again",
                          (unsigned)version);
    info->version = (uint32_t)version;
    rope_keys rope = {"", 0};
    bool sound = take_number(&c, 8, &tensors) && take_number(&c, 8, &pairs);
    for (; sound && pairs; pairs--)
        sound = take_pair(&c, info, &rope);
    if (!sound)
        return data_error(error, GAAC_ERROR_CORRUPT, "damaged or truncated GGUF metadata; download the model again");
    if (!*rope.type || !strcmp(rope.type, "none"))
        snprintf(info->rope_scaling, sizeof info->rope_scaling, "none");
    else
        snprintf(info->rope_scaling, sizeof info->rope_scaling, "%s:%.9g", rope.type, rope.factor);
    return GAAC_OK;
}

gaac_status gguf_parse(gguf_info *info, const void *bytes, size_t size, gaac_error *error)
{
    *info = (gguf_info){0};
    return read_pairs(info, (cursor){bytes, size}, error);
}

gaac_status gguf_read(gguf_info *info, const char *path, gaac_error *error)
{
    *info = (gguf_info){0};
    mapping map = {NULL, 0};
    gaac_status status = map_model(&map, path, error);
    if (status != GAAC_OK)
        return status;
    status = gguf_parse(info, map.bytes, map.size, error);
    munmap(map.bytes, map.size);
    return status;
}

gaac_status gguf_fingerprint(const char *path, char fingerprint[GGUF_FINGERPRINT_SIZE], gaac_error *error)
{
    mapping map = {NULL, 0};
    const gaac_status status = map_model(&map, path, error);
    if (status != GAAC_OK)
        return status;
    const size_t part = map.size < (1u << 20) ? map.size : 1u << 20;
    uint8_t size[8];
    for (unsigned i = 0; i < 8; i++)
        size[i] = (uint8_t)((uint64_t)map.size >> 8 * i);
    XXH3_state_t state;
    XXH3_128bits_reset(&state);
    XXH3_128bits_update(&state, size, sizeof size);
    XXH3_128bits_update(&state, map.bytes, part);
    XXH3_128bits_update(&state, map.bytes + map.size - part, part);
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(&state));
    munmap(map.bytes, map.size);
    int length = snprintf(fingerprint, GGUF_FINGERPRINT_SIZE, "xxh3-128:");
    for (size_t i = 0; i < sizeof canonical.digest; i++)
        length += snprintf(fingerprint + length, (size_t)(GGUF_FINGERPRINT_SIZE - length), "%02x", canonical.digest[i]);
    return GAAC_OK;
}
