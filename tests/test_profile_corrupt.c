/* Damaged and hostile profiles: every cut, every flipped bit, and files that are sealed with a right
 * checksum but wrong in one place. Each is refused with one line; none is taken for another. */
#include "profile_fixture.h"

#include <stdio.h>

/* A file as it is edited. */
typedef struct edited {
    uint8_t *bytes; /* malloc, exactly size */
    size_t size;
} edited;

static edited new_edited(gaac_scheme scheme)
{
    gaac_profile_info info = fixture_info;
    edited file;
    info.scheme = scheme;
    file.bytes = fixture_bytes(&info, &file.size);
    return file;
}

static size_t header_bytes(const edited *file)
{
    size_t bytes = 0;
    for (unsigned i = 0; i < 8; i++)
        bytes |= (size_t)file->bytes[i] << 8 * i;
    return bytes;
}

static void set_header_bytes(edited *file, size_t bytes)
{
    for (unsigned i = 0; i < 8; i++)
        file->bytes[i] = (uint8_t)(bytes >> 8 * i);
}

/* Replaces bytes at an offset by others of any number. */
static void splice(edited *file, size_t at, size_t remove, const void *insert, size_t count)
{
    uint8_t *bytes = malloc(file->size - remove + count);
    assert_non_null(bytes);
    memcpy(bytes, file->bytes, at);
    if (count > 0)
        memcpy(bytes + at, insert, count);
    memcpy(bytes + at + count, file->bytes + at + remove, file->size - at - remove);
    free(file->bytes);
    file->bytes = bytes;
    file->size += count - remove;
}

/* Replaces the first `from` in the header and keeps the header's length right. */
static void replace_text(edited *file, const char *from, const char *to, size_t to_bytes)
{
    const size_t header = header_bytes(file), length = strlen(from);
    size_t at = 8;
    while (at + length <= 8 + header && memcmp(file->bytes + at, from, length) != 0)
        at++;
    if (at + length > 8 + header)
        fail_msg("there is no %s in the header", from);
    splice(file, at, length, to, to_bytes);
    set_header_bytes(file, header + to_bytes - length);
}

/* Gives the file the right checksum again, if it still has a place for one. */
static void seal(edited *file)
{
    size_t offset;
    if (gaac_profile_find_checksum(file->bytes + 8, header_bytes(file), &offset)) {
        char digits[GAAC_PROFILE_CHECKSUM_DIGITS];
        gaac_profile_checksum_digits(gaac_profile_checksum(file->bytes, file->size, 8 + offset), digits);
        memcpy(file->bytes + 8 + offset, digits, sizeof digits);
    }
}

static void expect(const edited *file, gaac_status status, const char *part_of_message)
{
    gaac_profile *profile;
    gaac_error error = {GAAC_OK, ""};
    const gaac_status got = gaac_profile_parse(&profile, file->bytes, file->size, NULL, &error);
    if (got != status || (status != GAAC_OK && strstr(error.message, part_of_message) == NULL))
        fail_msg("%s: \"%s\"; expected %s: \"%s\"", gaac_status_name(got), error.message, gaac_status_name(status),
                 part_of_message);
    assert_int_equal(profile != NULL, status == GAAC_OK);
    if (status != GAAC_OK) {
        assert_int_equal(error.status, status);
        assert_null(strchr(error.message, '\n'));
        assert_true(strlen(error.message) > 15 && strlen(error.message) < sizeof error.message - 1);
    }
    gaac_profile_destroy(profile);
}

/* ---- damage ----------------------------------------------------------------------------------- */

static void every_cut_is_corrupt(void **state)
{
    (void)state;
    edited file = new_edited(GAAC_SCHEME_PRODUCTION);
    expect(&file, GAAC_OK, "");
    for (size_t size = 0; size < file.size; size++) {
        edited cut = {malloc(size + (size == 0)), size}; /* exactly: a byte read past it shows */
        assert_non_null(cut.bytes);
        memcpy(cut.bytes, file.bytes, size);
        expect(&cut, GAAC_ERROR_CORRUPT, "");
        free(cut.bytes);
    }
    splice(&file, file.size, 0, "", 1);
    expect(&file, GAAC_ERROR_CORRUPT, "checksum");
    free(file.bytes);
}

