/* Where the parts of an installation (or of a build tree) lie. All paths are absolute; free() them. */
#ifndef GAAC_TOOL_LOCATE_H
#define GAAC_TOOL_LOCATE_H

/* libggml-gaac.so: `given` (an option), the variable GAAC_PLUGIN, the installation, the build tree. NULL after
 * an error message when there is none. */
char *locate_plugin(const char *given);
/* The directory with sitecustomize.py, which loads the plug-in into llama-cpp-python. NULL after a message. */
char *locate_python(void);
/* A program: beside this command, or on PATH. NULL when there is none. */
char *locate_program(const char *name);

#endif
