#include "stats.h"

#include "host.h"
#include "notice.h"
#include "settings.h"
#include "workers.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct kept_profile {
    gaac_profile *profile;
    struct kept_profile *older;
} kept_profile;

/* The sums over all stores at one moment. */
typedef struct snapshot {
    gaac_cache_stats cache;
    uint64_t cells, layers;
    uint64_t bytes_bf16;   /* what the same blocks take as BF16 */
    uint64_t bytes_in_use; /* by class, tables included, without free units of the pools */
} snapshot;

static struct {
    pthread_mutex_t lock;
    kv_store *stores;
    snapshot peak;
    bool device_opened;
    bool cache_held; /* a KV cache was given to us, whether or not anything was written */
    unsigned threads;
    kept_profile *profiles; /* for GAAC_CALIBRATE, the newest first */
} state = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* ---- sums ------------------------------------------------------------------------------------ */

static void add_cache_stats(gaac_cache_stats *sum, const gaac_cache_stats *one)
{
    sum->blocks_coded += one->blocks_coded;
    sum->blocks_raw += one->blocks_raw;
    sum->blocks_waiting += one->blocks_waiting;
    sum->blocks_open += one->blocks_open;
    sum->bytes_slots += one->bytes_slots;
    sum->bytes_raw_fallback += one->bytes_raw_fallback;
    sum->bytes_raw_waiting += one->bytes_raw_waiting;
    sum->bytes_raw_open += one->bytes_raw_open;
    sum->bytes_tables += one->bytes_tables;
    sum->bytes_resident += one->bytes_resident;
    sum->bytes_resident_peak += one->bytes_resident_peak;
    sum->bytes_finalized_bf16 += one->bytes_finalized_bf16;
    sum->bytes_finalized_code += one->bytes_finalized_code;
    sum->bytes_finalized_resident += one->bytes_finalized_resident;
    sum->groups_3bit += one->groups_3bit;
    sum->groups_4bit += one->groups_4bit;
    sum->exceptions += one->exceptions;
    sum->encodes += one->encodes;
    sum->decodes_to_reopen += one->decodes_to_reopen;
    sum->fallbacks += one->fallbacks;
    sum->epochs = one->epochs > sum->epochs ? one->epochs : sum->epochs;
}

static void add_store(snapshot *sum, const kv_store *store)
{
    gaac_cache_stats one;
    if (!store->cache || gaac_cache_get_stats(store->cache, GAAC_ALL_LAYERS, &one, NULL) != GAAC_OK)
        return;
    add_cache_stats(&sum->cache, &one);
    sum->layers += store->layer_count;
    for (uint32_t stream = 0; stream < store->streams; stream++)
        sum->cells += store->used[stream];
    sum->bytes_bf16 += one.bytes_finalized_bf16 + one.bytes_raw_waiting + one.bytes_raw_open;
    sum->bytes_in_use +=
        one.bytes_slots + one.bytes_raw_fallback + one.bytes_raw_waiting + one.bytes_raw_open + one.bytes_tables;
}

static void note_peak_locked(void)
{
    snapshot now = {0};
    for (const kv_store *store = state.stores; store; store = store->next)
        add_store(&now, store);
    /* as many bytes hold more cells until the next block is opened */
    if (now.bytes_bf16 > state.peak.bytes_bf16 ||
        (now.bytes_bf16 == state.peak.bytes_bf16 && now.cells >= state.peak.cells))
        state.peak = now;
}

void stats_note_peak(void)
{
    pthread_mutex_lock(&state.lock);
    note_peak_locked();
    pthread_mutex_unlock(&state.lock);
}

/* ---- stores ---------------------------------------------------------------------------------- */

void stats_register(kv_store *store)
{
    pthread_mutex_lock(&state.lock);
    store->next = state.stores;
    state.stores = store;
    pthread_mutex_unlock(&state.lock);
}

void stats_unregister(kv_store *store)
{
    stats_keep_profile(store);
    pthread_mutex_lock(&state.lock);
    note_peak_locked();
    for (kv_store **at = &state.stores; *at; at = &(*at)->next) {
        if (*at == store) {
            *at = store->next;
            break;
        }
    }
    pthread_mutex_unlock(&state.lock);
}

static uint64_t full_bytes(const kv_store *store)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < store->tensor_count; i++)
        bytes += store->tensors[i].bytes;
    return bytes;
}

uint64_t stats_memory_share(const kv_store *store)
{
    if (!config.memory_limit)
        return 0;
    double all = 0;
    pthread_mutex_lock(&state.lock);
    for (const kv_store *each = state.stores; each; each = each->next)
        all += (double)full_bytes(each);
    pthread_mutex_unlock(&state.lock);
    double own = (double)full_bytes(store);
    uint64_t share = own < all ? (uint64_t)((double)config.memory_limit * (own / all)) : config.memory_limit;
    return share ? share : 1;
}

