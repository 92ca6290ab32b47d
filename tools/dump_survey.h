/* What a KV dump looks like to the codec, by layer, part and head: the numbers behind gaac inspect. */
#ifndef GAAC_TOOL_DUMP_SURVEY_H
#define GAAC_TOOL_DUMP_SURVEY_H

#include "kv_dump.h"

/* Exponents relative to their channel's window base b4: index i stands for b4 + i - SURVEY_BELOW; what lies
 * further out is counted at the ends. */
enum { SURVEY_BELOW = 16, SURVEY_WIDTH = 48 };

/* One layer, part and head, with windows chosen on all its tokens. */
typedef struct survey_head {
    unsigned base_least, base_most;           /* b4 over its channels */
    double entropy;                           /* bits an exponent, all channels together */
    double channel_entropy;                   /* mean over its channels of each one's own */
    uint64_t groups, groups_4bit, exceptions; /* of whole blocks */
    double bf16_bytes, code_bytes;            /* of whole blocks */
    uint64_t relative[SURVEY_WIDTH];
} survey_head;

typedef struct dump_survey {
    uint32_t layers, heads, head_dim;
    uint64_t tokens;
    survey_head *head; /* [layer][part][head], owned */
} dump_survey;

gaac_status dump_survey_make(dump_survey *survey, const kv_dump *dump, const char *name, gaac_error *error);
void dump_survey_free(dump_survey *survey);

const survey_head *dump_survey_at(const dump_survey *survey, uint32_t layer, gaac_part part, uint32_t head);
/* Sums over heads; ranges, entropies: the widest, the mean. */
survey_head dump_survey_part(const dump_survey *survey, uint32_t layer, gaac_part part);
/* Sums over everything. */
survey_head dump_survey_all(const dump_survey *survey);

/* Shares and ratios of a head or of sums; 0 where there is no whole block. */
double survey_share_4bit(const survey_head *head);
double survey_exceptions_per_tile(const survey_head *head);
double survey_coded_ratio(const survey_head *head);

#endif
