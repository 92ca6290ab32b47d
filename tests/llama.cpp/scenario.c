/* Puts a cache on GAAC0 through what engines do to a cache, beside a cache of stock llama.cpp, and
 * compares the logits after every step: prefill, decode, rollback over finalized cells, a copied
 * sequence, two sequences in one batch, state save and restore, clear, the context shift.
 *
 *   scenario BACKENDS MODEL split|unified
 *
 * BACKENDS is the folder of the build's own backends. Prints a line a step and "digest <hex>" of all of
 * GAAC0's logits.
 *
 * The measure is the squared difference of the logits over their squared deviation. Beside a stock BF16
 * cache only the order of additions differs. The context shift is compared with a stock F32 cache, since
 * stock can't shift a BF16 one: rounding K and V to BF16 costs about 1e-2 on these meaningless tokens;
 * a control shows what keys at wrong positions cost. */
#include "ggml-backend.h"
#include "llama.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    SEQUENCES = 2,
    CONTEXT = 1024, /* cells; a split cache gives each sequence half */
    PROMPT = 400,
    UBATCH = 512,
};

static const double SAME_VALUES = 1e-5, OTHER_ROUNDING = 5e-3, WRONG_KEYS = 0.2;

typedef struct side {
    struct llama_model *model;
    struct llama_context *context;
} side;

typedef struct bench {
    side gaac, stock;
    double tolerance;
    int32_t vocabulary;
    uint64_t digest; /* FNV-1a of GAAC0's logits */
    bool failed;
} bench;

static void die(const char *what)
{
    fprintf(stderr, "scenario: %s\n", what);
    exit(1);
}

static void log_errors(enum ggml_log_level level, const char *text, void *user)
{
    (void)user;
    if (level == GGML_LOG_LEVEL_ERROR)
        fputs(text, stderr);
}

static side open_side(const char *path, ggml_backend_dev_t device, enum ggml_type type, bool unified)
{
    ggml_backend_dev_t devices[2] = {device, NULL};
    struct llama_model_params model_params = llama_model_default_params();
    model_params.devices = devices;
    model_params.n_gpu_layers = 99;
    struct llama_context_params params = llama_context_default_params();
    params.n_ctx = CONTEXT;
    params.n_batch = CONTEXT;
    params.n_ubatch = UBATCH;
    params.n_seq_max = SEQUENCES;
    params.n_threads = params.n_threads_batch = 2;
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
    params.type_k = params.type_v = type;
    params.kv_unified = unified;
    side opened = {.model = llama_model_load_from_file(path, model_params)};
    if (!opened.model)
        die("can't load the model");
    opened.context = llama_init_from_model(opened.model, params);
    if (!opened.context)
        die("can't make a context");
    return opened;
}

/* Tokens without meaning but always the same. */
static llama_token token_at(const struct llama_context *context, uint32_t salt, uint32_t position)
{
    int32_t vocabulary = llama_vocab_n_tokens(llama_model_get_vocab(llama_get_model(context)));
    uint32_t x = salt * 0x9e3779b9u + position * 0x85ebca6bu;
    x = (x ^ (x >> 15)) * 0x2c1b3c6du;
    return (llama_token)((x >> 8) % (uint32_t)vocabulary);
}

typedef struct piece {
    llama_seq_id sequence;
    uint32_t salt;
    llama_pos first;
    int32_t count;
} piece;

/* Decodes the pieces in one batch; logits of the last token of each. */
static void decode(struct llama_context *context, const piece *pieces, int32_t count)
{
    int32_t tokens = 0;
    for (int32_t i = 0; i < count; i++)
        tokens += pieces[i].count;
    struct llama_batch batch = llama_batch_init(tokens, 0, 1);
    for (int32_t i = 0; i < count; i++) {
        for (int32_t j = 0; j < pieces[i].count; j++) {
            int32_t at = batch.n_tokens++;
            batch.token[at] = token_at(context, pieces[i].salt, (uint32_t)(pieces[i].first + j));
            batch.pos[at] = pieces[i].first + j;
            batch.n_seq_id[at] = 1;
            batch.seq_id[at][0] = pieces[i].sequence;
            batch.logits[at] = j == pieces[i].count - 1;
        }
    }
    if (llama_decode(context, batch) != 0)
        die("decode failed");
    llama_batch_free(batch);
}

/* Squared difference over squared deviation from the mean. */
static double difference(const float *have, const float *want, int32_t count)
{
    double mean = 0, error = 0, variance = 0;
    for (int32_t i = 0; i < count; i++)
        mean += (double)want[i] / count;
    for (int32_t i = 0; i < count; i++) {
        error += ((double)have[i] - want[i]) * ((double)have[i] - want[i]);
        variance += ((double)want[i] - mean) * ((double)want[i] - mean);
    }
    return error / variance;
}

static void digest(bench *b, const float *logits)
{
    const uint8_t *bytes = (const uint8_t *)logits;
    for (size_t i = 0; i < (size_t)b->vocabulary * sizeof *logits; i++)
        b->digest = (b->digest ^ bytes[i]) * 0x100000001b3u;
}

static double compare(bench *b, int32_t outputs)
{
    double worst = 0;
    for (int32_t i = 0; i < outputs; i++) {
        const float *have = llama_get_logits_ith(b->gaac.context, i - outputs);
        const float *want = llama_get_logits_ith(b->stock.context, i - outputs);
        double one = difference(have, want, b->vocabulary);
        if (!(one <= worst)) /* NaN counts as the worst */
            worst = one;
        digest(b, have);
    }
    return worst;
}

