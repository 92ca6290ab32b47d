/* Fuzz target: a KV dump (.npy) from anywhere. The input is read as it is, and again with as much data behind
 * its header as its shape asks for, so that what lies behind the check of the size is reached. All of a dump
 * that is accepted is read, and surveyed as gaac inspect does. */
#include "dump_survey.h"
#include "fuzz_target.h"

#include <math.h>

/* Limits that keep an input fast: bytes of completed data; elements and heads that are surveyed. */
enum { MOST_DATA = 1 << 16, MOST_ELEMENTS = 8192, MOST_HEADS = 2 };

static void check_share(double share)
{
    REQUIRE(share >= 0 && share <= 1);
}

static void survey(const kv_dump *dump)
{
    dump_survey made;
    gaac_error error = {GAAC_OK, ""};
    const gaac_status status = dump_survey_make(&made, dump, "fuzz", &error);
    if (status != GAAC_OK) {
        REQUIRE(error.status == status && error.message[0] != '\0');
        return;
    }
    const survey_head all = dump_survey_all(&made);
    const uint64_t blocks = dump->tokens / GAAC_BLOCK_TOKENS;
    check_share(survey_share_4bit(&all));
    REQUIRE(isfinite(survey_coded_ratio(&all)) && survey_exceptions_per_tile(&all) >= 0);
    REQUIRE(all.entropy >= 0 && all.entropy <= 8.001 && all.channel_entropy >= 0 && all.channel_entropy <= 8.001);
    REQUIRE(all.bf16_bytes ==
            2.0 * (double)blocks * GAAC_BLOCK_TOKENS * 2 * dump->layers * (double)kv_dump_token_stride(dump));
    dump_survey_free(&made);
}

static void read_all(const kv_dump *dump)
{
    uint64_t elements = 0;
    uint64_t sum = 0;
    for (uint32_t layer = 0; layer < dump->layers; layer++)
        for (uint64_t token = 0; token < dump->tokens; token++) {
            const gaac_kv_rows rows = kv_dump_rows(dump, layer, token);
            REQUIRE(rows.k == kv_dump_head(dump, layer, GAAC_K, token, 0));
            for (uint32_t head = 0; head < dump->shape.kv_heads; head++)
                for (uint32_t i = 0; i < dump->shape.head_dim_k; i++, elements += 2)
                    sum += rows.k[head * rows.k_head_stride + i] + rows.v[head * rows.v_head_stride + i];
        }
    REQUIRE(sum <= elements * 0xffff && elements * sizeof(uint16_t) == dump->npy.data_bytes);
    if (elements <= MOST_ELEMENTS && (uint64_t)dump->layers * dump->shape.kv_heads <= MOST_HEADS)
        survey(dump);
}

static void parse(const uint8_t *bytes, size_t size)
{
    kv_dump dump;
    gaac_error error = {GAAC_OK, ""};
    const gaac_status status = kv_dump_parse(&dump, bytes, size, &error);
    if (status == GAAC_OK)
        read_all(&dump);
    else
        REQUIRE(status == GAAC_ERROR_CORRUPT && error.status == status && error.message[0] != '\0' &&
                strchr(error.message, '\n') == NULL);
    kv_dump_close(&dump);
}

/* Bytes of data that the header asks for; 0 when that is too much to try. */
static size_t data_wanted(const npy_file *npy)
{
    size_t bytes = sizeof(uint16_t);
    for (unsigned i = 0; i < npy->dimensions; i++) {
        if (npy->shape[i] > MOST_DATA || bytes * npy->shape[i] > MOST_DATA)
            return 0;
        bytes *= npy->shape[i];
    }
    return bytes;
}

static void parse_completed(const uint8_t *bytes, size_t size)
{
    npy_file npy;
    if (npy_parse(&npy, bytes, size, NULL) != GAAC_OK)
        return;
    const size_t header = size - npy.data_bytes, wanted = data_wanted(&npy);
    uint8_t *copy = fuzz_alloc(header + wanted);
    memcpy(copy, bytes, header);
    for (size_t i = 0; i < wanted; i++)
        copy[header + i] = bytes[(npy.data_bytes > 0 ? header + i % npy.data_bytes : i % header)];
    parse(copy, header + wanted);
    free(copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    parse(bytes, size);
    parse_completed(bytes, size);
    return 0;
}
