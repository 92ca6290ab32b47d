/* gaac_attention with its kernels named, for tests and benchmarks, and the slow definition of its result. */
#ifndef GAAC_ATTENTION_ATTENTION_H
#define GAAC_ATTENTION_ATTENTION_H

#include "attention/kernels.h"
#include "codec/unit.h"
#include "gaac/attention.h"

gaac_status gaac_attention_with(const gaac_codec_kernels *codec_kernels, const gaac_attention_kernels *kernels,
                                const gaac_cache *cache, const gaac_attention_args *args, const gaac_executor *executor,
                                gaac_error *error);

/* The same result the obvious way: cell by cell in double, over what gaac_cache_read gives. tolerance, laid
 * out like args->out, gets the distance that rounding in F32 may put between it and gaac_attention's
 * result (derivation in reference.c); it may be NULL. */
gaac_status gaac_attention_reference(const gaac_cache *cache, const gaac_attention_args *args, float *tolerance,
                                     gaac_error *error);

/* GAAC_OK when the arguments make sense for the cache. */
gaac_status gaac_attention_check(const gaac_cache *cache, const gaac_attention_args *args, gaac_error *error);

#endif
