"""tools/python/sitecustomize.py, with a stand-in for llama_cpp: gaac exec brings the device to Python programs."""

import sys
import unittest

from fixtures import CommandTest

# llama_cpp with a ggml that records the path it is given, and accepts it or not.
FAKE_GGML = """
class _Load:
    def __call__(self, path):
        print("loaded", path.decode())
        return {handle}

class libggml:
    ggml_backend_load = _Load()
"""


class Shim(CommandTest):
    def setUp(self):
        super().setUp()
        self.plugin = self.path("libggml-gaac.so", "")
        (self.folder / "llama_cpp").mkdir()
        self.path("llama_cpp/__init__.py", "print('llama_cpp itself')\n")
        self.path("llama_cpp/_ggml.py", FAKE_GGML.format(handle=1))
        self.path("llama_cpp/server.py", "import sys\nprint('server', *sys.argv[1:])\n")
        self.environment["PYTHONPATH"] = str(self.folder)

    def python(self, *arguments):
        return self.run_gaac("exec", "--plugin", self.plugin, "--program", "python", "--", sys.executable, "-B", *arguments)

    def test_loads_once_after_the_import(self):
        result = self.python("-c", "import llama_cpp; import llama_cpp as again; print('program')")
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertEqual(result.stdout.splitlines(), ["llama_cpp itself", f"loaded {self.plugin}", "program"])

    def test_as_a_module(self):
        result = self.run_gaac("exec", "--plugin", self.plugin, "--", sys.executable, "-m", "llama_cpp.server")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stdout.splitlines()[1], f"loaded {self.plugin}")
        self.assertIn("server --n_gpu_layers 99 --flash_attn true --type_k 30 --type_v 30", result.stdout)

    def test_leaves_other_programs_alone(self):
        result = self.python("-c", "import json; print('hello')")
        self.assertEqual((result.returncode, result.stdout, result.stderr), (0, "hello\n", ""))

    def test_refusal_ends_the_program_with_one_line(self):
        self.path("llama_cpp/_ggml.py", FAKE_GGML.format(handle=None))
        result = self.python("-c", "import llama_cpp; print('program')")
        self.assertEqual(result.returncode, 1)
        self.assertNotIn("program", result.stdout)
        self.assertRegex(result.stderr, r"\Agaac: [^\n]*libggml-gaac\.so[^\n]*\n\Z")
        (self.folder / "llama_cpp/_ggml.py").unlink()
        result = self.python("-c", "import llama_cpp")
        self.assertEqual(result.returncode, 1)
        self.assertRegex(result.stderr, r"\Agaac: [^\n]*0\.3\.36[^\n]*\n\Z")

    def test_runs_the_sitecustomize_that_it_shadows(self):
        self.path("sitecustomize.py", "print('the user\\'s own')\n")
        result = self.python("-c", "import llama_cpp")
        self.assertEqual(result.stdout.splitlines()[0], "the user's own")
        self.assertIn("loaded", result.stdout)

    def test_find_spec_does_not_use_the_device_up(self):
        """Looking whether llama_cpp is there, as many programs do before they import it."""
        result = self.python("-c", "import importlib.util as u; u.find_spec('llama_cpp'); import llama_cpp")
        self.assertEqual(result.stdout.splitlines(), ["llama_cpp itself", f"loaded {self.plugin}"])


if __name__ == "__main__":
    unittest.main()