static void every_flipped_bit_is_corrupt(void **state)
{
    (void)state;
    edited file = new_edited(GAAC_SCHEME_PAPER);
    for (size_t bit = 0; bit < 8 * file.size; bit++) {
        file.bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        expect(&file, GAAC_ERROR_CORRUPT, "");
        file.bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    expect(&file, GAAC_OK, "");
    free(file.bytes);
}

/* Two flips, and bytes set at random: what a single flip can't reach. */
static void scattered_damage_is_corrupt(void **state)
{
    (void)state;
    edited file = new_edited(GAAC_SCHEME_PRODUCTION);
    uint8_t *sound = malloc(file.size);
    uint32_t random = 77;
    assert_non_null(sound);
    memcpy(sound, file.bytes, file.size);
    for (unsigned round = 0; round < 20000; round++) {
        memcpy(file.bytes, sound, file.size);
        for (unsigned change = 0; change < 2 + round % 4; change++) {
            random = random * 1664525 + 1013904223;
            file.bytes[(random >> 8) % file.size] ^= (uint8_t)(1u << (random >> 5) % 8);
        }
        if (memcmp(file.bytes, sound, file.size) != 0)
            expect(&file, GAAC_ERROR_CORRUPT, "");
    }
    free(sound);
    free(file.bytes);
}

/* ---- sealed, but wrong in one place ----------------------------------------------------------- */

static const struct {
    const char *from, *to;
    gaac_status status;
    const char *message;
} edits[] = {
    /* what may differ */
    {"\"A model\"", "\"B model \\u00e9\\ud83d\\ude00\"", GAAC_OK, ""},
    {"\"A model\"", "\"\\\\u0000\"", GAAC_OK, ""}, /* a backslash and u0000: no NUL */
    {"\"rope_base\":\"10000\"", "\"rope_base\":\"1e4\"", GAAC_OK, ""},
    {",\"tokens\"", " ,\n\t\"tokens\"", GAAC_OK, ""},
    {"\"format\":\"gaac-profile\",\"format_version\":\"1\"", "\"format_version\":\"1\",\"format\":\"gaac-profile\"",
     GAAC_OK, ""},
    /* the text */
    {"{\"__metadata__\"", " {\"__metadata__\"", GAAC_ERROR_CORRUPT, "not a JSON object"},
    {"{\"__metadata__\"", "\xef\xbb\xbf{\"__metadata__\"", GAAC_ERROR_CORRUPT, "not a JSON object"},
    {"A model", "\xff", GAAC_ERROR_CORRUPT, "not text"},
    {"A model", "\xed\xa0\x80", GAAC_ERROR_CORRUPT, "not text"},
    {"A model", "\\u0000", GAAC_ERROR_CORRUPT, "not text"},
    {"A model", "\\\\\\u0000", GAAC_ERROR_CORRUPT, "not text"},
    {"A model", "\\ud800", GAAC_ERROR_CORRUPT, "not JSON"},
    {"A model", "\\x", GAAC_ERROR_CORRUPT, "not JSON"},
    {"\"A model\"", "\"A model", GAAC_ERROR_CORRUPT, "not JSON"},
    {"\"A model\",", "\"A model\"", GAAC_ERROR_CORRUPT, "not JSON"},
    {"]}}", "]}}x", GAAC_ERROR_CORRUPT, "not JSON"},
    {"]}}", "]}", GAAC_ERROR_CORRUPT, "not JSON"},
    /* metadata */
    {"__metadata__", "__metadatb__", GAAC_ERROR_CORRUPT, "no __metadata__"},
    {"gaac-profile", "pt", GAAC_ERROR_CORRUPT, "another kind of file"},
    {"\"format\":\"gaac-profile\"", "\"format\":1", GAAC_ERROR_CORRUPT, "no string format"},
    {"\"format_version\":\"1\"", "\"format_version\":\"2\"", GAAC_ERROR_UNSUPPORTED, "update gaac or calibrate again"},
    {"\"format_version\":\"1\"", "\"format_version\":\"0\"", GAAC_ERROR_UNSUPPORTED, "version 0"},
    {"\"format_version\":\"1\"", "\"format_version\":\"01\"", GAAC_ERROR_CORRUPT, "format_version"},
    {"\"format_version\":\"1\"", "\"format_version\":\"\"", GAAC_ERROR_CORRUPT, "format_version"},
    {"\"format_version\":\"1\"", "\"format_version\":\"1 \"", GAAC_ERROR_CORRUPT, "format_version"},
    {"\"format_version\":\"1\"", "\"format_version\":\"99999999999999999999\"", GAAC_ERROR_CORRUPT, "format_version"},
    {"\"format_version\":\"1\",", "", GAAC_ERROR_CORRUPT, "no string format_version"},
    {"\"text\":", "\"Text\":", GAAC_ERROR_CORRUPT, "no string text"},
    {"\"text\":", "\"date\":", GAAC_ERROR_CORRUPT, "no string text"}, /* twice a date */
    {"\"text\":", "\"more\":\"\",\"text\":", GAAC_ERROR_CORRUPT, "13 members"},
    {"\"date\":", "\"date\":\"\",\"date\":", GAAC_ERROR_CORRUPT, "13 members"},
    {",\"date\":\"2025-01-31T12:00:00Z\"", "", GAAC_ERROR_CORRUPT, "11 members"},
    {"\"tokens\":\"2048\"", "\"tokens\":2048", GAAC_ERROR_CORRUPT, "no string tokens"},
    {"\"tokens\":\"2048\"", "\"tokens\":null", GAAC_ERROR_CORRUPT, "no string tokens"},
    {"\"tokens\":\"2048\"", "\"tokens\":\"-1\"", GAAC_ERROR_CORRUPT, "tokens"},
    {"\"tokens\":\"2048\"", "\"tokens\":\"1e3\"", GAAC_ERROR_CORRUPT, "tokens"},
    {"\"tokens\":\"2048\"", "\"tokens\":\"18446744073709551615\"", GAAC_OK, ""},
    {"\"tokens\":\"2048\"", "\"tokens\":\"18446744073709551616\"", GAAC_ERROR_CORRUPT, "tokens"},
    {"\"scheme\":\"production\"", "\"scheme\":\"papyrus\"", GAAC_ERROR_CORRUPT, "scheme"},
    {"\"scheme\":\"production\"", "\"scheme\":\"\"", GAAC_ERROR_CORRUPT, "scheme"},
    {"\"scheme\":\"production\"", "\"scheme\":\"paper\"", GAAC_ERROR_CORRUPT, "layers.0.windows"},
    {"\"rope_base\":\"10000\"", "\"rope_base\":\"\"", GAAC_ERROR_CORRUPT, "rope_base"},
    {"\"rope_base\":\"10000\"", "\"rope_base\":\"-1\"", GAAC_ERROR_CORRUPT, "rope_base"},
    {"\"rope_base\":\"10000\"", "\"rope_base\":\"nan\"", GAAC_ERROR_CORRUPT, "rope_base"},
    {"\"rope_base\":\"10000\"", "\"rope_base\":\"1e999\"", GAAC_ERROR_CORRUPT, "rope_base"},
    {"\"rope_base\":\"10000\"", "\"rope_base\":\"0x10\"", GAAC_ERROR_CORRUPT, "rope_base"},
    {"\"rope_base\":\"10000\"", "\"rope_base\":\"1 \"", GAAC_ERROR_CORRUPT, "rope_base"},
    {"\"rope_base\":\"10000\"", "\"rope_base\":\"[1]\"", GAAC_ERROR_CORRUPT, "rope_base"},
    {"\"checksum\":", "\"Checksum\":", GAAC_ERROR_CORRUPT, "no checksum"},
    {"\"text\":\"a-text.txt\"", "\"checksum\":\"0123456789abcdef\"", GAAC_ERROR_CORRUPT, "no checksum"}, /* two */
    /* the list of layers */
    {"0:1:16:16", "0:0:16:16", GAAC_ERROR_CORRUPT, "layer 0: kv_heads is 0"},
    {"0:1:16:16", "0:257:16:16", GAAC_ERROR_CORRUPT, "kv_heads is 257"},
    {"0:1:16:16", "0:1:0:16", GAAC_ERROR_CORRUPT, "head_dim_k is 0"},
    {"0:1:16:16", "0:1:24:16", GAAC_ERROR_CORRUPT, "head_dim_k is 24"},
    {"0:1:16:16", "0:1:16:1040", GAAC_ERROR_CORRUPT, "head_dim_v is 1040"},
    {"0:1:16:16", "0:1:16:4294967312", GAAC_ERROR_CORRUPT, "list of layers"}, /* 16 past 32 bits */
    {"0:1:16:16", "0:1:32:16", GAAC_ERROR_CORRUPT, "layers.0.windows"},
    {"0:1:16:16", "00:1:16:16", GAAC_ERROR_CORRUPT, "list of layers"},
    {"0:1:16:16", "0:1:16", GAAC_ERROR_CORRUPT, "list of layers"},
    {"0:1:16:16", "0:1:16:16:16", GAAC_ERROR_CORRUPT, "list of layers"},
    {"0:1:16:16", "", GAAC_ERROR_CORRUPT, "list of layers"},
    {"0:1:16:16,", "0:1:16:16;", GAAC_ERROR_CORRUPT, "list of layers"},
    {",3:2:16:32", "", GAAC_ERROR_CORRUPT, "number 2 of 2"},
    {",3:2:16:32", ",3:2:16:32,", GAAC_ERROR_CORRUPT, "goes on"},
    {",3:2:16:32", ",3:2:16:32,4:2:16:32", GAAC_ERROR_CORRUPT, "goes on"},
    {",3:2:16:32", ",0:1:16:16", GAAC_ERROR_CORRUPT, "layers.0.windows"},
    {"0:1:16:16", "4294967295:1:16:16", GAAC_ERROR_CORRUPT, "layers.4294967295.windows"},
    /* tensors */
    {"\"pool_bytes\":", "\"pool\":", GAAC_ERROR_CORRUPT, "pool_bytes"},
    {"\"U32\"", "\"I32\"", GAAC_ERROR_CORRUPT, "type U32"},
    {"\"dtype\":\"U32\"", "\"dtype\":32", GAAC_ERROR_CORRUPT, "type U32"},
    {"\"shape\":[2]", "\"shape\":[3]", GAAC_ERROR_CORRUPT, "shape [2]"},
    {"\"shape\":[2]", "\"shape\":[2,1]", GAAC_ERROR_CORRUPT, "shape [2]"},
    {"\"shape\":[2]", "\"shape\":[]", GAAC_ERROR_CORRUPT, "shape [2]"},
    {"\"shape\":[2]", "\"shape\":2", GAAC_ERROR_CORRUPT, "shape [2]"},
    {"\"shape\":[2]", "\"shape\":{\"a\":2}", GAAC_ERROR_CORRUPT, "shape [2]"},
    {"\"shape\":[2]", "\"shape\":[\"2\"]", GAAC_ERROR_CORRUPT, "shape [2]"},
    {"\"shape\":[2]", "\"shape\":[2.5]", GAAC_ERROR_CORRUPT, "shape [2]"},
    {"\"shape\":[2]", "\"shape\":[-2]", GAAC_ERROR_CORRUPT, "shape [2]"},
    {"\"shape\":[2]", "\"shape\":[1e308]", GAAC_ERROR_CORRUPT, "shape [2]"},
    {"\"shape\":[2]", "\"size\":[2]", GAAC_ERROR_CORRUPT, "shape [2]"},
    {"\"shape\":[2]", "\"shape\":[2],\"shape\":[2]", GAAC_ERROR_CORRUPT, "no sound tensor pool_bytes"},
    {"\"data_offsets\":[0,8]", "\"data_offsets\":[0,12]", GAAC_ERROR_CORRUPT, "bytes 0 to 8"},
    {"\"data_offsets\":[0,8]", "\"data_offsets\":[8,0]", GAAC_ERROR_CORRUPT, "bytes 0 to 8"},
    {"\"data_offsets\":[0,8]", "\"data_offsets\":[-8,0]", GAAC_ERROR_CORRUPT, "bytes 0 to 8"},
    {"\"data_offsets\":[0,8]", "\"data_offsets\":[0]", GAAC_ERROR_CORRUPT, "bytes 0 to 8"},
    {"\"data_offsets\":[8,56]", "\"data_offsets\":[0,48]", GAAC_ERROR_CORRUPT, "bytes 8 to 56"}, /* overlap */
    {"\"data_offsets\":[8,56]", "\"data_offsets\":[9,57]", GAAC_ERROR_CORRUPT, "bytes 8 to 56"}, /* gap */
    {"\"data_offsets\":[8,56]", "\"data_offsets\":[8,18446744073709551615]", GAAC_ERROR_CORRUPT, "bytes 8 to 56"},
    {"layers.3.windows", "layers.4.windows", GAAC_ERROR_CORRUPT, "layers.3.windows"},
    {"layers.3.windows", "layers.0.windows", GAAC_ERROR_CORRUPT, "layers.3.windows"}, /* twice */
    {"\"pool_bytes\":", "\"other\":{},\"pool_bytes\":", GAAC_ERROR_CORRUPT, "shape [3]"},
    {"\"pool_bytes\":{\"dtype\":\"U32\",\"shape\":[2],\"data_offsets\":[0,8]}", "\"pool_bytes\":[1,2,3]",
     GAAC_ERROR_CORRUPT, "no sound tensor pool_bytes"},
};

static void sealed_edits_are_told_apart(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
        edited file = new_edited(GAAC_SCHEME_PRODUCTION);
        replace_text(&file, edits[i].from, edits[i].to, strlen(edits[i].to));
        seal(&file);
        expect(&file, edits[i].status, edits[i].message);
        free(file.bytes);
    }
}

