#include "locate.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tool.h"

/* Relative to the directory of the command; tools/CMakeLists.txt derives the first from the install layout. */
static const char *const plugin_places[] = {GAAC_INSTALL_LIBDIR "/libggml-gaac.so",
                                            "../integrations/llama.cpp/libggml-gaac.so", "libggml-gaac.so", NULL};
static const char *const python_places[] = {GAAC_INSTALL_DATADIR "/gaac/python/sitecustomize.py",
                                            "python/sitecustomize.py", NULL};

static char *real_path(const char *path)
{
    char *resolved = realpath(path, NULL);
    return resolved && access(resolved, R_OK) == 0 ? resolved : (free(resolved), NULL);
}

/* The directory that this command runs from, with the symbolic links of its path followed. */
static char *own_directory(void)
{
    char *path = real_path("/proc/self/exe");
    if (path)
        *strrchr(path, '/') = 0;
    return path;
}

static char *find_beside(const char *const *places)
{
    char *directory = own_directory(), *found = NULL;
    for (size_t i = 0; directory && !found && places[i]; i++) {
        char *path = tool_format("%s/%s", directory, places[i]);
        found = real_path(path);
        free(path);
    }
    free(directory);
    return found;
}

char *locate_plugin(const char *given)
{
    const char *how = "--plugin";
    if (!given) {
        given = getenv("GAAC_PLUGIN");
        how = "GAAC_PLUGIN";
    }
    char *found = given && *given ? real_path(given) : find_beside(plugin_places);
    if (!found && given && *given)
        tool_fail(TOOL_FAILED, "%s %s: there is no such file; give the path of libggml-gaac.so", how, given);
    else if (!found)
        tool_fail(TOOL_FAILED, "libggml-gaac.so is not where this command was installed or built; say where it is "
                               "with --plugin or GAAC_PLUGIN");
    return found;
}

char *locate_python(void)
{
    char *file = find_beside(python_places);
    if (file)
        *strrchr(file, '/') = 0;
    else
        tool_fail(TOOL_FAILED, "sitecustomize.py of GAAC is not where this command was installed or built; install "
                               "it again");
    return file;
}

char *locate_program(const char *name)
{
    char *directory = own_directory();
    char *path = directory ? tool_format("%s/%s", directory, name) : NULL;
    char *found = path && access(path, X_OK) == 0 ? path : (free(path), NULL);
    free(directory);
    const char *list = getenv("PATH");
    while (!found && list && *list) {
        const size_t length = strcspn(list, ":");
        path = tool_format("%.*s/%s", (int)length, length ? list : ".", name);
        found = access(path, X_OK) == 0 ? path : (free(path), NULL);
        list += length + (list[length] == ':');
    }
    return found;
}
