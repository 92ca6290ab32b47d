/* Profiles: what goes in comes out, in memory and through files, whatever the allocator does. */
#include "profile_fixture.h"

#include <cjson/cJSON.h>
#include <dirent.h>
#include <locale.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- round trips ------------------------------------------------------------------------------ */

static void assert_same_profile(const gaac_profile *a, const gaac_profile *b)
{
    gaac_profile_info x, y;
    gaac_profile_get_info(a, &x);
    gaac_profile_get_info(b, &y);
    assert_string_equal(x.model_name, y.model_name);
    assert_string_equal(x.model_hash, y.model_hash);
    assert_string_equal(x.rope_scaling, y.rope_scaling);
    assert_string_equal(x.text, y.text);
    assert_string_equal(x.date, y.date);
    assert_memory_equal(&x.rope_base, &y.rope_base, sizeof x.rope_base);
    assert_true(x.tokens == y.tokens);
    assert_int_equal(x.scheme, y.scheme);
    assert_int_equal(gaac_profile_layers(a), gaac_profile_layers(b));
    for (uint32_t i = 0; i < gaac_profile_layers(a); i++) {
        gaac_profile_layer from = {0}, to = {0};
        size_t from_bytes = 0, to_bytes = 0;
        assert_true(gaac_profile_get_layer(a, i, &from) && gaac_profile_get_layer(b, i, &to));
        assert_memory_equal(&from.shape, &to.shape, sizeof from.shape);
        assert_int_equal(from.pool_bytes, to.pool_bytes);
        assert_int_equal(from.index, to.index);
        const uint8_t *from_table = gaac_windows_table(from.windows, &from_bytes);
        const uint8_t *to_table = gaac_windows_table(to.windows, &to_bytes);
        assert_int_equal(from_bytes, to_bytes);
        assert_memory_equal(from_table, to_table, from_bytes);
    }
}

static void check_round_trip(const gaac_profile_info *info)
{
    gaac_profile *profile, *back;
    uint8_t *bytes, *again;
    size_t size, again_size;
    gaac_error error = {GAAC_OK, ""};
    assert_int_equal(fixture_make(&profile, info, NULL), GAAC_OK);
    assert_int_equal(gaac_profile_serialize(profile, &bytes, &size, NULL), GAAC_OK);
    if (gaac_profile_parse(&back, bytes, size, NULL, &error) != GAAC_OK)
        fail_msg("%s", error.message);
    assert_same_profile(profile, back);
    assert_int_equal(gaac_profile_serialize(back, &again, &again_size, NULL), GAAC_OK);
    assert_int_equal(again_size, size);
    assert_memory_equal(again, bytes, size);
    free(again);
    free(bytes);
    gaac_profile_destroy(back);
    gaac_profile_destroy(profile);
}

static void every_scheme_comes_back(void **state)
{
    (void)state;
    gaac_profile_info info = fixture_info;
    for (int scheme = 0; gaac_scheme_name((gaac_scheme)scheme) != NULL; scheme++) {
        info.scheme = (gaac_scheme)scheme;
        check_round_trip(&info);
    }
}

static void awkward_strings_come_back(void **state)
{
    (void)state;
    char longest[GAAC_PROFILE_STRING], controls[33];
    memset(longest, '\1', sizeof longest);
    longest[sizeof longest - 1] = '\0';
    for (int i = 0; i < 32; i++)
        controls[i] = (char)(i + 1);
    controls[32] = '\0';
    const char *const strings[] = {
        "",
        longest,
        controls,
        "quotes \" and \\ and / and \\u0000",
        "gr\u00fc\u00df \u65e5\u672c \U0001F600",
        /* what looks like the checksum, like its key, like the header's end */
        "\"checksum\":\"0123456789abcdef\"",
        "checksum",
        "x\"checksum",
        "checksum\":\"0123456789abcdef",
        "}}}",
        "\x7f\\\"",
    };
    for (size_t i = 0; i < sizeof strings / sizeof *strings; i++) {
        gaac_profile_info info = fixture_info;
        info.model_name = strings[i];
        info.model_hash = strings[i];
        info.rope_scaling = strings[i];
        info.text = strings[i];
        info.date = strings[i];
        check_round_trip(&info);
    }
    const gaac_profile_info nothing = {0}; /* NULL strings are empty ones */
    check_round_trip(&nothing);
}

