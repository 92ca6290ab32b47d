"""gaac bench codec and gaac inspect on KV dumps: figures, exactness, bad files."""

import json
import math
import os
import struct
import subprocess
import unittest

from fixtures import COMMAND, HAS_PLOT, SHARED_DATA, CommandTest, dump, kv_bits, npy

FIELDS = (
    "file coded_ratio resident_ratio paper_coded_ratio exceptions_per_tile groups_4bit raw_blocks roundtrip_exact "
    "encode_gbps decode_gbps isa"
).split()


class Bench(CommandTest):
    def bench(self, *arguments, **options):
        result = self.run_gaac("bench", "codec", "--json", "--seconds", "0", *arguments, **options)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        return json.loads(result.stdout)

    def test_fields_and_sense(self):
        path = self.path("normal.npy", dump(layers=2, tokens=512, heads=2))
        (one,) = self.bench("--ablations", path)
        self.assertLessEqual(set(FIELDS), set(one))
        self.assertEqual(one["file"], str(path))
        self.assertIs(one["roundtrip_exact"], True)
        self.assertEqual((one["calibration_tokens"], one["evaluation_tokens"]), (256, 256))
        # Normal values: about 1.42, and nobody beats 16 bits over sign, mantissa and the entropy of the exponent.
        self.assertTrue(1.38 < one["coded_ratio"] < 1.5, one)
        self.assertTrue(1.3 < one["resident_ratio"] < one["coded_ratio"], one)
        self.assertTrue(1.0 < one["paper_4_raw_coded_ratio"] < one["paper_coded_ratio"] < 1.5, one)
        self.assertTrue(0 < one["groups_4bit"] < 0.5 and one["exceptions_per_tile"] < 4, one)
        self.assertTrue(one["encode_gbps"] > 0 and one["decode_gbps"] > 0)

    def test_every_kernel_set_counts_the_same(self):
        path = self.path("normal.npy", dump(tokens=256))
        figures = []
        for isa in ("c", "avx512bf16"):
            (one,) = self.bench(path, environment={"GAAC_CPU": isa})
            figures.append([one[name] for name in FIELDS[1:7]])
        self.assertEqual(figures[0], figures[1])

    def test_every_pattern_comes_back(self):
        """All 65,536, NaN payloads and infinities among them, in the evaluated half: blocks may stay raw, bits may not
        change."""
        patterns = [(i * 40503) % 65536 for i in range(65536)]
        half = struct.pack("<65536H", *patterns)
        plane = kv_bits(65536) + half  # 512 + 512 tokens of 2 heads of 64
        path = self.path("patterns.npy", npy(plane + plane, (1, 2, 1024, 2, 64)))
        (one,) = self.bench(path)
        self.assertIs(one["roundtrip_exact"], True)
        self.assertEqual(one["raw_blocks"], 1)
        self.assertAlmostEqual(one["coded_ratio"], 1, places=4)

    def test_a_few_nans_cost_bytes_not_bits(self):
        data = bytearray(dump(tokens=256))
        at = len(data) - 4000
        data[at : at + 2] = b"\xff\x7f"
        (one,) = self.bench(self.path("nan.npy", bytes(data)))
        self.assertIs(one["roundtrip_exact"], True)
        self.assertGreater(one["coded_ratio"], 1.3)

    def test_calibrate_on_another_dump(self):
        a, b = self.path("a.npy", dump(seed=1)), self.path("b.npy", dump(seed=2))
        one, two = self.bench("--calibrate-on", a, b, a)
        self.assertEqual((one["file"], two["file"]), (str(b), str(a)))
        self.assertEqual((one["calibration_tokens"], one["evaluation_tokens"]), (256, 256))
        self.assertIs(one["roundtrip_exact"], True)
        other = self.path("other.npy", dump(heads=2))
        result = self.run_gaac("bench", "codec", "--seconds", "0", "--json", "--calibrate-on", a, other)
        self.assertEqual((result.returncode, json.loads(result.stdout)), (3, []))
        self.assertRegex(result.stderr, r"\Agaac: .*other\.npy.* one model\n\Z")

    def test_head_dims(self):
        for head_dim in (16, 64, 112, 128, 192, 256):
            (one,) = self.bench(self.path("d.npy", dump(tokens=160, head_dim=head_dim)))
            self.assertIs(one["roundtrip_exact"], True, head_dim)

    def test_table_and_one_bad_file_among_good(self):
        good, bad = self.path("good.npy", dump()), self.path("bad.npy", b"nothing")
        result = self.run_gaac("bench", "codec", "--seconds", "0", bad, good)
        self.assertEqual(result.returncode, 3)
        self.assertRegex(result.stdout, r"(?m)^good\.npy +1\.\d+ .* exact ")
        self.assertRegex(result.stderr, r"\Agaac: [^\n]*bad\.npy[^\n]*\n\Z")

    def test_real_kv(self):
        """What the project promises of real caches: calibrated on the first half, evaluated on the second."""
        folder = SHARED_DATA / "kv"
        if not folder.is_dir():
            self.skipTest(f"no {folder}: real KV caches are not part of the repository")
        for name, least in (("smollm2-prose", 1.420), ("gemma-prose", 1.415)):
            (one,) = self.bench("--split", "0.5", folder / f"{name}.npy")
            self.assertIs(one["roundtrip_exact"], True)
            self.assertGreaterEqual(one["coded_ratio"], least, name)
            self.assertGreaterEqual(one["resident_ratio"], 1.395, name)
            self.assertAlmostEqual(one["paper_coded_ratio"], 1.404, delta=0.003, msg=name)
            self.assertLess(one["raw_blocks"], 0.01, name)


