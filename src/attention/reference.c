/* The definition of gaac_attention's result: each query alone, cell by cell, in double.
 *
 * Tolerance. Let u = 2^-24, n the cells that a query sees, D = head_dim_k, s a logit before the softmax and A
 * the sum of |q k| behind it. In F32, summed in any order,
 *   the dot product is off by at most D u A (and scaling and log2 e add 3 roundings of s),
 *   bias, the subtraction of the maximum and the softcap's tanh (2^-22 of the cap) add their own,
 * so a logit is off by delta <= (D + 4) u scale A + 4 u (|s| + |max| + |bias|) + 2^-22 cap, and its weight by the
 * factor 1 +- (delta + 2^-22), 2^-22 being the kernels' exponential. Numerator and denominator have that error
 * once each; summing n terms adds n u to each, and rescaling once a step of 64 cells 2 u. Kernels may take weights
 * for a little less than they are (gaac_attention_kernels.weight_error, up to 2^-16), and subnormal numbers for
 * zero. Together
 *   |out - exact| <= (2 max delta + 2^-21 + 2^-16 + 3 n u + 32 u) * sum(w |v|) / sum(w) + (n + 1) 2^-126. */
#include "attention/attention.h"
#include "attention/kernels.h"
#include "base/base.h"
#include "cache/view.h"

#include <math.h>

static const double U = 0x1p-24;

typedef struct reference {
    const gaac_attention_args *args;
    gaac_shape shape;
    uint16_t *k, *v; /* [cells][kv_heads][head_dim] */
    double *logits;  /* [cells], -inf where hidden */
    double *acc;     /* [head_dim_v] */
    double *size;    /* [head_dim_v]: sum of weight * |v| */
} reference;

static bool visible(const gaac_attention_args *args, uint32_t token, uint32_t head, uint64_t cell, double *bias)
{
    *bias = 0;
    if (args->mask_kind == GAAC_MASK_CAUSAL) {
        const uint64_t last = args->causal_first + token;
        return cell <= last && (args->window == 0 || cell + args->window > last);
    }
    if (args->mask_kind == GAAC_MASK_ADDITIVE_F16) {
        const uint16_t bits = args->mask[token * args->mask_token_stride + head * args->mask_head_stride + cell];
        *bias = gaac_f16_to_float(bits);
        return bits != 0xfc00;
    }
    return true;
}

/* Logits of one query; returns the largest, and the bound on their error. */
static double score(const reference *r, uint32_t token, uint32_t head, double *error)
{
    const gaac_attention_args *args = r->args;
    const uint32_t kv_head = head / (args->query_heads / r->shape.kv_heads);
    const float *q = args->q + token * args->q_token_stride + head * args->q_head_stride;
    double max = -INFINITY, largest = 0, worst = 0;
    for (uint64_t cell = 0; cell < args->cells; cell++) {
        const uint16_t *k = r->k + (cell * r->shape.kv_heads + kv_head) * r->shape.head_dim_k;
        double bias, s = 0, size = 0;
        r->logits[cell] = -INFINITY;
        if (!visible(args, token, head, cell, &bias))
            continue;
        for (uint32_t i = 0; i < r->shape.head_dim_k; i++) {
            const double product = (double)gaac_bf16_to_float(gaac_float_to_bf16(q[i])) * gaac_bf16_to_float(k[i]);
            s += product;
            size += fabs(product);
        }
        s *= args->scale;
        if (args->softcap != 0)
            s = args->softcap * tanh(s / args->softcap);
        bias *= args->slopes != NULL ? args->slopes[head] : 1;
        r->logits[cell] = s + bias;
        max = fmax(max, s + bias);
        largest = fmax(largest, fabs(s) + fabs(bias));
        worst = fmax(worst, size);
    }
    *error = (r->shape.head_dim_k + 4) * U * fabs(args->scale) * worst + 8 * U * largest + 0x1p-22 * args->softcap;
    return max;
}

