/* Decode attention against two others: gaac_cuda_attention_reference, a kernel that shares nothing with it but the
 * format, and a plain computation on the host in double precision.
 *
 * Bounds. The fast kernels round P to BF16 before P V (an error of at most 2^-9 = 0.002 of each weight, of no bias) and
 * BF16 outputs are rounded once more (at most 2^-9): each head's output vector stays below 0.004 of its length, a
 * little more where values cancel. Scores, maxima and sums are F32: the logarithm of the sum is right to 1e-4. */
#include "fixture.h"

#include <math.h>

static const double fast_bound = 5e-3, reference_bound = 2e-6, lse_bound = 1e-4;

typedef enum storage { STORE_MIXED, STORE_RAW, STORE_CODED } storage;

typedef struct attention_case {
    gaac_shape shape;
    uint32_t group; /* query heads of a KV head */
    uint32_t query_tokens;
    const int32_t *lengths;
    uint32_t sequences;
    uint32_t room; /* cells of a sequence that have values, if more than its length */
    uint32_t window, epochs;
    bool ragged, sinks, slopes, strided;
    float softcap;
    gaac_cuda_type out_type;
} attention_case;

/* A case with its memory. */
typedef struct scene {
    attention_case c;
    uint32_t query_heads, rows, largest;
    gpu_cache cache;
    kv *values;       /* [sequences]: whole blocks */
    int32_t *table;   /* host, of args.block_table */
    uint32_t *blocks; /* [sequences] */
    int32_t *query_start;
    int32_t *lengths;
    uint16_t *q;
    float *sinks, *slopes;
    size_t out_bytes;
    gaac_cuda_attention_args args;
} scene;

typedef struct result {
    uint8_t *out;
    float *lse;
} result;

static const uint8_t untouched = 0x5a;

/* ---- making a scene -------------------------------------------------------------------------- */

static float random_float(uint64_t *seed) /* -1 .. 1 */
{
    return (float)((double)(random_u64(seed) >> 11) / (double)(UINT64_C(1) << 52) - 1);
}

/* Cells behind the last one: no numbers at all, which no block codes, or random ones with a NaN among them. */
static void fill_unused(uint64_t *seed, kv *values, size_t length)
{
    const bool codable = random_below(seed, 2) == 0;
    const uint16_t never[] = {0x7fc1, 0xffff, 0x7f80, 0xff80};
    for (size_t token = length; token < values->tokens; token++) {
        if (codable) {
            values->k[token * values->k_row + random_below(seed, (unsigned)values->k_row)] = 0x7fc1;
            continue;
        }
        for (size_t i = 0; i < values->k_row; i++)
            values->k[token * values->k_row + i] = never[random_below(seed, 4)];
        for (size_t i = 0; i < values->v_row; i++)
            values->v[token * values->v_row + i] = never[random_below(seed, 4)];
    }
}

static void make_values(uint64_t *seed, scene *s)
{
    s->values = host_memory(s->c.sequences * sizeof *s->values);
    s->blocks = host_memory(s->c.sequences * sizeof *s->blocks);
    for (uint32_t i = 0; i < s->c.sequences; i++) {
        const uint32_t length = s->lengths[i] > 0 ? (uint32_t)s->lengths[i] : 0;
        const uint32_t cells = length > s->c.room ? length : s->c.room;
        s->blocks[i] = (cells + GAAC_BLOCK_TOKENS - 1) / GAAC_BLOCK_TOKENS;
        s->values[i] = kv_random(seed, RANDOM_KV, s->c.shape, s->blocks[i] * (size_t)GAAC_BLOCK_TOKENS);
        for (uint32_t b = 0; b < s->blocks[i]; b++)
            kv_drift(&s->values[i], b * (size_t)GAAC_BLOCK_TOKENS, GAAC_BLOCK_TOKENS, b % s->c.epochs);
        fill_unused(seed, &s->values[i], cells);
        s->largest = s->blocks[i] > s->largest ? s->blocks[i] : s->largest;
    }
}

