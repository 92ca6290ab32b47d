#include "json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "tool.h"

void json_add_rounded(cJSON *object, const char *name, double value, int decimals)
{
    if (!isfinite(value)) {
        cJSON_AddNullToObject(object, name);
        return;
    }
    /* Through text: the nearest double to the decimal number is what prints short. */
    char text[64];
    snprintf(text, sizeof text, "%.*f", decimals, value);
    cJSON_AddNumberToObject(object, name, strtod(text, NULL));
}

int json_print(cJSON *json)
{
    char *text = cJSON_Print(json);
    cJSON_Delete(json);
    if (!text)
        return tool_fail(TOOL_FAILED, "no memory for the JSON output; give fewer files at a time");
    const bool written = puts(text) >= 0 && fflush(stdout) == 0;
    cJSON_free(text);
    return written ? TOOL_OK : tool_fail(TOOL_FAILED, "the output could not be written; check the disk or pipe");
}