class BadDumps(CommandTest):
    def test_each_gets_one_line(self):
        data = bytes(2 * 2 * 64 * 64)
        good = npy(data, (1, 2, 64, 1, 64))
        for name, content, word in [
            ("empty", b"", "empty"),
            ("text", b"just text, long enough for a header", "NumPy"),
            ("float", npy(data, (1, 2, 32, 1, 64), "<f4"), "<u2"),
            ("big endian", npy(data, (1, 2, 64, 1, 64), ">u2"), "<u2"),
            ("fortran", npy(data, (1, 2, 64, 1, 64), fortran=True), "ascontiguousarray"),
            ("flat", npy(data, (64 * 2 * 64,)), "[layer][2 = K, V]"),
            ("three parts", npy(data, (1, 4, 32, 1, 64)), "not 2"),
            ("zero tokens", npy(b"", (1, 2, 0, 1, 64)), "no tokens"),
            ("zero layers", npy(b"", (0, 2, 64, 1, 64)), "no layers"),
            ("zero heads", npy(b"", (1, 2, 64, 0, 64)), "head"),
            ("head_dim 100", npy(bytes(2 * 2 * 64 * 100), (1, 2, 64, 1, 100)), "100"),
            ("truncated", good[:-2], "truncated"),
            ("too long", good + b"..", "too long"),
            ("huge", npy(data, (2**31, 2, 2**40, 256, 1024)), "large"),
            ("wrapping", npy(data, (2**32 - 1, 2, 2**62, 1, 64)), "large"),
            ("few tokens", npy(bytes(2 * 2 * 32 * 64), (1, 2, 32, 1, 64)), "too few"),
            ("no shape", b"\x93NUMPY\x01\x00\x10\x00{'descr': '<u2'}", "header"),
            ("long header", b"\x93NUMPY\x01\x00\xff\xff{}", "header"),
            ("version 9", b"\x93NUMPY\x09" + good[7:], "header"),
        ]:
            with self.subTest(name):
                path = self.path("bad.npy", content)
                self.assert_refused_by_bench(path, word)

    def assert_refused_by_bench(self, path, word):
        result = self.run_gaac("bench", "codec", "--json", path)
        self.assertEqual(json.loads(result.stdout), [])
        result.stdout = ""
        self.assert_refused(result, 3, word, "bad.npy")

    def test_pipes_are_refused_not_waited_for(self):
        for name in ("pipe", "pipe.npy"):
            pipe = self.folder / name
            os.mkfifo(pipe)
            self.assert_refused(self.run_gaac("inspect", pipe), 1, name, "not a regular file")
            result = self.run_gaac("bench", "codec", "--json", "--calibrate-on", pipe, pipe)
            self.assert_refused(result, 1, name, "not a regular file")
            result = self.run_gaac("bench", "codec", "--json", pipe)
            self.assertEqual(json.loads(result.stdout), [])
            result.stdout = ""
            self.assert_refused(result, 1, name, "not a regular file")

    def test_a_regular_file_as_standard_input(self):
        path = self.path("dump.npy", dump(tokens=64))
        with path.open("rb") as file:
            result = subprocess.run(
                [COMMAND, "inspect", "--json", "/dev/stdin"], stdin=file, capture_output=True, check=True, timeout=300
            )
        self.assertEqual(json.loads(result.stdout)["tokens"], 64)

    def test_headers_cut_anywhere(self):
        good = npy(bytes(2 * 2 * 64 * 64), (1, 2, 64, 1, 64))
        for length in range(0, 130, 3):
            result = self.run_gaac("inspect", self.path("cut.npy", good[:length]))
            self.assert_refused(result, 3)

    def test_format_versions(self):
        for version in (1, 2, 3):
            data = npy(kv_bits(2 * 64 * 64), (1, 2, 64, 1, 64), version=version)
            result = self.run_gaac("inspect", self.path("v.npy", data))
            self.assertEqual((result.returncode, result.stderr), (0, ""))