/* Physical blocks in disorder, with some that nobody uses. What no query may look at names no block at all. */
static uint32_t make_table(uint64_t *seed, scene *s)
{
    uint32_t total = 7, next = 0;
    for (uint32_t i = 0; i < s->c.sequences; i++)
        total += s->blocks[i];
    int32_t *physical = host_memory(total * sizeof *physical);
    shuffle(seed, physical, total);
    const size_t stride = s->largest + 3;
    s->args.block_table_stride = stride;
    s->table = host_memory(s->c.sequences * stride * sizeof *s->table);
    for (uint32_t i = 0; i < s->c.sequences; i++)
        for (size_t b = 0; b < stride; b++)
            s->table[i * stride + b] = b < s->blocks[i] ? physical[next++] : 0x7ffffff0;
    free(physical);
    return total;
}

/* Query rows of each sequence: ragged ones have 0 to query_tokens, and leave a row at the start that is nobody's. */
static void make_queries(uint64_t *seed, scene *s)
{
    const attention_case *c = &s->c;
    s->query_start = host_memory((c->sequences + 1) * sizeof *s->query_start);
    s->query_start[0] = c->ragged ? 1 : 0;
    for (uint32_t i = 0; i < c->sequences; i++) {
        const uint32_t count = c->ragged ? random_below(seed, c->query_tokens + 1) : c->query_tokens;
        s->query_start[i + 1] = s->query_start[i] + (int32_t)count;
    }
    s->rows = (uint32_t)s->query_start[c->sequences] + 1; /* and one at the end */
    gaac_cuda_attention_args *args = &s->args;
    const size_t gap = c->strided ? 8 : 0;
    args->q_head_stride = c->shape.head_dim_k + gap;
    args->q_token_stride = s->query_heads * args->q_head_stride + 3 * gap;
    args->out_head_stride = c->shape.head_dim_v + gap / 2;
    args->out_token_stride = s->query_heads * args->out_head_stride + gap;
    const size_t elements = s->rows * args->q_token_stride;
    s->q = host_memory(elements * 2);
    for (size_t i = 0; i < elements; i++)
        s->q[i] = bits_of(random_float(seed) + random_float(seed));
    s->out_bytes = s->rows * args->out_token_stride * (c->out_type == GAAC_CUDA_F32 ? 4 : 2);
    s->sinks = host_memory(s->query_heads * sizeof *s->sinks);
    s->slopes = host_memory(s->query_heads * sizeof *s->slopes);
    for (uint32_t h = 0; h < s->query_heads; h++) {
        s->sinks[h] = 4 * random_float(seed) + 2;
        s->slopes[h] = ldexpf(1, -(int)(h % 8) - 1);
    }
}

/* Puts every block into the cache, each as `stored` says. Returns how many are coded. */
static uint32_t store(scene *s, storage stored)
{
    uint32_t coded = 0;
    uint64_t seed = 7;
    gpu_cache_clear(&s->cache);
    for (uint32_t i = 0; i < s->c.sequences; i++)
        for (uint32_t b = 0; b < s->blocks[i]; b++) {
            const gaac_kv_rows rows = kv_at(&s->values[i], b * (size_t)GAAC_BLOCK_TOKENS);
            const uint32_t block = (uint32_t)s->table[i * s->args.block_table_stride + b];
            if (stored == STORE_RAW || (stored == STORE_MIXED && random_below(&seed, 3) == 0))
                gpu_cache_keep_raw(&s->cache, block, &rows);
            else
                coded += gpu_cache_code(&s->cache, block, &rows, b % s->c.epochs);
        }
    gpu_cache_to_device(&s->cache);
    return coded;
}

