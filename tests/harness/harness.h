/* The check-and-time harness of the kernel tables (the way of dav1d's checkasm).
 *
 * A family lists the entries of one table: codec kernels, attention kernels. For every entry, every shape
 * and every instruction set that has its own version of the entry, the harness first runs the entry's check
 * (the version against the plain C definition, on inputs biased to the corners, bytes around the outputs
 * included) and only then, when asked, its benchmark. So nothing is timed that was not checked.
 *
 * To add a family: define a `const harness_family harness_<name>` in check_<name>.c, declare it below and
 * add it to the list in harness.c. */
#ifndef GAAC_TESTS_HARNESS_H
#define GAAC_TESTS_HARNESS_H

#include "attention/kernels.h"
#include "cpu/cpu.h"

#include <stdio.h>

/* The kernel tables of one instruction set. */
typedef struct harness_tables {
    gaac_isa isa;
    gaac_codec_kernels codec;
    gaac_attention_kernels attention;
} harness_tables;

/* State of a run. Checks read `tables` and `definition`; the rest belongs to harness.c. */
typedef struct harness harness;
struct harness {
    const harness_tables *tables;     /* under test */
    const harness_tables *definition; /* plain C */
    unsigned rounds;                  /* how many inputs a check should draw */
    uint64_t seed;                    /* of the run */
    uint64_t state;                   /* of the generator */
    FILE *out;                        /* where failures and figures are printed */
    const char *label;                /* what runs now: entry, shape and set */
    unsigned failures;                /* of the entry that runs now */
    struct harness_buffer *buffers;   /* guarded memory of the entry that runs now */
    double best_ns;                   /* harness_time's result: the fastest call seen */
    size_t call_bytes;                /* harness_time's argument */
};

/* Any function pointer, for comparison only. */
typedef void harness_function(void);

/* One entry of a table. */
typedef struct harness_entry {
    const char *name; /* "decode_k" */
    unsigned shapes;  /* the check is run for shape 0 .. shapes - 1 */
    /* Writes the shape's name ("hv2"). */
    void (*describe)(unsigned shape, char *text, size_t bytes);
    /* The entry's pointer in the tables: a set whose pointer is that of the set below has none of its own. */
    harness_function *(*function)(const harness_tables *tables);
    /* Runs h->tables against h->definition, h->rounds times; reports through harness_fail or harness_equal. */
    void (*check)(harness *h, unsigned shape);
    /* Prepares data that fits L2, then calls harness_time once. tables: of either side. NULL: not timed. */
    void (*bench)(harness *h, const harness_tables *tables, unsigned shape);
} harness_entry;

typedef struct harness_family {
    const char *name;
    unsigned count;
    const harness_entry *entries;
} harness_family;

extern const harness_family harness_codec;     /* check_codec.c */
extern const harness_family harness_attention; /* check_attention.c */

typedef struct harness_options {
    const char *filter; /* only entries whose "family.entry/shape" contains it; NULL: all */
    bool bench;
    unsigned rounds; /* 0: the default */
    uint64_t seed;   /* 0: the default */
    bool quiet;      /* print only failures and figures */
} harness_options;

/* Runs every family on every instruction set that the machine has; the number of failed (entry, shape, set)
 * triples is returned. *checked (may be NULL) gets the number of triples checked. */
unsigned harness_run(const harness_options *options, FILE *out, unsigned *checked);

/* The same on given tables: tables[0] is the definition, each later set is checked where it differs from the
 * set before it. */
unsigned harness_run_sets(const harness_options *options, const harness_tables *tables, unsigned sets, FILE *out,
                          unsigned *checked);

/* What runs now, for a signal handler: a kernel that leaves its buffers ends in one. */
extern const char *volatile harness_running;

/* ---- for checks ------------------------------------------------------------------------------- */

/* Uniform random bits from the run's seed; a number below `bound` (> 0). */
uint64_t harness_random(harness *h);
uint32_t harness_below(harness *h, uint32_t bound);
void harness_random_bytes(harness *h, void *bytes, size_t size);

/* `bytes` bytes (> 0) that end right before an unreadable page; in front of them lie guard bytes, checked
 * by harness_guards and again when the entry's check returns. If bytes is a multiple of 64 the start is
 * 64-byte aligned. Filled with a pattern. Freed when the check or benchmark returns. */
void *harness_memory(harness *h, size_t bytes);

/* Gives memory of harness_memory a new size, no larger than it was made with, ending at the same page; what
 * lies before it becomes guard bytes. Content is undefined. Returns the new start. For outputs and inputs
 * whose length changes from round to round. */
void *harness_resize(harness *h, void *memory, size_t bytes);

/* Checks the guard bytes of all memory of the entry; `what` names the call that was made. */
bool harness_guards(harness *h, const char *what);

/* Reports a failure: printf format, one line. Only the first few of an entry are printed. */
void harness_fail(harness *h, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Compares bytes; on a difference reports `what` and the first offset that differs, and returns false. */
bool harness_equal(harness *h, const char *what, const void *expected, const void *actual, size_t bytes);

/* Times run(context), which is one pass of `calls` calls that each handle bf16_bytes bytes of BF16. */
void harness_time(harness *h, void (*run)(void *context), void *context, unsigned calls, size_t bf16_bytes);

#endif
