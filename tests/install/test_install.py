#!/usr/bin/env python3
"""Installs GAAC to a temporary prefix and uses it from there: pkg-config, find_package, C and C++,
shared and static, and each public header compiled alone. Run by ctest."""
import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"]
ARGUMENTS = None


def run(*command, **options):
    """The output of a command that must succeed."""
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, check=False, **options)
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(map(str, command))}: exit {done.returncode}\n{done.stdout}")
    return done.stdout


def languages():
    """(name, compiler with its standard) of what this machine can compile."""
    yield "c", [ARGUMENTS.cc, "-x", "c", "-std=c11"]
    if ARGUMENTS.cxx:
        yield "c++", [ARGUMENTS.cxx, "-x", "c++", "-std=c++11"]


class Installed(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="gaac-install-"))
        first = cls.folder / "first"
        run(ARGUMENTS.cmake, "--install", ARGUMENTS.build, "--prefix", first)
        # Moved after installing: nothing in it may remember where it was put.
        cls.prefix = first.rename(cls.folder / "moved here")
        found = list(cls.prefix.rglob("gaac.pc"))
        assert len(found) == 1, f"expected one gaac.pc, found {found}"
        cls.libdir = found[0].parent.parent
        cls.environment = dict(os.environ, PKG_CONFIG_PATH=str(found[0].parent), LD_LIBRARY_PATH=str(cls.libdir))

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder, ignore_errors=True)

    def pkg_config(self, *arguments, package="gaac"):
        # Its answer quotes for a shell (the prefix has a space in its name).
        output = run("pkg-config", *arguments, package, env=self.environment)
        return run("sh", "-c", f"printf '%s\\n' {output.strip()}").splitlines()

    def check_program(self, program):
        output = run(program, env=self.environment)
        self.assertTrue(output.startswith(f"gaac {ARGUMENTS.version}, kernels: "), output)

    def test_each_header_compiles_alone(self):
        include = self.prefix / "include"
        headers = sorted(path.relative_to(include) for path in include.rglob("*.h"))
        self.assertGreaterEqual(len(headers), 7)
        self.assertEqual(pathlib.Path("gaac/gaac_cuda.h") in headers, bool(ARGUMENTS.cudart))
        for header in headers:
            for name, compiler in languages():
                with self.subTest(header=str(header), language=name):
                    # Twice: the second time its guard must hold.
                    run(*compiler, *WARNINGS, "-fsyntax-only", f"-I{include}", "-",
                        input=f"#include <{header}>\n#include <{header}>\nextern int gaac_unused;\n")

    def test_pkg_config_shared(self):
        self.assertEqual(self.pkg_config("--modversion"), [ARGUMENTS.version])
        for name, compiler in languages():
            with self.subTest(language=name):
                program = self.folder / f"shared-{name}"
                run(*compiler, *WARNINGS, *self.pkg_config("--cflags"), HERE / "consumer.c", "-x", "none",
                    "-o", program, *self.pkg_config("--libs"))
                self.assertIn(f"libgaac.so.{ARGUMENTS.version.split('.')[0]}", run("ldd", program, env=self.environment))
                self.check_program(program)

    def test_pkg_config_static(self):
        # The archive by its name, since beside a shared library -lgaac means that one.
        libraries = [str(self.libdir / "libgaac.a") if word == "-lgaac" else word
                     for word in self.pkg_config("--static", "--libs")]
        for name, compiler in languages():
            with self.subTest(language=name):
                program = self.folder / f"static-{name}"
                run(*compiler, *WARNINGS, "-DGAAC_STATIC", *self.pkg_config("--cflags"), HERE / "consumer.c",
                    "-x", "none", "-o", program, *libraries)
                self.assertNotIn("libgaac", run("ldd", program))
                self.check_program(program)

    def test_find_package(self):
        tree = self.folder / "tree"
        run(ARGUMENTS.cmake, "-S", HERE / "project", "-B", tree, "-G", ARGUMENTS.generator,
            f"-DCMAKE_PREFIX_PATH={self.prefix}", f"-DCMAKE_C_COMPILER={ARGUMENTS.cc}",
            f"-DCMAKE_CXX_COMPILER={ARGUMENTS.cxx}", f"-DCONSUMER_CXX={'ON' if ARGUMENTS.cxx else 'OFF'}",
            f"-DCONSUMER_VERSION={ARGUMENTS.version}")
        run(ARGUMENTS.cmake, "--build", tree)
        programs = [f"{language}_{kind}" for language in (["c", "cxx"] if ARGUMENTS.cxx else ["c"])
                    for kind in ("shared", "static")]
        for name in programs:
            with self.subTest(program=name):
                self.check_program(tree / name)

    def test_find_package_refuses_another_version(self):
        major = int(ARGUMENTS.version.split(".")[0])
        done = subprocess.run([ARGUMENTS.cmake, "-S", HERE / "project", "-B", self.folder / "tree-version",
                               "-G", ARGUMENTS.generator, f"-DCMAKE_PREFIX_PATH={self.prefix}",
                               f"-DCONSUMER_VERSION={major + 1}.0"],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("gaac", done.stdout)

    def check_cuda_program(self, program):
        output = run(program, env=self.environment)
        self.assertRegex(output, rf"^gaac {ARGUMENTS.version}, slot: \d+ bytes, GPU: \w+$")

    def test_cuda_pkg_config(self):
        if not ARGUMENTS.cudart:
            self.skipTest("libgaac_cuda was not built")
        flags = self.pkg_config("--cflags", package="gaac_cuda")
        static = []
        for word in self.pkg_config("--static", "--libs", package="gaac_cuda"):
            static.append({"-lgaac": str(self.libdir / "libgaac.a"), "-lgaac_cuda": str(self.libdir / "libgaac_cuda.a"),
                           "-lcudart_static": ARGUMENTS.cudart}.get(word, word))
        for name, compiler in languages():
            for kind, libraries in (("shared", self.pkg_config("--libs", package="gaac_cuda")), ("static", static)):
                with self.subTest(language=name, kind=kind):
                    program = self.folder / f"cuda-{kind}-{name}"
                    run(*compiler, *WARNINGS, *flags, HERE / "consumer_cuda.c", "-x", "none", "-o", program, *libraries)
                    needed = run("ldd", program, env=self.environment)
                    self.assertEqual(f"libgaac_cuda.so.{ARGUMENTS.version.split('.')[0]}" in needed, kind == "shared")
                    self.assertNotIn("libcudart", needed)
                    self.check_cuda_program(program)

    def test_cuda_find_package(self):
        if not ARGUMENTS.cudart:
            self.skipTest("libgaac_cuda was not built")
        tree = self.folder / "tree-cuda"
        run(ARGUMENTS.cmake, "-S", HERE / "project", "-B", tree, "-G", ARGUMENTS.generator,
            f"-DCMAKE_PREFIX_PATH={self.prefix}", f"-DCMAKE_C_COMPILER={ARGUMENTS.cc}", "-DCONSUMER_CUDA=ON",
            f"-DCMAKE_CXX_COMPILER={ARGUMENTS.cxx}", f"-DCONSUMER_CXX={'ON' if ARGUMENTS.cxx else 'OFF'}",
            f"-DCUDAToolkit_ROOT={pathlib.Path(ARGUMENTS.nvcc).parent.parent}",
            f"-DCONSUMER_VERSION={ARGUMENTS.version}")
        run(ARGUMENTS.cmake, "--build", tree)
        for name in [f"{language}_{kind}" for language in (["c", "cxx"] if ARGUMENTS.cxx else ["c"])
                     for kind in ("cuda", "cuda_static")]:
            with self.subTest(program=name):
                self.check_cuda_program(tree / name)

    def test_only_the_api_is_exported(self):
        common = {"gaac_shape_check", "gaac_status_name", "gaac_version"}
        for library in ["libgaac.so"] + (["libgaac_cuda.so"] if ARGUMENTS.cudart else []):
            symbols = run("nm", "-D", "--defined-only", self.libdir / library).splitlines()
            names = {line.split()[-1] for line in symbols}
            self.assertGreater(len(names), 10)
            prefix = "gaac_cuda_" if library == "libgaac_cuda.so" else "gaac_"
            self.assertEqual([name for name in names - common if not name.startswith(prefix)], [])
            self.assertLessEqual(common, names)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", required=True, help="build tree to install from")
    parser.add_argument("--cmake", required=True)
    parser.add_argument("--generator", required=True)
    parser.add_argument("--cc", required=True)
    parser.add_argument("--cxx", default="", help="C++ compiler; empty: the C++ half is skipped")
    parser.add_argument("--version", required=True, help="version that must be found")
    parser.add_argument("--cudart", default="", help="CUDA's static runtime; empty: libgaac_cuda was not built")
    parser.add_argument("--nvcc", default="", help="its compiler")
    ARGUMENTS, rest = parser.parse_known_args()
    if not ARGUMENTS.cxx or ARGUMENTS.cxx.endswith("-NOTFOUND"):
        ARGUMENTS.cxx = ""
        print("SKIPPED: no C++ compiler: headers and libraries are tried in C only", file=sys.stderr)
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)