static scene make_scene(uint64_t seed, attention_case c)
{
    scene s = {.c = c, .query_heads = c.shape.kv_heads * c.group};
    if (s.c.epochs == 0)
        s.c.epochs = 1;
    s.lengths = host_memory(c.sequences * sizeof *s.lengths);
    memcpy(s.lengths, c.lengths, c.sequences * sizeof *s.lengths);
    make_values(&seed, &s);
    const uint32_t blocks = make_table(&seed, &s);
    make_queries(&seed, &s);
    s.cache = gpu_cache_make(&seed, c.shape, blocks, blocks, s.c.epochs);
    store(&s, STORE_MIXED);
    /* Blocks behind the window may be gone: their places name none. */
    for (uint32_t i = 0; c.window > 0 && c.room == 0 && i < c.sequences; i++)
        for (int64_t b = 0; (b + 1) * GAAC_BLOCK_TOKENS <= s.lengths[i] - (int64_t)c.query_tokens - c.window + 1; b++)
            s.table[i * s.args.block_table_stride + (size_t)b] = -1;
    gaac_cuda_attention_args *args = &s.args;
    args->block_table = gpu_upload(s.table, c.sequences * args->block_table_stride * sizeof *s.table);
    args->plan = (gaac_cuda_plan_args){c.shape, s.query_heads, c.sequences, c.query_tokens, NULL, NULL, c.window};
    args->plan.lengths = gpu_upload(s.lengths, c.sequences * sizeof *s.lengths);
    if (c.ragged)
        args->plan.query_start = gpu_upload(s.query_start, (c.sequences + 1) * sizeof *s.query_start);
    args->q = gpu_upload(s.q, s.rows * args->q_token_stride * 2);
    args->out = gpu_allocate(s.out_bytes);
    args->out_type = c.out_type;
    args->lse = gpu_allocate((size_t)s.rows * s.query_heads * sizeof(float));
    args->scale = (float)(1 / sqrt(c.shape.head_dim_k));
    args->softcap = c.softcap;
    if (c.slopes)
        args->slopes = gpu_upload(s.slopes, s.query_heads * sizeof(float));
    if (c.sinks)
        args->sinks = gpu_upload(s.sinks, s.query_heads * sizeof(float));
    size_t bytes = 0;
    assert_gaac(gaac_cuda_plan_bytes(gpu, &args->plan, &bytes, &gpu_error));
    args->workspace = gpu_allocate(bytes + 1);
    assert_cuda(cudaMemset(args->workspace, 0xff, bytes));
    return s;
}

static void free_scene(scene *s)
{
    gpu_cache_free(&s->cache);
    for (uint32_t i = 0; i < s->c.sequences; i++)
        kv_free(&s->values[i]);
    const void *device[] = {s->args.block_table, s->args.plan.lengths, s->args.plan.query_start,
                            s->args.q,           s->args.out,          s->args.lse,
                            s->args.slopes,      s->args.sinks,        s->args.workspace};
    for (size_t i = 0; i < sizeof device / sizeof device[0]; i++)
        gpu_free((void *)(uintptr_t)device[i]);
    free(s->values);
    free(s->blocks);
    free(s->table);
    free(s->query_start);
    free(s->lengths);
    free(s->q);
    free(s->sinks);
    free(s->slopes);
}

/* ---- running --------------------------------------------------------------------------------- */

typedef enum kernel { FAST, REFERENCE } kernel;

static void clear_result(const scene *s)
{
    assert_cuda(cudaMemset(s->args.out, untouched, s->out_bytes));
    assert_cuda(cudaMemset(s->args.lse, untouched, (size_t)s->rows * s->query_heads * sizeof(float)));
}

static void launch(const scene *s, kernel which, gaac_cuda_stream stream)
{
    if (which == REFERENCE) {
        assert_gaac(gaac_cuda_attention_reference(gpu, &s->cache.cache, &s->args, stream, &gpu_error));
        return;
    }
    assert_gaac(gaac_cuda_plan(gpu, &s->args.plan, s->args.workspace, stream, &gpu_error));
    assert_gaac(gaac_cuda_attention(gpu, &s->cache.cache, &s->args, stream, &gpu_error));
}

static result read_result(const scene *s)
{
    const size_t lse_bytes = (size_t)s->rows * s->query_heads * sizeof(float);
    result r = {host_memory(s->out_bytes), host_memory(lse_bytes)};
    gpu_read(r.out, s->args.out, s->out_bytes);
    gpu_read(r.lse, s->args.lse, lse_bytes);
    return r;
}

static result run(const scene *s, kernel which)
{
    clear_result(s);
    launch(s, which, NULL);
    return read_result(s);
}

