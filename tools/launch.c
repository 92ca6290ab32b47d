#include "launch.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gguf.h"
#include "locate.h"

static void add_variable(host_launch *launch, const char *name, const char *value)
{
    char *text = tool_format("%s=%s", name, value);
    string_list_add(&launch->environment, text);
    free(text);
}

static void add_number(host_launch *launch, const char *name, uint64_t value)
{
    char text[32];
    snprintf(text, sizeof text, "%llu", (unsigned long long)value);
    add_variable(launch, name, text);
}

/* Refuses the profile of another model. Where either side has no fingerprint there is nothing to compare. */
static int check_profile(const char *path, const char *model)
{
    gaac_profile *profile;
    gaac_error error;
    if (gaac_profile_load(&profile, path, NULL, &error) != GAAC_OK)
        return tool_fail_status(path, &error);
    int code = TOOL_OK;
    gaac_profile_info info;
    gaac_profile_get_info(profile, &info);
    char fingerprint[GGUF_FINGERPRINT_SIZE];
    if (info.scheme != GAAC_SCHEME_PRODUCTION)
        code = tool_fail(TOOL_BAD_DATA, "%s: a profile of the scheme '%s' is for study; make one with gaac calibrate",
                         path, gaac_scheme_name(info.scheme));
    else if (model && *info.model_hash && gguf_fingerprint(model, fingerprint, NULL) == GAAC_OK &&
             strcmp(fingerprint, info.model_hash) != 0)
        code = tool_fail(TOOL_BAD_DATA, "%s was made for another model file (%s), not for %s; run gaac calibrate -m %s",
                         path, *info.model_name ? info.model_name : "no name", model, model);
    gaac_profile_destroy(profile);
    return code;
}

/* Python finds sitecustomize.py through PYTHONPATH, before the user's own entries. */
static int add_python_path(host_launch *launch)
{
    char *directory = locate_python();
    if (!directory)
        return TOOL_FAILED;
    const char *before = getenv("PYTHONPATH");
    char *value = before && *before ? tool_format("%s:%s", directory, before) : tool_format("%s", directory);
    add_variable(launch, "PYTHONPATH", value);
    free(value);
    free(directory);
    if (host_python_isolated(&launch->arguments))
        tool_warn("python is told to ignore its environment (-E, -I or -S), so GAAC won't be loaded; leave that out");
    return TOOL_OK;
}

static int add_environment(host_launch *launch, const launch_options *options, host_family family)
{
    char *plugin = locate_plugin(options->plugin);
    if (!plugin)
        return TOOL_FAILED;
    const char *before = getenv("GGML_BACKEND_PATH");
    if (before && *before && strcmp(before, plugin) != 0)
        tool_warn("GGML_BACKEND_PATH=%s is replaced: llama.cpp loads one backend through it; unset it", before);
    add_variable(launch, "GGML_BACKEND_PATH", plugin);
    free(plugin);
    const struct {
        const char *name, *value;
    } texts[] = {{"GAAC_MODE", options->mode},
                 {"GAAC_PROFILE", options->profile},
                 {"GAAC_STATS", options->stats},
                 {"GAAC_CALIBRATE", options->calibrate},
                 {"GAAC_CALIBRATE_INFO", options->calibrate_info}};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (texts[i].value)
            add_variable(launch, texts[i].name, texts[i].value);
    if (options->memory)
        add_number(launch, "GAAC_MEMORY", options->memory);
    if (options->threads)
        add_number(launch, "GAAC_THREADS", options->threads);
    return family == HOST_PYTHON || family == HOST_PYTHON_SERVER ? add_python_path(launch) : TOOL_OK;
}

int launch_prepare(host_launch *launch, const launch_options *options, char *const command[])
{
    *launch = (host_launch){0};
    const host_family family = options->family_given ? options->family : host_family_of(command);
    for (size_t i = 0; command[i]; i++)
        string_list_add(&launch->arguments, command[i]);
    const char *profile = options->profile ? options->profile : getenv("GAAC_PROFILE");
    if (profile && *profile) {
        const int code = check_profile(profile, host_model(family, &launch->arguments));
        if (code != TOOL_OK)
            return code;
    }
    host_add_options(family, &launch->arguments);
    return add_environment(launch, options, family);
}

void launch_free(host_launch *launch)
{
    string_list_free(&launch->arguments);
    string_list_free(&launch->environment);
}

void launch_set_environment(const host_launch *launch)
{
    unsetenv("GAAC_PLUGIN");
    for (size_t i = 0; i < launch->environment.count; i++) {
        const char *entry = launch->environment.items[i];
        const char *equals = strchr(entry, '=');
        char *name = tool_format("%.*s", (int)(equals - entry), entry);
        setenv(name, equals + 1, 1);
        free(name);
    }
}

/* Quotes for a shell where that is needed. */
static void print_quoted(const char *text)
{
    if (*text && !text[strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=/.,:@%")]) {
        fputs(text, stdout);
        return;
    }
    putchar('\'');
    for (; *text; text++)
        if (*text == '\'')
            fputs("'\\''", stdout);
        else
            putchar(*text);
    putchar('\'');
}

void launch_print(const host_launch *launch)
{
    for (size_t i = 0; i < launch->environment.count; i++) {
        const char *entry = launch->environment.items[i];
        const int name = (int)strcspn(entry, "=");
        printf("%.*s=", name, entry);
        print_quoted(entry + name + 1);
        fputs(" \\\n", stdout);
    }
    for (size_t i = 0; i < launch->arguments.count; i++) {
        if (i)
            putchar(' ');
        print_quoted(launch->arguments.items[i]);
    }
    putchar('\n');
}

int launch_execute(const host_launch *launch)
{
    const char *program = launch->arguments.items[0];
    launch_set_environment(launch);
    fflush(stdout);
    execvp(program, launch->arguments.items);
    if (errno == ENOENT)
        return tool_fail(TOOL_NOT_FOUND, "%s: there is no such program; install llama.cpp or give the path", program);
    return tool_fail(TOOL_CANNOT_EXECUTE, "%s can't be executed (%s); check the file", program, strerror(errno));
}
