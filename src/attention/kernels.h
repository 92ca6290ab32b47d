/* Attention's inner kernels: dot products of query rows with K tiles and of weights with V tiles, both in
 * fragment order (format/layout.h). src/cpu fills the table for the machine. */
#ifndef GAAC_ATTENTION_KERNELS_H
#define GAAC_ATTENTION_KERNELS_H

#include "format/layout.h"

/* TODO(attention room): function types and the table. */
typedef struct gaac_attention_kernels {
    int placeholder;
} gaac_attention_kernels;

void gaac_attention_kernels_init_c(gaac_attention_kernels *kernels);

#endif