static void free_result(result *r)
{
    free(r->out);
    free(r->lse);
}

static float out_at(const scene *s, const result *r, gaac_cuda_type type, size_t row, size_t head, size_t channel)
{
    const size_t at = row * s->args.out_token_stride + head * s->args.out_head_stride + channel;
    float f32;
    uint16_t bf16;
    if (type == GAAC_CUDA_F32) {
        memcpy(&f32, r->out + 4 * at, 4);
        return f32;
    }
    memcpy(&bf16, r->out + 2 * at, 2);
    return float_of(bf16);
}

/* ---- on the host ----------------------------------------------------------------------------- */

/* One query row and head in double precision, as two passes. Returns the logarithm of the sum. */
static double host_attention(const scene *s, uint32_t sequence, uint32_t query, uint32_t query_head, double *out)
{
    const attention_case *c = &s->c;
    const kv *values = &s->values[sequence];
    const int64_t queries = s->query_start[sequence + 1] - s->query_start[sequence];
    const int64_t own = s->lengths[sequence] <= 0 ? -1 : s->lengths[sequence] - queries + query;
    const int64_t first = c->window == 0 || own < c->window ? 0 : own - c->window + 1;
    const uint32_t head = query_head / c->group;
    const uint16_t *q =
        s->q + ((size_t)s->query_start[sequence] + query) * s->args.q_token_stride + query_head * s->args.q_head_stride;
    double *scores = host_memory(sizeof(double) * (size_t)(own < 0 ? 1 : own + 1));
    double most = c->sinks ? s->sinks[query_head] : -INFINITY, sum = 0;
    for (int64_t cell = first; cell <= own; cell++) {
        const uint16_t *k = values->k + (size_t)cell * values->k_row + (size_t)head * c->shape.head_dim_k;
        double score = 0;
        for (uint32_t i = 0; i < c->shape.head_dim_k; i++)
            score += (double)float_of(q[i]) * float_of(k[i]);
        score *= s->args.scale;
        if (c->softcap > 0)
            score = c->softcap * tanh(score / c->softcap);
        if (c->slopes)
            score += s->slopes[query_head] * (double)(cell - own);
        scores[cell] = score;
        most = score > most ? score : most;
    }
    if (c->sinks)
        sum = exp(s->sinks[query_head] - most);
    for (uint32_t i = 0; i < c->shape.head_dim_v; i++)
        out[i] = 0;
    for (int64_t cell = first; cell <= own; cell++) {
        const uint16_t *v = values->v + (size_t)cell * values->v_row + (size_t)head * c->shape.head_dim_v;
        const double weight = exp(scores[cell] - most);
        sum += weight;
        for (uint32_t i = 0; i < c->shape.head_dim_v; i++)
            out[i] += weight * float_of(v[i]);
    }
    for (uint32_t i = 0; i < c->shape.head_dim_v; i++)
        out[i] = sum > 0 ? out[i] / sum : 0;
    free(scores);
    return most + log(sum);
}

/* ---- comparing ------------------------------------------------------------------------------- */

static void check_lse(double have, double want, const char *what)
{
    if (want == -INFINITY ? have == want : fabs(have - want) <= lse_bound + 1e-6 * fabs(want))
        return;
    fail_msg("%s: the logarithm of the sum is %.9g, not %.9g", what, have, want);
}

/* One head's output vector. */
static void check_vector(const scene *s, const result *have, gaac_cuda_type type, const double *want, size_t row,
                         size_t head, double bound, const char *what)
{
    double difference = 0, length = 0;
    for (size_t i = 0; i < s->c.shape.head_dim_v; i++) {
        const double value = out_at(s, have, type, row, head, i);
        difference += (value - want[i]) * (value - want[i]);
        length += want[i] * want[i];
    }
    if (length == 0 ? difference == 0 : sqrt(difference / length) <= bound)
        return;
    fail_msg("%s: row %zu, head %zu: differs by %.3g of its length (at most %.3g)", what, row, head,
             sqrt(difference / length), bound);
}

