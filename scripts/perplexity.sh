#!/usr/bin/env bash
# Perplexity of the demo's model over 4 x 2048 tokens of a text, with three KV caches: stock llama.cpp's
# f16 and bf16, and GAAC. Some minutes on two cores.
#   scripts/perplexity.sh TEXT_FILE
# GAAC_MODEL names another model (GGUF), GAAC_PLUGIN another libggml-gaac.so than build/release has.
set -euo pipefail

[ $# -eq 1 ] && [ -r "${1:-}" ] || { echo "usage: scripts/perplexity.sh TEXT_FILE (about 40 KB of text)" >&2; exit 2; }
text=$(realpath "$1")
root=$(cd "$(dirname "$0")/.." && pwd)
plugin=${GAAC_PLUGIN:-$root/build/release/integrations/llama.cpp/libggml-gaac.so}
[ -e "$plugin" ] || { echo "perplexity.sh: $plugin is missing: run make first" >&2; exit 1; }
"$root/scripts/get-models.sh"
"$root/scripts/get-stock.sh" all
model=$root/build/deps/smollm2.gguf
threads=$(nproc 2>/dev/null || echo 2)
log=$(mktemp)
trap 'rm -f "$log"' EXIT

measure() { # name, then the flags that differ; prints the perplexity
    local name=$1
    shift
    "$root/build/deps/stock/bin/llama-perplexity" -m "$model" -f "$text" -c 2048 -b 2048 -ub 512 --chunks 4 \
        -t "$threads" -fa on "$@" >"$log" 2>&1 || { tail -n 20 "$log" >&2; echo "$name failed" >&2; exit 1; }
    sed -n 's/.*Final estimate: PPL = \([0-9.]*\).*/\1/p' "$log" | grep . ||
        { tail -n 20 "$log" >&2; echo "perplexity.sh: $name printed no estimate (is the text long enough?)" >&2; exit 1; }
}
# Variables of the user's must not turn a stock run into a GAAC run, or change GAAC's.
unset GGML_BACKEND_PATH GAAC_MODE GAAC_MEMORY GAAC_PROFILE GAAC_STATS
f16=$(measure "stock f16" -ctk f16 -ctv f16)
echo "stock f16   $f16"
bf16=$(measure "stock bf16" -ctk bf16 -ctv bf16)
echo "stock bf16  $bf16"
gaac=$(GGML_BACKEND_PATH=$plugin measure GAAC -dev GAAC0 -ngl 99 -ctk bf16 -ctv bf16)
echo "GAAC        $gaac"
awk -v f16="$f16" -v bf16="$bf16" -v gaac="$gaac" 'BEGIN {
    printf "against stock bf16: stock f16 %+.4f%%, GAAC %+.4f%%\n", 100 * (f16 / bf16 - 1), 100 * (gaac / bf16 - 1) }'
