#!/usr/bin/env python3
"""Compares binding.py with include/gaac/gaac_cuda.h: sizes, offsets and constants through a C compiler (CC, or cc),
fields and functions by name. Needs no GPU."""
import ctypes
import os
import pathlib
import re
import subprocess
import tempfile
import unittest

import binding

INCLUDE = pathlib.Path(__file__).resolve().parents[2] / "include"
CONSTANTS = {"GAAC_BLOCK_TOKENS": "BLOCK_TOKENS", "GAAC_CUDA_MAX_QUERY_TOKENS": "MAX_QUERY_TOKENS",
             "GAAC_CUDA_MAX_EPOCHS": "MAX_EPOCHS", "GAAC_CUDA_BF16": "BF16", "GAAC_CUDA_F32": "F32"}


def header_text(*names):
    text = "".join((INCLUDE / "gaac" / name).read_text(encoding="utf-8") for name in names)
    return re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)


def expectations():
    """Expressions in C and what binding.py says they are."""
    for struct, kind in binding.STRUCTS.items():
        yield f"sizeof({struct})", ctypes.sizeof(kind)
        for field, *_ in kind._fields_:
            place = getattr(kind, field)
            yield f"offsetof({struct}, {field})", place.offset
            yield f"sizeof((({struct} *)0)->{field})", place.size
    for name, ours in CONSTANTS.items():
        yield name, getattr(binding, ours)


def compile_c(lines):
    """What the compiler says against a translation unit of these lines."""
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder, "layout.c")
        source.write_text("\n".join(["#include <gaac/gaac_cuda.h>", "#include <stddef.h>", *lines, ""]),
                          encoding="utf-8")
        result = subprocess.run([os.environ.get("CC", "cc"), "-std=c11", f"-I{INCLUDE}", "-c", "-o",
                                 str(source.with_suffix(".o")), str(source)], capture_output=True, text=True,
                                check=False)
    return result.stderr if result.returncode else ""


class BindingTest(unittest.TestCase):
    def test_layout(self):
        lines = [f'_Static_assert({c} == {value}, "binding.py: {c} is {value}");' for c, value in expectations()]
        self.assertGreater(len(lines), 100)
        self.assertEqual(compile_c(lines), "")

    def test_layout_notices_a_difference(self):
        struct, kind = next(iter(binding.STRUCTS.items()))
        size = ctypes.sizeof(kind)
        self.assertIn("differs", compile_c([f'_Static_assert(sizeof({struct}) == {size + 1}, "differs");']))

    def test_fields(self):
        """A field that the binding lacks shows in the layout unless it fits into padding, so names are compared."""
        text = header_text("common.h", "gaac_cuda.h")
        for struct, kind in binding.STRUCTS.items():
            with self.subTest(struct):
                body = re.search(r"typedef struct " + struct + r"\s*\{(.*?)\}\s*" + struct, text,
                                 flags=re.DOTALL).group(1)
                names = [re.sub(r"\[.*?\]", "", part).split()[-1].lstrip("*")
                         for line in body.split(";") if line.strip() for part in line.split(",")]
                self.assertEqual([field[0] for field in kind._fields_], names)

    def test_functions(self):
        found = re.findall(r"GAAC_API[^;(]*?\b(gaac_cuda\w*)\(([^)]*)\)", header_text("gaac_cuda.h"))
        self.assertEqual({name: len(arguments) for name, (_, arguments) in binding.FUNCTIONS.items()},
                         {name: len(parameters.split(",")) for name, parameters in found})


if __name__ == "__main__":
    unittest.main()