uint64_t stats_resident(void)
{
    uint64_t bytes = 0;
    pthread_mutex_lock(&state.lock);
    for (const kv_store *store = state.stores; store; store = store->next) {
        gaac_cache_stats one;
        if (store->cache && gaac_cache_get_stats(store->cache, GAAC_ALL_LAYERS, &one, NULL) == GAAC_OK)
            bytes += one.bytes_resident;
    }
    pthread_mutex_unlock(&state.lock);
    return bytes;
}

void stats_device_opened(void)
{
    pthread_mutex_lock(&state.lock);
    state.device_opened = true;
    pthread_mutex_unlock(&state.lock);
}

void stats_cache_held(void)
{
    pthread_mutex_lock(&state.lock);
    state.cache_held = true;
    pthread_mutex_unlock(&state.lock);
}

void stats_note_threads(unsigned threads)
{
    pthread_mutex_lock(&state.lock);
    state.threads = threads;
    pthread_mutex_unlock(&state.lock);
}

/* ---- calibration ----------------------------------------------------------------------------- */

static const char *text_of(const cJSON *json, const char *name)
{
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(json, name));
    return text ? text : "";
}

/* The descriptive fields come from the command that runs us; the strings belong to `json`. */
static gaac_profile_info profile_info(const cJSON *json, char date[32])
{
    time_t now = time(NULL);
    struct tm utc;
    if (!gmtime_r(&now, &utc) || strftime(date, 32, "%Y-%m-%dT%H:%M:%SZ", &utc) == 0)
        date[0] = '\0';
    const cJSON *base = cJSON_GetObjectItemCaseSensitive(json, "rope_base");
    return (gaac_profile_info){.model_name = text_of(json, "model_name"),
                               .model_hash = text_of(json, "model_hash"),
                               .rope_base = cJSON_IsNumber(base) ? base->valuedouble : 0,
                               .rope_scaling = text_of(json, "rope_scaling"),
                               .text = text_of(json, "text"),
                               .date = date};
}

void stats_keep_profile(kv_store *store)
{
    if (!config.calibrate_path || !store->cache)
        return;
    char date[32];
    cJSON *json = config.calibrate_info ? cJSON_Parse(config.calibrate_info) : NULL;
    gaac_profile_info info = profile_info(json, date);
    gaac_profile *profile = NULL;
    gaac_status status = gaac_cache_export_profile(store->cache, &info, &profile, NULL);
    cJSON_Delete(json);
    if (status != GAAC_OK)
        return; /* nothing calibrated yet: told at exit if it stays so */
    kept_profile *kept = malloc(sizeof *kept);
    if (!kept) {
        gaac_profile_destroy(profile);
        return;
    }
    pthread_mutex_lock(&state.lock);
    *kept = (kept_profile){profile, state.profiles};
    state.profiles = kept;
    pthread_mutex_unlock(&state.lock);
}

/* The newest kept profile that has the layer. A model with a sliding window has two caches, so its
 * layers come from two profiles. */
static bool newest_layer(uint32_t index, gaac_profile_layer *layer)
{
    for (const kept_profile *kept = state.profiles; kept; kept = kept->older) {
        if (gaac_profile_find_layer(kept->profile, index, layer))
            return true;
    }
    return false;
}

static uint32_t layers_end(void)
{
    uint32_t end = 0;
    for (const kept_profile *kept = state.profiles; kept; kept = kept->older) {
        gaac_profile_layer layer;
        uint32_t count = gaac_profile_layers(kept->profile);
        if (count > 0 && gaac_profile_get_layer(kept->profile, count - 1, &layer) && layer.index >= end)
            end = layer.index + 1;
    }
    return end;
}

static gaac_status merge_profiles(gaac_profile **merged, gaac_error *error)
{
    gaac_profile_info info;
    gaac_profile_get_info(state.profiles->profile, &info);
    gaac_status status = gaac_profile_create(merged, &info, NULL, error);
    uint32_t end = layers_end();
    for (uint32_t index = 0; status == GAAC_OK && index < end; index++) {
        gaac_profile_layer layer;
        if (newest_layer(index, &layer))
            status = gaac_profile_add_layer(*merged, &layer, error);
    }
    return status;
}

static void save_profile(void)
{
    gaac_error error = {0};
    gaac_profile *merged = NULL;
    if (!state.profiles) {
        notice("no profile written to %s: the run was too short to calibrate (give it a longer text or context)",
               config.calibrate_path);
        return;
    }
    gaac_status status = merge_profiles(&merged, &error);
    if (status == GAAC_OK)
        status = gaac_profile_save(merged, config.calibrate_path, &error);
    if (status == GAAC_OK)
        notice("profile of %u layers written to %s", gaac_profile_layers(merged), config.calibrate_path);
    else
        notice("no profile written to %s: %s", config.calibrate_path, error.message);
    gaac_profile_destroy(merged);
}

