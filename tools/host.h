/* llama.cpp's programs as hosts of the plug-in: which options and environment they need for GAAC. */
#ifndef GAAC_TOOL_HOST_H
#define GAAC_TOOL_HOST_H

#include "tool.h"

/* Programs whose options differ. */
typedef enum host_family {
    HOST_COMMON,        /* llama-server, llama-cli, ...: common options, LLAMA_ARG_ variables */
    HOST_BENCH,         /* llama-bench: lists of values, no variables */
    HOST_PYTHON_SERVER, /* python -m llama_cpp.server */
    HOST_PYTHON,        /* any other Python program: the device is loaded when it imports llama_cpp */
    HOST_OTHER          /* the environment alone */
} host_family;

/* From the program and its arguments (NULL-terminated, the program first). */
host_family host_family_of(char *const command[]);
/* "common", "bench", "python-server", "python", "none"; false for other names. */
bool host_family_named(const char *name, host_family *family);

/* Appends what GAAC needs and the user did not say, to a copy of the command. Warns about what the user
 * said that keeps GAAC from the cache. `arguments` starts as the command. */
void host_add_options(host_family family, string_list *arguments);

/* The model file that the command names, or NULL. */
const char *host_model(host_family family, const string_list *arguments);

/* True where Python was told to ignore PYTHONPATH, which brings the device to it. */
bool host_python_isolated(const string_list *arguments);

#endif
