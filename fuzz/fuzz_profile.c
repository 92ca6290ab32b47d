/* Fuzz target: profile bytes from anywhere. The input is parsed as it is, and again with its checksum put
 * right, so that the checks behind the checksum are reached. What is accepted must survive being written
 * and read again. */
#include "codec/profile_internal.h"
#include "fuzz_target.h"

enum { LENGTH_BYTES = 8 };

static void check_accepted(const gaac_profile *profile)
{
    gaac_profile *again;
    uint8_t *bytes, *bytes_again;
    size_t size, size_again;
    REQUIRE(gaac_profile_layers(profile) > 0);
    REQUIRE(gaac_profile_serialize(profile, &bytes, &size, NULL) == GAAC_OK);
    REQUIRE(gaac_profile_parse(&again, bytes, size, NULL, NULL) == GAAC_OK);
    REQUIRE(gaac_profile_serialize(again, &bytes_again, &size_again, NULL) == GAAC_OK);
    REQUIRE(size == size_again && memcmp(bytes, bytes_again, size) == 0);
    gaac_profile_destroy(again);
    free(bytes_again);
    free(bytes);
}

static void parse(const uint8_t *bytes, size_t size)
{
    gaac_profile *profile;
    gaac_error error = {GAAC_OK, ""};
    const gaac_status status = gaac_profile_parse(&profile, bytes, size, NULL, &error);
    REQUIRE((status == GAAC_OK) == (profile != NULL));
    if (status == GAAC_OK)
        check_accepted(profile);
    else
        REQUIRE((status == GAAC_ERROR_CORRUPT || status == GAAC_ERROR_UNSUPPORTED) && error.status == status &&
                error.message[0] != '\0' && strchr(error.message, '\n') == NULL);
    gaac_profile_destroy(profile);
}

/* With the right checksum in place of the one that is there. */
static void parse_sealed(const uint8_t *bytes, size_t size)
{
    size_t header = 0, offset;
    for (unsigned i = 0; i < LENGTH_BYTES; i++)
        header |= (size_t)bytes[i] << 8 * i;
    if (header > size - LENGTH_BYTES || !gaac_profile_find_checksum(bytes + LENGTH_BYTES, header, &offset))
        return;
    uint8_t *copy = malloc(size);
    REQUIRE(copy != NULL);
    memcpy(copy, bytes, size);
    offset += LENGTH_BYTES;
    gaac_profile_checksum_digits(gaac_profile_checksum(copy, size, offset), (char *)copy + offset);
    parse(copy, size);
    free(copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    parse(bytes, size);
    if (size >= LENGTH_BYTES)
        parse_sealed(bytes, size);
    return 0;
}
