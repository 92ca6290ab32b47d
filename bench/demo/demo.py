#!/usr/bin/env python3
"""The demo: one model, one long prompt, four KV caches, side by side.

Stock llama.cpp with an f16 and a bf16 KV cache, the same llama.cpp with GAAC's plug-in, and the
plug-in in raw mode (same path, nothing compressed). Each runs in a process of its own (kvrun); they
take turns of a few tokens, in rotating order, so that they share whatever else the machine does.
Prints one table and writes demo.json. Called by `make demo`, which builds everything first.

Stock llama.cpp takes minutes over a long prompt with a bf16 cache. So all but the last turn of the
stock prefills are kept, with their times, and later runs with the same prompt, model, threads and
stock build take them up again (--fresh: don't); the last turn is measured in every run.
"""
import argparse
import array
import hashlib
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]

# name: (title, KV type, device, environment)
CONFIGURATIONS = {
    "stock_f16": ("stock f16", "f16", "cpu", {}),
    "stock_bf16": ("stock bf16", "bf16", "cpu", {}),
    "gaac": ("GAAC", "bf16", "GAAC0", {}),
    "gaac_raw": ("GAAC raw mode", "bf16", "GAAC0", {"GAAC_MODE": "raw"}),
}
PREFILL_TURN = 512  # tokens: one step of llama.cpp's prefill
DECODE_TURN = 16    # tokens: the first of a turn finds cold caches, so not much fewer


class Run:
    """One kvrun process in one configuration."""

    def __init__(self, name, arguments, prompt):
        self.name = name
        self.title, kv_type, device, extra = CONFIGURATIONS[name]
        self.times = {"prefill": [], "decode": []}
        self.logits_path = arguments.work / f"{name}.logits"
        self.stats_path = arguments.work / f"{name}.stats.json"
        self.log_path = arguments.work / f"{name}.log"
        self.stats_path.unlink(missing_ok=True)
        environment = {key: value for key, value in os.environ.items()
                       if not key.startswith("GAAC_") and key != "GGML_BACKEND_PATH"}
        if device != "cpu":
            environment |= {"GGML_BACKEND_PATH": str(arguments.plugin), "GAAC_STATS": str(self.stats_path),
                            "GAAC_THREADS": str(arguments.threads)} | extra
        command = [arguments.kvrun, arguments.stock / "bin", arguments.model, prompt, arguments.prompt_tokens,
                   arguments.generate, kv_type, device, arguments.threads, self.logits_path]
        with open(self.log_path, "w", encoding="utf-8") as log:
            self.process = subprocess.Popen([str(word) for word in command], env=environment, text=True,
                                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)
        self.vocabulary = int(self.answer("ready")[0])

    def answer(self, expected):
        words = self.process.stdout.readline().split()
        if not words or words[0] != expected:
            self.process.kill()
            self.process.wait()
            log = self.log_path.read_text(encoding="utf-8", errors="replace")
            sys.exit(f"demo: {self.title} stopped (exit {self.process.returncode}). Its last lines, from "
                     f"{self.log_path}:\n" + "\n".join(log.splitlines()[-15:]))
        return words[1:]

    def ask(self, command, argument="", answer=None):
        self.process.stdin.write(f"{command} {argument}\n")
        self.process.stdin.flush()
        return self.answer(answer or command)

    def turn(self, kind, tokens):
        done, *seconds = self.ask(kind, tokens)
        if kind == "decode":
            self.times[kind] += [(1, float(word)) for word in seconds]
        elif int(done) > 0:
            self.times[kind].append((int(done), float(seconds[0])))

    def restore_prefill(self, kept):
        """Takes up a kept prefill of all turns but the last. True if there was one."""
        state, times = kept.with_suffix(f".{self.name}.state"), kept.with_suffix(f".{self.name}.json")
        if not state.exists() or not times.exists() or self.ask("restore", state)[0] == "0":
            return False
        self.times["prefill"] = json.loads(times.read_text(encoding="utf-8"))
        return True

    def keep_prefill(self, kept):
        state, times = kept.with_suffix(f".{self.name}.state"), kept.with_suffix(f".{self.name}.json")
        for old in kept.parent.glob(f"*.{self.name}.state"):
            old.unlink()
        if self.ask("save", state)[0] != "0":
            times.write_text(json.dumps(self.times["prefill"]), encoding="utf-8")

    def finish(self):
        self.tokens = [int(word) for word in self.ask("quit", answer="tokens")]
        if self.process.wait() != 0:
            sys.exit(f"demo: {self.title} failed at its end (exit {self.process.returncode}): see {self.log_path}")
        self.logits_hash = hashlib.sha256(self.logits_path.read_bytes()).hexdigest()
        self.stats = None
        if CONFIGURATIONS[self.name][2] != "cpu":
            self.stats = json.loads(self.stats_path.read_text(encoding="utf-8"))


    def first_logits(self):
        row = array.array("f")
        with open(self.logits_path, "rb") as file:
            row.fromfile(file, self.vocabulary)
        return row


