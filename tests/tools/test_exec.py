"""gaac exec: which options and variables a program gets, what is warned about and what is refused."""

import shlex
import unittest

from fixtures import CommandTest, model, profile

NEEDED = ["-dev", "GAAC0", "-ngl", "99", "-fa", "on", "-ctk", "bf16", "-ctv", "bf16"]


class Exec(CommandTest):
    def setUp(self):
        super().setUp()
        self.plugin = self.path("libggml-gaac.so", "")

    def dry(self, *command, options=(), environment=None, warnings=0):
        """The words that would run and the variables that would be set."""
        result = self.run_gaac(
            "exec", "--plugin", self.plugin, *options, "--dry-run", "--", *command, environment=environment
        )
        self.assertEqual(result.returncode, 0, result.stderr)
        lines = result.stderr.splitlines()
        self.assertEqual(len(lines), warnings, result.stderr)
        self.assertTrue(all(line.startswith("gaac: warning: ") for line in lines))
        self.warnings = result.stderr
        words = shlex.split(result.stdout.replace("\\\n", " "))
        variables = {}
        while words and "=" in words[0] and words[0].split("=")[0].isupper():
            name, value = words.pop(0).split("=", 1)
            variables[name] = value
        return words, variables

    def test_adds_what_is_missing(self):
        for name in ("llama-server", "llama-cli", "llama-perplexity", "llama-completion", "/opt/x/llama-server"):
            words, variables = self.dry(name, "-m", "m.gguf", "-c", "4096")
            self.assertEqual(words, [name, "-m", "m.gguf", "-c", "4096", *NEEDED])
            self.assertEqual(variables, {"GGML_BACKEND_PATH": str(self.plugin)})

    def test_never_doubles_an_option(self):
        """Every spelling, apart, with '=' and with '_', keeps the user's value."""
        spellings = {
            "-dev": (["-dev", "--device"], "GAAC0"),
            "-ngl": (["-ngl", "--gpu-layers", "--n-gpu-layers", "--n_gpu_layers"], "12"),
            "-fa": (["-fa", "--flash-attn", "--flash_attn"], "auto"),
            "-ctk": (["-ctk", "--cache-type-k", "--cache_type_k"], "bf16"),
            "-ctv": (["-ctv", "--cache-type-v", "--cache_type_v"], "bf16"),
        }
        for short, (names, value) in spellings.items():
            for given in [[name, value] for name in names] + [[f"{name}={value}"] for name in names]:
                words, _ = self.dry("llama-server", *given)
                rest = NEEDED.copy()
                at = rest.index(short)
                del rest[at : at + 2]
                self.assertEqual(words, ["llama-server", *given, *rest], given)

    def test_options_that_only_look_alike_are_no_reason(self):
        words, _ = self.dry("llama-server", "-devd", "none", "-ngld", "0", "-ctkd", "q8_0", "--cache-type-k-draft", "f16")
        self.assertEqual(words[-len(NEEDED) :], NEEDED)

    def test_variables_of_llama_cpp_count_as_given(self):
        words, _ = self.dry(
            "llama-server",
            environment={"LLAMA_ARG_N_GPU_LAYERS": "20", "LLAMA_ARG_CACHE_TYPE_K": "f16"},
            warnings=1,
        )
        self.assertNotIn("-ngl", words)
        self.assertNotIn("-ctk", words)
        self.assertIn("LLAMA_ARG_CACHE_TYPE_K f16", self.warnings)

    def test_warns_once_about_what_defeats(self):
        for given, word in [
            (["-ctk", "q8_0"], "-ctk q8_0"),
            (["--cache-type-v=f16"], "--cache-type-v=f16"),
            (["-fa", "off"], "-fa off"),
            (["--flash-attn", "0"], "--flash-attn 0"),
            (["-ngl", "0"], "-ngl 0"),
            (["-dev", "none"], "-dev none"),
            (["--device", "CUDA0"], "--device CUDA0"),
            (["-nkvo"], "-nkvo"),
            (["--no-kv-offload"], "--no-kv-offload"),
            (["-ctk", "bf16", "-ctk", "q4_0"], "-ctk q4_0"),
        ]:
            words, _ = self.dry("llama-server", *given, warnings=1)
            self.assertIn(word, self.warnings)
            self.assertIn("leave it out", self.warnings)
            self.assertEqual(words[1 : 1 + len(given)], given)
        self.dry("llama-server", "-dev", "CUDA0,GAAC0", "-ctk", "q4_0", "-ctk", "bf16", "-fa", "1", "-ngl", "all")

    def test_bench_has_lists_and_its_own_flags(self):
        words, _ = self.dry("llama-bench", "-m", "m.gguf", environment={"LLAMA_ARG_CACHE_TYPE_K": "f16"})
        self.assertEqual(words[3:], ["-dev", "GAAC0", "-ngl", "99", "-fa", "1", "-ctk", "bf16", "-ctv", "bf16"])
        self.dry("llama-bench", "-ctk", "f16,bf16", "-fa", "0,1", "-ngl", "0,99", "-dev", "none/GAAC0", "-nkvo", "0")
        self.dry("llama-bench", "-ctk", "f16,q8_0", "-nkvo", "1", warnings=2)

    def test_python_server(self):
        command = ["python3", "-X", "dev", "-um", "llama_cpp.server", "--model", "m.gguf"]
        added = ["--n_gpu_layers", "99", "--flash_attn", "true", "--type_k", "30", "--type_v", "30"]
        words, variables = self.dry(*command, environment={"PYTHONPATH": "/mine"})
        self.assertEqual(words, command + added)
        self.assertRegex(variables["PYTHONPATH"], r".+:/mine\Z")
        words, _ = self.dry("python3", "-mllama_cpp.server", "--type_k", "8", "--flash_attn=False", warnings=2)
        self.assertEqual(words[4:], ["--flash_attn=False", "--n_gpu_layers", "99", "--type_v", "30"])
        self.dry("python3", "-I", "-m", "llama_cpp.server", warnings=1)
        words, _ = self.dry("python3", "-m", "llama_cpp.server", "--config_file", "c.json", warnings=1)
        self.assertEqual(words[3:], ["--config_file", "c.json"])

    def test_other_programs_get_the_environment_alone(self):
        for command in (["my-program", "-x"], ["llama-quantize", "a", "b"], ["env"]):
            words, variables = self.dry(*command)
            self.assertEqual((words, set(variables)), (command, {"GGML_BACKEND_PATH"}))
        words, variables = self.dry("python3", "script.py", "-m", "llama_cpp.server")
        self.assertEqual(words, ["python3", "script.py", "-m", "llama_cpp.server"])
        self.assertEqual(set(variables), {"GGML_BACKEND_PATH", "PYTHONPATH"})
        words, _ = self.dry("my-server", options=["--program", "common"])
        self.assertEqual(words[1:], NEEDED)
        words, _ = self.dry("llama-server", options=["--program", "none"])
        self.assertEqual(words, ["llama-server"])

    def test_options_become_variables(self):
        _, variables = self.dry(
            "llama-cli",
            options=["--mode", "raw", "--memory", "2G", "--threads", "3", "--stats", "s t.json"],
            environment={"GGML_BACKEND_PATH": "/other.so"},
            warnings=1,
        )
        self.assertEqual(
            variables,
            {
                "GGML_BACKEND_PATH": str(self.plugin),
                "GAAC_MODE": "raw",
                "GAAC_MEMORY": str(2 << 30),
                "GAAC_THREADS": "3",
                "GAAC_STATS": "s t.json",
            },
        )

    def test_runs_the_program(self):
        program = self.program("llama-cli", '#!/bin/sh\nenv | grep -E "^(GAAC|GGML)_" | sort; printf "%s\\n" "$@"; exit 7\n')
        result = self.run_gaac(
            "exec", "--stats", "s.json", "--", program, "-p", "two words", environment={"GAAC_PLUGIN": str(self.plugin)}
        )
        self.assertEqual(result.returncode, 7)
        # GAAC_PLUGIN is the command's own: the plug-in would refuse a variable that it does not know.
        self.assertEqual(
            result.stdout.splitlines(),
            ["GAAC_STATS=s.json", f"GGML_BACKEND_PATH={self.plugin}", "-p", "two words", *NEEDED],
        )

    def test_programs_that_do_not_run(self):
        options = ["--plugin", self.plugin, "--"]
        self.assert_refused(self.run_gaac("exec", *options, "no-such-program"), 127, "no-such-program")
        self.assert_refused(self.run_gaac("exec", *options, self.path("data", "x")), 126, "data")

    def test_missing_plugin(self):
        self.assert_refused(self.run_gaac("exec", "--plugin", "none.so", "--", "true"), 1, "none.so")
        result = self.run_gaac("exec", "--", "true", environment={"GAAC_PLUGIN": "/none.so"})
        self.assert_refused(result, 1, "GAAC_PLUGIN /none.so")

    def test_profile_of_another_model(self):
        path = self.path("model.gguf", model())
        other = self.path("p.safetensors", profile("xxh3-128:" + "0" * 32, "Another"))
        for command in (
            ["llama-server", "-m", path],
            ["llama-bench", f"--model={path}"],
            ["python3", "-m", "llama_cpp.server", "--model", path],
        ):
            result = self.run_gaac("exec", "--plugin", self.plugin, "--profile", other, "--dry-run", "--", *command)
            self.assert_refused(result, 3, "Another", "model.gguf", "gaac calibrate -m")
        result = self.run_gaac(
            "exec", "--plugin", self.plugin, "--", "llama-server",
            environment={"GAAC_PROFILE": str(other), "LLAMA_ARG_MODEL": str(path)},
        )
        self.assert_refused(result, 3, "Another")
        # Nothing to compare with: no fingerprint in the profile, or no model file here.
        self.dry("llama-server", "-m", path, options=["--profile", self.path("q.safetensors", profile())])
        self.dry("llama-server", "-hf", "a/b", options=["--profile", other])

    def test_damaged_profiles(self):
        whole = profile()
        flipped = bytearray(whole)
        flipped[-5] ^= 4
        for content in (b"", b"text", whole[:-1], whole[:100], bytes(flipped)):
            bad = self.path("bad.safetensors", content)
            result = self.run_gaac("exec", "--plugin", self.plugin, "--profile", bad, "--dry-run", "--", "llama-cli")
            self.assert_refused(result, 3, "bad.safetensors")
            self.assert_refused(self.run_gaac("inspect", bad), 3, "bad.safetensors")


if __name__ == "__main__":
    unittest.main()
