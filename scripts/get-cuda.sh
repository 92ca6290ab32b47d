#!/usr/bin/env bash
# Where no nvcc is found, unpacks NVIDIA's CUDA compiler and runtime for building (not for running) under
# build/deps/cuda, from the wheels that NVIDIA keeps on PyPI. Nothing is installed, no GPU is needed. `make` alone
# doesn't call this: without nvcc it builds no libgaac_cuda.
set -euo pipefail

wheels=(nvidia-cuda-nvcc==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-runtime==13.0.96)
root=$(cd "$(dirname "$0")/.." && pwd)/build/deps
if [ -x "$root/cuda/bin/nvcc" ] || [ -x "${CUDACXX:-}" ] || [ -x "${CUDA_PATH:-}/bin/nvcc" ] ||
    [ -x "${CUDA_HOME:-}/bin/nvcc" ] || [ -x /usr/local/cuda/bin/nvcc ] || command -v nvcc >/dev/null; then
    exit 0
fi

echo "Fetching the CUDA compiler, through pip: ${wheels[*]}"
work=$root/cuda.new
rm -rf "$work" "$root/cuda"
mkdir -p "$work"
python3 -m pip install --no-deps --no-compile --disable-pip-version-check --target "$work" "${wheels[@]}" \
    >"$root/cuda.log" 2>&1 || { cat "$root/cuda.log" >&2; exit 1; }
mv "$work/nvidia/cu13" "$root/cuda"
# The licence goes along.
mv "$work"/nvidia_cuda_nvcc-*.dist-info/licenses "$root/cuda/"
rm -rf "$work"
