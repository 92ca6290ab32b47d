"""gaac itself: help, version, usage errors."""

import unittest

from fixtures import HAS_PLOT, CommandTest

COMMANDS = ("exec", "calibrate", "inspect", "bench")


class Command(CommandTest):
    def test_help_teaches(self):
        for arguments in [["--help"], ["-h"], ["help"], ["bench", "codec", "--help"], ["bench", "attention", "--help"]] + [[c, "--help"] for c in COMMANDS]:
            with self.subTest(arguments):
                result = self.run_gaac(*arguments)
                self.assertEqual((result.returncode, result.stderr), (0, ""))
                self.assertIn("Examples:", result.stdout)
                self.assertLess(result.stdout.index("Examples:"), result.stdout.index("gaac", 60))
                self.assertLessEqual(max(map(len, result.stdout.splitlines())), 120)

    def test_help_names_every_option_that_is_taken(self):
        for command, options in {
            "exec": "profile memory mode threads stats plugin program dry-run",
            "calibrate": "model file output context tokens threads host plugin verbose dry-run",
            "inspect": "plot json",
            "bench codec": "split calibrate-on tile-cap ablations seconds json",
            "bench attention": "head-dim gqa threads isa kv-heads tokens layers query-tokens kv seconds json",
        }.items():
            text = self.run_gaac(*command.split(), "--help").stdout
            for option in options.split():
                self.assertIn(f"--{option}", text, command)

    def test_version(self):
        result = self.run_gaac("--version", environment={"GAAC_CPU": "c"})
        self.assertRegex(result.stdout, r"\Agaac (\d+\.\d+\.\d+) \(library \1, kernels c\)\n\Z")

    def test_bad_usage(self):
        for arguments in [
            [],
            ["frobnicate"],
            ["exec"],
            ["exec", "--"],
            ["exec", "--bogus", "--", "true"],
            ["exec", "--memory"],
            ["exec", "--memory", "2X", "--", "true"],
            ["exec", "--memory", "0", "--", "true"],
            ["exec", "--memory", "99999999999T", "--", "true"],
            ["exec", "--mode", "fast", "--", "true"],
            ["exec", "--threads", "0", "--", "true"],
            ["exec", "--program", "word", "--", "true"],
            ["calibrate"],
            ["calibrate", "-m", "model.gguf"],
            ["calibrate", "-m", "model.gguf", "-f", "text", "extra"],
            ["calibrate", "-m", "model.gguf", "-f", "text", "-c", "-4096"],
            ["calibrate", "-c"],
            ["inspect"],
            ["inspect", "a", "b"],
            ["inspect", "-q", "a"],
            ["inspect", "--plot", "picture.bmp", "a"],
            ["bench"],
            ["bench", "frobnicate"],
            ["bench", "codec"],
            ["bench", "codec", "--split", "1", "a.npy"],
            ["bench", "codec", "--split", "nan", "a.npy"],
            ["bench", "codec", "--tile-cap", "100", "a.npy"],
            ["bench", "codec", "--seconds", "-1", "a.npy"],
        ]:
            if "--plot" in arguments and not HAS_PLOT:
                continue
            with self.subTest(arguments):
                self.assert_refused(self.run_gaac(*arguments), 2, "gaac")

    def test_the_option_at_fault_is_named(self):
        for arguments, word in [
            (["exec", "--bogus"], "--bogus"),
            (["exec", "--memory"], "--memory"),
            (["bench", "codec", "--json", "-qz"], "-q "),
            (["calibrate", "-m"], "-m"),
        ]:
            self.assert_refused(self.run_gaac(*arguments), 2, word, "--help")

    def test_unknown_cpu_is_refused(self):
        self.assert_refused(self.run_gaac("--version", environment={"GAAC_CPU": "sse"}), 2, "GAAC_CPU=sse", "avx2")

    def test_missing_files_fail(self):
        for arguments in (["inspect", "none.npy"], ["inspect", "none.safetensors"], ["bench", "codec", "--json", "x.npy"]):
            result = self.run_gaac(*arguments)
            self.assertEqual(result.returncode, 1)
            self.assertEqual(result.stderr.count("\n"), 1)


if __name__ == "__main__":
    unittest.main()
