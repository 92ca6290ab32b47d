/* A codec takes K and V of a block together. To tell them and the heads apart, each (part, head) is coded alone
 * beside a partner of constant ones. Its windows fit it, so that its groups take 3 bits in every block: it costs half
 * of what a block of nothing but ones takes. */
#include "dump_survey.h"

#include <math.h>
#include <stdlib.h>

#include "profile_text.h"
#include "tool.h"

enum { BF16_ONE = 0x3f80 };

/* One head of one part beside ones; part GAAC_K or GAAC_V says where the head stands. */
typedef struct lone_head {
    const kv_dump *dump;
    uint32_t layer, head;
    gaac_part part;
    gaac_shape shape;
    const uint16_t *ones; /* head_dim of them */
    double partner_bytes;
} lone_head;

static gaac_kv_rows lone_rows(const lone_head *lone, uint64_t token)
{
    const uint16_t *data = kv_dump_head(lone->dump, lone->layer, lone->part, token, lone->head);
    const size_t stride = kv_dump_token_stride(lone->dump);
    const bool k = lone->part == GAAC_K;
    return (gaac_kv_rows){.k = k ? data : lone->ones,
                          .v = k ? lone->ones : data,
                          .k_token_stride = k ? stride : 0,
                          .v_token_stride = k ? 0 : stride};
}

static double entropy_of(const uint64_t counts[256])
{
    double total = 0, bits = 0;
    for (unsigned i = 0; i < 256; i++)
        total += (double)counts[i];
    for (unsigned i = 0; i < 256; i++)
        if (counts[i])
            bits -= (double)counts[i] / total * log2((double)counts[i] / total);
    return bits;
}

static gaac_status measure_entropy(const gaac_histogram *histogram, const lone_head *lone, survey_head *out,
                                   gaac_error *error)
{
    uint64_t all[256] = {0};
    const uint32_t channels = lone->shape.head_dim_k;
    for (uint32_t channel = 0; channel < channels; channel++) {
        uint64_t counts[256];
        const gaac_status status = gaac_histogram_counts(histogram, lone->part, 0, channel, counts, error);
        if (status != GAAC_OK)
            return status;
        for (unsigned i = 0; i < 256; i++)
            all[i] += counts[i];
        out->channel_entropy += entropy_of(counts) / channels;
    }
    out->entropy = entropy_of(all);
    return GAAC_OK;
}

/* The profile's order: K bases, then V bases of even and of odd tokens. */
static void count_relative(const gaac_windows *windows, const lone_head *lone, survey_head *out)
{
    size_t bytes;
    const uint32_t channels = lone->shape.head_dim_k;
    const uint8_t *table = gaac_windows_table(windows, &bytes);
    const size_t stride = kv_dump_token_stride(lone->dump);
    const uint16_t *row = kv_dump_head(lone->dump, lone->layer, lone->part, 0, lone->head);
    for (uint64_t token = 0; token < lone->dump->tokens; token++, row += stride) {
        const uint8_t *bases = lone->part == GAAC_K ? table : table + (1 + (token & 1)) * channels;
        for (uint32_t channel = 0; channel < channels; channel++) {
            int at = (row[channel] >> 7 & 0xff) - bases[channel] + SURVEY_BELOW;
            at = at < 0 ? 0 : at >= SURVEY_WIDTH ? SURVEY_WIDTH - 1 : at;
            out->relative[at]++;
        }
    }
}

static gaac_status measure_code(const gaac_codec *codec, const lone_head *lone, survey_head *out, gaac_error *error)
{
    const double half_raw = (double)gaac_codec_raw_bytes(codec) / 2;
    void *slot = tool_alloc(gaac_codec_slot_bytes(codec));
    uint32_t *entries = tool_alloc(gaac_codec_entry_count(codec) * sizeof *entries);
    gaac_status status = GAAC_OK;
    for (uint64_t block = 0; block < lone->dump->tokens / GAAC_BLOCK_TOKENS && status == GAAC_OK; block++) {
        gaac_block_info info;
        const gaac_kv_rows rows = lone_rows(lone, block * GAAC_BLOCK_TOKENS);
        status = gaac_encode_block(codec, &rows, slot, entries, &info, error);
        if (status != GAAC_OK)
            break;
        out->bf16_bytes += half_raw;
        out->code_bytes += info.coded ? (double)info.coded_bytes - lone->partner_bytes : half_raw;
        out->groups += info.groups / 2;
        out->groups_4bit += info.groups_by_mode[1]; /* the partner has none */
        out->exceptions += info.exceptions;
    }
    free(entries);
    free(slot);
    return status;
}

/* Bytes that the partner takes of a block's code: half of a block of ones. */
static gaac_status measure_partner(const gaac_shape *shape, const uint16_t *ones, double *bytes, gaac_error *error)
{
    enum { LEAST = 64 };                              /* tokens that gaac_calibrate wants */
    const gaac_kv_rows rows = {.k = ones, .v = ones}; /* strides of 0: all tokens are the same */
    gaac_windows *windows;
    uint32_t pool_bytes;
    gaac_codec *codec;
    gaac_status status =
        gaac_calibrate(shape, &rows, LEAST, GAAC_SCHEME_PRODUCTION, NULL, &windows, &pool_bytes, error);
    if (status != GAAC_OK)
        return status;
    const gaac_codec_config config = {.shape = *shape, .scheme = GAAC_SCHEME_PRODUCTION, .windows = windows};
    status = gaac_codec_create(&codec, &config, error);
    gaac_windows_destroy(windows);
    if (status != GAAC_OK)
        return status;
    void *slot = tool_alloc(gaac_codec_slot_bytes(codec));
    uint32_t *entries = tool_alloc(gaac_codec_entry_count(codec) * sizeof *entries);
    gaac_block_info info = {.coded_bytes = 0};
    status = gaac_encode_block(codec, &rows, slot, entries, &info, error);
    *bytes = (double)info.coded_bytes / 2;
    free(entries);
    free(slot);
    gaac_codec_destroy(codec);
    return status;
}

