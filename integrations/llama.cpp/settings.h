/* What the environment asks for. docs/llama.cpp.md describes the variables. */
#ifndef GAAC_LLAMA_SETTINGS_H
#define GAAC_LLAMA_SETTINGS_H

#include "gaac/cache.h"

typedef struct settings {
    gaac_cache_mode mode;       /* GAAC_MODE=coded|raw */
    uint64_t memory_limit;      /* GAAC_MEMORY=bytes[K|M|G]; 0 = none */
    unsigned threads;           /* GAAC_THREADS=n; 0 = as many as the host says */
    const char *stats_path;     /* GAAC_STATS; NULL = no file */
    const char *calibrate_path; /* GAAC_CALIBRATE; NULL = no profile is written */
    const char *calibrate_info; /* GAAC_CALIBRATE_INFO: JSON text, checked; NULL = none */
    gaac_profile *profile;      /* GAAC_PROFILE, loaded; NULL = self-calibration */
    const char *profile_path;   /* its name, for messages */
    bool test_unallocated;      /* GAAC_TEST_UNALLOCATED=1: for test-backend-ops */
} settings;

/* Set once by settings_read, constant afterwards. */
extern settings config;

/* Reads and checks every GAAC_ variable; an unknown one is an error. False with a line in `message`. */
bool settings_read(char *message, size_t message_bytes);

#endif
