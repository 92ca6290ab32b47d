/* GAAC: lossless KV-cache compression for language-model inference. The whole public C API. */
#ifndef GAAC_H
#define GAAC_H

#include "gaac/attention.h"
#include "gaac/cache.h"
#include "gaac/codec.h"
#include "gaac/common.h"
#include "gaac/profile.h"
#include "gaac/version.h"

#endif