static void every_number_comes_back(void **state)
{
    (void)state;
    static const double bases[] = {0, 1, 10000, 1e6, 0.1, 1.0 / 3, 10000.000000000002, 5e-324, 1.7976931348623157e308};
    for (size_t i = 0; i < sizeof bases / sizeof *bases; i++) {
        gaac_profile_info info = fixture_info;
        info.rope_base = bases[i];
        info.tokens = UINT64_MAX - i;
        check_round_trip(&info);
    }
}

static void the_locale_changes_nothing(void **state)
{
    (void)state;
    static const char *const names[] = {"de_DE.UTF-8", "de_DE", "fr_FR.UTF-8", "ps_AF.UTF-8"};
    gaac_profile_info info = fixture_info;
    info.rope_base = 0.1;
    size_t size, other_size;
    uint8_t *bytes = fixture_bytes(&info, &size);
    const char *found = NULL;
    for (size_t i = 0; i < sizeof names / sizeof *names && found == NULL; i++)
        found = setlocale(LC_ALL, names[i]);
    if (found != NULL) {
        uint8_t *other = fixture_bytes(&info, &other_size);
        check_round_trip(&info);
        (void)setlocale(LC_ALL, "C");
        assert_int_equal(size, other_size);
        assert_memory_equal(bytes, other, size);
        free(other);
    }
    free(bytes);
    if (found == NULL) {
        print_message("skipped: no locale with a decimal comma is installed\n");
        skip();
    }
}

/* The file as any reader of safetensors sees it. */
static void the_file_is_safetensors(void **state)
{
    (void)state;
    size_t size;
    uint8_t *bytes = fixture_bytes(&fixture_info, &size);
    uint64_t header_bytes = 0;
    for (unsigned i = 0; i < 8; i++)
        header_bytes |= (uint64_t)bytes[i] << 8 * i;
    assert_int_equal(header_bytes % 8, 0);
    assert_int_equal(bytes[8], '{');
    cJSON *header = cJSON_ParseWithLength((const char *)bytes + 8, header_bytes);
    assert_non_null(header);
    const cJSON *metadata = cJSON_GetObjectItemCaseSensitive(header, "__metadata__");
    for (const cJSON *item = metadata->child; item != NULL; item = item->next)
        assert_true(cJSON_IsString(item));
    assert_string_equal(cJSON_GetStringValue(cJSON_GetObjectItem(metadata, "layers")), "0:1:16:16,3:2:16:32");
    assert_string_equal(cJSON_GetStringValue(cJSON_GetObjectItem(metadata, "rope_base")), "10000");

    static const char *const names[] = {"pool_bytes", "layers.0.windows", "layers.3.windows"};
    static const char *const dtypes[] = {"U32", "U8", "U8"};
    static const int shape[] = {2, 16 + 2 * 16, 2 * (16 + 2 * 32)}, bytes_of[] = {4, 1, 1};
    int at = 0;
    for (unsigned i = 0; i < 3; i++) {
        const cJSON *tensor = cJSON_GetObjectItemCaseSensitive(header, names[i]);
        const cJSON *offsets = cJSON_GetObjectItem(tensor, "data_offsets");
        assert_string_equal(cJSON_GetStringValue(cJSON_GetObjectItem(tensor, "dtype")), dtypes[i]);
        assert_int_equal(cJSON_GetArrayItem(cJSON_GetObjectItem(tensor, "shape"), 0)->valueint, shape[i]);
        assert_int_equal(cJSON_GetArrayItem(offsets, 0)->valueint, at);
        at += shape[i] * bytes_of[i];
        assert_int_equal(cJSON_GetArrayItem(offsets, 1)->valueint, at);
    }
    assert_int_equal(8 + header_bytes + (uint64_t)at, size);
    static const uint8_t pools[8] = {128, 0, 0, 0, 0, 0, 1, 0}; /* little endian: 128, 65536 */
    assert_memory_equal(bytes + 8 + header_bytes, pools, sizeof pools);
    cJSON_Delete(header);
    free(bytes);
}

