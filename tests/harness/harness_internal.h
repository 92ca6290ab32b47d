/* Between the harness's own files. */
#ifndef GAAC_TESTS_HARNESS_INTERNAL_H
#define GAAC_TESTS_HARNESS_INTERNAL_H

#include "harness.h"

void harness_release_memory(harness *h);

#endif