/* A string of one byte too many, a raw NUL, nesting without end, a header at and past its limit. */
static void sealed_headers_of_odd_sizes(void **state)
{
    (void)state;
    edited file = new_edited(GAAC_SCHEME_PRODUCTION);
    char text[2 * GAAC_PROFILE_STRING];
    memset(text, 'x', sizeof text);
    replace_text(&file, "A model", text, GAAC_PROFILE_STRING);
    seal(&file);
    expect(&file, GAAC_ERROR_CORRUPT, "model_name is longer");
    free(file.bytes);

    file = new_edited(GAAC_SCHEME_PRODUCTION);
    replace_text(&file, "A model", "A\0model", 7);
    seal(&file);
    expect(&file, GAAC_ERROR_CORRUPT, "not text");
    free(file.bytes);

    file = new_edited(GAAC_SCHEME_PRODUCTION);
    memset(text, '[', sizeof text);
    replace_text(&file, "\"A model\"", text, sizeof text);
    seal(&file);
    expect(&file, GAAC_ERROR_CORRUPT, "not JSON");
    free(file.bytes);

    for (size_t past = 0; past < 2; past++) {
        file = new_edited(GAAC_SCHEME_PRODUCTION);
        const size_t header = header_bytes(&file), blanks = GAAC_PROFILE_MAX_HEADER + past - header;
        char *spaces = malloc(blanks);
        assert_non_null(spaces);
        memset(spaces, ' ', blanks);
        splice(&file, 8 + header, 0, spaces, blanks);
        set_header_bytes(&file, header + blanks);
        seal(&file);
        expect(&file, past ? GAAC_ERROR_CORRUPT : GAAC_OK, "claims");
        free(spaces);
        free(file.bytes);
    }

    uint8_t empty[8] = {0};
    expect(&(edited){empty, sizeof empty}, GAAC_ERROR_CORRUPT, "no checksum");
}

