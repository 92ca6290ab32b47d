/* GGUF model files: the metadata that a profile records, and a fingerprint of the file. */
#ifndef GAAC_TOOL_GGUF_H
#define GAAC_TOOL_GGUF_H

#include "gaac/common.h"

enum { GGUF_TEXT_SIZE = 256, GGUF_FINGERPRINT_SIZE = 48 };

typedef struct gguf_info {
    uint32_t version;
    char name[GGUF_TEXT_SIZE];         /* general.name, "" where absent; longer ones are cut */
    char architecture[GGUF_TEXT_SIZE]; /* general.architecture */
    double rope_base;                  /* <architecture>.rope.freq_base, 0 where absent */
    char rope_scaling[GGUF_TEXT_SIZE]; /* "none" where absent, else "linear:4", "yarn:2", ... */
    uint64_t context_length, layers;   /* <architecture>.context_length, .block_count; 0 where absent */
} gguf_info;

/* Reads the metadata of a GGUF file, version 2 or 3, little endian. Any bytes are safe: a damaged file is
 * GAAC_ERROR_CORRUPT, another version GAAC_ERROR_UNSUPPORTED. Messages don't name the path. */
gaac_status gguf_read(gguf_info *info, const char *path, gaac_error *error);
/* The same of bytes in memory. */
gaac_status gguf_parse(gguf_info *info, const void *bytes, size_t size, gaac_error *error);

/* "xxh3-128:" and 32 hex digits: XXH3-128 over the file's size (8 bytes, little endian), its first MiB and its
 * last MiB (all of the file, twice, where it is shorter). A fingerprint that tells model files apart without
 * reading gigabytes; it does not prove that the middle is unchanged. */
gaac_status gguf_fingerprint(const char *path, char fingerprint[GGUF_FINGERPRINT_SIZE], gaac_error *error);

#endif
