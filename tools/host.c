#include "host.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* One thing that GAAC needs from a host. */
typedef struct need {
    const char *spellings[4]; /* the one that is added first; compared with '_' read as '-' after "--" */
    const char *value;
    const char *variable; /* environment variable that says the same, or NULL */
    bool (*defeats)(const char *value);
    const char *why; /* what a defeating value does and what to say instead */
} need;

/* ---- values that defeat --------------------------------------------------------------------- */

/* Values may be lists ("f16,bf16" in llama-bench): they defeat when no item is good. */
static bool no_item(const char *value, bool (*good)(const char *item))
{
    while (*value) {
        char item[64];
        const size_t length = strcspn(value, ",/;");
        const size_t kept = length < sizeof item ? length : sizeof item - 1;
        memcpy(item, value, kept);
        item[kept] = 0;
        if (good(item))
            return false;
        value += length + (value[length] != 0);
    }
    return true;
}

static bool is_bf16(const char *item)
{
    return !strcmp(item, "bf16");
}
static bool is_our_device(const char *item)
{
    return !strncmp(item, "GAAC", 4) || !strcmp(item, "auto");
}
static bool is_on(const char *item)
{
    static const char *const off[] = {"0", "off", "false", "disabled", "no", "f", "n"}; /* of all hosts */
    for (size_t i = 0; i < sizeof off / sizeof *off; i++)
        if (!strcasecmp(item, off[i]))
            return false;
    return true;
}
static bool some_layers(const char *item)
{
    return strcmp(item, "0") != 0;
}
static bool is_type_30(const char *item)
{
    return !strcmp(item, "30");
} /* GGML_TYPE_BF16 */

static bool not_bf16(const char *value)
{
    return no_item(value, is_bf16);
}
static bool not_type_30(const char *value)
{
    return no_item(value, is_type_30);
}
static bool not_our_device(const char *value)
{
    return no_item(value, is_our_device);
}
static bool all_off(const char *value)
{
    return no_item(value, is_on);
}
static bool no_layers(const char *value)
{
    return no_item(value, some_layers);
}

#define WHY_TYPE "GAAC keeps BF16 caches only, so this one stays uncompressed; leave it out or say bf16"
#define WHY_FLASH "without flash attention the cache stays uncompressed; leave it out or say on"
#define WHY_LAYERS "no layer's cache goes to GAAC; leave it out or say 99"
#define WHY_DEVICE "the cache stays off GAAC; leave it out or add GAAC0"

static const need common_needs[] = {
    {{"-dev", "--device"}, "GAAC0", "LLAMA_ARG_DEVICE", not_our_device, WHY_DEVICE},
    {{"-ngl", "--gpu-layers", "--n-gpu-layers"}, "99", "LLAMA_ARG_N_GPU_LAYERS", no_layers, WHY_LAYERS},
    {{"-fa", "--flash-attn"}, "on", "LLAMA_ARG_FLASH_ATTN", all_off, WHY_FLASH},
    {{"-ctk", "--cache-type-k"}, "bf16", "LLAMA_ARG_CACHE_TYPE_K", not_bf16, WHY_TYPE},
    {{"-ctv", "--cache-type-v"}, "bf16", "LLAMA_ARG_CACHE_TYPE_V", not_bf16, WHY_TYPE},
    {{NULL}, NULL, NULL, NULL, NULL},
};
/* "1" is understood by every llama-bench, "on" by newer ones only. */
static const need bench_needs[] = {
    {{"-dev", "--device"}, "GAAC0", NULL, not_our_device, WHY_DEVICE},
    {{"-ngl", "--n-gpu-layers"}, "99", NULL, no_layers, WHY_LAYERS},
    {{"-fa", "--flash-attn"}, "1", NULL, all_off, WHY_FLASH},
    {{"-ctk", "--cache-type-k"}, "bf16", NULL, not_bf16, WHY_TYPE},
    {{"-ctv", "--cache-type-v"}, "bf16", NULL, not_bf16, WHY_TYPE},
    {{NULL}, NULL, NULL, NULL, NULL},
};
/* llama_cpp.server takes all devices there are, so that there is none to name. */
static const need python_needs[] = {
    {{"--n_gpu_layers"}, "99", "N_GPU_LAYERS", no_layers, WHY_LAYERS},
    {{"--flash_attn"}, "true", "FLASH_ATTN", all_off, WHY_FLASH},
    {{"--type_k"},
     "30",
     "TYPE_K",
     not_type_30,
     "GAAC keeps BF16 caches only, so this one stays uncompressed; leave it out or say 30 (BF16)"},
    {{"--type_v"},
     "30",
     "TYPE_V",
     not_type_30,
     "GAAC keeps BF16 caches only, so this one stays uncompressed; leave it out or say 30 (BF16)"},
    {{NULL}, NULL, NULL, NULL, NULL},
};

