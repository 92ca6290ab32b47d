// What the attention kernel is given, and where a head's parts lie, known at compile time.
#ifndef GAAC_CUDA_ATTENTION_PARAMS_CUH
#define GAAC_CUDA_ATTENTION_PARAMS_CUH

#include "cuda/attention_plan.cuh"
#include "cuda/unit_decode.cuh"

namespace gaac
{

// A head of `dim` channels, K and V alike: units of 128 channels, then one of 64, then a raw rest.
template <int dim> struct head_shape {
    static constexpr int wide = dim / 128, narrow = dim % 128 / 64, units = wide + narrow;
    static constexpr int halves = 2 * wide + narrow;
    static constexpr int rest = dim % 64 / GAAC_FRAGMENT_CHANNELS;     // fragments of the remainder unit
    static constexpr int fragments = dim / GAAC_FRAGMENT_CHANNELS;     // of K or of V
    static constexpr int part_bytes = fragments * GAAC_FRAGMENT_BYTES; // K or V of a raw block
    static constexpr int rest_fixed = 2 * halves * GAAC_PART_FIXED_BYTES;
    static constexpr int fixed_bytes = rest_fixed + 2 * rest * GAAC_FRAGMENT_BYTES;
    __host__ __device__ static constexpr int hv(int unit) { return unit < wide ? 2 : 1; }
    __host__ __device__ static constexpr int unit_fixed(int unit) { return 4 * GAAC_PART_FIXED_BYTES * unit; }
    // Of a part in fragment order, from its start: where a unit's fragments lie, and how many bytes they are. A raw
    // block has a unit's K and V side by side.
    __host__ __device__ static constexpr int unit_part(int unit) { return 8 * GAAC_FRAGMENT_BYTES * unit; }
    __host__ __device__ static constexpr int unit_part_bytes(int unit) { return 4 * GAAC_FRAGMENT_BYTES * hv(unit); }
    static constexpr int rest_part = 4 * GAAC_FRAGMENT_BYTES * halves, rest_part_bytes = rest * GAAC_FRAGMENT_BYTES;
    static constexpr uint32_t window_bytes = halves * (window_k_bytes + window_v_bytes); // an epoch's
    // In a stage a unit's variable part has room for lengths of 5 (hv 2) or 4 bits, with which one test finds longer
    // ones. Real KV takes a third of that; longer ones are decoded from device memory, slowly. Like the memory that
    // they are copied from, stages and parts begin on 128-byte lines: copies across lines take twice as many steps.
    __host__ __device__ static constexpr uint32_t overlong(int unit) { return hv(unit) == 2 ? 0xe0000u : 0xf0000u; }
    __host__ __device__ static constexpr int variable(int unit) { return fixed_bytes + 512 * unit; }
    static constexpr int stage_bytes = fixed_bytes + 512 * wide + 256 * narrow;
};
// What may be read behind the last stage: eight stored bytes are read at a time, wherever tags put them.
constexpr int stage_slack = 768;

struct attention_params {
    cache_view cache;
    uint64_t fixed_bytes, raw_bytes; // of all heads
    uint32_t window_bytes;           // of an epoch
    plan_shape shape;
    const rank_work *work;
    uint32_t *counters;
    float *maxima, *totals, *partial;
    const int32_t *block_table;
    uint64_t block_table_stride;
    const uint16_t *q;
    uint64_t q_token_stride, q_head_stride;
    void *out;
    uint64_t out_token_stride, out_head_stride;
    float *lse;
    const float *slopes, *sinks;
    float scale_log2; // scale * log2(e): the softmax counts in powers of two
    float softcap;    // times log2(e); 0 = none
    float softcap_in; // scale / softcap
    int group;        // query heads of a KV head
    int query_heads;
    bool out_f32;
    factors f;
};

} // namespace gaac

#endif
