/* What the plug-in tells at exit: a line, a JSON file (GAAC_STATS), a profile (GAAC_CALIBRATE).
 *
 * Most programs free or clear their context before they end, so the numbers are those of the moment
 * when the most finalized bytes were held. Thread-safe. */
#ifndef GAAC_LLAMA_STATS_H
#define GAAC_LLAMA_STATS_H

#include "kv_store.h"

void stats_register(kv_store *store);
void stats_unregister(kv_store *store); /* notes the peak and keeps the profile first */

/* Takes the statistics of all stores if they hold more than ever before. */
void stats_note_peak(void);

/* Keeps what this store has calibrated so far, for GAAC_CALIBRATE. */
void stats_keep_profile(kv_store *store);

/* The part of GAAC_MEMORY that this store may use: caches share it by size. 0 = no limit. */
uint64_t stats_memory_share(const kv_store *store);

/* Bytes that all stores have committed now. */
uint64_t stats_resident(void);

/* The device is in use (a context has opened it); it holds a KV cache; threads of the last graph. */
void stats_device_opened(void);
void stats_cache_held(void);
void stats_note_threads(unsigned threads);

/* Everything that is told at exit. */
void stats_at_exit(void);

#endif
