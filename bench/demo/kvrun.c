/* kvrun: one model in one KV configuration, driven step by step over standard input.
 *
 * demo.py runs one kvrun per configuration and gives them turns, a few tokens each, so that whatever
 * slows the machine for a while slows them all. Uses llama.h of a stock llama.cpp and nothing of GAAC:
 * GAAC comes in as any user's would, through GGML_BACKEND_PATH and a device's name.
 *
 *   kvrun BACKEND_DIR MODEL PROMPT_FILE PROMPT_TOKENS GENERATE KV_TYPE DEVICE THREADS LOGITS_FILE
 *
 * KV_TYPE is f16 or bf16; DEVICE a ggml device's name, or "cpu". LOGITS_FILE gets the F32 logits row
 * that each generated token was chosen from, in order. Commands and their answers, one a line:
 *   prefill N    -> "prefill DONE SECONDS"  processes up to N more prompt tokens
 *   decode N     -> "decode DONE S0 S1 ..." generates up to N more tokens, greedily; each one's seconds
 *   save PATH    -> "save DONE 0"           keeps the cache of the prompt tokens processed so far
 *   restore PATH -> "restore DONE 0"        takes such a cache up again; DONE is 0 if it is not of this prompt
 *   quit         -> "tokens T0 T1 ..."      frees the model (a plug-in then writes its statistics)
 */
#include "llama.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* llama.cpp's own default for the tokens of one prefill step. */
#define BATCH_TOKENS 512

typedef struct run {
    struct llama_model *model;
    struct llama_context *context;
    llama_token *prompt;
    llama_token *generated;
    FILE *logits;
    int vocabulary;
    int prompt_tokens, prompt_done;
    int generate_tokens, generate_done;
} run;

static double seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static int fail(const char *what)
{
    fprintf(stderr, "kvrun: %s\n", what);
    return 1;
}

static void log_errors(enum ggml_log_level level, const char *text, void *user)
{
    (void)user;
    if (level >= GGML_LOG_LEVEL_WARN)
        fputs(text, stderr);
}

/* The whole file with a closing zero, or NULL. The caller frees it. */
static char *read_text(const char *path, size_t *size)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL)
        return NULL;
    char *text = NULL;
    long end = -1;
    if (fseek(file, 0, SEEK_END) == 0 && (end = ftell(file)) >= 0 && fseek(file, 0, SEEK_SET) == 0)
        text = malloc((size_t)end + 1);
    if (text != NULL) {
        *size = fread(text, 1, (size_t)end, file);
        text[*size] = '\0';
    }
    fclose(file);
    return text;
}

static bool tokenize(run *r, const char *path)
{
    size_t size = 0;
    char *text = read_text(path, &size);
    if (text == NULL)
        return false;
    const struct llama_vocab *vocabulary = llama_model_get_vocab(r->model);
    /* A token stands for at least one byte, but for the special ones at the ends. */
    int room = (int)size + 16;
    r->prompt = malloc((size_t)room * sizeof(*r->prompt));
    int count = r->prompt != NULL ? llama_tokenize(vocabulary, text, (int32_t)size, r->prompt, room, true, false) : -1;
    free(text);
    r->vocabulary = llama_vocab_n_tokens(vocabulary);
    return count >= r->prompt_tokens;
}

static bool load(run *r, const char *model_path, const char *kv_type, const char *device_name, int threads)
{
    struct llama_model_params model_params = llama_model_default_params();
    ggml_backend_dev_t devices[2] = {NULL, NULL};
    model_params.n_gpu_layers = 0;
    if (strcmp(device_name, "cpu") != 0) {
        devices[0] = ggml_backend_dev_by_name(device_name);
        if (devices[0] == NULL)
            return false;
        model_params.devices = devices;
        model_params.n_gpu_layers = 99;
    }
    r->model = llama_model_load_from_file(model_path, model_params);
    if (r->model == NULL)
        return false;

    struct llama_context_params context_params = llama_context_default_params();
    context_params.n_ctx = (uint32_t)(r->prompt_tokens + r->generate_tokens);
    context_params.n_batch = context_params.n_ubatch = BATCH_TOKENS;
    context_params.n_threads = context_params.n_threads_batch = threads;
    context_params.swa_full = false; /* layers with a sliding window keep that window, as in llama.cpp's programs */
    context_params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
    context_params.type_k = context_params.type_v = strcmp(kv_type, "f16") == 0 ? GGML_TYPE_F16 : GGML_TYPE_BF16;
    r->context = llama_init_from_model(r->model, context_params);
    return r->context != NULL;
}

/* Processes `count` tokens and waits for the logits of the last. */
static bool decode(run *r, llama_token *tokens, int count)
{
    return llama_decode(r->context, llama_batch_get_one(tokens, count)) == 0 &&
           llama_get_logits_ith(r->context, -1) != NULL;
}

static bool prefill(run *r, int count, int *done, double *seconds)
{
    double start = seconds_now();
    for (*done = 0; *done < count && r->prompt_done < r->prompt_tokens;) {
        int step = count - *done < BATCH_TOKENS ? count - *done : BATCH_TOKENS;
        if (step > r->prompt_tokens - r->prompt_done)
            step = r->prompt_tokens - r->prompt_done;
        if (!decode(r, r->prompt + r->prompt_done, step))
            return false;
        r->prompt_done += step;
        *done += step;
    }
    *seconds = seconds_now() - start;
    return true;
}

