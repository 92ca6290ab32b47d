/* Runs llama-perplexity as a child and shows how far it is. */
#ifndef GAAC_TOOL_FOLLOW_H
#define GAAC_TOOL_FOLLOW_H

#include "launch.h"

/* Runs the program to its end. Its output is shown with `verbose`; otherwise progress is drawn from it (the
 * "[3]12.3456," that llama-perplexity prints after each of `chunks` contexts) and its last lines are shown if
 * it fails. Returns an exit code. */
int follow_program(const host_launch *launch, uint64_t chunks, bool verbose);

#endif