static const need *needs_of(host_family family)
{
    switch (family) {
    case HOST_COMMON:
        return common_needs;
    case HOST_BENCH:
        return bench_needs;
    case HOST_PYTHON_SERVER:
        return python_needs;
    default:
        return NULL;
    }
}

/* ---- finding options ------------------------------------------------------------------------ */

/* Whether `argument` is this option; *inline_value is set to what follows a '=' in it, else NULL. */
static bool is_option(const char *argument, const char *spelling, const char **inline_value)
{
    const bool is_long = !strncmp(argument, "--", 2);
    size_t i = 0;
    for (; spelling[i]; i++) {
        const char given = is_long && i >= 2 && argument[i] == '_' ? '-' : argument[i];
        const char wanted = is_long && i >= 2 && spelling[i] == '_' ? '-' : spelling[i];
        if (given != wanted)
            return false;
    }
    *inline_value = argument[i] == '=' ? argument + i + 1 : NULL;
    return argument[i] == 0 || argument[i] == '=';
}

/* The last value given for any of the spellings, "" when the option stands last without one, or NULL.
 * *word is the argument that named it. */
static const char *find_value(const string_list *arguments, const char *const *spellings, size_t count,
                              const char **word)
{
    const char *found = NULL;
    for (size_t i = 1; i < arguments->count; i++)
        for (size_t s = 0; s < count && spellings[s]; s++) {
            const char *value;
            if (!is_option(arguments->items[i], spellings[s], &value))
                continue;
            *word = arguments->items[i];
            if (value)
                found = value;
            else
                found = i + 1 < arguments->count ? arguments->items[i + 1] : "";
        }
    return found;
}

static void meet(const need *wanted, string_list *arguments)
{
    const char *word = NULL;
    const char *value = find_value(arguments, wanted->spellings, 4, &word);
    if (!value && wanted->variable && (value = getenv(wanted->variable)) != NULL)
        word = wanted->variable;
    if (!value) {
        string_list_add(arguments, wanted->spellings[0]);
        string_list_add(arguments, wanted->value);
        return;
    }
    if (*value && wanted->defeats(value)) {
        const bool joined = strchr(word, '=') != NULL; /* the word holds the value itself */
        tool_warn("%s%s%s: %s", word, joined ? "" : " ", joined ? "" : value, wanted->why);
    }
}

/* Options that keep the cache on the host whatever else is said. */
static void warn_about_kv_offload(host_family family, const string_list *arguments)
{
    static const char *const none[] = {"-nkvo", "--no-kv-offload", NULL};
    static const char *const offload[] = {"--offload_kqv", NULL};
    const char *word = NULL, *value = NULL;
    if (family == HOST_PYTHON_SERVER)
        value = find_value(arguments, offload, 1, &word);
    else
        value = find_value(arguments, none, 2, &word);
    if (!value)
        return;
    const bool off = family == HOST_PYTHON_SERVER ? all_off(value) : family != HOST_BENCH || !all_off(value);
    if (off)
        tool_warn("%s keeps the cache away from GAAC, so it stays uncompressed; leave it out", word);
}