/* Data of the wrong size or out of range. at: from the end if negative. */
static void sealed_data_is_checked(void **state)
{
    (void)state;
    static const struct {
        gaac_scheme scheme;
        int at;
        uint8_t value;
        const char *message;
    } bytes[] = {
        {GAAC_SCHEME_PRODUCTION, 0, 32, "layer 0: pool_bytes is 32"},
        {GAAC_SCHEME_PRODUCTION, 6, 2, "pool_bytes is 131072"},
        {GAAC_SCHEME_PRODUCTION, 7, 1, "pool_bytes is 16842752"},
        {GAAC_SCHEME_PRODUCTION, 8, 241, "window base 241"},
        {GAAC_SCHEME_PRODUCTION, 11, 7, "window base 7"}, /* a channel 3 mod 4 has an even base */
        {GAAC_SCHEME_PRODUCTION, -1, 255, "layer 3: window base 255"},
        {GAAC_SCHEME_PAPER, -1, 241, "layer 3: window base 241"},
        {GAAC_SCHEME_PAPER, 8, 249, "layer 0: window base 249"},
    };
    for (size_t i = 0; i < sizeof bytes / sizeof *bytes; i++) {
        edited file = new_edited(bytes[i].scheme);
        const size_t data = 8 + header_bytes(&file);
        file.bytes[bytes[i].at < 0 ? file.size - 1 : data + (size_t)bytes[i].at] = bytes[i].value;
        seal(&file);
        expect(&file, GAAC_ERROR_CORRUPT, bytes[i].message);
        free(file.bytes);
    }
    edited file = new_edited(GAAC_SCHEME_PRODUCTION);
    splice(&file, file.size, 0, "more", 4);
    seal(&file);
    expect(&file, GAAC_ERROR_CORRUPT, "4 bytes follow");
    splice(&file, file.size - 5, 5, "", 0);
    seal(&file);
    expect(&file, GAAC_ERROR_CORRUPT, "passes the end");
    free(file.bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_cut_is_corrupt),        cmocka_unit_test(every_flipped_bit_is_corrupt),
        cmocka_unit_test(scattered_damage_is_corrupt), cmocka_unit_test(sealed_edits_are_told_apart),
        cmocka_unit_test(sealed_headers_of_odd_sizes), cmocka_unit_test(sealed_data_is_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