/* Files written by the first version of this format, seeds of the fuzz target: what once could be read can
 * be read for as long as GAAC_PROFILE_FORMAT_VERSION is 1. */
static void golden_files_are_read(void **state)
{
    (void)state;
    gaac_profile_info info = fixture_info;
    for (int scheme = 0; gaac_scheme_name((gaac_scheme)scheme) != NULL; scheme++) {
        char path[4096];
        gaac_profile *golden, *fixture;
        gaac_error error = {GAAC_OK, ""};
        info.scheme = (gaac_scheme)scheme;
        (void)snprintf(path, sizeof path, "%s/../../../fuzz/corpus/profile/%s.profile", GAAC_GOLDEN_DIR,
                       gaac_scheme_name(info.scheme));
        if (gaac_profile_load(&golden, path, NULL, &error) != GAAC_OK)
            fail_msg("%s", error.message);
        assert_int_equal(fixture_make(&fixture, &info, NULL), GAAC_OK);
        assert_same_profile(golden, fixture);
        gaac_profile_destroy(fixture);
        gaac_profile_destroy(golden);
    }
    assert_int_equal(GAAC_PROFILE_FORMAT_VERSION, 1);
}

/* ---- what the object lets in ------------------------------------------------------------------ */

static void layers_are_found(void **state)
{
    (void)state;
    gaac_profile *profile;
    gaac_profile_layer layer;
    assert_int_equal(fixture_make(&profile, &fixture_info, NULL), GAAC_OK);
    assert_int_equal(gaac_profile_layers(profile), 2);
    assert_false(gaac_profile_get_layer(profile, 2, &layer));
    assert_true(gaac_profile_find_layer(profile, 3, &layer));
    assert_int_equal(layer.index, 3);
    assert_int_equal(layer.shape.kv_heads, 2);
    assert_true(gaac_profile_find_layer(profile, 0, &layer));
    assert_int_equal(layer.pool_bytes, 128);
    static const uint32_t absent[] = {1, 2, 4, UINT32_MAX};
    for (size_t i = 0; i < sizeof absent / sizeof *absent; i++)
        assert_false(gaac_profile_find_layer(profile, absent[i], &layer));
    gaac_profile_destroy(profile);
    gaac_profile_destroy(NULL);
}

static void many_layers_come_back(void **state)
{
    (void)state;
    gaac_profile *profile, *back;
    uint8_t *bytes;
    size_t size;
    const gaac_shape shape = {1, 16, 16};
    gaac_windows *windows = fixture_windows(&shape, GAAC_SCHEME_PRODUCTION);
    char longest[GAAC_PROFILE_STRING];
    memset(longest, '\1', sizeof longest);
    longest[sizeof longest - 1] = '\0';
    const gaac_profile_info info = {longest, longest, 1.0 / 3, longest, longest, UINT64_MAX, longest, 0};
    assert_int_equal(gaac_profile_create(&profile, &info, NULL, NULL), GAAC_OK);
    /* As long as a header gets: every number has ten digits. */
    gaac_profile_layer layer = {shape, windows, 64, UINT32_MAX - 1 - GAAC_PROFILE_MAX_LAYERS};
    for (unsigned i = 0; i < GAAC_PROFILE_MAX_LAYERS; i++, layer.index++)
        assert_int_equal(gaac_profile_add_layer(profile, &layer, NULL), GAAC_OK);
    assert_int_equal(gaac_profile_add_layer(profile, &layer, NULL), GAAC_ERROR_INVALID_ARGUMENT);
    assert_int_equal(gaac_profile_serialize(profile, &bytes, &size, NULL), GAAC_OK);
    assert_int_equal(gaac_profile_parse(&back, bytes, size, NULL, NULL), GAAC_OK);
    assert_same_profile(profile, back);
    free(bytes);
    gaac_profile_destroy(back);
    gaac_profile_destroy(profile);
    gaac_windows_destroy(windows);
}