void host_add_options(host_family family, string_list *arguments)
{
    static const char *const config_file[] = {"--config_file", NULL};
    const need *needs = needs_of(family);
    const char *word;
    if (!needs)
        return;
    if (family == HOST_PYTHON_SERVER && find_value(arguments, config_file, 1, &word)) {
        tool_warn("--config_file: the server takes its models' options from there alone; each needs "
                  "n_gpu_layers 99, flash_attn true, type_k 30, type_v 30");
        return;
    }
    for (; needs->value; needs++)
        meet(needs, arguments);
    warn_about_kv_offload(family, arguments);
}

const char *host_model(host_family family, const string_list *arguments)
{
    static const char *const spellings[] = {"-m", "--model", NULL};
    const char *word, *value;
    if (family == HOST_PYTHON_SERVER) {
        value = find_value(arguments, spellings + 1, 1, &word);
        return value && *value ? value : getenv("MODEL");
    }
    if (family == HOST_PYTHON)
        return NULL;
    value = find_value(arguments, spellings, 2, &word);
    if ((!value || !*value) && family == HOST_COMMON)
        value = getenv("LLAMA_ARG_MODEL");
    return value && *value ? value : NULL;
}

/* ---- which program -------------------------------------------------------------------------- */

/* Of an interpreter's own options: the argument after which the program's begin. NULL when there is none. */
static const char *python_module(char *const command[])
{
    for (size_t i = 1; command[i]; i++) {
        const char *argument = command[i];
        if (argument[0] != '-' || !argument[1])
            return NULL; /* a script, or standard input */
        if (!strcmp(argument, "-X") || !strcmp(argument, "-W") || !strcmp(argument, "--check-hash-based-pycs")) {
            if (!command[++i])
                return NULL;
            continue;
        }
        const bool plain = argument[1] != '-' && argument[1] != 'X' && argument[1] != 'W';
        const char *letter = plain ? strpbrk(argument, "mc") : NULL;
        if (letter)
            return *letter == 'c' ? NULL : letter[1] ? letter + 1 : command[i + 1];
    }
    return NULL;
}

bool host_python_isolated(const string_list *arguments)
{
    for (size_t i = 1; i < arguments->count && arguments->items[i][0] == '-'; i++) {
        const char *argument = arguments->items[i];
        if (!strncmp(argument, "--", 2) || argument[1] == 'm' || argument[1] == 'c')
            break;
        if (argument[1] != 'X' && argument[1] != 'W' && strpbrk(argument, "EIS"))
            return true;
    }
    return false;
}

/* Programs of llama.cpp that parse the common options, after "llama-". */
static const char *const common_programs[] = {"server",        "cli",         "completion",
                                              "perplexity",    "parallel",    "batched",
                                              "batched-bench", "speculative", "speculative-simple",
                                              "lookup",        "lookahead",   "passkey",
                                              "imatrix",       "embedding",   "retrieval",
                                              "mtmd-cli",      "run",         "save-load-state",
                                              "eval-callback", "main",        "results",
                                              "debug",         NULL};

host_family host_family_of(char *const command[])
{
    const char *name = tool_base_name(command[0]);
    if (!strncmp(name, "python", 6) || !strncmp(name, "pypy", 4)) {
        const char *module = python_module(command);
        return module && !strcmp(module, "llama_cpp.server") ? HOST_PYTHON_SERVER : HOST_PYTHON;
    }
    if (!strcmp(name, "llama-bench"))
        return HOST_BENCH;
    if (!strcmp(name, "test-save-load-state"))
        return HOST_COMMON;
    if (!strncmp(name, "llama-", 6))
        for (size_t i = 0; common_programs[i]; i++)
            if (!strcmp(name + 6, common_programs[i]))
                return HOST_COMMON;
    return HOST_OTHER;
}

bool host_family_named(const char *name, host_family *family)
{
    static const char *const names[] = {"common", "bench", "python-server", "python", "none"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(name, names[i])) {
            *family = (host_family)i;
            return true;
        }
    return false;
}
