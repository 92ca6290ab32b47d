/* Score and weigh kernels with AMX-BF16: products of tiles of 16 x 32 and 32 x 16 BF16 values, summed in F32. The rest
 * is AVX-512's (attention_avx512.c), which also explains the order of fragments.
 *
 * One product takes about 18 cycles, most of them for reading its second operand, whatever the number of query rows
 * up to 16: that is a vector of K or V a cycle, where vector arithmetic takes five for a group of four rows.
 *
 * The second operands are lines of 16 pairs. Decoded tiles consist of them; fragments, as raw blocks have, go
 * through a buffer.
 *
 * Queries are BF16 already. Weights are not: each is split into two BF16 values, the leading 8 bits and the next 8 (an
 * error below 2^-16 of it), whose products fill the lower and upper half of one tile. The rest may be 0 only where
 * the weight is, else an infinite value would meet it as 0 x infinity.
 *
 * The processor takes subnormal operands and results as zeros here. Products of rows that are not there are
 * made from what the buffer holds, and not looked at. */
#include "cpu/attention_avx512.h"
#include "cpu/cpu.h"
#include "cpu/pack_avx512bf16.h"

#include <string.h>

enum {
    TILE_ROWS = 16,  /* of each operand and of the result */
    TILE_DEPTH = 32, /* elements that one product sums over: 16 pairs */
    WEIGHT_ROWS = 8, /* rows of weights in a tile, in two parts */
    MAX_CHUNKS = MAX_CHANNELS / TILE_DEPTH,
    STEP_CHUNKS = GAAC_STEP_TOKENS / TILE_DEPTH,
    SUM_BYTES = VECTOR * sizeof(float),                      /* of a row of a result tile */
    V_FRAGMENT = GAAC_V_FRAGMENT_LINES * GAAC_LINE_ELEMENTS, /* of two blocks: 16 lines */
};

/* 16 lines of 16 pairs: the second operand of a product. */
typedef uint32_t pair_tile[TILE_ROWS][VECTOR];
/* A result. */
typedef float sum_tile[TILE_ROWS][VECTOR];

/* The compiler doesn't know that the tile instructions read and write memory. */
#define BARRIER() __asm__ volatile("" ::: "memory")

/* How registers 0..7 are cut: all 16 rows of 64 bytes. 0..3 are sums, 4 a first operand, 5 to 7 second ones. */
typedef struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tile_config;

_Static_assert(sizeof(tile_config) == sizeof(gaac_kernel_context), "what ldtilecfg reads");

static void enter_amx(gaac_kernel_context *before)
{
    _Alignas(64) static const tile_config config = {
        .palette = 1,
        .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64},
        .rows = {16, 16, 16, 16, 16, 16, 16, 16},
    };
    _tile_storeconfig(before);
    _tile_loadconfig(&config);
    BARRIER();
}

/* Puts the host's own configuration back: it may count on it in its threads. */
static void leave_amx(const gaac_kernel_context *before)
{
    if (before->bytes[0] != 0)
        _tile_loadconfig(before);
    else
        _tile_release();
}

INLINE void zero_sums(void)
{
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
}

/* sum[i] += register 4 times the 16 lines at b[i]. */
INLINE void multiply(const void *const b[4])
{
    _tile_loadd(5, b[0], 64);
    _tile_dpbf16ps(0, 4, 5);
    _tile_loadd(6, b[1], 64);
    _tile_dpbf16ps(1, 4, 6);
    _tile_loadd(7, b[2], 64);
    _tile_dpbf16ps(2, 4, 7);
    _tile_loadd(5, b[3], 64);
    _tile_dpbf16ps(3, 4, 5);
}

/* Turns `first` .. `first` + 15. */
INLINE void fetch_sixteen(const gaac_step_tiles *tiles, unsigned pace, unsigned first)
{
    for (unsigned line = first; line < first + TILE_ROWS; line++)
        fetch_ahead(tiles, pace, line);
}

INLINE void load_sums(sum_tile sums[4])
{
    BARRIER();
    _tile_loadd(0, sums[0], SUM_BYTES);
    _tile_loadd(1, sums[1], SUM_BYTES);
    _tile_loadd(2, sums[2], SUM_BYTES);
    _tile_loadd(3, sums[3], SUM_BYTES);
}

INLINE void store_sums(sum_tile sums[4])
{
    _tile_stored(0, sums[0], SUM_BYTES);
    _tile_stored(1, sums[1], SUM_BYTES);
    _tile_stored(2, sums[2], SUM_BYTES);
    _tile_stored(3, sums[3], SUM_BYTES);
    BARRIER();
}