/* Nothing was written where no output belongs: rows of no sequence, gaps between heads. */
static void check_gaps(const scene *s, const result *r)
{
    const size_t size = s->c.out_type == GAAC_CUDA_F32 ? 4 : 2, row_bytes = s->args.out_token_stride * size;
    for (size_t row = 0; row < s->rows; row++) {
        const bool used = row >= (size_t)s->query_start[0] && row < (size_t)s->query_start[s->c.sequences];
        for (size_t i = 0; i < row_bytes; i++) {
            const size_t element = i / size, head = element / s->args.out_head_stride;
            const bool gap =
                !used || head >= s->query_heads || element - head * s->args.out_head_stride >= s->c.shape.head_dim_v;
            if (gap && r->out[row * row_bytes + i] != untouched)
                fail_msg("byte %zu of row %zu was written and is not the output's", i, row);
        }
        for (size_t h = 0; !used && h < s->query_heads; h++) {
            uint8_t pattern[4];
            memset(pattern, untouched, sizeof pattern);
            assert_memory_equal(&r->lse[row * s->query_heads + h], pattern, sizeof pattern);
        }
    }
}

/* The reference in F32 against the host; `fast` against the reference. host: compare with the host too. */
static void check_rows(const scene *s, const result *fast, const result *reference, bool host)
{
    double *want = host_memory(s->c.shape.head_dim_v * sizeof *want);
    for (uint32_t sequence = 0; sequence < s->c.sequences; sequence++)
        for (int32_t row = s->query_start[sequence]; row < s->query_start[sequence + 1]; row++)
            for (uint32_t head = 0; head < s->query_heads; head++) {
                const size_t at = (size_t)row * s->query_heads + head;
                if (host) {
                    const double lse =
                        host_attention(s, sequence, (uint32_t)(row - s->query_start[sequence]), head, want);
                    check_lse(reference->lse[at], lse, "the reference");
                    check_vector(s, reference, GAAC_CUDA_F32, want, (size_t)row, head, reference_bound,
                                 "the reference");
                }
                for (uint32_t i = 0; i < s->c.shape.head_dim_v; i++)
                    want[i] = out_at(s, reference, GAAC_CUDA_F32, (size_t)row, head, i);
                check_lse(fast->lse[at], reference->lse[at], "the fast kernel");
                check_vector(s, fast, s->c.out_type, want, (size_t)row, head, fast_bound, "the fast kernel");
            }
    free(want);
}

/* The reference's result in F32, whatever the case asks for. */
static result run_reference(const scene *s)
{
    scene f32 = *s;
    f32.args.out_type = f32.c.out_type = GAAC_CUDA_F32;
    f32.out_bytes = s->rows * s->args.out_token_stride * 4;
    f32.args.out = gpu_allocate(f32.out_bytes);
    const result r = run(&f32, REFERENCE);
    check_gaps(&f32, &r);
    gpu_free(f32.args.out);
    return r;
}

/* Multiplications that the host needs for a scene. */
static double host_work(const scene *s)
{
    double work = 0;
    for (uint32_t i = 0; i < s->c.sequences; i++)
        work += (double)(s->query_start[i + 1] - s->query_start[i]) * s->lengths[i] * s->query_heads *
                (s->c.shape.head_dim_k + s->c.shape.head_dim_v);
    return work;
}

static void check_case(uint64_t seed, attention_case c)
{
    scene s = make_scene(seed, c);
    result fast = run(&s, FAST), reference = run_reference(&s);
    check_gaps(&s, &fast);
    check_rows(&s, &fast, &reference, host_work(&s) < 2e7);
    free_result(&fast);
    free_result(&reference);
    free_scene(&s);
}

static void say(const char *group, uint64_t seed, const attention_case *c)
{
    fprintf(
        stderr,
        "%s %llu: %u heads of %u and %u, %u times as many of the query, %u query tokens%s, %u sequences, window %u, "
        "softcap %g%s%s%s%s, %u epochs, kernel %s\n",
        group, (unsigned long long)seed, c->shape.kv_heads, c->shape.head_dim_k, c->shape.head_dim_v, c->group,
        c->query_tokens, c->ragged ? " at most" : "", c->sequences, c->window, (double)c->softcap,
        c->sinks ? ", sinks" : "", c->slopes ? ", ALiBi" : "", c->strided ? ", strided" : "",
        c->out_type == GAAC_CUDA_F32 ? ", F32" : "", c->epochs, gaac_cuda_attention_kernel(gpu, &c->shape));
}

