"""gaac calibrate with a stand-in for llama-perplexity and the plug-in, GGUF reading, and gaac inspect of a profile."""

import json
import os
import shlex
import struct
import sys
import unittest

from fixtures import HAS_PLOT, CommandTest, gguf, gguf_text, model, profile

# Notes what it is given and writes the profile as the plug-in would at exit.
STAND_IN = """#!{python}
import json, os, shutil, sys
if {code}:
    print("error: went wrong", file=sys.stderr)
    sys.exit({code})
print("chatter [2026] [1]" , flush=True)
for i in range(1, 1 + {chunks}):
    print(f"[{{i}}]12.5,", end="", flush=True)
json.dump({{"argv": sys.argv[1:], "env": {{k: v for k, v in os.environ.items() if k.startswith("G")}}}}, open("seen", "w"))
if {write}:
    shutil.copy("made", os.environ["GAAC_CALIBRATE"])
"""


class WithHost(CommandTest):
    def setUp(self):
        super().setUp()
        self.plugin = self.path("libggml-gaac.so", "")
        self.model = self.path("small.Q4.gguf", model())
        self.text = self.path("text.txt", "Some text.\n" * 100)
        self.path("made", profile("xxh3-128:12", "A model"))

    def calibrate(self, *arguments, code=0, chunks=1, write=True, environment=None):
        host = self.program(
            "llama-perplexity", STAND_IN.format(python=sys.executable, code=code, chunks=chunks, write=write)
        )
        return self.run_gaac(
            "calibrate", "--plugin", self.plugin, "--host", host, "-m", self.model, "-f", self.text, *arguments,
            environment=environment,
        )

    def seen(self):
        return json.loads((self.folder / "seen").read_text())


class Calibrate(WithHost):
    def test_runs_the_host_and_shows_the_profile(self):
        result = self.calibrate(environment={"GAAC_PROFILE": "old.safetensors"})
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertTrue((self.folder / "small.Q4.gaac.safetensors").is_file())
        for word in ("small.Q4.gaac.safetensors", "A model", "xxh3-128:12", "4096 tokens", "production"):
            self.assertIn(word, result.stdout)
        seen = self.seen()
        words = seen["argv"]
        for option, value in {"-m": str(self.model), "-f": str(self.text), "-c": "4096", "--chunks": "1",
                              "-dev": "GAAC0", "-ngl": "99", "-fa": "on", "-ctk": "bf16", "-ctv": "bf16"}.items():
            self.assertEqual(words.count(option), 1)
            self.assertEqual(words[words.index(option) + 1], value, option)
        self.assertNotIn("GAAC_PROFILE", seen["env"])
        self.assertEqual(seen["env"]["GGML_BACKEND_PATH"], str(self.plugin))
        self.assertEqual(seen["env"]["GAAC_CALIBRATE"], "small.Q4.gaac.safetensors")
        info = json.loads(seen["env"]["GAAC_CALIBRATE_INFO"])
        self.assertRegex(info.pop("model_hash"), r"\Axxh3-128:[0-9a-f]{32}\Z")
        self.assertEqual(
            info, {"model_name": "A model", "rope_base": 500000, "rope_scaling": "yarn:4", "text": "text.txt"}
        )

    def test_options(self):
        result = self.calibrate("-c", "512", "--tokens", "1100", "-t", "2", "-o", "out.safetensors", chunks=3)
        self.assertEqual(result.returncode, 0, result.stderr)
        words = self.seen()["argv"]
        for option, value in {"-c": "512", "-b": "512", "--chunks": "3", "-t": "2"}.items():
            self.assertEqual(words[words.index(option) + 1], value)
        self.assertTrue((self.folder / "out.safetensors").is_file())

    def test_dry_run(self):
        result = self.calibrate("--dry-run")
        self.assertEqual(result.returncode, 0)
        self.assertFalse((self.folder / "seen").exists())
        self.assertIn("--chunks", shlex.split(result.stdout.replace("\\\n", " ")))

    def test_failures_of_the_host(self):
        result = self.calibrate(code=5)
        self.assertEqual(result.returncode, 1)
        self.assertIn("error: went wrong", result.stderr)
        self.assertRegex(result.stderr.splitlines()[-1], r"\Agaac: .*exit code 5")
        result = self.calibrate(chunks=0)
        self.assertEqual(result.returncode, 1)
        self.assertRegex(result.stderr.splitlines()[-1], r"\Agaac: .*longer text")
        (self.folder / "out").write_bytes(profile())  # an old one must not pass for the new one
        result = self.calibrate("-o", "out", write=False)
        self.assert_refused(result, 1, "without writing out")
        self.path("made", b"half a profile")
        self.assert_refused(self.calibrate("-o", "out"), 3, "out")
        result = self.run_gaac("calibrate", "--plugin", self.plugin, "--host", "none", "-m", self.model, "-f", self.text)
        self.assertEqual(result.returncode, 127)
        result = self.run_gaac("calibrate", "--plugin", self.plugin, "-m", self.model, "-f", self.text,
                               environment={"PATH": "/nowhere"})
        self.assert_refused(result, 127, "llama-perplexity", "--host")

    def test_bad_texts(self):
        self.text = self.path("empty.txt", "")
        self.assert_refused(self.calibrate(), 3, "empty.txt")
        self.text = self.folder / "none.txt"
        self.assert_refused(self.calibrate(), 1, "none.txt")
        self.text = self.folder / "pipe"
        os.mkfifo(self.text)
        self.assert_refused(self.calibrate(), 1, "pipe", "not a regular file")
        self.model = self.text
        self.assert_refused(self.calibrate(), 1, "pipe", "not a regular file")