/* ---- scores ----------------------------------------------------------------------------------- */

/* 32 channels (two fragments, in the order of prepared rows) of K of the step's tiles. */
INLINE void gather_k(unsigned fragments, unsigned chunk, unsigned pace, const gaac_step_tiles *tiles,
                     pair_tile out[GAAC_STEP_TILES])
{
    for (unsigned line = 0; line < TILE_ROWS; line++) {
        const unsigned f = 2 * chunk + line / 8, t = line >> 1 & 3;
        const __m512i places = _mm512_load_si512(k_places[t][line & 1]);
        if (f < fragments)
            fetch_ahead(tiles, pace, f * 8 + line % 8);
        for (unsigned i = 0; i < GAAC_STEP_TILES; i++)
            _mm512_store_si512(out[i][line],
                               f < fragments ? gather(tiles->tile[i], f, t, places) : _mm512_setzero_si512());
    }
}

INLINE void scores_to_sums(unsigned rows, const float *scores, sum_tile sums[GAAC_STEP_TILES])
{
    for (unsigned r = 0; r < rows; r++) {
        for (unsigned i = 0; i < GAAC_STEP_TILES; i++)
            _mm512_store_ps(sums[i][r], _mm512_load_ps(scores + r * GAAC_STEP_TOKENS + i * VECTOR));
    }
}

INLINE void sums_to_scores(unsigned rows, sum_tile sums[GAAC_STEP_TILES], float *scores)
{
    for (unsigned r = 0; r < rows; r++) {
        for (unsigned i = 0; i < GAAC_STEP_TILES; i++)
            _mm512_store_ps(scores + r * GAAC_STEP_TOKENS + i * VECTOR, _mm512_load_ps(sums[i][r]));
    }
}

static void score_amx(unsigned fragments, const gaac_step_tiles *tiles, unsigned rows, const float *q, size_t q_stride,
                      float *scores, bool accumulate)
{
    _Alignas(64) pair_tile k[MAX_CHUNKS][GAAC_STEP_TILES];
    _Alignas(64) uint32_t packed[TILE_ROWS][MAX_CHANNELS / 2];
    _Alignas(64) sum_tile sums[GAAC_STEP_TILES];
    const unsigned chunks = (fragments + 1) / 2;
    const unsigned pace = pace_of(tiles, fragments);
    /* Two chunks serve where none is needed again: that leaves the first-level cache to what is fetched ahead. */
    const unsigned kept = rows <= TILE_ROWS ? 2 : MAX_CHUNKS;
    for (unsigned first = 0; first < rows; first += TILE_ROWS) {
        const unsigned n = rows - first < TILE_ROWS ? rows - first : TILE_ROWS;
        for (unsigned r = 0; r < n; r++)
            pack_row(fragments, q + (first + r) * q_stride, packed[r]);
        if (accumulate) {
            scores_to_sums(n, scores + (size_t)first * GAAC_STEP_TOKENS, sums);
            load_sums(sums);
        } else {
            zero_sums();
        }
        for (unsigned chunk = 0; chunk < chunks; chunk++) {
            const void *lines[GAAC_STEP_TILES];
            for (unsigned i = 0; i < GAAC_STEP_TILES; i++)
                lines[i] = tiles->lines ? (const void *)(tiles->tile[i] + chunk * TILE_ROWS * GAAC_LINE_ELEMENTS)
                                        : k[chunk % kept][i];
            /* One ahead: tiles are loaded from memory only, so they would wait for what was just stored. */
            if (first == 0 && tiles->lines) {
                fetch_sixteen(tiles, pace, chunk * TILE_ROWS);
            } else if (first == 0) {
                if (chunk == 0)
                    gather_k(fragments, 0, pace, tiles, k[0]);
                if (chunk + 1 < chunks)
                    gather_k(fragments, chunk + 1, pace, tiles, k[(chunk + 1) % kept]);
            }
            BARRIER();
            _tile_loadd(4, &packed[0][chunk * TILE_DEPTH / 2], sizeof packed[0]);
            multiply(lines);
        }
        store_sums(sums);
        sums_to_scores(n, sums, scores + (size_t)first * GAAC_STEP_TOKENS);
    }
}

/* ---- weights ---------------------------------------------------------------------------------- */

