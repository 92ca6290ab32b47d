/* Visibility of cells: the three kinds of mask become bits and F16 biases of a step. */
#include "attention/mask.h"

#include <string.h>

#define F16_MINUS_INF 0xfc00u
#define FOUR_MINUS_INF UINT64_C(0xfc00fc00fc00fc00)

/* Cells [first, end) that a query token sees by its position alone. */
typedef struct cell_range {
    uint64_t first, end;
} cell_range;

static uint64_t min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static cell_range range_of(const gaac_attention_args *args, uint32_t token)
{
    cell_range range = {0, args->cells};
    if (args->mask_kind == GAAC_MASK_CAUSAL) {
        const uint64_t own = min_u64(args->causal_first, UINT64_MAX - 1 - token) + token;
        range.end = min_u64(args->cells, own + 1);
        if (args->window != 0 && own + 1 > args->window)
            range.first = min_u64(own + 1 - args->window, range.end);
    }
    return range;
}

/* The cells of `range` in a block, as 16 bits. */
static uint64_t range_bits(cell_range range, uint64_t block)
{
    const uint64_t start = block * GAAC_BLOCK_TOKENS, end = start + GAAC_BLOCK_TOKENS;
    const uint64_t low = range.first > start ? min_u64(range.first, end) - start : 0;
    const uint64_t high = range.end < end ? (range.end > start ? range.end - start : 0) : GAAC_BLOCK_TOKENS;
    return high > low ? ((UINT64_C(1) << high) - 1) & ~((UINT64_C(1) << low) - 1) : 0;
}

static const uint16_t *mask_at(const gaac_attention_args *args, uint32_t token, uint32_t head, uint64_t block)
{
    return args->mask + token * args->mask_token_stride + head * args->mask_head_stride + block * GAAC_BLOCK_TOKENS;
}

static bool all_hidden(const uint16_t *mask, unsigned cells)
{
    unsigned i = 0;
    for (; i + 4 <= cells; i += 4) {
        uint64_t four;
        memcpy(&four, mask + i, sizeof four);
        if (four != FOUR_MINUS_INF)
            return false;
    }
    for (; i < cells; i++) {
        if (mask[i] != F16_MINUS_INF)
            return false;
    }
    return true;
}

static unsigned cells_in_block(const gaac_attention_args *args, uint64_t block)
{
    return (unsigned)min_u64(GAAC_BLOCK_TOKENS, args->cells - block * GAAC_BLOCK_TOKENS);
}

/* Whether one of the queries sees a cell of the block, under an additive mask. */
static bool block_is_live(const gaac_attention_args *args, uint32_t first_token, uint32_t tokens, uint32_t first_head,
                          uint32_t heads, uint64_t block)
{
    const unsigned cells = cells_in_block(args, block);
    const uint32_t distinct_heads = args->mask_head_stride != 0 ? heads : 1;
    /* The newest token first: in a causal mask it sees the most. */
    for (uint32_t i = tokens; i-- > 0;) {
        for (uint32_t h = 0; h < distinct_heads; h++) {
            if (!all_hidden(mask_at(args, first_token + i, first_head + h, block), cells))
                return true;
        }
    }
    return false;
}

gaac_live_blocks gaac_mask_live_blocks(const gaac_attention_args *args, uint32_t first_token, uint32_t tokens,
                                       uint32_t first_head, uint32_t heads, uint64_t *room)
{
    gaac_live_blocks live = {0, 0, NULL};
    if (args->mask_kind != GAAC_MASK_ADDITIVE_F16) {
        /* Each token's range starts and ends at or after the one before: their union has no gap but
         * between ranges that don't touch, whose blocks in between are harmless. */
        const uint64_t first = range_of(args, first_token).first, end = range_of(args, first_token + tokens - 1).end;
        live.first = first / GAAC_BLOCK_TOKENS;
        live.count = end > first ? gaac_blocks_of(end) - live.first : 0;
        return live;
    }
    live.index = room;
    for (uint64_t block = 0; block < gaac_blocks_of(args->cells); block++) {
        if (block_is_live(args, first_token, tokens, first_head, heads, block))
            room[live.count++] = block;
    }
    return live;
}

/* Reads a block's additive mask into 16 biases; returns the visible bits. */
static uint64_t fill_additive(const uint16_t *mask, unsigned cells, uint16_t *bias, bool *biased)
{
    uint64_t visible = 0;
    for (unsigned i = 0; i < cells; i += 4) {
        uint64_t four = FOUR_MINUS_INF;
        const unsigned n = cells - i < 4 ? cells - i : 4;
        memcpy(&four, mask + i, n * sizeof *mask);
        memcpy(bias + i, &four, sizeof four);
        if (four == 0) {
            visible |= UINT64_C(15) << i;
        } else if (four != FOUR_MINUS_INF) {
            for (unsigned j = i; j < i + n; j++) {
                visible |= (uint64_t)(bias[j] != F16_MINUS_INF) << j;
                *biased |= bias[j] != F16_MINUS_INF && bias[j] != 0;
            }
        }
    }
    return visible;
}

void gaac_mask_fill(const gaac_attention_args *args, uint32_t token, uint32_t head, const gaac_step *step,
                    gaac_mask_row *row)
{
    const cell_range range = range_of(args, token);
    row->visible = 0;
    row->biased = false;
    for (unsigned i = 0; i < step->count; i++) {
        const unsigned shift = i * GAAC_BLOCK_TOKENS;
        uint64_t bits;
        if (args->mask_kind == GAAC_MASK_ADDITIVE_F16)
            bits = fill_additive(mask_at(args, token, head, step->block[i]), cells_in_block(args, step->block[i]),
                                 row->bias + shift, &row->biased);
        else
            bits = range_bits(range, step->block[i]);
        row->visible |= bits << shift;
    }
}