def take_turns(runs, kind, turn, total):
    shown = sys.stderr.isatty()
    for number, done in enumerate(range(0, total, turn)):
        first = number % max(len(runs), 1)
        for run in runs[first:] + runs[:first]:
            run.turn(kind, min(turn, total - done))
        if shown:
            print(f"\r{kind} {min(done + turn, total)}/{total} tokens ", end="", file=sys.stderr, flush=True)
    if shown:
        print("\r\033[K", end="", file=sys.stderr, flush=True)


def prefill(runs, arguments, prompt):
    """Every run through the whole prompt. Returns whether the stock runs' part was kept from before."""
    # What was built, without the list of targets: more programs beside them leave the libraries as they are.
    stamps = [stamp.read_text(encoding="utf-8").split(": ")[0]
              for stamp in sorted(arguments.stock.resolve().glob("gaac-stamp-*"))]
    key = hashlib.sha256(prompt.read_bytes())
    key.update(repr((arguments.prompt_tokens, arguments.generate, arguments.threads, arguments.model.stat().st_size,
                     str(arguments.stock.resolve()), stamps and stamps[0])).encode())
    kept = arguments.work / f"prefill-{key.hexdigest()[:16]}.kept"
    stock = [run for run in runs if CONFIGURATIONS[run.name][2] == "cpu"]
    waiting = [run for run in stock if arguments.fresh or not run.restore_prefill(kept)]
    last = (arguments.prompt_tokens - 1) // PREFILL_TURN * PREFILL_TURN
    take_turns([run for run in runs if run in waiting or run not in stock], "prefill", PREFILL_TURN, last)
    for run in waiting:
        run.keep_prefill(kept)
    take_turns(runs, "prefill", PREFILL_TURN, arguments.prompt_tokens - last)
    return bool(stock) and not waiting


