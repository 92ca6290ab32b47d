/* One task: step by step through its blocks, K against the rows, softmax, weights against V. */
#include "attention/task.h"

#include <math.h>
#include <string.h>

static const double LOG2_E = 1.4426950408889634;

/* A step and how its blocks lie. */
typedef struct step_view {
    gaac_step step;
    gaac_block_view view[GAAC_STEP_TILES];
} step_view;

/* What the functions below pass around. */
typedef struct task {
    const gaac_attention_call *call;
    const gaac_attention_place *place;
    const gaac_task_scratch *scratch;
    const gaac_partial *partial;
    uint32_t head; /* of the task's heads: the one at work */
    gaac_score_fn *score;
    gaac_weigh_fn *weigh;
    step_view now, next; /* next.step.count 0: none */
} task;

/* One tile of each block of a step: what is read and fetched as one. */
typedef struct tile_place {
    const step_view *from; /* NULL: none */
    uint32_t head;         /* of the task's heads */
    uint32_t unit;
    gaac_part part;
} tile_place;

static size_t round_up(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

static size_t take(size_t *offset, size_t bytes)
{
    const size_t at = *offset;
    *offset += round_up(bytes);
    return at;
}

/* Lays the scratch out from memory (NULL to count only); returns its bytes. */
static size_t lay_out(const gaac_attention_call *call, uint8_t *memory, gaac_task_scratch *scratch)
{
    const size_t rows = call->plan.batch_rows, all_rows = rows * call->plan.task_heads;
    const size_t dim_k = call->layout->shape.head_dim_k;
    const size_t dim_v = call->layout->shape.head_dim_v;
    size_t bytes = 0;
    const size_t q = take(&bytes, all_rows * dim_k * sizeof(float));
    const size_t scores = take(&bytes, rows * GAAC_STEP_TOKENS * sizeof(float));
    const size_t factors = take(&bytes, rows * sizeof(float));
    const size_t masks = take(&bytes, rows * sizeof(gaac_mask_row));
    const size_t acc = take(&bytes, all_rows * dim_v * sizeof(float));
    const size_t states = take(&bytes, all_rows * sizeof(gaac_softmax_state));
    const size_t tiles = take(&bytes, gaac_tile_scratch_bytes(call->layout));
    if (memory != NULL) {
        scratch->q = (float *)(void *)(memory + q);
        scratch->scores = (float *)(void *)(memory + scores);
        scratch->factors = (float *)(void *)(memory + factors);
        scratch->masks = (gaac_mask_row *)(void *)(memory + masks);
        scratch->acc = (float *)(void *)(memory + acc);
        scratch->states = (gaac_softmax_state *)(void *)(memory + states);
        scratch->tiles = (gaac_tile_scratch *)(void *)(memory + tiles);
    }
    return bytes;
}

size_t gaac_task_scratch_bytes(const gaac_attention_call *call)
{
    return lay_out(call, NULL, NULL);
}

void gaac_task_scratch_place(const gaac_attention_call *call, uint8_t *memory, gaac_task_scratch *scratch)
{
    (void)lay_out(call, memory, scratch);
}

static uint32_t row_token(const task *t, uint32_t row)
{
    return t->place->first_token + row / t->call->plan.group;
}

static uint32_t kv_head(const task *t)
{
    return t->place->first_head + t->head;
}

static uint32_t row_head(const task *t, uint32_t row)
{
    return kv_head(t) * t->call->plan.group + row % t->call->plan.group;
}

/* The current head's part of what has [heads][rows]. */
static size_t first_row(const task *t)
{
    return (size_t)t->head * t->place->rows;
}

static void prepare_rows(task *t)
{
    const gaac_attention_args *args = t->call->args;
    const gaac_layout *layout = t->call->layout;
    float *out = t->scratch->q;
    for (t->head = 0; t->head < t->place->heads; t->head++) {
        for (uint32_t row = 0; row < t->place->rows; row++) {
            const float *q =
                args->q + row_token(t, row) * args->q_token_stride + row_head(t, row) * args->q_head_stride;
            for (uint32_t u = 0; u < layout->units; u++) {
                const gaac_unit *unit = &layout->unit[u];
                if (unit->has_k) {
                    gaac_prepare_q(unit->fragments, q + unit->channel, out);
                    out += unit->channels;
                }
            }
            t->partial->states[first_row(t) + row] = (gaac_softmax_state){-INFINITY, 0};
        }
    }
    memset(t->partial->acc, 0, (size_t)t->place->heads * t->place->rows * layout->shape.head_dim_v * sizeof(float));
}

static void view_step(const task *t, const gaac_live_blocks *live, uint64_t first, uint64_t end, step_view *out)
{
    out->step.count = end - first < GAAC_STEP_TILES ? (unsigned)(end - first) : GAAC_STEP_TILES;
    for (unsigned i = 0; i < out->step.count; i++) {
        out->step.block[i] = gaac_live_block(live, first + i);
        gaac_cache_block(t->call->cache, t->call->args->layer, t->call->args->sequence, out->step.block[i],
                         &out->view[i]);
    }
}

static bool has_part(const gaac_unit *unit, gaac_part part)
{
    return part == GAAC_K ? unit->has_k : unit->has_v;
}

/* First place at or after `at` with tiles, in the order of reading: K's units, V's, the next head, the next step. */
static tile_place settle(const task *t, tile_place at)
{
    const gaac_layout *layout = t->call->layout;
    for (;; at.unit++) {
        if (at.unit == layout->units) {
            at.unit = 0;
            at.head += at.part == GAAC_V;
            at.part = at.part == GAAC_K ? GAAC_V : GAAC_K;
            if (at.head == t->place->heads) {
                at.head = 0;
                at.from = at.from == &t->now && t->next.step.count != 0 ? &t->next : NULL;
            }
        }
        if (at.from == NULL || has_part(&layout->unit[at.unit], at.part))
            return at;
    }
}

static tile_place place_after(const task *t, tile_place at)
{
    at.unit++;
    return settle(t, at);
}

/* Where the tile of block i of `at` lies, to be fetched while others are worked on. */
static gaac_ahead look_ahead(const task *t, tile_place at, unsigned i)
{
    if (at.from == NULL || i >= at.from->step.count)
        return (gaac_ahead){(const uint8_t *)gaac_zero_tile, 0};
    return gaac_tile_ahead(t->call->layout, &at.from->view[i], t->place->first_head + at.head,
                           &t->call->layout->unit[at.unit], at.part);
}

static bool some_coded(const step_view *view, const gaac_unit *unit)
{
    bool some = false;
    for (unsigned i = 0; i < view->step.count; i++)
        some = some || gaac_tile_is_coded(&view->view[i], unit);
    return some;
}

/* In line order where something is decoded and the kernels take it. */
static bool load_tiles(const task *t, uint32_t unit, gaac_part part, gaac_step_tiles *tiles)
{
    const gaac_layout *layout = t->call->layout;
    const tile_place next = place_after(t, (tile_place){&t->now, t->head, unit, part});
    tiles->ahead_lines = 0;
    tiles->lines = t->call->kernels->takes_lines && some_coded(&t->now, &layout->unit[unit]);
    for (unsigned i = 0; i < GAAC_STEP_TILES; i++) {
        gaac_ahead ahead = look_ahead(t, next, i);
        if (i < t->now.step.count)
            tiles->tile[i] = gaac_tile_load(layout, t->call->codec_kernels, &t->now.view[i], kv_head(t),
                                            &layout->unit[unit], part, tiles->lines, i, t->scratch->tiles, &ahead);
        else
            tiles->tile[i] =
                tiles->lines ? gaac_tile_zero_lines(&layout->unit[unit], part, i, t->scratch->tiles) : gaac_zero_tile;
        if (tiles->tile[i] == NULL)
            return false;
        tiles->ahead[i] = ahead.lines != 0 ? ahead.at : (const uint8_t *)gaac_zero_tile;
        tiles->ahead_lines = ahead.lines > tiles->ahead_lines ? ahead.lines : tiles->ahead_lines;
    }
    return true;
}

static bool score_rows(const task *t)
{
    const gaac_layout *layout = t->call->layout;
    const uint32_t dim_k = layout->shape.head_dim_k;
    const float *q = t->scratch->q + first_row(t) * dim_k;
    bool accumulate = false;
    for (uint32_t u = 0; u < layout->units; u++) {
        const gaac_unit *unit = &layout->unit[u];
        gaac_step_tiles tiles;
        if (!unit->has_k)
            continue;
        if (!load_tiles(t, u, GAAC_K, &tiles))
            return false;
        t->score(unit->fragments, &tiles, t->place->rows, q, dim_k, t->scratch->scores, accumulate);
        accumulate = true;
        q += unit->channels;
    }
    return true;
}

/* Rows that share a mask row: one, or the group of a token. */
static uint32_t rows_a_mask(const task *t)
{
    const gaac_attention_args *args = t->call->args;
    return args->mask_kind == GAAC_MASK_ADDITIVE_F16 && args->mask_head_stride != 0 ? 1 : t->call->plan.group;
}

/* Where the heads share them, the first one's masks stand for all. */
static void fill_masks(const task *t)
{
    if (t->head != 0 && rows_a_mask(t) != 1)
        return;
    const uint32_t step = rows_a_mask(t);
    for (uint32_t row = 0; row < t->place->rows; row += step)
        gaac_mask_fill(t->call->args, row_token(t, row), row_head(t, row), &t->now.step,
                       &t->scratch->masks[row / step]);
}

static void soften_rows(const task *t)
{
    const gaac_attention_args *args = t->call->args;
    const uint32_t rows_each = rows_a_mask(t);
    for (uint32_t row = 0; row < t->place->rows; row++) {
        const gaac_mask_row *mask = &t->scratch->masks[row / rows_each];
        const double slope = args->slopes != NULL ? args->slopes[row_head(t, row)] : 1;
        const gaac_logit_params params = {
            .scale = args->softcap != 0 ? args->scale / args->softcap : (float)(args->scale * LOG2_E),
            .softcap = (float)(args->softcap * LOG2_E),
            .slope = (float)(slope * LOG2_E),
        };
        t->scratch->factors[row] = t->call->kernels->softmax(t->scratch->scores + (size_t)row * GAAC_STEP_TOKENS,
                                                             mask->visible, mask->biased ? mask->bias : NULL, &params,
                                                             &t->partial->states[first_row(t) + row]);
    }
}

static void weigh(const task *t, const gaac_unit *unit, const gaac_step_tiles *tiles, uint32_t acc_offset, uint32_t row,
                  uint32_t rows)
{
    const uint32_t dim_v = t->call->layout->shape.head_dim_v;
    float *acc = t->partial->acc + (first_row(t) + row) * dim_v + acc_offset;
    t->weigh(unit->fragments, tiles, rows, t->scratch->scores + (size_t)row * GAAC_STEP_TOKENS,
             t->scratch->factors + row, acc, dim_v);
}

/* Tokens of the step that lie in blocks with a NaN or infinity. */
static uint64_t unclean_tokens(const task *t)
{
    uint64_t bits = 0;
    for (unsigned i = 0; i < t->now.step.count; i++) {
        if (!t->now.view[i].finite)
            bits |= UINT64_C(0xffff) << i * GAAC_BLOCK_TOKENS;
    }
    return bits;
}

static uint64_t hidden_unclean(const task *t, uint32_t row, uint64_t unclean)
{
    return unclean & ~t->scratch->masks[row / rows_a_mask(t)].visible;
}

/* weigh() where 0 x NaN lurks: rows that hide the same tokens run together on tiles without those. Same
 * numbers as weigh() where all is finite. */
static void weigh_clean(const task *t, const gaac_unit *unit, const gaac_step_tiles *tiles, uint32_t acc_offset,
                        uint64_t unclean)
{
    for (uint32_t row = 0, end; row < t->place->rows; row = end) {
        const uint64_t hidden = hidden_unclean(t, row, unclean);
        gaac_step_tiles clean = *tiles;
        clean.ahead_lines = row == 0 ? tiles->ahead_lines : 0;
        for (end = row + 1; end < t->place->rows && hidden_unclean(t, end, unclean) == hidden;)
            end++;
        if (hidden != 0)
            gaac_tiles_clean_v(unit->fragments, &clean, ~hidden, t->scratch->tiles->clean);
        weigh(t, unit, &clean, acc_offset, row, end - row);
    }
}

static bool weigh_rows(const task *t)
{
    const gaac_layout *layout = t->call->layout;
    const uint64_t unclean = unclean_tokens(t);
    uint32_t acc_offset = 0;
    for (uint32_t u = 0; u < layout->units; u++) {
        const gaac_unit *unit = &layout->unit[u];
        gaac_step_tiles tiles;
        if (!unit->has_v)
            continue;
        if (!load_tiles(t, u, GAAC_V, &tiles))
            return false;
        if (unclean == 0)
            weigh(t, unit, &tiles, acc_offset, 0, t->place->rows);
        else
            weigh_clean(t, unit, &tiles, acc_offset, unclean);
        acc_offset += unit->channels;
    }
    return true;
}

static bool run_head(const task *t)
{
    fill_masks(t);
    if (!score_rows(t))
        return false;
    soften_rows(t);
    return weigh_rows(t);
}

static bool run_steps(task *t, const gaac_live_blocks *live, uint64_t first, uint64_t end)
{
    prepare_rows(t);
    view_step(t, live, first, end, &t->next);
    while (t->next.step.count != 0) {
        t->now = t->next;
        first += t->now.step.count;
        view_step(t, live, first, end, &t->next);
        for (t->head = 0; t->head < t->place->heads; t->head++) {
            if (!run_head(t))
                return false;
        }
    }
    return true;
}

bool gaac_task_run(const gaac_attention_call *call, const gaac_attention_place *place, const gaac_live_blocks *live,
                   uint64_t first, uint64_t count, const gaac_task_scratch *scratch, const gaac_partial *partial)
{
    const gaac_attention_kernels *kernels = call->kernels;
    const bool few = call->plan.batch_rows <= kernels->few_rows; /* of the plan: the same for all of its tasks */
    task t = {
        .call = call,
        .place = place,
        .scratch = scratch,
        .partial = partial,
        .score = few ? kernels->score_few : kernels->score,
        .weigh = few ? kernels->weigh_few : kernels->weigh,
    };
    gaac_kernel_context before;
    if (!few && kernels->enter != NULL)
        kernels->enter(&before);
    const bool good = run_steps(&t, live, first, first + count);
    if (!few && kernels->leave != NULL)
        kernels->leave(&before);
    return good;
}
