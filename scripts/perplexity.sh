#!/usr/bin/env bash
# Does another KV cache change what a model predicts? Perplexity over a text with stock llama.cpp's f16 and
# bf16 caches, and with GAAC, each compared with stock bf16. Some minutes on two cores.
#   scripts/perplexity.sh TEXT_FILE [CHUNKS]
# CHUNKS of 2048 tokens (default 4, 40 KB of text); the second half of each is what counts. GAAC_MODEL
# names another model (GGUF), GAAC_PLUGIN another libggml-gaac.so than build/release has, GAAC_CPU other kernels.
#
# It measures the model as it is and once more with the same weights stored as F32 (converted once, into
# build/deps). Both are needed: with weights of few bits llama.cpp also rounds every activation to 8 bits, and
# that turns differences in a sum's last bit into ones that are seen, at random. F32 weights round nothing, so
# there the difference that attention itself makes is what is left.
#
# The columns: perplexity; its difference from stock bf16, with the standard error of that difference token by
# token; mean Kullback-Leibler divergence from stock bf16's probabilities; how often both find the same token
# most likely. The criterion: GAAC differs from stock bf16 by less than stock f16 does, or by less than 0.1%.
# Exit status 1 when it is not met with F32 weights: that is a mistake in GAAC, not noise.
set -euo pipefail

usage() {
    echo "usage: scripts/perplexity.sh TEXT_FILE [CHUNKS] (10 KB of text for each chunk; default 4)" >&2
    exit 2
}
if [ $# -lt 1 ] || [ $# -gt 2 ] || [ ! -r "$1" ]; then usage; fi
text=$(realpath "$1")
chunks=${2:-4}
[[ $chunks =~ ^[1-9][0-9]{0,3}$ ]] || usage
root=$(cd "$(dirname "$0")/.." && pwd)
plugin=${GAAC_PLUGIN:-$root/build/release/integrations/llama.cpp/libggml-gaac.so}
[ -e "$plugin" ] || { echo "perplexity.sh: $plugin is missing: run make first" >&2; exit 1; }
"$root/scripts/get-models.sh"
"$root/scripts/get-stock.sh" all
deps=$root/build/deps
bin=$deps/stock/bin
for program in llama-perplexity llama-quantize; do
    [ -x "$bin/$program" ] || { echo "perplexity.sh: $bin/$program is missing: build that target too" >&2; exit 1; }
done
model=$deps/smollm2.gguf
threads=$(nproc 2>/dev/null || echo 2)
# The probabilities of stock bf16 take two bytes for each word of the vocabulary and token: too much for some /tmp.
work=$(mktemp -d "$root/build/perplexity.XXXXXX")
trap 'rm -rf "$work"' EXIT
# Variables of the user's must not turn a stock run into a GAAC run, or change GAAC's.
unset GGML_BACKEND_PATH GAAC_MODE GAAC_MEMORY GAAC_PROFILE GAAC_STATS

widened() { # prints the name of the model with F32 weights
    local f32=$deps/model-f32.gguf key
    key=$(sha256sum <"$model")
    if [ ! -s "$f32" ] || [ "$(cat "$f32.of" 2>/dev/null)" != "$key" ]; then
        rm -f "$f32" "$f32.of"
        if ! "$bin/llama-quantize" --allow-requantize "$model" "$f32.new" F32 >"$work/log" 2>&1; then
            tail -n 20 "$work/log" >&2
            rm -f "$f32.new"
            echo "perplexity.sh: storing the weights as F32 failed" >&2
            return 1
        fi
        mv "$f32.new" "$f32"
        echo "$key" >"$f32.of"
    fi
    echo "$f32"
}

measure() { # name, model, then the flags that differ; leaves what llama-perplexity said in $work/log
    local name=$1 weights=$2
    shift 2
    if ! "$bin/llama-perplexity" -m "$weights" -f "$text" -c 2048 -b 2048 -ub 512 --chunks "$chunks" \
        -t "$threads" -fa on "$@" >"$work/log" 2>&1; then
        tail -n 20 "$work/log" >&2
        echo "perplexity.sh: $name failed" >&2
        exit 1
    fi
}

number() { # name, what stands in front of it in the log: prints it
    sed -n "s/.*$2 *\(-\{0,1\}[0-9][0-9.]*\).*/\1/p" "$work/log" | grep . && return
    tail -n 20 "$work/log" >&2
    echo "perplexity.sh: $1 printed no result (is the text long enough?)" >&2
    exit 1
}

# llama-perplexity's own ratio is against a perplexity from rounded probabilities (0.01% off), so only its
# standard error is taken.
compared() { # name, model, flags: prints perplexity, standard error, divergence, same token in percent
    local perplexity error divergence same
    measure "$@" --kl-divergence --kl-divergence-base "$work/probabilities"
    perplexity=$(number "$1" 'Mean PPL(Q)  *:') || exit 1
    error=$(number "$1" 'Mean ln(PPL(Q)\/PPL(base)).*±') || exit 1
    divergence=$(number "$1" 'Mean  *KLD:') || exit 1
    same=$(number "$1" 'Same top p:') || exit 1
    echo "$perplexity $error $divergence $same"
}

table() { # title, model: prints the table and the verdict; status 1 when the criterion is not met
    echo "$1"
    measure "stock bf16" "$2" -ctk bf16 -ctv bf16 --save-all-logits "$work/probabilities"
    local bf16 f16 gaac
    bf16=$(number "stock bf16" 'Final estimate: PPL =') || exit 1
    f16=$(compared "stock f16" "$2" -ctk f16 -ctv f16) || exit 1
    gaac=$(GGML_BACKEND_PATH=$plugin compared GAAC "$2" -dev GAAC0 -ngl 99 -ctk bf16 -ctv bf16) || exit 1
    awk -v bf16="$bf16" -v f16="$f16" -v gaac="$gaac" '
        function row(name, values,  part) {
            split(values, part)
            difference = 100 * (part[1] / bf16 - 1)
            error = 100 * part[2]
            printf "  %-10s %10.4f   %+8.4f%% +- %.4f%%   %9.6f   %7.3f%%\n", \
                name, part[1], difference, error, part[3], part[4]
        }
        function size(x) { return x < 0 ? -x : x }
        BEGIN {
            printf "  %-10s %10s   %20s   %9s   %8s\n", \
                "KV cache", "perplexity", "from stock bf16", "mean KLD", "same top"
            printf "  %-10s %10.4f\n", "stock bf16", bf16
            row("stock f16", f16)
            allowed = size(difference) > 0.1 ? size(difference) : 0.1
            row("GAAC", gaac)
            met = size(difference) < allowed
            printf "  criterion %s: %.4f%%, and %.4f%% is allowed", met ? "met" : "not met", size(difference), allowed
            if (!met)
                printf "; %.1f standard errors from no difference", size(difference) / error
            print ""
            exit !met
        }'
}

f32=$(widened)
table "Weights as they are" "$model" || true # what noise may do
table "The same weights as F32" "$f32"
