/* Pictures for gaac inspect. plot.c draws them with PLplot; plot_none.c stands in where it was not built in. */
#ifndef GAAC_TOOL_PLOT_H
#define GAAC_TOOL_PLOT_H

#include "dump_survey.h"
#include "gaac/profile.h"

/* Whether this path can be drawn to: TOOL_OK, or an exit code after a message. */
int plot_check(const char *path);
/* A dump: exponents relative to the windows for up to four layers, and the mode mix of all. */
int plot_dump(const char *path, const char *title, const dump_survey *survey);
/* A profile: window bases of K and V, layer by layer. */
int plot_profile(const char *path, const char *title, const gaac_profile *profile);

#endif
