/* The device GAAC0 and its backend, in the host's terms. */
#ifndef GAAC_LLAMA_DEVICE_H
#define GAAC_LLAMA_DEVICE_H

#include "host_abi.h"

/* The registry entry with its one device. host_open and settings_read first. */
host_reg *device_registry(void);

#endif
