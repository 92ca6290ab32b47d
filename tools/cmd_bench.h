/* What gaac bench measures: each has a file of its own. argv[0] is the name; each returns an exit code. */
#ifndef GAAC_TOOL_CMD_BENCH_H
#define GAAC_TOOL_CMD_BENCH_H

int cmd_bench_codec(int argc, char **argv);
int cmd_bench_attention(int argc, char **argv);

#endif
