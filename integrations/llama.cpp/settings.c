/* The environment, checked in one place: a misspelt variable or value must not silently do nothing. */
#include "settings.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern char **environ;

settings config;

typedef struct complaint {
    char *message;
    size_t bytes;
} complaint;

static bool refuse(const complaint *out, const char *format, ...) __attribute__((format(printf, 2, 3)));

static bool refuse(const complaint *out, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(out->message, out->bytes, format, arguments);
    va_end(arguments);
    return false;
}

/* ---- one reader a variable: false with a line for a bad value --------------------------------- */

static bool read_mode(const char *value, const complaint *out)
{
    if (strcmp(value, "coded") == 0)
        config.mode = GAAC_CACHE_CODED;
    else if (strcmp(value, "raw") == 0)
        config.mode = GAAC_CACHE_RAW;
    else
        return refuse(out, "GAAC_MODE=%s: set it to coded or raw", value);
    return true;
}

static bool read_memory(const char *value, const complaint *out)
{
    char *end;
    errno = 0;
    unsigned long long number = value[0] >= '0' && value[0] <= '9' ? strtoull(value, &end, 10) : 0;
    unsigned shift = 0;
    if (number > 0 && *end) {
        const char *units = "KMG";
        const char *unit = strchr(units, *end);
        shift = unit ? 10u * (unsigned)(unit - units + 1) : 0;
        end += unit ? 1 : 0;
    }
    if (number == 0 || *end || errno || number > (UINT64_MAX >> shift))
        return refuse(out, "GAAC_MEMORY=%s: set it to a number of bytes such as 800M or 2G", value);
    config.memory_limit = (uint64_t)number << shift;
    return true;
}

static bool read_threads(const char *value, const complaint *out)
{
    char *end;
    long number = strtol(value, &end, 10);
    if (end == value || *end || number < 1 || number > 1024)
        return refuse(out, "GAAC_THREADS=%s: set it to a number of threads from 1 to 1024", value);
    config.threads = (unsigned)number;
    return true;
}

static bool read_cpu(const char *value, const complaint *out)
{
    static const char *const known[] = {"c", "avx2", "avx512", "avx512bf16", "amx", "neon", "neonbf16"};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (strcmp(value, known[i]) == 0)
            return true; /* the library reads it itself */
    }
    return refuse(out, "GAAC_CPU=%s: set it to c, avx2, avx512, avx512bf16, amx, neon or neonbf16", value);
}

static bool read_profile(const char *value, const complaint *out)
{
    gaac_error error;
    if (gaac_profile_load(&config.profile, value, NULL, &error) != GAAC_OK)
        return refuse(out, "GAAC_PROFILE=%s: %s", value, error.message);
    gaac_profile_info info;
    gaac_profile_get_info(config.profile, &info);
    if (info.scheme != GAAC_SCHEME_PRODUCTION)
        return refuse(out, "GAAC_PROFILE=%s: a profile of the scheme \"%s\" is for study; make one with gaac calibrate",
                      value, gaac_scheme_name(info.scheme));
    config.profile_path = value;
    return true;
}

static bool read_path(const char *name, const char *value, const char **path, const complaint *out)
{
    if (!*value)
        return refuse(out, "%s is empty: set it to a file name", name);
    *path = value;
    return true;
}

static bool read_stats(const char *value, const complaint *out)
{
    return read_path("GAAC_STATS", value, &config.stats_path, out);
}

static bool read_calibrate(const char *value, const complaint *out)
{
    return read_path("GAAC_CALIBRATE", value, &config.calibrate_path, out);
}

static bool read_calibrate_info(const char *value, const complaint *out)
{
    cJSON *json = cJSON_Parse(value);
    bool good = cJSON_IsObject(json);
    cJSON_Delete(json);
    if (!good)
        return refuse(out, "GAAC_CALIBRATE_INFO is not a JSON object");
    config.calibrate_info = value;
    return true;
}

/* For the gaac command or for the scripts that build and test; nothing to do here. */
static bool read_elsewhere(const char *value, const complaint *out)
{
    (void)value;
    (void)out;
    return true;
}

static bool read_test_unallocated(const char *value, const complaint *out)
{
    if (strcmp(value, "0") != 0 && strcmp(value, "1") != 0)
        return refuse(out, "GAAC_TEST_UNALLOCATED=%s: set it to 0 or 1", value);
    config.test_unallocated = value[0] == '1';
    return true;
}

typedef struct variable {
    const char *name;
    bool (*read)(const char *value, const complaint *out);
} variable;

static const variable variables[] = {
    {"GAAC_MODE", read_mode},
    {"GAAC_MEMORY", read_memory},
    {"GAAC_THREADS", read_threads},
    {"GAAC_CPU", read_cpu},
    {"GAAC_PROFILE", read_profile},
    {"GAAC_STATS", read_stats},
    {"GAAC_CALIBRATE", read_calibrate},
    {"GAAC_CALIBRATE_INFO", read_calibrate_info},
    {"GAAC_TEST_UNALLOCATED", read_test_unallocated},
    {"GAAC_PLUGIN", read_elsewhere},
    {"GAAC_MODEL", read_elsewhere},
    {"GAAC_STOCK_DIR", read_elsewhere},
    {"GAAC_STOCK_SOURCE", read_elsewhere},
};

static bool read_one(const char *entry, const complaint *out)
{
    size_t name_bytes = strcspn(entry, "=");
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) {
        if (strlen(variables[i].name) == name_bytes && strncmp(variables[i].name, entry, name_bytes) == 0)
            return variables[i].read(entry + name_bytes + 1, out);
    }
    return refuse(out,
                  "unknown environment variable %.*s: known are GAAC_MODE, GAAC_MEMORY, GAAC_THREADS, GAAC_CPU, "
                  "GAAC_PROFILE, GAAC_STATS, GAAC_CALIBRATE, GAAC_CALIBRATE_INFO",
                  (int)name_bytes, entry);
}

/* NOLINTNEXTLINE(readability-non-const-parameter): written through `out` */
bool settings_read(char *message, size_t message_bytes)
{
    complaint out = {message, message_bytes};
    for (char **entry = environ; *entry; entry++) {
        if (strncmp(*entry, "GAAC_", 5) == 0 && !read_one(*entry, &out))
            return false;
    }
    if (config.calibrate_path && config.mode == GAAC_CACHE_RAW)
        return refuse(&out, "GAAC_CALIBRATE needs GAAC_MODE=coded: a raw cache is never calibrated");
    if (config.calibrate_path && config.profile)
        return refuse(&out, "GAAC_CALIBRATE and GAAC_PROFILE exclude each other: a cache with a profile does not "
                            "calibrate itself");
    return true;
}