/* ---- the tests ------------------------------------------------------------------------------- */

static const int32_t edge_lengths[] = {0, 1, 15, 16, 17, 33, 1000, -5, 31, 32, 48};
enum { EDGE_LENGTHS = sizeof edge_lengths / sizeof edge_lengths[0] };

static const gaac_shape shapes[] = {{2, 64, 64},   {1, 80, 80},   {2, 96, 96},   {1, 112, 112},
                                    {2, 128, 128}, {1, 192, 192}, {2, 256, 256}, {2, 192, 128},
                                    {1, 128, 64},  {1, 64, 128},  {1, 96, 80},   {1, 576, 512}};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

static void every_shape_at_every_length(void **state)
{
    (void)state;
    static const uint32_t groups[] = {1, 2, 4, 5, 6, 7, 8, 16};
    for (unsigned i = 0; i < SHAPES; i++)
        for (unsigned g = gpu_small() ? 7 : 0; g < 8; g++) {
            const attention_case c = {.shape = shapes[i],
                                      .group = groups[g],
                                      .query_tokens = 1,
                                      .lengths = edge_lengths,
                                      .sequences = gpu_small() ? 6 : EDGE_LENGTHS,
                                      .epochs = 1};
            say("shape", i * 8 + g, &c);
            check_case(i * 8 + g + 1, c);
        }
}

static void several_query_tokens(void **state)
{
    (void)state;
    for (uint32_t tokens = 2; tokens <= GAAC_CUDA_MAX_QUERY_TOKENS; tokens++)
        for (unsigned ragged = 0; ragged < 2; ragged++) {
            const attention_case c = {.shape = shapes[tokens % 2 == 0 ? 4 : 0],
                                      .group = 1 + tokens % 5,
                                      .query_tokens = tokens,
                                      .lengths = edge_lengths,
                                      .sequences = gpu_small() ? 6 : EDGE_LENGTHS,
                                      .ragged = ragged != 0,
                                      .epochs = 2};
            say("query tokens", tokens, &c);
            check_case(100 + tokens * 2 + ragged, c);
        }
}

/* Everything at random. */
static attention_case random_case(uint64_t *seed, int32_t *lengths, unsigned most_sequences)
{
    attention_case c = {.shape = shapes[random_below(seed, SHAPES - 1)],
                        .group = 1 + random_below(seed, 16),
                        .query_tokens = random_below(seed, 2) ? 1 : 1 + random_below(seed, GAAC_CUDA_MAX_QUERY_TOKENS),
                        .lengths = lengths,
                        .sequences = 1 + random_below(seed, most_sequences),
                        .epochs = 1 + random_below(seed, GPU_EPOCHS - 1),
                        .ragged = random_below(seed, 2) == 0,
                        .sinks = random_below(seed, 3) == 0,
                        .slopes = random_below(seed, 3) == 0,
                        .strided = random_below(seed, 3) == 0,
                        .softcap = random_below(seed, 3) == 0 ? 20 : 0,
                        .out_type = random_below(seed, 2) ? GAAC_CUDA_F32 : GAAC_CUDA_BF16};
    c.shape.kv_heads = 1 + random_below(seed, 4);
    if (random_below(seed, 2) == 0)
        c.window = 1 + random_below(seed, random_below(seed, 2) ? 40 : 700);
    for (uint32_t i = 0; i < c.sequences; i++)
        lengths[i] = (int32_t)random_below(seed, random_below(seed, 3) ? 60 : gpu_small() ? 100 : 900);
    return c;
}

static void everything_at_random(void **state)
{
    (void)state;
    for (uint64_t number = 0; number < (gpu_small() ? 12 : 300); number++) {
        int32_t lengths[8];
        uint64_t seed = 1000 + number;
        const attention_case c = random_case(&seed, lengths, 8);
        say("random", 1000 + number, &c);
        check_case(seed, c);
    }
}

