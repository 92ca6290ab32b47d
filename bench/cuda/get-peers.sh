#!/usr/bin/env bash
# What bench.py compares with, packed for a machine without network: FlashAttention 3 as vLLM ships it, FlashInfer with
# its kernels compiled ahead, nvCOMP, and samples of real keys and values. For compute capability 9.0, Python 3.12 and
# torch 2.11 on 64-bit x86.
#   bench/cuda/get-peers.sh [KV]    KV: folder with the samples (*.npy), default ../shared/data/kv
# Makes build/cuda-packs/peers.tar.xz and kv.tar.xz. Unpack both into one folder and give that to bench.py with --peers.
# Needs nvcc, ninja and a Python 3.12: PYTHON names one with torch 2.11, else one is put together (3 GB).
set -euo pipefail
cd "$(dirname "$0")/../.."
kv=$(realpath "${1:-../shared/data/kv}")
here=$PWD/bench/cuda
mkdir -p build/cuda-peers/wheels build/cuda-packs
cd build/cuda-peers

python=${PYTHON:-}
if [ -z "$python" ]; then
    [ -x venv/bin/python ] || python3.12 -m venv venv
    python=$PWD/venv/bin/python
    "$python" -m pip install -q torch==2.11.0 numpy
fi
# The build needs these of what FlashInfer asks for; the rest serves other kernels.
[ -d needs ] || "$python" -m pip install -q --target needs --no-deps click einops requests urllib3 idna certifi \
    charset-normalizer tabulate tqdm packaging nvidia-ml-py
get() {
    "$python" -m pip download -q --no-deps --only-binary=:all: --python-version 3.12 --implementation cp --abi cp312 \
        --abi abi3 --abi none --platform manylinux_2_28_x86_64 --platform manylinux_2_24_x86_64 \
        --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 -d wheels "$1"
}
get vllm==0.26.0
get flashinfer-python==0.7.4
get apache-tvm-ffi==0.1.15.post2
get nvidia-libnvcomp-cu13==6.0.0.12

rm -rf full peers
mkdir -p full peers/site
unzip -q -o wheels/vllm-*.whl 'vllm/vllm_flash_attn/_vllm_fa3_C*' -d full
unzip -q -o wheels/nvidia_libnvcomp_cu13-*.whl 'nvidia/libnvcomp/lib64/libnvcomp.so.6' -d full
unzip -q -o wheels/flashinfer_python-*.whl -d full
unzip -q -o wheels/apache_tvm_ffi-*.whl -d full

python3 "$here/keep_architecture.py" full/vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so peers/flash3.so 90
strip --strip-unneeded peers/flash3.so
python3 "$here/keep_architecture.py" full/nvidia/libnvcomp/lib64/libnvcomp.so.6 peers/libnvcomp.so.6 90

# XQA's libraries name the driver's: a machine without one loads the toolkit's stand-in.
nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
toolkit=$(dirname "$(dirname "$(realpath "$nvcc")")")
stub=$(find "$toolkit/" -name libcuda.so -path '*stubs*' | head -n 1)
mkdir -p driver
ln -sf "$stub" driver/libcuda.so.1
PATH=$toolkit/bin:$PATH CUDA_HOME=$toolkit MAX_JOBS=$(nproc) PYTHONPATH=$PWD/full:$PWD/needs \
    LD_LIBRARY_PATH=$PWD/driver${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} \
    "$python" "$here/build_flashinfer.py" --site full --work flashinfer-build --trimmed peers/site

packs=../cuda-packs
tar -C peers -cf - . | xz -T0 -6 >$packs/peers.tar.xz
mkdir -p peers/kv
cp "$kv"/*.npy peers/kv/
tar -C peers -cf - kv | xz -T0 -6 >$packs/kv.tar.xz
ls -l $packs
