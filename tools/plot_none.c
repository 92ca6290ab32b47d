#include "plot.h"

#include "tool.h"

int plot_check(const char *path)
{
    (void)path;
    return tool_fail(TOOL_FAILED, "this build of gaac draws no pictures; install libplplot-dev and "
                                  "plplot-driver-cairo, then build it again");
}

int plot_dump(const char *path, const char *title, const dump_survey *survey)
{
    (void)title;
    (void)survey;
    return plot_check(path);
}

int plot_profile(const char *path, const char *title, const gaac_profile *profile)
{
    (void)title;
    (void)profile;
    return plot_check(path);
}
