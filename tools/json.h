/* Small help around cJSON for the commands that print JSON. */
#ifndef GAAC_TOOL_JSON_H
#define GAAC_TOOL_JSON_H

#include <cjson/cJSON.h>

/* Adds a number rounded to `decimals` places, which keeps the text short. Not a number becomes null. */
void json_add_rounded(cJSON *object, const char *name, double value, int decimals);
/* Prints it on stdout with a newline and deletes it. Returns an exit code. */
int json_print(cJSON *json);

#endif