static void step(bench *b, const char *name, const piece *pieces, int32_t count)
{
    decode(b->gaac.context, pieces, count);
    decode(b->stock.context, pieces, count);
    double error = compare(b, count);
    bool good = error <= b->tolerance;
    printf("%-36s %.1e %s\n", name, error, good ? "ok" : "TOO FAR");
    b->failed |= !good;
}

#define STEP(bench, name, ...)                                                                                         \
    step(bench, name, (const piece[]){__VA_ARGS__}, sizeof((const piece[]){__VA_ARGS__}) / sizeof(piece))

static llama_memory_t memory_of(side which)
{
    return llama_get_memory(which.context);
}

static void remove_both(bench *b, llama_seq_id sequence, llama_pos from, llama_pos to)
{
    if (!llama_memory_seq_rm(memory_of(b->gaac), sequence, from, to) ||
        !llama_memory_seq_rm(memory_of(b->stock), sequence, from, to))
        die("cells can't be removed");
}

/* Saves sequence 1, loses it, restores it. */
static void save_and_restore(side which)
{
    size_t size = llama_state_seq_get_size(which.context, 1);
    uint8_t *state = malloc(size);
    if (!state || llama_state_seq_get_data(which.context, state, size, 1) != size)
        die("the state can't be saved");
    llama_memory_seq_rm(memory_of(which), 1, -1, -1);
    if (llama_state_seq_set_data(which.context, state, size, 1) != size)
        die("the state can't be restored");
    free(state);
}

static void ordinary_life(bench *b)
{
    b->tolerance = SAME_VALUES;
    STEP(b, "prefill", {0, 1, 0, PROMPT});
    STEP(b, "decode", {0, 1, PROMPT, 1});
    STEP(b, "decode", {0, 1, PROMPT + 1, 1});
    STEP(b, "several tokens", {0, 1, PROMPT + 2, 5});
    remove_both(b, 0, PROMPT - 40, -1);
    STEP(b, "rollback, other tokens", {0, 2, PROMPT - 40, 60});
    llama_memory_seq_cp(memory_of(b->gaac), 0, 1, -1, -1);
    llama_memory_seq_cp(memory_of(b->stock), 0, 1, -1, -1);
    STEP(b, "copied sequence, both in one batch", {0, 3, PROMPT + 20, 1}, {1, 4, PROMPT + 20, 1});
    STEP(b, "again", {0, 3, PROMPT + 21, 1}, {1, 4, PROMPT + 21, 1});
    save_and_restore(b->gaac);
    save_and_restore(b->stock);
    STEP(b, "saved and restored", {1, 4, PROMPT + 22, 1});
    STEP(b, "the other sequence", {0, 3, PROMPT + 22, 1});
    llama_memory_clear(memory_of(b->gaac), true);
    llama_memory_clear(memory_of(b->stock), true);
    STEP(b, "cleared, two new prompts", {0, 6, 0, 100}, {1, 7, 0, 70});
    STEP(b, "decode", {0, 6, 100, 1}, {1, 7, 70, 1});
}

/* The keys of the reference moved one position too far: if that were not far above the tolerance, the
 * step before would prove nothing. */
static void wrong_keys(bench *b)
{
    llama_memory_seq_add(memory_of(b->stock), 0, 16, -1, 1);
    decode(b->gaac.context, &(const piece){0, 5, PROMPT - 63, 1}, 1);
    decode(b->stock.context, &(const piece){0, 5, PROMPT - 62, 1}, 1);
    double error = difference(llama_get_logits_ith(b->gaac.context, -1), llama_get_logits_ith(b->stock.context, -1),
                              b->vocabulary);
    bool good = error >= WRONG_KEYS;
    printf("%-36s %.1e %s\n", "control: keys at wrong positions", error, good ? "ok (far)" : "NOT TOLD APART");
    b->failed |= !good;
}

static void context_shift(bench *b)
{
    b->tolerance = OTHER_ROUNDING;
    llama_memory_clear(memory_of(b->gaac), true);
    STEP(b, "prefill", {0, 1, 0, PROMPT});
    remove_both(b, 0, 16, 80);
    llama_memory_seq_add(memory_of(b->gaac), 0, 80, -1, -64);
    llama_memory_seq_add(memory_of(b->stock), 0, 80, -1, -64);
    STEP(b, "context shift", {0, 3, PROMPT - 64, 1});
    wrong_keys(b);
}

static void close_side(side which)
{
    llama_free(which.context);
    llama_model_free(which.model);
}

int main(int argc, char **argv)
{
    if (argc != 4 || (strcmp(argv[3], "split") != 0 && strcmp(argv[3], "unified") != 0))
        die("usage: scenario BACKENDS MODEL split|unified");
    bool unified = strcmp(argv[3], "unified") == 0;
    llama_log_set(log_errors, NULL);
    ggml_backend_load_all_from_path(argv[1]);
    ggml_backend_dev_t device = ggml_backend_dev_by_name("GAAC0");
    if (!device)
        die("there is no device GAAC0 (GGML_BACKEND_PATH)");
    bench b = {.gaac = open_side(argv[2], device, GGML_TYPE_BF16, unified), .digest = 0xcbf29ce484222325u};
    b.vocabulary = llama_vocab_n_tokens(llama_model_get_vocab(b.gaac.model));
    b.stock = open_side(argv[2], NULL, GGML_TYPE_BF16, unified);
    ordinary_life(&b);
    close_side(b.stock);
    b.stock = open_side(argv[2], NULL, GGML_TYPE_F32, unified);
    context_shift(&b);
    close_side(b.stock);
    close_side(b.gaac);
    printf("digest %016" PRIx64 "\n", b.digest);
    return b.failed;
}
