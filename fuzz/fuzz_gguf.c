/* Fuzz target: a model file from anywhere. What is accepted must do for what gaac calibrate makes of it: the
 * description of a profile. */
#include "fuzz_target.h"
#include "gaac/gaac.h"
#include "gguf.h"

static void check_accepted(const gguf_info *info)
{
    const gaac_profile_info description = {.model_name = info->name,
                                           .rope_base = info->rope_base,
                                           .rope_scaling = info->rope_scaling,
                                           .scheme = GAAC_SCHEME_PRODUCTION};
    gaac_profile *profile;
    gaac_error error;
    REQUIRE(info->version == 2 || info->version == 3);
    REQUIRE(memchr(info->architecture, '\0', sizeof info->architecture) != NULL);
    REQUIRE(info->rope_scaling[0] != '\0');
    const gaac_status status = gaac_profile_create(&profile, &description, NULL, &error);
    if (status != GAAC_OK)
        (void)fprintf(stderr, "%s\n", error.message);
    REQUIRE(status == GAAC_OK);
    gaac_profile_destroy(profile);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    gguf_info info;
    gaac_error error = {GAAC_OK, ""};
    const gaac_status status = gguf_parse(&info, bytes, size, &error);
    if (status == GAAC_OK)
        check_accepted(&info);
    else
        REQUIRE((status == GAAC_ERROR_CORRUPT || status == GAAC_ERROR_UNSUPPORTED) && error.status == status &&
                error.message[0] != '\0' && strchr(error.message, '\n') == NULL);
    return 0;
}
