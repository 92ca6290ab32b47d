#!/usr/bin/env python3
"""Compares binding.py with include/gaac/gaac_cuda.h through the C compiler: sizes, offsets, functions. Needs no GPU.

usage: test_binding.py [CC]
"""
import ctypes
import pathlib
import re
import subprocess
import sys
import tempfile

import binding

INCLUDE = pathlib.Path(__file__).resolve().parents[2] / "include"


def c_layout(compiler):
    """What the compiler says: {struct: {"": size, field: (offset, size)}}."""
    lines = ["#include <gaac/gaac_cuda.h>", "#include <stdio.h>", "int main(void) {"]
    for struct, kind in binding.STRUCTS.items():
        lines.append(f'printf("{struct} . %zu 0\\n", sizeof({struct}));')
        for field in kind._fields_:
            lines.append(f'printf("{struct} {field[0]} %zu %zu\\n", offsetof({struct}, {field[0]}), '
                         f"sizeof((({struct} *)0)->{field[0]}));")
    for name, value in (("GAAC_BLOCK_TOKENS", "BLOCK_TOKENS"), ("GAAC_CUDA_MAX_QUERY_TOKENS", "MAX_QUERY_TOKENS"),
                        ("GAAC_CUDA_MAX_EPOCHS", "MAX_EPOCHS"), ("GAAC_CUDA_BF16", "BF16"), ("GAAC_CUDA_F32", "F32")):
        lines.append(f'printf("constant {value} %d 0\\n", (int){name});')
    lines.append("return 0; }")
    with tempfile.TemporaryDirectory() as folder:
        source, program = pathlib.Path(folder, "layout.c"), pathlib.Path(folder, "layout")
        source.write_text("\n".join(lines), encoding="utf-8")
        subprocess.run([compiler, "-std=c11", f"-I{INCLUDE}", "-o", program, source], check=True)
        output = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    return [(words[0], words[1], int(words[2]), int(words[3])) for words in map(str.split, output.splitlines())]


def header_functions():
    """{name: number of parameters} of all functions of the header."""
    text = re.sub(r"/\*.*?\*/", "", (INCLUDE / "gaac/gaac_cuda.h").read_text(encoding="utf-8"), flags=re.DOTALL)
    found = re.findall(r"GAAC_API[^;(]*?\b(gaac_cuda\w*)\(([^)]*)\)", text)
    return {name: len(parameters.split(",")) for name, parameters in found}


def main():
    compiler = sys.argv[1] if len(sys.argv) > 1 else "cc"
    faults = []
    for struct, field, first, second in c_layout(compiler):
        if struct == "constant":
            ours, theirs = (getattr(binding, field),), (first,)
        elif field == ".":
            ours, theirs = (ctypes.sizeof(binding.STRUCTS[struct]),), (first,)
        else:
            place = getattr(binding.STRUCTS[struct], field)
            ours, theirs = (place.offset, place.size), (first, second)
        if ours != theirs:
            faults.append(f"{struct} {field}: {ours} here, {theirs} in C")
    # A field that the header has and the binding lacks shows in the size, or in the offsets behind it, unless it fits
    # into padding: so the names are compared too.
    text = re.sub(r"/\*.*?\*/", "", "".join((INCLUDE / "gaac" / name).read_text(encoding="utf-8")
                                            for name in ("common.h", "gaac_cuda.h")), flags=re.DOTALL)
    for struct, kind in binding.STRUCTS.items():
        body = re.search(r"typedef struct " + struct + r"\s*\{(.*?)\}\s*" + struct, text, flags=re.DOTALL).group(1)
        names = [re.sub(r"\[.*?\]", "", part).split()[-1].lstrip("*")
                 for line in body.split(";") if line.strip() for part in line.split(",")]
        if names != [field[0] for field in kind._fields_]:
            faults.append(f"{struct}: fields {[field[0] for field in kind._fields_]} here, {names} in C")
    functions = header_functions()
    ours = {name: len(arguments) for name, (_, arguments) in binding.FUNCTIONS.items()}
    for name in sorted(set(functions) | set(ours)):
        if functions.get(name) != ours.get(name):
            faults.append(f"{name}: {ours.get(name)} parameters here, {functions.get(name)} in C")
    for fault in faults:
        print(fault, file=sys.stderr)
    print(f"{len(binding.STRUCTS)} structs and {len(functions)} functions compared: {len(faults)} differences")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