def prompt_text(arguments):
    """The texts one after the other, again and again until there is enough: 6 bytes a token is plenty."""
    text = "\n\n".join(path.read_text(encoding="utf-8", errors="replace") for path in arguments.text)
    if not text.strip():
        sys.exit("demo: the prompt's text is empty")
    needed = 6 * arguments.prompt_tokens
    return "\n\n".join([text] * (-(-needed // len(text))))


def rate(times):
    """Tokens a second over some turns."""
    return sum(done for done, _ in times) / sum(seconds for _, seconds in times)


def first_difference(a, b):
    """Index of the first generated token that differs, or None."""
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), None)


def processor():
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.machine()


def result_of(runs, arguments):
    by_name = {run.name: run for run in runs}
    result = {"model": arguments.model.name, "prompt_tokens": arguments.prompt_tokens,
              "generated_tokens": arguments.generate, "threads": arguments.threads, "processor": processor()}
    for run in runs:
        result[f"prefill_tps_{run.name}"] = round(rate(run.times["prefill"]), 2)
        result[f"prefill_last_turn_tps_{run.name}"] = round(rate(run.times["prefill"][-1:]), 2)
        # The median token: those that something else on the machine delayed don't count.
        result[f"decode_tps_{run.name}"] = round(1 / statistics.median(seconds for _, seconds in run.times["decode"]), 2)
        result[f"logits_sha256_{run.name}"] = run.logits_hash
    stock, gaac, raw = (by_name.get(name) for name in ("stock_bf16", "gaac", "gaac_raw"))
    if gaac:
        for field in ("kv_bytes_bf16", "kv_bytes_gaac", "resident_ratio", "coded_ratio"):
            result[field] = gaac.stats[field]
    if gaac and raw:
        result["logits_bit_identical_raw"] = gaac.logits_hash == raw.logits_hash and gaac.tokens == raw.tokens
        result["kv_bytes_gaac_raw"] = raw.stats["kv_bytes_gaac"]
    if stock:
        for run in runs:
            if run is stock:
                continue
            difference = first_difference(run.tokens, stock.tokens)
            result[f"tokens_equal_{run.name}"] = difference is None
            result[f"first_difference_{run.name}"] = difference
            result[f"first_logits_max_difference_{run.name}"] = max(
                abs(x - y) for x, y in zip(run.first_logits(), stock.first_logits()))
        if gaac:
            result["tokens_equal_stock_bf16"] = result.pop("tokens_equal_gaac")
            result["first_difference"] = result.pop("first_difference_gaac")
    return result


def show(runs, result, seconds):
    def against_stock(run):
        if run.name == "stock_bf16":
            return "-"
        name = "" if run.name == "gaac" else f"_{run.name}"
        difference = result.get(f"first_difference{name}")
        if f"first_difference{name}" not in result:
            return "?"
        return "identical" if difference is None else f"part at {difference}"

    def kv_bytes(run):
        bytes_resident = run.stats["kv_bytes_gaac"] if run.stats else result.get("kv_bytes_bf16")
        return f"{bytes_resident:,}" if bytes_resident is not None else "?"

    identical = result.get("logits_bit_identical_raw")
    rows = [
        ("prefill, tokens/s", lambda run: f"{result['prefill_tps_' + run.name]:.1f}"),
        ("prefill, its last turn", lambda run: f"{result['prefill_last_turn_tps_' + run.name]:.1f}"),
        ("decode, tokens/s", lambda run: f"{result['decode_tps_' + run.name]:.1f}"),
        ("KV bytes for these tokens", kv_bytes),
        ("tokens against stock bf16", against_stock),
        ("logits against GAAC raw mode", lambda run: {None: "?", True: "bit-identical", False: "DIFFERENT"}[identical]
         if run.name == "gaac" else "-"),
    ]
    width = max(len(title) for title, _ in rows)
    print(f"\n{result['model']}: {result['prompt_tokens']} prompt tokens, {result['generated_tokens']} generated "
          f"greedily, {result['threads']} threads, {result['processor']}\n")
    print(" " * width + "".join(f"{run.title:>15}" for run in runs))
    for title, cell in rows:
        print(f"{title:<{width}}" + "".join(f"{cell(run):>15}" for run in runs))
    print()
    if "resident_ratio" in result:
        print(f"KV cache: {result['resident_ratio']:.3f}x smaller in memory (finalized blocks), "
              f"{result['coded_ratio']:.3f}x as coded.")
    for other, what in (("stock_bf16", "GAAC against stock bf16"), ("stock_f16", "GAAC against stock f16"),
                        ("gaac_raw", "The codec alone (GAAC against its raw mode)")):
        if f"decode_tps_{other}" in result and "decode_tps_gaac" in result:
            print(f"{what}: decode {result['decode_tps_gaac'] / result['decode_tps_' + other]:.2f}x, "
                  f"prefill {result['prefill_tps_gaac'] / result['prefill_tps_' + other]:.2f}x.")
    if result["stock_prefill_kept_from_earlier_run"]:
        print("Stock's prefill up to its last turn was measured in an earlier run and kept (make demo FRESH=1: again).")
    print(f"({seconds:.0f} seconds)")


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kvrun", type=pathlib.Path, required=True, help="the kvrun program")
    parser.add_argument("--plugin", type=pathlib.Path, required=True, help="libggml-gaac.so")
    parser.add_argument("--stock", type=pathlib.Path, default=ROOT / "build/deps/stock", help="build tree of llama.cpp")
    parser.add_argument("--model", type=pathlib.Path, default=ROOT / "build/deps/smollm2.gguf", help="a GGUF file")
    parser.add_argument("--text", type=pathlib.Path, nargs="+",
                        default=[ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))],
                        help="the prompt's text (default: README.md and docs/*.md)")
    parser.add_argument("--prompt-tokens", type=int, default=6000)
    parser.add_argument("--generate", type=int, default=128, help="tokens to generate")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", default=",".join(CONFIGURATIONS), help="configurations to run, with commas")
    parser.add_argument("--fresh", action="store_true", help="measure the stock prefills again")
    parser.add_argument("--work", type=pathlib.Path, default=ROOT / "build/demo", help="folder for logits and logs")
    parser.add_argument("--json", type=pathlib.Path, default=ROOT / "build/demo.json", help="where the result goes")
    arguments = parser.parse_args()
    arguments.only = arguments.only.split(",")
    for name in arguments.only:
        if name not in CONFIGURATIONS:
            parser.error(f"unknown configuration '{name}' (there are {', '.join(CONFIGURATIONS)})")
    needed = [arguments.kvrun, arguments.model, *arguments.text]
    if any(CONFIGURATIONS[name][2] != "cpu" for name in arguments.only):
        needed.append(arguments.plugin)
    for path in needed:
        if not path.exists():
            parser.error(f"{path} does not exist (make demo builds and fetches what is needed)")
    return arguments


def busy_cores(seconds=1.5):
    """Cores that other programs use just now. (The load average would count the build that came before.)"""
    def used():
        fields = [int(word) for word in pathlib.Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        return sum(fields) - fields[3] - fields[4]  # all but idle and waiting for a disk
    before = used()
    time.sleep(seconds)
    return (used() - before) / os.sysconf("SC_CLK_TCK") / seconds


def main():
    arguments = parse_arguments()
    start = time.monotonic()
    arguments.work.mkdir(parents=True, exist_ok=True)
    prompt = arguments.work / "prompt.txt"
    prompt.write_text(prompt_text(arguments), encoding="utf-8")
    # Two threads that wait for each other stand still when a third wants a core: times are then worthless.
    load = busy_cores()
    if load > 0.3:
        print(f"demo: other programs use {load:.1f} cores: expect times that say little", file=sys.stderr)
    runs = [Run(name, arguments, prompt) for name in arguments.only]
    kept = prefill(runs, arguments, prompt)
    take_turns(runs, "decode", DECODE_TURN, arguments.generate)
    for run in runs:
        run.finish()
    result = result_of(runs, arguments)
    result["load_at_start"] = round(load, 2)
    result["stock_prefill_kept_from_earlier_run"] = kept
    result["seconds"] = round(time.monotonic() - start, 1)
    arguments.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    show(runs, result, result["seconds"])
    if result.get("logits_bit_identical_raw") is False:
        sys.exit("demo: GAAC's logits differ from its raw mode's: the codec lost a bit. Please report this.")


if __name__ == "__main__":
    main()
