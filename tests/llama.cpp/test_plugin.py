#!/usr/bin/env python3
"""The plug-in in a stock build of llama.cpp. Run by ctest, one class a test; standard library only."""
import argparse
import ctypes
import json
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time
import unittest

from host import DEVICE, GAAC, STOCK, Host, Server, answer_of, lines_of, probabilities_of, tokens_of
from tiny_model import shape_of, write_model

ARGUMENTS = None
STORY = "Once upon a time, in a small village by the sea, there lived an old fisherman who"
CAPITALS = ["The capital of France is", "The capital of Italy is"]
# Differs from token to token without end, so that a long prompt needs no file.
LONG = " ".join(f"Chapter {n}: on day {n * 7} the ship sailed {n * 13} miles with {n % 9 + 2} men." for n in range(110))


def host(model=None):
    return Host(ARGUMENTS.build, ARGUMENTS.plugin, model or ARGUMENTS.model)


class Case(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        # pylint: disable=consider-using-with
        self.temporary = tempfile.TemporaryDirectory(prefix="gaac-llama-")
        self.addCleanup(self.temporary.cleanup)
        self.folder = pathlib.Path(self.temporary.name)

    def tiny(self, *shape):
        path = self.folder / ("tiny-" + "-".join(map(str, shape)) + ".gguf")
        if not path.exists():
            write_model(path, shape_of(*shape))
        return path

    def one_line(self, output, *words):
        """Exactly one of our lines (but the summary) has these words."""
        found = [line for line in lines_of(output) if all(word in line for word in words)]
        self.assertEqual(len(found), 1, output[-3000:])
        return found[0]

    def calibrate(self, model):
        """Calibrates a profile on what llama-bench feeds a model."""
        path = model.with_suffix(".gaac")
        info = {"model_name": "tiny", "text": "llama-bench", "rope_base": 10000, "rope_scaling": "none"}
        code, output = host(model).run("llama-bench", "-m", model, *GAAC[:4], "-fa", 1, "-ctk", "bf16", "-ctv", "bf16",
                                       "-t", 2, "-p", 512, "-n", 0, "-r", 1, GAAC_CALIBRATE=str(path),
                                       GAAC_CALIBRATE_INFO=json.dumps(info))
        self.assertEqual(code, 0, output)
        self.one_line(output, "profile of 3 layers written")
        return path

    def scenario(self, model, layout, **settings):
        done = subprocess.run([ARGUMENTS.scenario, host().bin, model, layout], env=host().environment(settings),
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300, check=False)
        return done.returncode, done.stdout.decode("utf-8", "replace")


class Operations(Case):
    """llama.cpp's own test of single operations, against its CPU backend."""

    def test_flash_attention(self):
        code, output = host().run("test-backend-ops", "test", "-b", "GAAC0", "-o", "FLASH_ATTN_EXT",
                                  GAAC_TEST_UNALLOCATED="1")
        self.assertEqual(code, 0, output[-3000:])
        # It prints OK without having run anything for a device that supports nothing.
        passed, run = map(int, re.search(r"(\d+)/(\d+) tests passed", output).groups())
        self.assertEqual(passed, run)
        self.assertGreaterEqual(run, 100)


class SaveLoad(Case):
    def test_save_load_state(self):
        code, output = host().run("test-save-load-state", "-m", host().model, *GAAC, "-t", 2)
        # Not its closing line: the program's logging thread may lose what comes last. Its exit code is the verdict.
        self.assertEqual(code, 0, output[-3000:])
        self.assertNotIn("FAIL", output)
        self.assertGreaterEqual(output.count("PASS"), 7)
        # Its last part runs without flash attention: that one is stock's, and said so.
        self.one_line(output, "flash attention is off")


class Life(Case):
    """What engines do to a cache, compared with stock after every step (scenario.c); and every logit of
    all of it is the same, bit for bit, when nothing is encoded. With a profile, so that blocks are coded
    from the first on."""

    def life(self, *shape):
        model = self.tiny(*shape)
        profile, stats = str(self.calibrate(model)), self.folder / "stats.json"
        for layout in ("split", "unified"):
            with self.subTest(shape=shape, layout=layout):
                code, coded = self.scenario(model, layout, GAAC_PROFILE=profile, GAAC_STATS=str(stats))
                self.assertEqual(code, 0, coded)
                found = json.loads(stats.read_text(encoding="utf-8"))
                self.assertEqual(found["mode"], "coded")
                self.assertGreater(found["blocks_coded"], 60)
                self.assertGreater(found["resident_ratio"], 1.1)
                self.assertGreater(found["decodes_to_reopen"], 0)
                code, raw = self.scenario(model, layout, GAAC_MODE="raw", GAAC_STATS=str(stats))
                self.assertEqual(code, 0, raw)
                self.assertEqual(json.loads(stats.read_text(encoding="utf-8"))["blocks_coded"], 0)
                self.assertEqual(re.search("digest .*", coded)[0], re.search("digest .*", raw)[0])

    def test_head_dim_64(self):
        self.life(6, 2, 64)

    def test_head_dim_128(self):
        self.life(4, 4, 128)

    def test_head_dim_256_and_one_head(self):
        self.life(2, 1, 256)

    def test_odd_group_and_remainder(self):
        self.life(5, 1, 96)
        self.life(7, 1, 112)

    def test_one_thread(self):
        code, output = self.scenario(self.tiny(6, 2, 64), "unified", GAAC_THREADS="1")
        self.assertEqual(code, 0, output)

    def test_head_dim_100_stays_with_the_cpu(self):
        for heads, words in ((1, "not a multiple of 16"), (4, "head_dim is not a multiple of 16")):
            code, output = self.scenario(self.tiny(heads, heads, 100), "split")
            self.assertEqual(code, 0, output)
            self.one_line(output, words)
            self.one_line(output, "was given no KV cache")


class Greedy(Case):
    def generate(self, **settings):
        stats = self.folder / "stats.json"
        with Server(host(), *GAAC, "-c", 4096, "-np", 1, GAAC_STATS=str(stats), **settings) as server:
            reply = server.complete(LONG, 40, n_probs=1)
        return reply, json.loads(stats.read_text(encoding="utf-8")), server.log

    def test_coded_and_raw_generate_the_same(self):
        coded, coded_stats, log = self.generate()
        raw, raw_stats, _ = self.generate(GAAC_MODE="raw")
        self.assertGreater(coded["tokens_evaluated"], 2100)
        self.assertEqual(tokens_of(coded), tokens_of(raw))
        self.assertEqual(probabilities_of(coded), probabilities_of(raw))
        self.assertGreater(coded_stats["blocks_coded"], 30 * 128)
        self.assertGreater(coded_stats["resident_ratio"], 1.3)
        self.assertGreater(coded_stats["coded_ratio"], coded_stats["resident_ratio"])
        self.assertEqual(raw_stats["blocks_coded"], 0)
        self.assertEqual(coded_stats["host_api"], 2)
        self.one_line(log, "cells", "MiB resident", "fallbacks")


class Serving(Case):
    """llama-server over HTTP: slots, parallel requests, a cancelled one, the context shift."""

    def serve_in_parallel(self, *arguments):
        with Server(host(), *GAAC, "-c", 1024, "-np", 2, *arguments) as server:
            alone = [server.complete(prompt, 12) for prompt in CAPITALS]
            self.assertIn("Paris", alone[0]["content"])
            self.assertIn("Rome", alone[1]["content"])
            together = server.complete_all(CAPITALS, 12)
            self.assertIn("Paris", together[0]["content"])
            self.assertIn("Rome", together[1]["content"])
            pieces = server.begin_and_cancel(STORY)
            self.assertTrue(any(piece.startswith(b"data: ") for piece in pieces))
            self.wait_idle(server)
            # What the cancelled request left behind must not show.
            again = [server.complete(prompt, 12) for prompt in CAPITALS]
            self.assertEqual([tokens_of(reply) for reply in again], [tokens_of(reply) for reply in alone])
        self.assertEqual(server.exit_code, 0, server.log[-3000:])
        self.one_line(server.log, "cells", "MiB resident")

    def wait_idle(self, server):
        for _ in range(300):
            if not any(slot["is_processing"] for slot in server.request("GET", "/slots")[1]):
                return
            time.sleep(0.1)
        self.fail("the cancelled request goes on")

    def test_split_slots(self):
        self.serve_in_parallel("--slots")

    def test_unified_slots(self):
        self.serve_in_parallel("--slots", "--kv-unified")

    def test_context_shift(self):
        with Server(host(), *GAAC, "-c", 256, "-np", 1, "--context-shift") as server:
            reply = server.complete(STORY, 330, n_probs=1, n_keep=20)
        self.assertIn("slot context shift", server.log)
        self.assertEqual(server.exit_code, 0, server.log[-3000:])
        # Keys at wrong positions make every word a surprise: about -4 and less.
        after = [chance for _, chance in probabilities_of(reply)[250:]]
        self.assertGreater(statistics.mean(after), -2.0, reply["content"])


class Refusals(Case):
    """Bad settings: one clear line, no device, and a command that names it stops."""

    def refused(self, *words, **settings):
        code, output = host().generate(*GAAC, **settings)
        self.one_line(output, "not loaded", *words)
        self.assertIn("GAAC0", output)
        self.assertNotEqual(code, 0)

    def test_settings(self):
        self.refused("unknown environment variable GAAC_TYPO", GAAC_TYPO="1")
        self.refused("GAAC_MODE=fast", "coded or raw", GAAC_MODE="fast")
        for value in ("", "0", "-1", "1X", "2GG", "99999999999G"):
            self.refused("GAAC_MEMORY=" + value, "2G", GAAC_MEMORY=value)
        for value in ("0", "two", "-3"):
            self.refused("GAAC_THREADS=" + value, GAAC_THREADS=value)
        self.refused("GAAC_CPU=sse9", "neonbf16", GAAC_CPU="sse9")
        self.refused("GAAC_STATS is empty", GAAC_STATS="")
        self.refused("GAAC_CALIBRATE_INFO is not a JSON object", GAAC_CALIBRATE_INFO="[1")
        self.refused("GAAC_CALIBRATE needs", GAAC_CALIBRATE="x", GAAC_MODE="raw")
        self.refused("GAAC_PROFILE=/nowhere", "No such file", GAAC_PROFILE="/nowhere")

    def test_every_instruction_set_is_taken(self):
        """One that this machine lacks is ignored, as the library does."""
        for isa in ("c", "avx2", "avx512", "avx512bf16", "amx", "neon", "neonbf16"):
            code, output = host().run("llama-server", "--list-devices", GAAC_CPU=isa)
            self.assertEqual(code, 0)
            self.assertIn("GAAC0: ", output, isa)


class Profiles(Case):
    def test_made_used_and_damaged(self):
        model = self.tiny(6, 2, 64)
        path = self.calibrate(model)
        stats = self.folder / "stats.json"
        code, output = self.scenario(model, "split", GAAC_PROFILE=str(path), GAAC_STATS=str(stats))
        self.assertEqual(code, 0, output)
        found = json.loads(stats.read_text(encoding="utf-8"))
        self.assertTrue(found["profile"])
        self.assertGreater(found["blocks_coded"], 60)

        data = path.read_bytes()
        damaged = self.folder / "damaged.gaac"
        for name, change in (("cut", data[:-7]), ("flipped", data[:-40] + bytes([data[-40] ^ 4]) + data[-39:]),
                             ("empty", b"")):
            with self.subTest(name):
                damaged.write_bytes(change)
                code, output = self.scenario(model, "split", GAAC_PROFILE=str(damaged))
                self.one_line(output, "not loaded", "GAAC_PROFILE=")
                self.assertNotEqual(code, 0)

    def test_of_another_model(self):
        path = self.calibrate(self.tiny(6, 2, 64))
        for shape in ((4, 4, 128), (4, 4, 32)):  # other rows; rows alike but other heads
            with self.subTest(shape=shape):
                code, output = self.scenario(self.tiny(*shape), "split", GAAC_PROFILE=str(path))
                self.assertTrue(any("another model" in line or "gaac calibrate" in line for line in lines_of(output)),
                                output)
                self.assertNotEqual(code, 0)

    def test_too_short(self):
        path = self.folder / "none.gaac"
        _, output = host().generate(*GAAC, GAAC_CALIBRATE=str(path))
        self.one_line(output, "no profile written", "too short")
        self.assertFalse(path.exists())


class Fallbacks(Case):
    """What the device can't hold stays with the CPU: a line, and exactly stock's answer."""

    def falls_back(self, words, *cache):
        code, output = host().generate(*DEVICE, *cache)
        self.assertEqual(code, 0, output[-3000:])
        if words:
            self.one_line(output, *words)
        self.one_line(output, "was given no KV cache")
        code, stock = host().generate("-dev", "none", *cache)
        self.assertEqual(code, 0)
        self.assertEqual(answer_of(output), answer_of(stock))

    def test_quantized(self):
        self.falls_back(("is q8_0", "-ctk bf16"), "-fa", "on", "-ctk", "q8_0", "-ctv", "q8_0")

    def test_f16(self):
        self.falls_back(("is f16", "-ctk bf16"), "-fa", "on")

    def test_mixed(self):
        self.falls_back(("is q8_0", "-ctk bf16"), "-fa", "on", "-ctk", "bf16", "-ctv", "q8_0")

    def test_flash_attention_off(self):
        self.falls_back(("flash attention is off", "-fa on"), "-fa", "off", "-ctk", "bf16", "-ctv", "bf16")

    def test_kv_kept_from_devices(self):
        self.falls_back((), "-fa", "on", "-ctk", "bf16", "-ctv", "bf16", "--no-kv-offload")

    def test_no_layers_offloaded(self):
        code, output = host().generate("-dev", "GAAC0", "-ngl", 0, *GAAC[4:])
        self.assertEqual(code, 0)
        self.one_line(output, "was given no KV cache", "-ngl 99")


class Memory(Case):
    def test_too_little(self):
        """The request fails with a line; the server lives and serves what fits."""
        with Server(host(), *GAAC, "-c", 4096, "-np", 1, GAAC_MEMORY="6M") as server:
            self.assertIn("Paris", server.complete(CAPITALS[0], 8)["content"])
            status, reply = server.request("POST", "/completion", {"prompt": LONG, "n_predict": 4})
            self.assertNotEqual(status, 200)
            self.assertIn("error", reply)
            self.assertIn("Paris", server.complete(CAPITALS[0], 8)["content"])
        self.assertEqual(server.exit_code, 0, server.log[-3000:])
        self.assertTrue(any("the KV cache is full" in line and "GAAC_MEMORY" in line for line in lines_of(server.log)),
                        server.log[-3000:])

    def test_reported(self):
        code, output = host().run("llama-server", "--list-devices", GAAC_MEMORY="512M")
        self.assertEqual(code, 0)
        self.assertRegex(output, r"GAAC0: .*\(512 MiB, 512 MiB free\)")


class Loading(Case):
    def in_python(self, code, *arguments):
        done = subprocess.run([sys.executable, "-c", code, *map(str, arguments)], env=host().environment({}),
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60, check=False)
        return done.returncode, done.stdout

    def test_libraries_opened_locally(self):
        """As Python's ctypes opens them: no symbol of the host is in the global scope."""
        code, output = self.in_python(
            "import ctypes, os, sys\n"
            "ggml = ctypes.CDLL(sys.argv[1], mode=os.RTLD_LOCAL)\n"
            "ggml.ggml_backend_load.restype = ctypes.c_void_p\n"
            "assert ggml.ggml_backend_load(sys.argv[2].encode())\n"
            "ggml.ggml_backend_dev_by_name.restype = ctypes.c_void_p\n"
            "assert ggml.ggml_backend_dev_by_name(b'GAAC0')\n", host().bin / "libggml.so", host().plugin)
        self.assertEqual(code, 0, output)

    def host_of_version(self, version, api):
        return self.in_python(
            "import ctypes, os, sys\n"
            "os.environ['FAKE_VERSION'], os.environ['FAKE_API'] = sys.argv[3:]\n"
            "fake = ctypes.CDLL(sys.argv[1], mode=os.RTLD_LOCAL)\n"
            "fake.load.restype = ctypes.c_void_p\n"
            "sys.exit(3 if fake.load(sys.argv[2].encode()) is None else 0)\n",
            ARGUMENTS.fake_host, host().plugin, version, api)

    def test_known_hosts(self):
        for version, api in (("0.21.0", 2), ("0.25.3-dirty", 2), ("0.26.0", 3), ("0.27.1", 3)):
            code, output = self.host_of_version(version, api)
            self.assertEqual((code, lines_of(output)), (0, []), output)

    def test_unknown_hosts(self):
        for version, api in (("0.20.9", 2), ("0.26.0", 2), ("0.25.3", 3), ("0.28.0", 3), ("0.30.1", 6), ("1.21.0", 2),
                             ("unknown", 2)):
            code, output = self.host_of_version(version, api)
            self.assertEqual(code, 3, output)
            self.one_line(output, "not loaded", version, f"API {api}")

    def test_host_without_a_function(self):
        code, output = self.in_python("import ctypes, sys\n"
                                      "plugin = ctypes.CDLL(sys.argv[1])\n"
                                      "plugin.ggml_backend_init.restype = ctypes.c_void_p\n"
                                      "sys.exit(3 if plugin.ggml_backend_init() is None else 0)\n", host().plugin)
        self.assertEqual(code, 3, output)
        self.one_line(output, "not loaded", "the host has no function")

    def test_exports(self):
        library = ctypes.CDLL(str(host().plugin))
        self.assertTrue(hasattr(library, "ggml_backend_init"))
        self.assertFalse(hasattr(library, "gaac_cache_create"))


def main():
    global ARGUMENTS  # pylint: disable=global-statement
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=pathlib.Path, required=True, help="build tree of stock llama.cpp")
    parser.add_argument("--plugin", type=pathlib.Path, required=True)
    parser.add_argument("--model", type=pathlib.Path, required=True)
    parser.add_argument("--scenario", type=pathlib.Path, required=True)
    parser.add_argument("--fake-host", type=pathlib.Path, required=True)
    ARGUMENTS, rest = parser.parse_known_args()
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)


if __name__ == "__main__":
    main()