static void bad_arguments_are_refused(void **state)
{
    (void)state;
    char too_long[GAAC_PROFILE_STRING + 1];
    memset(too_long, 'x', sizeof too_long);
    too_long[sizeof too_long - 1] = '\0';
    static const char *const malformed[] = {"\xff",         "\xc0\x80",         "\xe0\x80\x80",
                                            "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe2\x82",
                                            "a\x80",        "\xf0\x8f\xbf\xbf"};
    gaac_profile *profile;
    gaac_profile_info info = fixture_info;
    info.text = too_long;
    assert_int_equal(gaac_profile_create(&profile, &info, NULL, NULL), GAAC_ERROR_INVALID_ARGUMENT);
    assert_null(profile);
    for (size_t i = 0; i < sizeof malformed / sizeof *malformed; i++) {
        info.text = malformed[i];
        assert_int_equal(gaac_profile_create(&profile, &info, NULL, NULL), GAAC_ERROR_INVALID_ARGUMENT);
    }
    const double bases[] = {-1, -0.0, NAN, INFINITY};
    for (size_t i = 0; i < 4; i++) {
        info = fixture_info;
        info.rope_base = bases[i];
        assert_int_equal(gaac_profile_create(&profile, &info, NULL, NULL), GAAC_ERROR_INVALID_ARGUMENT);
    }
    info = fixture_info;
    info.scheme = (gaac_scheme)77;
    assert_int_equal(gaac_profile_create(&profile, &info, NULL, NULL), GAAC_ERROR_INVALID_ARGUMENT);

    uint8_t *bytes;
    size_t size;
    assert_int_equal(gaac_profile_create(&profile, &fixture_info, NULL, NULL), GAAC_OK);
    assert_int_equal(gaac_profile_serialize(profile, &bytes, &size, NULL), GAAC_ERROR_INVALID_ARGUMENT);
    gaac_profile_destroy(profile);

    assert_int_equal(fixture_make(&profile, &fixture_info, NULL), GAAC_OK);
    const gaac_shape shape = {1, 16, 16}, other = {1, 32, 16};
    gaac_windows *windows = fixture_windows(&shape, GAAC_SCHEME_PRODUCTION);
    gaac_windows *paper = fixture_windows(&shape, GAAC_SCHEME_PAPER);
    static const struct {
        gaac_status status;
        uint32_t pool_bytes, index;
    } cases[] = {{GAAC_ERROR_INVALID_ARGUMENT, 64, 3},          {GAAC_ERROR_INVALID_ARGUMENT, 64, 2},
                 {GAAC_ERROR_INVALID_ARGUMENT, 64, UINT32_MAX}, {GAAC_ERROR_INVALID_ARGUMENT, 32, 4},
                 {GAAC_ERROR_INVALID_ARGUMENT, 65600, 4},       {GAAC_OK, 0, 4}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const gaac_profile_layer layer = {shape, windows, cases[i].pool_bytes, cases[i].index};
        assert_int_equal(gaac_profile_add_layer(profile, &layer, NULL), cases[i].status);
    }
    const gaac_profile_layer no_windows = {shape, NULL, 64, 9}, foreign = {other, windows, 64, 9};
    const gaac_profile_layer other_scheme = {shape, paper, 64, 9}, no_shape = {{0, 16, 16}, windows, 64, 9};
    assert_int_equal(gaac_profile_add_layer(profile, &no_windows, NULL), GAAC_ERROR_INVALID_ARGUMENT);
    assert_int_equal(gaac_profile_add_layer(profile, &foreign, NULL), GAAC_ERROR_MISMATCH);
    assert_int_equal(gaac_profile_add_layer(profile, &other_scheme, NULL), GAAC_ERROR_MISMATCH);
    assert_int_equal(gaac_profile_add_layer(profile, &no_shape, NULL), GAAC_ERROR_INVALID_ARGUMENT);
    assert_int_equal(gaac_profile_layers(profile), 3); /* only the sound one was added */
    gaac_windows_destroy(paper);
    gaac_windows_destroy(windows);
    gaac_profile_destroy(profile);
}