/* 32 tokens (two tiles) of V of up to four fragments from f on; the fragments that are missing are not touched. */
INLINE void gather_v(unsigned n, unsigned f, unsigned chunk, unsigned pace, const gaac_step_tiles *tiles,
                     pair_tile out[4])
{
    for (unsigned line = 0; line < TILE_ROWS; line++) {
        const unsigned half = line >> 2 & 1, t = line & 3;
        const __m512i places = _mm512_load_si512(v_places[t][half]);
        const uint16_t *tile = tiles->tile[2 * chunk + line / 8];
        if (line * n % 4 == 0) /* 4 n lines in 16 turns */
            fetch_ahead(tiles, pace, 8 * f + chunk * 4 * n + line * n / 4);
        for (unsigned i = 0; i < n; i++)
            _mm512_store_si512(out[i][line], gather(tile, f + i, t, places));
    }
}

/* Weights of up to 8 rows: [chunk][row, then row's rest][32]. */
INLINE void pack_weights(unsigned rows, const float *weights, uint16_t packed[STEP_CHUNKS][TILE_ROWS][TILE_DEPTH])
{
    for (unsigned r = 0; r < rows; r++, weights += GAAC_STEP_TOKENS) {
        for (unsigned chunk = 0; chunk < STEP_CHUNKS; chunk++) {
            __m512i leading, rest;
            split_weights(weights + chunk * TILE_DEPTH, &leading, &rest);
            _mm512_store_si512(packed[chunk][r], leading);
            _mm512_store_si512(packed[chunk][WEIGHT_ROWS + r], rest);
        }
    }
}

INLINE void sums_to_acc(unsigned rows, unsigned n, sum_tile sums[4], const float *factors, float *acc,
                        size_t acc_stride)
{
    for (unsigned r = 0; r < rows; r++) {
        for (unsigned i = 0; i < n; i++)
            add_to(acc + r * acc_stride + i * VECTOR, factors + r,
                   _mm512_add_ps(_mm512_load_ps(sums[i][r]), _mm512_load_ps(sums[i][WEIGHT_ROWS + r])));
    }
}

static void weigh_amx(unsigned fragments, const gaac_step_tiles *tiles, unsigned rows, const float *weights,
                      const float *factors, float *acc, size_t acc_stride)
{
    _Alignas(64) pair_tile v[2 * STEP_CHUNKS][4]; /* [fragments 0..3, 4..7][chunk] */
    _Alignas(64) uint16_t packed[STEP_CHUNKS][TILE_ROWS][TILE_DEPTH];
    _Alignas(64) sum_tile sums[4];
    const unsigned pace = pace_of(tiles, fragments);
    const unsigned kept = rows <= WEIGHT_ROWS ? 2 : 2 * STEP_CHUNKS; /* as in score_amx */
    for (unsigned first = 0; first < rows; first += WEIGHT_ROWS) {
        const unsigned r = rows - first < WEIGHT_ROWS ? rows - first : WEIGHT_ROWS;
        pack_weights(r, weights + (size_t)first * GAAC_STEP_TOKENS, packed);
        for (unsigned f = 0; f < fragments; f += 4) {
            const unsigned n = fragments - f < 4 ? fragments - f : 4;
            zero_sums();
            for (unsigned chunk = 0; chunk < STEP_CHUNKS; chunk++) {
                pair_tile *own = v[(f / 4 * STEP_CHUNKS + chunk) % kept];
                const void *lines[4];
                for (unsigned i = 0; i < 4; i++)
                    lines[i] = tiles->lines ? (const void *)(tiles->tile[2 * chunk] + (f + i) * V_FRAGMENT) : own[i];
                if (first == 0 && tiles->lines)
                    fetch_sixteen(tiles, pace, 8 * f + chunk * TILE_ROWS);
                else if (first == 0 && n == 4)
                    gather_v(4, f, chunk, pace, tiles, own);
                else if (first == 0)
                    gather_v(n, f, chunk, pace, tiles, own);
                BARRIER();
                _tile_loadd(4, packed[chunk], sizeof packed[chunk][0]);
                multiply(lines);
            }
            store_sums(sums);
            sums_to_acc(r, n, sums, factors + first, acc + first * acc_stride + f * VECTOR, acc_stride);
        }
    }
}

void gaac_attention_kernels_init_amx(gaac_attention_kernels *kernels)
{
    kernels->enter = enter_amx;
    kernels->leave = leave_amx;
    /* AVX-512's: groups of up to four rows are multiplied as fast from registers, and raw blocks, whose lines would go
     * through a buffer, faster (16 GB/s on one core of a Granite Rapids, against 12). From five rows on they are not.
     */
    kernels->score_few = kernels->score;
    kernels->weigh_few = kernels->weigh;
    kernels->few_rows = 4;
    kernels->weight_error = 0x1p-16f;
    kernels->score = score_amx;
    kernels->weigh = weigh_amx;
}
