"""Compiles the FlashInfer kernels that bench.py calls, for one architecture, without a GPU. Called by get-peers.sh.

FlashInfer compiles a kernel when it is first called. Here the same functions that its wrappers call are called ahead of
time, and the libraries that come out are put where FlashInfer looks for ready-made ones, in a copy of the package
without the sources of its kernels.
"""
import argparse
import os
import pathlib
import shutil
import subprocess
import sys

# (head_dim, query heads of a KV head) of bench.py's cases, for kernels that are compiled for one ratio each.
XQA = ((128, 8), (128, 4), (64, 8), (256, 8))
XQA_PAGE = 64
TENSOR_CORES = (128, 64, 256)
CUDA_CORES = (128,)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--site", type=pathlib.Path, required=True, help="folder with flashinfer and tvm_ffi")
    parser.add_argument("--trimmed", type=pathlib.Path, required=True, help="folder for the copy of both")
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

    trim(arguments.site, arguments.trimmed)
    ready = arguments.trimmed / "flashinfer/data/aot"
    for library in sorted(pathlib.Path(env.FLASHINFER_JIT_DIR).glob("*/*.so")):
        target = ready / library.parent.name / library.name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(library, target)
        subprocess.run(["strip", "--strip-unneeded", str(target)], check=True)
        print(f"{target.stat().st_size} bytes: {library.stem}", flush=True)


def trim(site, out):
    """Python, and the templates that names of kernels are made with. Of flashinfer.experimental only what is loaded."""
    loaded = {pathlib.Path(module.__file__).resolve() for module in list(sys.modules.values())
              if getattr(module, "__file__", None)}
    for path in sorted((site / "flashinfer").rglob("*")):
        name = path.relative_to(site)
        template = name.parent == pathlib.Path("flashinfer/data/csrc")
        if name.parts[1] == "experimental" and path.resolve() not in loaded:
            continue
        if path.is_file() and (template or (path.suffix == ".py" and name.parts[1] != "data")):
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, out / name)
    shutil.copytree(site / "tvm_ffi", out / "tvm_ffi", dirs_exist_ok=True,
                    ignore=shutil.ignore_patterns("include", "3rdparty", "__pycache__"))
    for folder in [*site.glob("flashinfer_python-*.dist-info"), *site.glob("apache_tvm_ffi-*.dist-info")]:
        shutil.copytree(folder, out / folder.name, dirs_exist_ok=True)


if __name__ == "__main__":
    main()