static llama_token likeliest(const float *logits, int vocabulary)
{
    llama_token best = 0;
    for (llama_token token = 1; token < vocabulary; token++)
        if (logits[token] > logits[best])
            best = token;
    return best;
}

/* The time is that of the model's step and of choosing; writing the logits is not part of it. */
static bool generate(run *r, int count)
{
    if (count > r->generate_tokens - r->generate_done)
        count = r->generate_tokens - r->generate_done;
    printf("decode %d", count);
    for (int i = 0; i < count; i++) {
        const float *logits = llama_get_logits_ith(r->context, -1);
        if (fwrite(logits, sizeof(float), (size_t)r->vocabulary, r->logits) != (size_t)r->vocabulary)
            return false;
        double start = seconds_now();
        llama_token token = likeliest(logits, r->vocabulary);
        r->generated[r->generate_done++] = token;
        if (!decode(r, &token, 1))
            return false;
        printf(" %.9f", seconds_now() - start);
    }
    return true;
}

static int save(run *r, const char *path)
{
    return llama_state_seq_save_file(r->context, path, 0, r->prompt, (size_t)r->prompt_done) > 0 ? r->prompt_done : 0;
}

static int restore(run *r, const char *path)
{
    size_t count = 0, room = (size_t)r->prompt_tokens;
    llama_token *tokens = malloc(room * sizeof(*tokens));
    if (tokens == NULL)
        return 0;
    bool same = llama_state_seq_load_file(r->context, path, 0, tokens, room, &count) > 0 && count < room &&
                memcmp(tokens, r->prompt, count * sizeof(*tokens)) == 0;
    free(tokens);
    if (!same)
        llama_memory_clear(llama_get_memory(r->context), true);
    r->prompt_done = same ? (int)count : 0;
    return r->prompt_done;
}

/* Carries out one command and answers. Returns false when it was the last, with *status set if it failed. */
static bool obey(run *r, const char *command, const char *argument, int *status)
{
    int done = 0, count = (int)strtol(argument, NULL, 10);
    double seconds = 0;
    bool sound = true;
    if (strcmp(command, "decode") == 0)
        sound = generate(r, count);
    else if (strcmp(command, "prefill") == 0)
        sound = prefill(r, count, &done, &seconds);
    else if (strcmp(command, "save") == 0)
        done = save(r, argument);
    else if (strcmp(command, "restore") == 0)
        done = restore(r, argument);
    else
        return false;
    if (!sound) {
        *status = fail("the model's step failed (see the lines above)");
        return false;
    }
    if (strcmp(command, "decode") != 0)
        printf("%s %d %.9f", command, done, seconds);
    printf("\n");
    fflush(stdout);
    return true;
}

static int serve(run *r)
{
    char line[4200]; /* a path of up to PATH_MAX bytes and the command before it */
    int status = 0;
    while (fgets(line, sizeof(line), stdin) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        char *argument = line + strcspn(line, " ");
        if (*argument != '\0')
            *argument++ = '\0';
        if (!obey(r, line, argument, &status))
            break;
    }
    if (status != 0)
        return status;
    printf("tokens");
    for (int i = 0; i < r->generate_done; i++)
        printf(" %d", r->generated[i]);
    printf("\n");
    return 0;
}

static int usage(void)
{
    fprintf(stderr, "usage: kvrun BACKEND_DIR MODEL PROMPT_FILE PROMPT_TOKENS GENERATE f16|bf16 DEVICE|cpu THREADS "
                    "LOGITS_FILE\n");
    return 2;
}

static int start(run *r, char **argv)
{
    ggml_backend_load_all_from_path(argv[1]);
    if (!load(r, argv[2], argv[6], argv[7], (int)strtol(argv[8], NULL, 10)))
        return fail("the model, the device or the context could not be set up (see the lines above)");
    if (!tokenize(r, argv[3]))
        return fail("the prompt can't be read, or has fewer tokens than asked for");
    r->generated = calloc((size_t)r->generate_tokens, sizeof(*r->generated));
    r->logits = fopen(argv[9], "wb");
    if (r->generated == NULL || r->logits == NULL)
        return fail(strerror(errno));
    printf("ready %d\n", r->vocabulary);
    fflush(stdout);
    return serve(r);
}

int main(int argc, char **argv)
{
    if (argc != 10)
        return usage();
    run r = {.prompt_tokens = (int)strtol(argv[4], NULL, 10), .generate_tokens = (int)strtol(argv[5], NULL, 10)};
    if (r.prompt_tokens <= 0 || r.generate_tokens <= 0 || (strcmp(argv[6], "f16") != 0 && strcmp(argv[6], "bf16") != 0))
        return usage();
    llama_log_set(log_errors, NULL);
    int status = start(&r, argv);
    if (r.logits != NULL && fclose(r.logits) != 0 && status == 0)
        status = fail("the logits could not be written");
    free(r.prompt);
    free(r.generated);
    llama_free(r.context);
    llama_model_free(r.model);
    return status;
}
