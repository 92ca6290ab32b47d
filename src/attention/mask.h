/* Which cells a query sees, whatever the kind of mask. */
#ifndef GAAC_ATTENTION_MASK_H
#define GAAC_ATTENTION_MASK_H

#include "attention/kernels.h"
#include "gaac/attention.h"

/* The blocks of one step, in the order of its tiles. count 1 .. GAAC_STEP_TILES. */
typedef struct gaac_step {
    unsigned count;
    uint64_t block[GAAC_STEP_TILES];
} gaac_step;

/* What one query (token, and head where the mask differs by head) sees of a step. */
typedef struct gaac_mask_row {
    _Alignas(64) uint16_t bias[GAAC_STEP_TOKENS]; /* F16; only valid if biased */
    uint64_t visible;                             /* bit = token of the step */
    bool biased;                                  /* some visible cell has a bias other than 0 */
} gaac_mask_row;

/* Blocks that at least one of some queries sees: the run first .. first + count - 1, or, if index is not
 * NULL, index[0 .. count - 1] in ascending order. */
typedef struct gaac_live_blocks {
    uint64_t first, count;
    const uint64_t *index;
} gaac_live_blocks;

static inline uint64_t gaac_live_block(const gaac_live_blocks *live, uint64_t i)
{
    return live->index ? live->index[i] : live->first + i;
}

/* The live blocks of `tokens` query tokens from first_token on and `heads` query heads from first_head on.
 * room: space for one number per block of args->cells, used (and then owned by the result) only for
 * GAAC_MASK_ADDITIVE_F16. */
gaac_live_blocks gaac_mask_live_blocks(const gaac_attention_args *args, uint32_t first_token, uint32_t tokens,
                                       uint32_t first_head, uint32_t heads, uint64_t *room);

void gaac_mask_fill(const gaac_attention_args *args, uint32_t token, uint32_t head, const gaac_step *step,
                    gaac_mask_row *row);

static inline uint64_t gaac_blocks_of(uint64_t cells)
{
    return (cells + GAAC_BLOCK_TOKENS - 1) / GAAC_BLOCK_TOKENS;
}

#endif
