/* A host program with the GAAC device: its arguments and environment, ready to be run. */
#ifndef GAAC_TOOL_LAUNCH_H
#define GAAC_TOOL_LAUNCH_H

#include "host.h"

typedef struct launch_options {
    const char *plugin;                     /* NULL: found */
    const char *mode;                       /* "coded", "raw" or NULL */
    uint64_t memory;                        /* bytes, 0 = no limit given */
    uint64_t threads;                       /* 0 = none given */
    const char *profile, *stats;            /* paths or NULL */
    const char *calibrate, *calibrate_info; /* GAAC_CALIBRATE, GAAC_CALIBRATE_INFO or NULL */
    bool family_given;                      /* else it is told from the program's name */
    host_family family;
} launch_options;

typedef struct host_launch {
    string_list arguments;   /* the program first */
    string_list environment; /* NAME=value to set; GAAC_PLUGIN, which the plug-in does not know, is unset */
} host_launch;

/* Fills `launch` for `command` (NULL-terminated, the program first). Checks the profile against the model
 * that the command names. Returns an exit code; free with launch_free in any case. */
int launch_prepare(host_launch *launch, const launch_options *options, char *const command[]);
void launch_free(host_launch *launch);

/* Sets the environment of this process. */
void launch_set_environment(const host_launch *launch);
/* Prints both as a command that a shell would run. */
void launch_print(const host_launch *launch);
/* Becomes the program. Returns only on failure, with 126 or 127 after a message. */
int launch_execute(const host_launch *launch);

#endif
