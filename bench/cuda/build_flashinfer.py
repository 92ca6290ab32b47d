"""Compiles the FlashInfer kernels that bench.py calls, for one architecture, without a GPU. Called by get-peers.sh.

FlashInfer compiles a kernel when it is first called. Here the same functions that its wrappers call are called ahead of
time, and the libraries that come out are put where FlashInfer looks for ready-made ones.
"""
import argparse
import os
import pathlib
import shutil
import subprocess

# (head_dim, query heads of a KV head) of bench.py's cases, for kernels that are compiled for one ratio each.
XQA = ((128, 8), (128, 4), (64, 8), (256, 8))
XQA_PAGE = 64
TENSOR_CORES = (128, 64, 256)
CUDA_CORES = (128,)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--site", type=pathlib.Path, required=True, help="folder with the flashinfer package")
    parser.add_argument("--work", type=pathlib.Path, required=True, help="folder for what the compiler leaves")
    arguments = parser.parse_args()
    os.environ.setdefault("FLASHINFER_CUDA_ARCH_LIST", "9.0a")
    os.environ["FLASHINFER_WORKSPACE_BASE"] = str(arguments.work.resolve())

    import torch
    from flashinfer.decode import get_batch_decode_module
    from flashinfer.jit import env
    from flashinfer.prefill import get_batch_prefill_module
    from flashinfer.xqa import get_xqa_module

    kind = (torch.bfloat16, torch.bfloat16, torch.bfloat16, torch.int32)
    for head_dim in TENSOR_CORES:
        print(f"tensor-core decode, head_dim {head_dim}", flush=True)
        get_batch_prefill_module("fa2", *kind, head_dim, head_dim, 0, False, False, False, False)
    for head_dim in CUDA_CORES:
        print(f"CUDA-core decode, head_dim {head_dim}", flush=True)
        get_batch_decode_module(*kind, head_dim, head_dim, 0, False, False)
    for head_dim, group in XQA:
        print(f"XQA, head_dim {head_dim}, GQA {group}", flush=True)
        get_xqa_module(torch.bfloat16, torch.bfloat16, XQA_PAGE, head_dim, group, False, torch.bfloat16, 1)

    ready = arguments.site / "flashinfer/data/aot"
    for library in sorted(pathlib.Path(env.FLASHINFER_JIT_DIR).glob("*/*.so")):
        target = ready / library.parent.name / library.name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(library, target)
        subprocess.run(["strip", "--strip-unneeded", str(target)], check=True)
        print(f"{library.name}: {target.stat().st_size} bytes", flush=True)


if __name__ == "__main__":
    main()
