#!/usr/bin/env bash
# Packs what `make cuda-device` built so that it runs on a machine with NVIDIA's driver and nothing else of ours or
# CUDA's: the GPU tests and benchmarks, and beside them the libraries they need but libc's.
#   scripts/cuda-device.sh [BUILD_TREE [FOLDER]]      default: build/cuda-device-tree into build/cuda-device
# There: build/cuda-device/run-on-device.sh
set -euo pipefail
cd "$(dirname "$0")/.."
tree=${1:-build/cuda-device-tree}
package=${2:-build/cuda-device}

rm -rf "$package"
mkdir -p "$package/bin" "$package/lib"
for program in "$tree"/tests/cuda/test_cuda_* "$tree"/bench/cuda/*; do
    if [ -f "$program" ] && [ -x "$program" ]; then cp "$program" "$package/bin/"; fi
done
[ -n "$(ls "$package/bin")" ] || { echo "cuda-device.sh: $tree has no GPU tests: run make cuda-device" >&2; exit 1; }
for program in "$package"/bin/*; do
    # libc's own libraries are on every machine.
    ldd "$program" | awk '/=> \// { print $3 }' | grep -vE '/(libc|libm|libdl|librt|libpthread|ld-linux[^/]*)\.so' || true
done | sort -u | while read -r library; do cp -L "$library" "$package/lib/"; done
strip --strip-unneeded "$package"/bin/* "$package"/lib/*
cp tests/cuda/run-on-device.sh "$package/"
"$tree/tests/cuda/test_travel" write "$package/cpu-blocks.json"
du -sh "$package" | sed 's/^/packed: /'