class Gguf(WithHost):
    def info(self, content):
        self.model = self.path("m.gguf", content)
        result = self.calibrate()
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(self.seen()["env"]["GAAC_CALIBRATE_INFO"])

    def test_version_2_and_little_metadata(self):
        info = self.info(gguf([("general.architecture", 8, gguf_text("x"))], version=2))
        self.assertEqual((info["model_name"], info["rope_base"], info["rope_scaling"]), ("m", 0, "none"))

    def test_old_linear_scaling_and_odd_types(self):
        info = self.info(
            gguf(
                [
                    ("x.rope.scale_linear", 12, struct.pack("<d", 2.5)),
                    ("x.rope.freq_base", 4, struct.pack("<I", 10000)),
                    ("x.nested.rope.freq_base", 4, struct.pack("<I", 7)),
                    ("a.list", 9, struct.pack("<IQ", 9, 1) + struct.pack("<IQ2B", 0, 2, 1, 1)),
                    ("general.name", 8, gguf_text("two\nlines \u00e9")),
                ]
            )
        )
        self.assertEqual((info["rope_base"], info["rope_scaling"]), (10000, "linear:2.5"))
        self.assertEqual(info["model_name"], "two lines \u00e9")

    def test_names_become_lines_of_utf8(self):
        """What a profile takes: else a long calibration ends with a profile that can't be written."""
        for name, wanted in (
            (b"x" + "\u00e9".encode() * 140, "x" + "\u00e9" * 127),
            (b"a\xff\xc3b\xed\xa0\x80", "a??b???"),
            ("\u20ac \U0001f600".encode(), "\u20ac \U0001f600"),
        ):
            value = struct.pack("<Q", len(name)) + name
            self.assertEqual(self.info(gguf([("general.name", 8, value)]))["model_name"], wanted)

    def test_no_base_of_a_rotation(self):
        for base in (float("nan"), float("inf"), -1.0):
            self.model = self.path("bad.gguf", gguf([("x.rope.freq_base", 6, struct.pack("<f", base))]))
            self.assert_refused(self.calibrate(), 3, "bad.gguf")

    def test_fingerprint_tells_files_apart(self):
        big = bytes(3 << 20)
        hashes = [
            self.info(content)["model_hash"]
            for content in (
                model(tail=big),
                model(tail=big),
                model(tail=big[:-1] + b"x"),
                model(tail=big + b"\0"),
                model(name="B model", tail=big),
            )
        ]
        self.assertEqual(hashes[0], hashes[1])
        self.assertEqual(len(set(hashes)), 4)

    def test_cut_anywhere(self):
        whole = model(tail=b"")
        for length in list(range(1, 40)) + list(range(40, len(whole), 7)):
            self.model = self.path("cut.gguf", whole[:length])
            self.assert_refused(self.calibrate(), 3, "cut.gguf")

    def test_hostile_lengths(self):
        huge = struct.pack("<Q", 2**64 - 1)
        for name, content in {
            "pairs": struct.pack("<4sIQQ", b"GGUF", 3, 0, 2**63),
            "key": struct.pack("<4sIQQ", b"GGUF", 3, 0, 1) + huge,
            "string": gguf([("k", 8, huge)]),
            "array": gguf([("k", 9, struct.pack("<I", 10) + huge)]),
            "strings": gguf([("k", 9, struct.pack("<I", 8) + huge)]),
            "type": gguf([("k", 13, b"")]),
            "nesting": gguf([("k", 9, struct.pack("<IQ", 9, 1) * 50 + struct.pack("<IQ", 0, 0))]),
            "version 1": gguf([], version=1),
            "big endian": gguf([], version=3 << 24),
            "no gguf": b"GGML" + bytes(100),
            "empty": b"",
        }.items():
            with self.subTest(name):
                self.model = self.path("bad.gguf", content)
                self.assert_refused(self.calibrate(), 3, "bad.gguf")


class InspectProfile(CommandTest):
    def test_table_json_and_picture(self):
        path = self.path("p.safetensors", profile("xxh3-128:12", heads=2))
        result = self.run_gaac("inspect", path)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertEqual(len([line for line in result.stdout.splitlines() if "112 - 112" in line]), 2)
        self.assertEqual(len([line for line in result.stdout.splitlines() if "110 - 110" in line]), 2)
        json_ = json.loads(self.run_gaac("inspect", "--json", path).stdout)
        self.assertEqual((json_["kind"], json_["tokens"], json_["model_hash"]), ("profile", 4096, "xxh3-128:12"))
        (layer,) = json_["layers"]
        self.assertEqual((layer["kv_heads"], layer["head_dim_k"], layer["pool_bytes"]), (2, 64, 256))
        self.assertEqual((layer["bf16_bytes"], len(layer["windows"])), (2 * 2 * 16 * 64 * 2, 4))
        if HAS_PLOT:
            result = self.run_gaac("inspect", "--plot", "p.png", path)
            self.assertEqual((result.returncode, result.stderr), (0, ""))
            self.assertEqual((self.folder / "p.png").read_bytes()[:4], b"\x89PNG")


if __name__ == "__main__":
    unittest.main()