static void attend(const reference *r, uint32_t token, uint32_t head, float *out, float *tolerance)
{
    const gaac_attention_args *args = r->args;
    const uint32_t kv_head = head / (args->query_heads / r->shape.kv_heads), dim = r->shape.head_dim_v;
    double error, sum = 0, count = 0;
    double max = score(r, token, head, &error);
    if (args->sinks != NULL && args->sinks[head] > max)
        max = args->sinks[head];
    const double base = max == -INFINITY ? 0 : max;
    for (uint32_t i = 0; i < dim; i++)
        r->acc[i] = r->size[i] = 0;
    for (uint64_t cell = 0; cell < args->cells; cell++) {
        const uint16_t *v = r->v + (cell * r->shape.kv_heads + kv_head) * dim;
        const double w = exp(r->logits[cell] - base);
        if (r->logits[cell] == -INFINITY)
            continue;
        sum += w;
        count++;
        for (uint32_t i = 0; i < dim; i++) {
            r->acc[i] += w * gaac_bf16_to_float(v[i]);
            r->size[i] += w * fabs(gaac_bf16_to_float(v[i]));
        }
    }
    if (args->sinks != NULL)
        sum += exp(args->sinks[head] - base);
    for (uint32_t i = 0; i < dim; i++) {
        out[i] = sum == 0 ? 0 : (float)(r->acc[i] / sum);
        if (tolerance != NULL)
            tolerance[i] =
                (float)((2 * error + 0x1p-21 + 0x1p-16 + (3 * count + 32) * U) * (sum == 0 ? 0 : r->size[i] / sum) +
                        (double)(count + 1) * 0x1p-126);
    }
}

static void attend_all(const reference *r, float *tolerance)
{
    const gaac_attention_args *args = r->args;
    for (uint32_t token = 0; token < args->query_tokens; token++) {
        for (uint32_t head = 0; head < args->query_heads; head++) {
            const size_t at = token * args->out_token_stride + head * args->out_head_stride;
            attend(r, token, head, args->out + at, tolerance != NULL ? tolerance + at : NULL);
        }
    }
}

gaac_status gaac_attention_reference(const gaac_cache *cache, const gaac_attention_args *args, float *tolerance,
                                     gaac_error *error)
{
    gaac_status status = gaac_attention_check(cache, args, error);
    if (status != GAAC_OK)
        return status;

    const gaac_allocator *allocator = gaac_cache_allocator(cache);
    reference r = {.args = args, .shape = gaac_cache_layout(cache, args->layer)->shape};
    const size_t k_stride = (size_t)r.shape.kv_heads * r.shape.head_dim_k;
    const size_t v_stride = (size_t)r.shape.kv_heads * r.shape.head_dim_v;
    const size_t k_bytes = args->cells * k_stride * sizeof *r.k + 1, v_bytes = args->cells * v_stride * sizeof *r.v + 1;
    const size_t number_bytes = (args->cells + 2 * (size_t)r.shape.head_dim_v) * sizeof(double);
    r.k = gaac_calloc(allocator, k_bytes);
    r.v = gaac_calloc(allocator, v_bytes);
    r.acc = gaac_calloc(allocator, number_bytes);
    if (r.k == NULL || r.v == NULL || r.acc == NULL) {
        status = gaac_fail(error, GAAC_ERROR_OUT_OF_MEMORY, "attention: no memory for the reference's rows");
    } else {
        r.size = r.acc + r.shape.head_dim_v;
        r.logits = r.size + r.shape.head_dim_v;
        status = gaac_cache_read(cache, args->layer, GAAC_K, args->sequence, 0, args->cells, r.k, k_stride, error);
        if (status == GAAC_OK)
            status = gaac_cache_read(cache, args->layer, GAAC_V, args->sequence, 0, args->cells, r.v, v_stride, error);
        if (status == GAAC_OK)
            attend_all(&r, tolerance);
    }
    gaac_free(allocator, r.acc, number_bytes);
    gaac_free(allocator, r.v, v_bytes);
    gaac_free(allocator, r.k, k_bytes);
    return status;
}