static void too_large_a_profile_is_refused(void **state)
{
    (void)state;
    gaac_profile *profile;
    uint8_t *bytes;
    size_t size;
    gaac_profile_info info = fixture_info;
    info.scheme = GAAC_SCHEME_PAPER_2_3_4_RAW;
    const gaac_shape largest = {GAAC_MAX_KV_HEADS, GAAC_MAX_HEAD_DIM, GAAC_MAX_HEAD_DIM};
    gaac_windows *windows = fixture_windows(&largest, info.scheme);
    gaac_profile_layer layer = {largest, windows, 64, 0};
    assert_int_equal(gaac_profile_create(&profile, &info, NULL, NULL), GAAC_OK);
    for (; layer.index < GAAC_PROFILE_MAX_FILE / gaac_windows_table_bytes(&largest, info.scheme) + 1; layer.index++)
        assert_int_equal(gaac_profile_add_layer(profile, &layer, NULL), GAAC_OK);
    assert_int_equal(gaac_profile_serialize(profile, &bytes, &size, NULL), GAAC_ERROR_INVALID_ARGUMENT);
    assert_null(bytes);
    gaac_windows_destroy(windows);
    gaac_profile_destroy(profile);
}

/* ---- allocator -------------------------------------------------------------------------------- */

typedef struct counting_allocator {
    size_t outstanding;
    unsigned calls, fail_at; /* fail_at: which call gets nothing */
} counting_allocator;

static void *count_allocate(void *user, size_t bytes, size_t alignment)
{
    counting_allocator *counts = user;
    void *pointer = NULL;
    if (counts->calls++ == counts->fail_at || posix_memalign(&pointer, alignment, bytes) != 0)
        return NULL;
    counts->outstanding += bytes;
    return pointer;
}

static void count_release(void *user, void *pointer, size_t bytes)
{
    ((counting_allocator *)user)->outstanding -= bytes;
    free(pointer);
}

/* Makes, writes, reads, saves and loads a profile; the first failure ends it. Frees all. */
static gaac_status use_everything(const gaac_allocator *hook, const char *path)
{
    gaac_profile *profile = NULL, *parsed = NULL, *loaded = NULL;
    uint8_t *bytes = NULL;
    size_t size = 0;
    gaac_status status = fixture_make(&profile, &fixture_info, hook);
    if (status == GAAC_OK)
        status = gaac_profile_serialize(profile, &bytes, &size, NULL);
    if (status == GAAC_OK)
        status = gaac_profile_parse(&parsed, bytes, size, hook, NULL);
    if (status == GAAC_OK)
        status = gaac_profile_save(profile, path, NULL);
    if (status == GAAC_OK)
        status = gaac_profile_load(&loaded, path, hook, NULL);
    if (status == GAAC_OK)
        assert_same_profile(profile, loaded);
    if (bytes != NULL)
        hook->release(hook->user, bytes, size);
    gaac_profile_destroy(loaded);
    gaac_profile_destroy(parsed);
    gaac_profile_destroy(profile);
    return status;
}

/* ---- files ------------------------------------------------------------------------------------ */

typedef struct folder {
    char path[64], file[96];
} folder;

static folder new_folder(void)
{
    folder f;
    (void)snprintf(f.path, sizeof f.path, "/tmp/gaac-test-XXXXXX");
    assert_non_null(mkdtemp(f.path));
    (void)snprintf(f.file, sizeof f.file, "%s/a.profile", f.path);
    return f;
}

static unsigned files_in(const char *path)
{
    DIR *directory = opendir(path);
    unsigned files = 0;
    assert_non_null(directory);
    for (const struct dirent *entry = readdir(directory); entry != NULL; entry = readdir(directory))
        files += entry->d_name[0] != '.';
    (void)closedir(directory);
    return files;
}