static gaac_status survey_with(const gaac_windows *windows, const lone_head *lone, survey_head *out, gaac_error *error)
{
    const base_range range = profile_base_range(windows, &lone->shape, lone->part, 0);
    out->base_least = range.least;
    out->base_most = range.most;
    count_relative(windows, lone, out);
    gaac_codec *codec;
    const gaac_codec_config config = {.shape = lone->shape, .scheme = GAAC_SCHEME_PRODUCTION, .windows = windows};
    gaac_status status = gaac_codec_create(&codec, &config, error);
    if (status == GAAC_OK) {
        status = measure_code(codec, lone, out, error);
        gaac_codec_destroy(codec);
    }
    return status;
}

static gaac_status survey_one(const lone_head *lone, survey_head *out, gaac_error *error)
{
    gaac_histogram *histogram;
    const gaac_kv_rows rows = lone_rows(lone, 0);
    gaac_status status = gaac_histogram_create(&histogram, &lone->shape, NULL, error);
    if (status != GAAC_OK)
        return status;
    status = gaac_histogram_add(histogram, &rows, lone->dump->tokens, error);
    if (status == GAAC_OK)
        status = measure_entropy(histogram, lone, out, error);
    gaac_windows *windows = NULL;
    if (status == GAAC_OK)
        status = gaac_windows_choose(&windows, histogram, GAAC_SCHEME_PRODUCTION, 0, NULL, error);
    if (status == GAAC_OK)
        status = survey_with(windows, lone, out, error);
    gaac_windows_destroy(windows);
    gaac_histogram_destroy(histogram);
    return status;
}

gaac_status dump_survey_make(dump_survey *survey, const kv_dump *dump, const char *name, gaac_error *error)
{
    const uint32_t heads = dump->shape.kv_heads, head_dim = dump->shape.head_dim_k;
    uint16_t *ones = tool_alloc(head_dim * sizeof *ones);
    for (uint32_t i = 0; i < head_dim; i++)
        ones[i] = BF16_ONE;
    *survey = (dump_survey){.layers = dump->layers, .heads = heads, .head_dim = head_dim, .tokens = dump->tokens};
    survey->head = tool_alloc((size_t)dump->layers * 2 * heads * sizeof *survey->head);
    const gaac_shape shape = {1, head_dim, head_dim};
    double partner_bytes = 0;
    gaac_status status = measure_partner(&shape, ones, &partner_bytes, error);
    for (size_t i = 0; i < (size_t)dump->layers * 2 * heads && status == GAAC_OK; i++) {
        const lone_head lone = {.dump = dump,
                                .layer = (uint32_t)(i / (2 * heads)),
                                .part = (gaac_part)(i / heads % 2),
                                .head = (uint32_t)(i % heads),
                                .shape = shape,
                                .ones = ones,
                                .partner_bytes = partner_bytes};
        tool_progress("%s: layer %u of %u", name, lone.layer + 1, dump->layers);
        status = survey_one(&lone, &survey->head[i], error);
    }
    tool_progress_done();
    free(ones);
    if (status != GAAC_OK)
        dump_survey_free(survey);
    return status;
}

void dump_survey_free(dump_survey *survey)
{
    free(survey->head);
    *survey = (dump_survey){0};
}

/* ---- sums ----------------------------------------------------------------------------------- */

const survey_head *dump_survey_at(const dump_survey *survey, uint32_t layer, gaac_part part, uint32_t head)
{
    return &survey->head[((size_t)layer * 2 + (size_t)part) * survey->heads + head];
}

static survey_head sum(const survey_head *heads, size_t count)
{
    survey_head total = {.base_least = 255};
    for (size_t i = 0; i < count; i++) {
        const survey_head *head = &heads[i];
        total.base_least = head->base_least < total.base_least ? head->base_least : total.base_least;
        total.base_most = head->base_most > total.base_most ? head->base_most : total.base_most;
        total.entropy += head->entropy / (double)count;
        total.channel_entropy += head->channel_entropy / (double)count;
        total.groups += head->groups;
        total.groups_4bit += head->groups_4bit;
        total.exceptions += head->exceptions;
        total.bf16_bytes += head->bf16_bytes;
        total.code_bytes += head->code_bytes;
        for (unsigned k = 0; k < SURVEY_WIDTH; k++)
            total.relative[k] += head->relative[k];
    }
    return total;
}

survey_head dump_survey_part(const dump_survey *survey, uint32_t layer, gaac_part part)
{
    return sum(dump_survey_at(survey, layer, part, 0), survey->heads);
}

survey_head dump_survey_all(const dump_survey *survey)
{
    return sum(survey->head, (size_t)survey->layers * 2 * survey->heads);
}

double survey_share_4bit(const survey_head *head)
{
    return head->groups ? (double)head->groups_4bit / (double)head->groups : 0;
}

double survey_exceptions_per_tile(const survey_head *head)
{
    const double elements = head->bf16_bytes / sizeof(uint16_t);
    return elements > 0 ? (double)head->exceptions * 2048 / elements : 0;
}

double survey_coded_ratio(const survey_head *head)
{
    return head->code_bytes > 0 ? head->bf16_bytes / head->code_bytes : 0;
}