/* ---- the report ------------------------------------------------------------------------------ */

static double ratio(uint64_t whole, uint64_t part)
{
    return part ? (double)whole / (double)part : 0;
}

static void write_json_fields(FILE *file, const snapshot *now)
{
    const gaac_cache_stats *cache = &now->cache;
    fprintf(file, "{\n  \"mode\": \"%s\",\n", config.mode == GAAC_CACHE_RAW ? "raw" : "coded");
    fprintf(file, "  \"gaac_version\": \"%s\",\n", gaac_version());
    fprintf(file, "  \"host_api\": %d,\n  \"host_version\": \"%s\",\n", host.api, host.version);
    fprintf(file, "  \"isa\": \"%s\",\n", gaac_cpu_isa());
    fprintf(file, "  \"threads\": %u,\n  \"threads_of\": \"%s\",\n", state.threads, workers_kind());
    fprintf(file, "  \"profile\": %s,\n", config.profile ? "true" : "false");
    fprintf(file, "  \"resident_ratio\": %.6f,\n", ratio(cache->bytes_finalized_bf16, cache->bytes_finalized_resident));
    fprintf(file, "  \"coded_ratio\": %.6f", ratio(cache->bytes_finalized_bf16, cache->bytes_finalized_code));
    const struct {
        const char *name;
        uint64_t value;
    } numbers[] = {
        {"cells", now->cells},
        {"layers", now->layers},
        {"kv_bytes_bf16", now->bytes_bf16},
        {"kv_bytes_gaac", cache->bytes_resident},
        {"kv_bytes_in_use", now->bytes_in_use},
        {"bytes_slots", cache->bytes_slots},
        {"bytes_raw_fallback", cache->bytes_raw_fallback},
        {"bytes_raw_waiting", cache->bytes_raw_waiting},
        {"bytes_raw_open", cache->bytes_raw_open},
        {"bytes_tables", cache->bytes_tables},
        {"bytes_finalized_bf16", cache->bytes_finalized_bf16},
        {"bytes_finalized_code", cache->bytes_finalized_code},
        {"bytes_finalized_resident", cache->bytes_finalized_resident},
        {"blocks_coded", cache->blocks_coded},
        {"blocks_raw", cache->blocks_raw},
        {"blocks_waiting", cache->blocks_waiting},
        {"blocks_open", cache->blocks_open},
        {"groups_3bit", cache->groups_3bit},
        {"groups_4bit", cache->groups_4bit},
        {"exceptions", cache->exceptions},
        {"encodes", cache->encodes},
        {"decodes_to_reopen", cache->decodes_to_reopen},
        {"fallbacks", cache->fallbacks},
        {"epochs", cache->epochs},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        fprintf(file, ",\n  \"%s\": %" PRIu64, numbers[i].name, numbers[i].value);
    fprintf(file, "\n}\n");
}

static void write_json(const snapshot *now)
{
    FILE *file = fopen(config.stats_path, "w");
    if (!file) {
        notice("can't write GAAC_STATS=%s: %s", config.stats_path, strerror(errno));
        return;
    }
    write_json_fields(file, now);
    if (fclose(file) != 0)
        notice("can't write GAAC_STATS=%s: %s", config.stats_path, strerror(errno));
}

static void print_summary(const snapshot *now)
{
    const gaac_cache_stats *cache = &now->cache;
    if (!state.cache_held) {
        notice("GAAC0 was given no KV cache that it can hold, so nothing was compressed: run with -ngl 99 -fa on "
               "-ctk bf16 -ctv bf16 and without --no-kv-offload");
        return;
    }
    char coded[160] = "nothing coded yet";
    if (config.mode == GAAC_CACHE_RAW)
        snprintf(coded, sizeof coded, "GAAC_MODE=raw: nothing is coded");
    else if (cache->bytes_finalized_bf16 > 0)
        snprintf(coded, sizeof coded,
                 "finalized part %.3fx smaller (code alone %.3fx), %" PRIu64 " blocks coded, %" PRIu64
                 " fallbacks, %u epochs",
                 ratio(cache->bytes_finalized_bf16, cache->bytes_finalized_resident),
                 ratio(cache->bytes_finalized_bf16, cache->bytes_finalized_code), cache->blocks_coded, cache->fallbacks,
                 cache->epochs);
    notice("%" PRIu64 " cells, KV %.1f MiB as BF16, %.1f MiB resident; %s", now->cells,
           (double)now->bytes_bf16 / 1048576, (double)cache->bytes_resident / 1048576, coded);
}

void stats_at_exit(void)
{
    if (!state.device_opened)
        return;
    for (kv_store *store = state.stores; store; store = store->next)
        stats_keep_profile(store);
    stats_note_peak();
    print_summary(&state.peak);
    if (config.stats_path)
        write_json(&state.peak);
    if (config.calibrate_path)
        save_profile();
}