static void remove_folder(const folder *f)
{
    (void)unlink(f->file);
    assert_int_equal(rmdir(f->path), 0); /* fails if a temporary was left */
}

static void every_allocation_may_fail(void **state)
{
    (void)state;
    const folder f = new_folder();
    unsigned failures = 0;
    for (;; failures++) {
        counting_allocator counts = {.fail_at = failures};
        const gaac_allocator hook = {count_allocate, count_release, &counts};
        const gaac_status status = use_everything(&hook, f.file);
        assert_int_equal(counts.outstanding, 0);
        assert_true(files_in(f.path) <= 1);
        if (counts.calls <= failures) { /* the one to fail was never asked for */
            assert_int_equal(status, GAAC_OK);
            break;
        }
        assert_int_equal(status, GAAC_ERROR_OUT_OF_MEMORY);
    }
    /* a profile with two layers 4 (itself, their list, windows), bytes 2, parsing 5, a file 3 and 6 */
    assert_int_equal(failures, 20);
    remove_folder(&f);
}

static unsigned json_calls, json_fail_at;

static void *json_allocate(size_t bytes)
{
    return json_calls++ == json_fail_at ? NULL : malloc(bytes);
}

/* The JSON library's memory. It doesn't tell a parser's want of memory from bad text: what a profile's
 * reader says then is that the header is damaged or memory short. */
static void every_json_allocation_may_fail(void **state)
{
    (void)state;
    gaac_profile *profile;
    gaac_error error;
    size_t size;
    uint8_t *bytes = fixture_bytes(&fixture_info, &size);
    cJSON_Hooks hooks = {json_allocate, free};
    assert_int_equal(fixture_make(&profile, &fixture_info, NULL), GAAC_OK);
    cJSON_InitHooks(&hooks);
    for (json_fail_at = 0;; json_fail_at++) {
        uint8_t *again = NULL;
        size_t again_size;
        json_calls = 0;
        const gaac_status status = gaac_profile_serialize(profile, &again, &again_size, NULL);
        free(again);
        if (json_calls <= json_fail_at) {
            assert_int_equal(status, GAAC_OK);
            break;
        }
        assert_int_equal(status, GAAC_ERROR_OUT_OF_MEMORY);
        assert_null(again);
    }
    assert_true(json_fail_at > 50);
    for (json_fail_at = 0;; json_fail_at++) {
        gaac_profile *parsed;
        json_calls = 0;
        const gaac_status status = gaac_profile_parse(&parsed, bytes, size, NULL, &error);
        gaac_profile_destroy(parsed);
        if (json_calls <= json_fail_at) {
            assert_int_equal(status, GAAC_OK);
            break;
        }
        assert_int_equal(status, GAAC_ERROR_CORRUPT);
        assert_null(parsed);
        assert_non_null(strstr(error.message, "memory"));
    }
    assert_true(json_fail_at > 50);
    cJSON_InitHooks(NULL);
    gaac_profile_destroy(profile);
    free(bytes);
}

static void files_come_back(void **state)
{
    (void)state;
    const folder f = new_folder();
    gaac_profile *profile, *loaded;
    struct stat about;
    const mode_t mask = umask(027);
    assert_int_equal(fixture_make(&profile, &fixture_info, NULL), GAAC_OK);
    for (unsigned i = 0; i < 2; i++) { /* new, and over an old one */
        assert_int_equal(gaac_profile_save(profile, f.file, NULL), GAAC_OK);
        assert_int_equal(files_in(f.path), 1);
        assert_int_equal(gaac_profile_load(&loaded, f.file, NULL, NULL), GAAC_OK);
        assert_same_profile(profile, loaded);
        gaac_profile_destroy(loaded);
    }
    assert_int_equal(stat(f.file, &about), 0);
    assert_int_equal(about.st_mode & 0777, 0640);
    (void)umask(mask);
    gaac_profile_destroy(profile);
    remove_folder(&f);
}