class Inspect(CommandTest):
    def inspect(self, path):
        result = self.run_gaac("inspect", "--json", path)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        return json.loads(result.stdout)

    def test_numbers_of_a_known_dump(self):
        """K: all ones. V: exponents 126 and 127 by turns in every channel: one bit of entropy."""
        token = struct.pack("<64H", *[0x3F80] * 64)
        other = struct.pack("<64H", *[0x3F00] * 64)
        json_ = self.inspect(self.path("known.npy", npy(token * 64 + (token + other) * 32, (1, 2, 64, 1, 64))))
        k, v = json_["heads"]
        self.assertEqual((k["part"], k["entropy"], k["channel_entropy"]), ("K", 0, 0))
        self.assertEqual((v["part"], v["entropy"], v["channel_entropy"]), ("V", 1, 1))
        for part in (k, v):
            self.assertEqual((part["groups_3bit"], part["exceptions_per_tile"]), (1, 0))
            # 16 x 64 elements: 8 + 3 bits each, and 128 tag bits.
            self.assertAlmostEqual(part["coded_ratio"], 16 / (11 + 128 / 1024), places=4)

    def test_heads_and_sums_agree_with_bench(self):
        path = self.path("many.npy", dump(layers=2, tokens=128, heads=3))
        json_ = self.inspect(path)
        self.assertEqual(len(json_["heads"]), 2 * 2 * 3)
        self.assertEqual({(h["layer"], h["part"], h["head"]) for h in json_["heads"]},
                         {(l, p, h) for l in range(2) for p in "KV" for h in range(3)})
        mean = sum(1 / h["coded_ratio"] for h in json_["heads"]) / 12
        self.assertTrue(math.isclose(json_["coded_ratio"], 1 / mean, rel_tol=1e-4))
        # The same tokens calibrate and are evaluated on: bench says the same.
        result = self.run_gaac("bench", "codec", "--json", "--seconds", "0", "--calibrate-on", path, path)
        self.assertAlmostEqual(json.loads(result.stdout)[0]["coded_ratio"], json_["coded_ratio"], places=3)

    def test_table(self):
        result = self.run_gaac("inspect", self.path("d.npy", dump(tokens=64, heads=2)))
        self.assertEqual(len([line for line in result.stdout.splitlines() if " - " in line]), 5)

    def test_less_than_a_block(self):
        result = self.run_gaac("inspect", self.path("short.npy", dump(tokens=5)))
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertIn("Fewer tokens than a block", result.stdout)

    def test_plot(self):
        path = self.path("d.npy", dump(layers=6, tokens=64))
        result = self.run_gaac("inspect", "--plot", "picture.png", path)
        if not HAS_PLOT:
            self.assert_refused(result, 1, "libplplot-dev")
            self.skipTest("this build has no PLplot: only its refusal was tested")
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        picture = (self.folder / "picture.png").read_bytes()
        self.assertEqual(picture[:8], b"\x89PNG\r\n\x1a\n")
        self.assertGreater(len(picture), 20000)
        result = self.run_gaac("inspect", "--plot", "picture.svg", "--json", path)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        json.loads(result.stdout)
        self.assertIn("<svg", (self.folder / "picture.svg").read_text()[:2000])
        self.assert_refused(self.run_gaac("inspect", "--plot", "no/where.png", path), 1, "no/where.png")


if __name__ == "__main__":
    unittest.main()