static void one_long_sequence(void **state)
{
    (void)state;
    const int32_t length = gpu_small() ? 500 : 5000;
    for (unsigned i = 0; i < (gpu_small() ? 1 : SHAPES - 1); i++) {
        const attention_case c = {
            .shape = shapes[i], .group = 4, .query_tokens = 1 + i % 3, .lengths = &length, .sequences = 1, .epochs = 3};
        say("long", i, &c);
        check_case(2000 + i, c);
    }
}

static void many_sequences(void **state)
{
    (void)state;
    enum { SEQUENCES = 300 };
    const uint32_t sequences = gpu_small() ? 40 : SEQUENCES;
    int32_t lengths[SEQUENCES];
    uint64_t seed = 3;
    for (uint32_t i = 0; i < SEQUENCES; i++)
        lengths[i] = (int32_t)(i % 7 == 0 ? random_below(&seed, 1500) : random_below(&seed, 70));
    for (unsigned i = 0; i < 3; i++) {
        const attention_case c = {.shape = shapes[i == 0   ? 4
                                                  : i == 1 ? 0
                                                           : 6],
                                  .group = 4,
                                  .query_tokens = 1 + i,
                                  .lengths = lengths,
                                  .sequences = sequences,
                                  .ragged = i == 1,
                                  .epochs = 2};
        say("many", i, &c);
        check_case(3000 + i, c);
    }
}

/* How a block is kept changes no bit, and neither does running again. */
static void raw_and_coded_give_the_same_bits(void **state)
{
    (void)state;
    for (uint64_t number = 0; number < (gpu_small() ? 4 : 24); number++) {
        int32_t lengths[8];
        uint64_t seed = 4000 + number;
        attention_case c = random_case(&seed, lengths, 6);
        c.shape = shapes[number % (SHAPES - 1)];
        c.window = 0; /* blocks behind a window have no place in the table */
        lengths[0] = 400;
        say("same bits", 4000 + number, &c);
        scene s = make_scene(seed, c);
        result first = run(&s, FAST);
        const storage ways[] = {STORE_MIXED, STORE_RAW, STORE_CODED};
        for (unsigned i = 0; i < 3; i++) {
            const uint32_t coded = store(&s, ways[i]);
            assert_true(ways[i] == STORE_RAW ? coded == 0 : coded >= 10);
            result again = run(&s, FAST);
            assert_memory_equal(again.out, first.out, s.out_bytes);
            assert_memory_equal(again.lse, first.lse, (size_t)s.rows * s.query_heads * sizeof(float));
            free_result(&again);
        }
        free_result(&first);
        free_scene(&s);
    }
}

/* Lengths are read when a graph runs, not when it was captured. */
static void graphs_follow_the_lengths(void **state)
{
    (void)state;
    const int32_t captured[] = {17, 1, 300};
    const int32_t steps[][3] = {{17, 1, 300}, {18, 2, 301}, {600, 0, 33}, {0, 0, 0}, {5, 599, 16}, {640, 640, 640}};
    const attention_case c = {.shape = {2, 128, 128},
                              .group = 4,
                              .query_tokens = 2,
                              .lengths = captured,
                              .sequences = 3,
                              .room = 640,
                              .epochs = 2};
    scene s = make_scene(5000, c);
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    assert_cuda(cudaStreamCreate(&stream));
    assert_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    launch(&s, FAST, stream);
    assert_cuda(cudaStreamEndCapture(stream, &graph));
    assert_cuda(cudaGraphInstantiate(&exec, graph, 0));
    for (size_t step = 0; step < sizeof steps / sizeof steps[0]; step++) {
        memcpy(s.lengths, steps[step], sizeof steps[step]);
        gpu_write((void *)(uintptr_t)s.args.plan.lengths, steps[step], sizeof steps[step]);
        clear_result(&s);
        assert_cuda(cudaDeviceSynchronize());
        assert_cuda(cudaGraphLaunch(exec, stream));
        result replayed = read_result(&s), direct = run(&s, FAST), reference = run_reference(&s);
        assert_memory_equal(replayed.out, direct.out, s.out_bytes);
        assert_memory_equal(replayed.lse, direct.lse, (size_t)s.rows * s.query_heads * sizeof(float));
        check_gaps(&s, &replayed);
        check_rows(&s, &replayed, &reference, true);
        free_result(&replayed);
        free_result(&direct);
        free_result(&reference);
    }
    assert_cuda(cudaGraphExecDestroy(exec));
    assert_cuda(cudaGraphDestroy(graph));
    assert_cuda(cudaStreamDestroy(stream));
    free_scene(&s);
}

