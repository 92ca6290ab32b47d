/* What the profile's files share: the object, its limits, the checksum. docs/profile.md specifies the file. */
#ifndef GAAC_CODEC_PROFILE_INTERNAL_H
#define GAAC_CODEC_PROFILE_INTERNAL_H

#include "gaac/profile.h"

enum {
    GAAC_PROFILE_MAX_LAYERS = 4096,
    /* A layer takes at most 97 bytes of header for its tensor and 25 for its shape; the metadata's five
     * strings of 1023 bytes become at most 6 bytes a byte ("\u001f"). 4096 layers and all of it: 531 KB.
     * The bound also bounds what a hostile header can make the JSON library allocate (about 40 times it: 80 bytes for
     * "1,"). */
    GAAC_PROFILE_MAX_HEADER = 1 << 20,
    GAAC_PROFILE_MAX_FILE = 1 << 28, /* 340 layers of the largest shape, thousands of real ones */
    GAAC_PROFILE_STRING = 1024,      /* a string with its end */
    GAAC_PROFILE_CHECKSUM_DIGITS = 16,
};

#define GAAC_PROFILE_FORMAT "gaac-profile"

/* The strings of gaac_profile_info, in this order wherever they stand in an array. */
enum { PROFILE_MODEL_NAME, PROFILE_MODEL_HASH, PROFILE_ROPE_SCALING, PROFILE_TEXT, PROFILE_DATE, PROFILE_STRINGS };
extern const char *const gaac_profile_string_keys[PROFILE_STRINGS];

typedef struct profile_layer {
    gaac_shape shape;
    gaac_windows *windows; /* owned */
    uint32_t pool_bytes;
    uint32_t index;
} profile_layer;

struct gaac_profile {
    gaac_allocator allocator;
    gaac_scheme scheme;
    double rope_base;
    uint64_t tokens;
    char strings[PROFILE_STRINGS][GAAC_PROFILE_STRING];
    profile_layer *layers; /* rising index */
    uint32_t count, capacity;
};

/* Adds a layer whose windows become the profile's, whatever comes of it. */
gaac_status gaac_profile_take_layer(gaac_profile *profile, const gaac_shape *shape, uint32_t index, uint32_t pool_bytes,
                                    gaac_windows *windows, gaac_error *error);

/* Well-formed UTF-8 without a NUL. */
bool gaac_profile_text_is_sound(const char *text, size_t bytes);

/* Where the checksum's digits are: the one place in the header's text with the key "checksum", a colon and
 * 16 lower-case hexadecimal digits in quotes. JSON escapes quotes, so no string can look like it. False
 * when there is none or more than one. */
bool gaac_profile_find_checksum(const uint8_t *file, size_t bytes, size_t *offset);

/* CRC-64 of the whole file with the 16 digits at `offset` read as zeros. */
uint64_t gaac_profile_checksum(const uint8_t *file, size_t bytes, size_t offset);

/* The digits of a checksum, without an end. */
void gaac_profile_checksum_digits(uint64_t checksum, char digits[GAAC_PROFILE_CHECKSUM_DIGITS]);

#endif
