"""gaac bench attention: the JSON's fields, real comparison of bits, dumps, and what is refused."""

import json
import unittest

from fixtures import CommandTest, dump, kv_bits, npy

SMALL = ("--json", "--tokens", 1024, "--kv-heads", 1, "--head-dim", 64, "--threads", 1, "--seconds", 0)


class BenchAttention(CommandTest):
    def measure(self, *arguments):
        result = self.run_gaac("bench", "attention", *arguments)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        return json.loads(result.stdout)

    def test_one_object_with_all_fields(self):
        figures = self.measure(*SMALL, "--gqa", 3, "--isa", "c", "--query-tokens", 2, "--layers", 2)
        self.assertIs(figures["bit_identical"], True)
        for name in ("fused_gbps", "fused_best_gbps", "raw_gbps", "raw_best_gbps", "read_gbps", "fused_gflops",
                     "raw_gflops", "fused_over_raw", "fused_over_raw_best"):
            self.assertGreater(figures[name], 0, name)
        self.assertGreaterEqual(figures["fused_best_gbps"], figures["fused_gbps"])
        self.assertGreaterEqual(figures["rounds"], 3)
        self.assertEqual({name: figures[name] for name in ("isa", "head_dim", "gqa", "kv_heads", "threads", "tokens",
                                                           "layers", "query_tokens", "kv", "working_set_bytes")},
                         {"isa": "c", "head_dim": 64, "gqa": 3, "kv_heads": 1, "threads": 1, "tokens": 1024,
                          "layers": 2, "query_tokens": 2, "kv": "drawn", "working_set_bytes": 2 * 1024 * 2 * 64 * 2})

    def test_drawn_values_compress_as_real_ones_do(self):
        figures = self.measure(*SMALL)
        self.assertEqual(figures["raw_blocks"], 0)
        self.assertGreater(figures["coded_ratio"], 1.40)
        self.assertLess(figures["coded_ratio"], 1.44)

    def test_a_dump_is_repeated(self):
        path = self.path("kv.npy", dump(layers=2, tokens=200, heads=2, head_dim=32))
        figures = self.measure("--json", "--kv", path, "--tokens", 1040, "--threads", 1, "--seconds", 0, "--layers", 3)
        self.assertEqual((figures["kv_heads"], figures["head_dim"], figures["kv"]), (2, 32, str(path)))
        self.assertIs(figures["bit_identical"], True)

    def test_values_that_do_not_compress_are_measured_too(self):
        noise = bytes((i * i * 2654435761 >> 13) & 0xFF for i in range(2 * 1024 * 64 * 2))
        path = self.path("noise.npy", npy(noise, (1, 2, 1024, 1, 64)))
        figures = self.measure("--json", "--kv", path, "--tokens", 1024, "--threads", 1, "--seconds", 0)
        self.assertIs(figures["bit_identical"], True)
        self.assertGreater(figures["raw_blocks"], 0.5)

    def test_a_table_row_for_each_value(self):
        result = self.run_gaac("bench", "attention", *SMALL[1:], "--isa", "c", "--gqa", "1,2")
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        rows = [line.split() for line in result.stdout.splitlines() if line.startswith("c ")]
        self.assertEqual([row[:4] for row in rows], [["c", "64", "1", "1"], ["c", "64", "2", "1"]])

    def test_bad_usage(self):
        kv = self.path("kv.npy", npy(kv_bits(2 * 64 * 32), (1, 2, 64, 1, 32)))
        for arguments, word in [
            (["--head-dim", "100"], "--head-dim 100"),
            (["--head-dim", "64,2048"], "--head-dim 64,2048"),
            (["--gqa", "0"], "--gqa 0"),
            (["--gqa", "1,"], "--gqa 1,"),
            (["--threads", "100000"], "--threads 100000"),
            (["--isa", "sse"], "--isa sse"),
            (["--tokens", "1000"], "--tokens 1000"),
            (["--kv-heads", "257"], "--kv-heads 257"),
            (["--layers", "0"], "--layers 0"),
            (["--seconds", "-1"], "--seconds -1"),
            (["--query-tokens", "0"], "--query-tokens 0"),
            (["--query-tokens", "2000", "--tokens", "1024"], "--query-tokens 2000"),
            (["--json", "--gqa", "1,2"], "--json"),
            (["--json", "--tokens", "100000000"], "GiB"),
            (["--kv", kv, "--head-dim", "64"], "--head-dim"),
            (["--kv", kv, "--kv-heads", "2"], "--kv-heads"),
            (["extra"], "extra"),
            (["--bogus"], "--bogus"),
        ]:
            with self.subTest(arguments):
                self.assert_refused(self.run_gaac("bench", "attention", *arguments), 2, word)

    def test_a_bad_dump_is_bad_data(self):
        path = self.path("bad.npy", npy(b"", (0,)))
        self.assert_refused(self.run_gaac("bench", "attention", "--kv", path), 3, "bad.npy")


if __name__ == "__main__":
    unittest.main()