static void failed_saves_leave_the_old_file(void **state)
{
    (void)state;
    const folder f = new_folder();
    gaac_profile *profile, *loaded;
    gaac_error error = {GAAC_OK, ""};
    assert_int_equal(fixture_make(&profile, &fixture_info, NULL), GAAC_OK);
    assert_int_equal(gaac_profile_save(profile, f.file, NULL), GAAC_OK);

    struct rlimit before;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    const struct rlimit small = {100, before.rlim_max}; /* the write fails half way, as on a full disk */
    (void)signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    const gaac_status status = gaac_profile_save(profile, f.file, &error);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    (void)signal(SIGXFSZ, SIG_DFL);
    assert_int_equal(status, GAAC_ERROR_IO);
    assert_non_null(strstr(error.message, f.file));
    assert_int_equal(files_in(f.path), 1);
    assert_int_equal(gaac_profile_load(&loaded, f.file, NULL, NULL), GAAC_OK);
    gaac_profile_destroy(loaded);

    char missing[128];
    (void)snprintf(missing, sizeof missing, "%s/none/a.profile", f.path);
    assert_int_equal(gaac_profile_save(profile, missing, NULL), GAAC_ERROR_IO);
    assert_int_equal(gaac_profile_save(profile, f.path, NULL), GAAC_ERROR_IO);      /* a folder */
    assert_int_equal(gaac_profile_save(profile, "/dev/null", NULL), GAAC_ERROR_IO); /* must stay a device */
    assert_int_equal(files_in(f.path), 1);
    gaac_profile_destroy(profile);
    remove_folder(&f);
}

static void load_expecting(const char *path, gaac_status status, const char *part_of_message)
{
    gaac_profile *profile;
    gaac_error error = {GAAC_OK, ""};
    assert_int_equal(gaac_profile_load(&profile, path, NULL, &error), status);
    assert_null(profile);
    assert_int_equal(error.status, status);
    if (strstr(error.message, part_of_message) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", error.message, part_of_message);
}

static void odd_files_are_refused(void **state)
{
    (void)state;
    const folder f = new_folder();
    load_expecting(f.file, GAAC_ERROR_IO, "can't read");
    load_expecting(f.path, GAAC_ERROR_IO, "not a regular file");
    assert_int_equal(mkfifo(f.file, 0600), 0);
    load_expecting(f.file, GAAC_ERROR_IO, "not a regular file"); /* and does not wait for a writer */
    assert_int_equal(unlink(f.file), 0);
    FILE *file = fopen(f.file, "wb");
    assert_non_null(file);
    load_expecting(f.file, GAAC_ERROR_CORRUPT, "0 bytes");
    assert_int_equal(fputs("GGUF\3 and so on", file) >= 0, 1);
    assert_int_equal(fflush(file), 0);
    load_expecting(f.file, GAAC_ERROR_CORRUPT, "another kind of file");
    assert_int_equal(ftruncate(fileno(file), (off_t)GAAC_PROFILE_MAX_FILE + 1), 0); /* sparse */
    load_expecting(f.file, GAAC_ERROR_CORRUPT, "more than");
    assert_int_equal(fclose(file), 0);
    remove_folder(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_scheme_comes_back),   cmocka_unit_test(awkward_strings_come_back),
        cmocka_unit_test(every_number_comes_back),   cmocka_unit_test(the_locale_changes_nothing),
        cmocka_unit_test(the_file_is_safetensors),   cmocka_unit_test(golden_files_are_read),
        cmocka_unit_test(layers_are_found),          cmocka_unit_test(many_layers_come_back),
        cmocka_unit_test(bad_arguments_are_refused), cmocka_unit_test(too_large_a_profile_is_refused),
        cmocka_unit_test(every_allocation_may_fail), cmocka_unit_test(every_json_allocation_may_fail),
        cmocka_unit_test(files_come_back),           cmocka_unit_test(failed_saves_leave_the_old_file),
        cmocka_unit_test(odd_files_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
