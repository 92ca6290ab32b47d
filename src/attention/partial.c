/* Merging the sums of splits, and turning sums into outputs. */
#include "attention/task.h"

#include <math.h>

static const double LOG2_E = 1.4426950408889634;

/* 2^-inf is 0 also against a maximum of -inf (nothing visible on either side). */
static float weight_of(float max, float new_max)
{
    return max == -INFINITY ? 0 : exp2f(max - new_max);
}

void gaac_partial_merge(uint32_t rows, uint32_t head_dim_v, const gaac_partial *into, const gaac_partial *from)
{
    for (uint32_t row = 0; row < rows; row++) {
        gaac_softmax_state *a = &into->states[row];
        const gaac_softmax_state *b = &from->states[row];
        float *a_acc = into->acc + (size_t)row * head_dim_v;
        const float *b_acc = from->acc + (size_t)row * head_dim_v;
        const float max = a->max > b->max ? a->max : b->max;
        const float a_factor = weight_of(a->max, max), b_factor = weight_of(b->max, max);
        a->max = max;
        a->sum = a->sum * a_factor + b->sum * b_factor;
        for (uint32_t i = 0; i < head_dim_v; i++)
            a_acc[i] = a_acc[i] * a_factor + b_acc[i] * b_factor;
    }
}

/* What a row's accumulators are multiplied by: 1 / sum, the sink counted in. 0 if it saw nothing. */
static float final_factor(gaac_softmax_state state, const float *sink)
{
    float factor = 1;
    if (sink != NULL) {
        const float logit = (float)(*sink * LOG2_E);
        const float max = logit > state.max ? logit : state.max;
        factor = weight_of(state.max, max);
        state.sum = state.sum * factor + weight_of(logit, max);
    }
    return state.sum == 0 ? 0 : factor / state.sum;
}

static void write_row(const gaac_attention_call *call, const float *acc, float factor, float *out)
{
    const uint8_t *v_order = call->kernels->v_order;
    for (uint32_t u = 0; u < call->layout->units; u++) {
        const gaac_unit *unit = &call->layout->unit[u];
        if (!unit->has_v)
            continue;
        for (unsigned f = 0; f < unit->fragments; f++) {
            for (unsigned i = 0; i < GAAC_FRAGMENT_CHANNELS; i++, acc++) {
                const unsigned channel = 2 * unit->fragments * (v_order[i] >> 1) + 2 * f + (v_order[i] & 1);
                out[unit->channel + channel] = factor != 0 ? *acc * factor : 0;
            }
        }
    }
}

void gaac_partial_finish(const gaac_attention_call *call, const gaac_attention_place *place,
                         const gaac_partial *partial)
{
    const gaac_attention_args *args = call->args;
    const uint32_t group = call->plan.group, dim_v = call->layout->shape.head_dim_v;
    for (uint32_t row = 0; row < place->heads * place->rows; row++) {
        const uint32_t kv_head = place->first_head + row / place->rows, query = row % place->rows;
        const uint32_t token = place->first_token + query / group, head = kv_head * group + query % group;
        const float *sink = args->sinks != NULL ? &args->sinks[head] : NULL;
        write_row(call, partial->acc + (size_t)row * dim_v, final_factor(partial->states[row], sink),
                  args->out + token * args->out_token_stride + head * args->out_head_stride);
    }
}