/* One plan serves many layers: other values, queries and outputs. */
static void a_plan_serves_several_calls(void **state)
{
    (void)state;
    const attention_case c = {.shape = {2, 128, 128},
                              .group = 4,
                              .query_tokens = 1,
                              .lengths = edge_lengths,
                              .sequences = EDGE_LENGTHS,
                              .epochs = 1};
    scene s = make_scene(6000, c);
    assert_gaac(gaac_cuda_plan(gpu, &s.args.plan, s.args.workspace, NULL, &gpu_error));
    result first = {NULL, NULL};
    for (unsigned layer = 0; layer < 5; layer++) {
        clear_result(&s);
        assert_gaac(gaac_cuda_attention(gpu, &s.cache.cache, &s.args, NULL, &gpu_error));
        result r = read_result(&s);
        if (layer == 0) {
            result reference = run_reference(&s);
            check_rows(&s, &r, &reference, true);
            free_result(&reference);
            first = r;
            continue;
        }
        assert_memory_equal(r.out, first.out, s.out_bytes);
        free_result(&r);
    }
    free_result(&first);
    free_scene(&s);
}

static void wrong_arguments_are_refused(void **state)
{
    (void)state;
    const int32_t length = 20;
    const attention_case c = {
        .shape = {2, 128, 128}, .group = 2, .query_tokens = 1, .lengths = &length, .sequences = 1};
    scene s = make_scene(7000, c);
    assert_gaac(gaac_cuda_plan(gpu, &s.args.plan, s.args.workspace, NULL, &gpu_error));
    for (unsigned what = 0; what < 8; what++) {
        gaac_cuda_attention_args args = s.args;
        gaac_cuda_cache cache = s.cache.cache;
        switch (what) {
        case 0:
            args.plan.query_heads = 3; /* no multiple of the KV heads */
            break;
        case 1:
            args.plan.query_tokens = GAAC_CUDA_MAX_QUERY_TOKENS + 1;
            break;
        case 2:
            args.plan.shape.head_dim_v = 64; /* not the cache's */
            break;
        case 3:
            args.scale = 0;
            break;
        case 4:
            args.q = NULL;
            break;
        case 5:
            args.block_table = NULL;
            break;
        case 6:
            cache.slot_stride += 8;
            break;
        default:
            args.plan.lengths = NULL;
        }
        gaac_error error = {GAAC_OK, ""};
        if (gaac_cuda_attention(gpu, &cache, &args, NULL, &error) != GAAC_ERROR_INVALID_ARGUMENT)
            fail_msg("wrong argument %u was taken", what);
        assert_true(error.message[0] != 0);
        if (gaac_cuda_attention_reference(gpu, &cache, &args, NULL, &error) != GAAC_ERROR_INVALID_ARGUMENT)
            fail_msg("wrong argument %u was taken by the reference", what);
    }
    free_scene(&s);
}

int main(void)
{
    gpu_start();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_shape_at_every_length),
        cmocka_unit_test(several_query_tokens),
        cmocka_unit_test(everything_at_random),
        cmocka_unit_test(one_long_sequence),
        cmocka_unit_test(many_sequences),
        cmocka_unit_test(raw_and_coded_give_the_same_bits),
        cmocka_unit_test(graphs_follow_the_lengths),
        cmocka_unit_test(a_plan_serves_several_calls),
        cmocka_unit_test(wrong_arguments_are_refused),
    };
    return gpu_stop(cmocka_run_group_tests(tests, NULL, NULL));
}
