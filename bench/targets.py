#!/usr/bin/env python3
"""All benchmarks of the CPU release in one run, beside what we set out for. Called by `make bench-targets`.

Parts (--only or --skip select, with commas):
  kernels    tile decode and encode in the second-level cache (gaac_harness --bench; each kernel is checked first)
  attention  attention over coded against raw blocks (gaac bench attention)
  ggml       attention beside ggml's own in one process (bench_ggml)
  smollm2    a model in stock llama.cpp, decoding and prefill, GAAC and stock in turns (bench/demo/kvrun)
  gemma      another one, with sliding windows, at four depths

Prints a table and writes bench/results/cpu-<cpu>-<date>.json: machine, date, commit, command, rows. A row has what was
measured, the target where there is one, and whether it was met; missing a target is no failure of this program.
"""
import argparse
import datetime
import hashlib
import json
import os
import pathlib
import re
import shlex
import statistics
import subprocess
import sys
import time
import types

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "bench/demo"))
import demo  # noqa: E402  kvrun's driver

MOST_TOKENS = 7168  # of the prompt
PARTS = ("kernels", "attention", "ggml", "smollm2", "gemma")
# A name of the targets' table, and the kernel sets that may stand for it: the one that this CPU takes by itself, if it is
# among them, else the first that it has.
FAMILIES = {"AVX-512": ("amx", "avx512bf16", "avx512"), "AVX2": ("avx2",), "NEON": ("neonbf16", "neon")}


class Report:
    def __init__(self):
        self.rows, self.skipped = [], []

    def add(self, what, measured, unit, target=None, **details):
        row = {"what": what, "measured": round(measured, 3), "unit": unit, "target": target,
               "met": None if target is None else bool(measured >= target), **details}
        self.rows.append(row)
        self.show(row)

    def skip(self, what, why):
        self.skipped.append({"what": what, "why": why})
        print(f"{what}: not measured, {why}", flush=True)

    @staticmethod
    def show(row):
        target = "" if row["target"] is None else f">= {row['target']:g}"
        met = {None: "", True: "met", False: "MISSED"}[row["met"]]
        print(f"{row['what']:<78} {row['measured']:>9.2f} {row['unit']:<5} {target:>8} {met}", flush=True)


def run(command, **environment):
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GAAC_")}
    result = subprocess.run([str(word) for word in command], env=clean | environment, capture_output=True, text=True,
                            check=False)
    if result.returncode != 0:
        raise RuntimeError(f"{shlex.join(map(str, command))}: exit {result.returncode}\n"
                           + (result.stderr or result.stdout)[-2000:])
    return result.stdout


def kernel_sets(arguments):
    """The sets of this machine: GAAC_CPU can lower to each of them."""
    sets = []
    for isa in ("c", "avx2", "avx512", "avx512bf16", "amx", "neon", "neonbf16"):
        try:
            if f"kernels {isa})" in run([arguments.gaac, "--version"], GAAC_CPU=isa):
                sets.append(isa)
        except RuntimeError:
            pass  # a command that does not know the name yet
    return sets


def families(arguments):
    own = re.search(r"kernels (\w+)\)", run([arguments.gaac, "--version"]))[1]
    for name, members in FAMILIES.items():
        isa = own if own in members else next((member for member in members if member in arguments.sets), None)
        if isa:
            yield name, isa


def others(arguments):
    """The sets that the machine has beside those that stand for a family: measured without a target."""
    standing = [isa for _, isa in families(arguments)]
    return [("", isa) for members in FAMILIES.values() for isa in members if isa in arguments.sets and
            isa not in standing]


def measure_kernels(arguments, report):
    lines = run([arguments.harness, "--bench", "--quiet", "--rounds", "50", "--filter", "codec."]).splitlines()
    speed = {}
    for line in lines:
        match = re.match(r"time codec\.(\S+)/(\S+) (\S+) +\S+ ns +(\S+) GB/s", line)
        if match:
            speed[match.groups()[:3]] = float(match.group(4))
    for family, targets in {"AVX-512": (95, 80), "AVX2": (37, 20), "NEON": (None, None)}.items():
        for isa in FAMILIES[family]:
            if ("read_unit", "hv2", isa) not in speed:
                continue
            report.add(f"decode of a tile with its tags, in L2, {isa}", speed["read_unit", "hv2", isa], "GB/s",
                       targets[0], isa=isa)
            for part in "kv":
                report.add(f"  of it, decoding {part.upper()} alone, {isa}", speed[f"decode_{part}", "hv2", isa],
                           "GB/s", isa=isa)
            report.add(f"encode, {isa}", speed["encode_unit", "hv2_kv", isa], "GB/s", targets[1], isa=isa)


def measure_attention(arguments, report):
    targets = {"AVX-512": {4: (1.18, 1.28), 1: (1.10, 1.20), 8: (1.10, 1.20)},
               "AVX2": {group: (0.9, 1.0) for group in (1, 4, 8)}}
    for family, isa in [*families(arguments), *others(arguments)]:
        for threads in arguments.threads:
            for group in (4, 1, 8):
                figures = json.loads(run([arguments.gaac, "bench", "attention", "--json", "--isa", isa, "--head-dim",
                                          128, "--gqa", group, "--threads", threads, "--seconds", arguments.seconds]))
                if not figures["bit_identical"]:
                    raise RuntimeError("attention over coded and raw blocks differs")
                target = targets.get(family, {}).get(group)
                report.add(f"fused / same kernel on raw blocks, {isa}, D=128, GQA {group}, threads {threads}",
                           figures["fused_over_raw"], "x", target and target[min(threads, 2) - 1], figures=figures)


def measure_ggml(arguments, report):
    for family, isa in families(arguments):
        target = {"AVX-512": 7, "AVX2": 4}.get(family)
        for threads in arguments.threads:
            # ggml's prefill takes long and is not slower beside a lesser kernel set of ours: once is enough.
            shape = [] if family == "AVX-512" else ["--tokens", 65536]
            figures = json.loads(run([arguments.bench_ggml, "--json", "--threads", threads, "--seconds",
                                      max(1, round(arguments.seconds * 2)), "--backends", arguments.stock / "bin",
                                      *shape], GAAC_CPU=isa))
            for shape in figures:
                decoding = shape["query_tokens"] == 1
                what = "64K tokens" if decoding else "prefill 512 at 6.6K"
                for other in ("bf16", "f16", "q8_0"):
                    report.add(f"fused / ggml {other} attention, {isa}, {what}, threads {threads}",
                               shape[f"fused_over_ggml_{other}"], "x",
                               target if decoding and other == "bf16" else None, figures=shape)


class Models:
    """Runs of one model in several configurations that take turns, each at the same depths.

    Contents of the caches at a depth are kept in files and taken up again, by later runs of this program too: they
    are where a measurement starts, and none of its times.
    """

    def __init__(self, arguments, model, names, threads, prompt_tokens, generate):
        work = arguments.work
        work.mkdir(parents=True, exist_ok=True)
        text = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
        prompt = work / "prompt.txt"
        wanted = types.SimpleNamespace(text=text, prompt_tokens=MOST_TOKENS)
        prompt.write_text(demo.prompt_text(wanted), encoding="utf-8")
        settings = types.SimpleNamespace(work=work, plugin=arguments.plugin, threads=threads, kvrun=arguments.kvrun,
                                         stock=arguments.stock, model=model, prompt_tokens=prompt_tokens,
                                         generate=generate)
        key = hashlib.sha256(prompt.read_bytes() + str(model.stat().st_size).encode()).hexdigest()[:12]
        self.work, self.prefix = work, f"{model.stem}-{key}"
        for old in work.glob(f"{model.stem}-*.state"):
            if not old.name.startswith(self.prefix):
                old.unlink()
        self.runs = {name: demo.Run(name, settings, prompt) for name in names}

    def state(self, name, tokens):
        # A BF16 cache is the same file whoever wrote it: stock need not take minutes over its own prefill.
        kind = "f16" if name == "stock_f16" else "bf16"
        return self.work / f"{self.prefix}-{kind}-{tokens}.state"

    def go_to(self, tokens):
        """Every run holds the first `tokens` tokens of the prompt."""
        for name in sorted(self.runs):  # "gaac" comes first and writes the state that stock_bf16 takes
            ask, state = self.runs[name].ask, self.state(name, tokens)
            if state.exists() and ask("restore", state)[0] == str(tokens):
                continue
            done = 0
            for earlier in sorted(self.work.glob(state.name.replace(f"-{tokens}.", "-*.")),
                                  key=lambda path: -int(path.stem.rsplit("-", 1)[1])):
                if int(earlier.stem.rsplit("-", 1)[1]) < tokens:
                    done = int(ask("restore", earlier)[0])
                    break
            while done < tokens:
                done += int(ask("prefill", min(demo.PREFILL_TURN, tokens - done))[0])
            ask("save", state)

    def decode(self, depth, turns, tokens):
        """Tokens a second of each run, from `depth` on, the median token of all turns."""
        times = {name: [] for name in self.runs}
        for turn in range(turns):
            self.go_to(depth - 1)
            for name in rotated(self.runs, turn):
                self.runs[name].ask("prefill", 1)
                times[name] += [float(word) for word in self.runs[name].ask("decode", tokens)[1:]]
        return {name: 1 / statistics.median(seconds) for name, seconds in times.items()}

    def prefill(self, depth, turns, tokens):
        times = {name: [] for name in self.runs}
        for turn in range(turns):
            self.go_to(depth)
            for name in rotated(self.runs, turn):
                times[name].append(float(self.runs[name].ask("prefill", tokens)[1]))
        return {name: tokens / statistics.median(seconds) for name, seconds in times.items()}

    def finish(self):
        for run_ in self.runs.values():
            run_.finish()
        stats = self.runs["gaac"].stats
        return {name: stats[name] for name in ("coded_ratio", "kv_bytes_gaac", "kv_bytes_bf16") if name in stats}


def rotated(runs, turn):
    names = list(runs)
    first = turn % len(names)
    return names[first:] + names[:first]


def add_ratios(report, what, speeds, stats, targets):
    for other, target in targets.items():
        report.add(f"{what}, GAAC / {other.replace('_', ' ')}", speeds["gaac"] / speeds[other], "x", target,
                   tokens_per_second={name: round(speed, 2) for name, speed in speeds.items()}, gaac_cache=stats)


def measure_smollm2(arguments, report):
    for threads in sorted(arguments.threads, reverse=True):  # most first: the states are made faster
        what, names = f"SmolLM2, threads {threads}", ("gaac", "stock_f16", "stock_bf16")
        models = Models(arguments, arguments.smollm2, names[:2], threads, MOST_TOKENS, 256)
        speeds = models.prefill(6656, 3, 512)
        add_ratios(report, f"{what}, prefill of 512 at depth 6.6K", speeds, models.finish(), {"stock_f16": 1.0})
        models = Models(arguments, arguments.smollm2, names, threads, MOST_TOKENS, 256)
        speeds = models.decode(MOST_TOKENS, 4, 12)
        add_ratios(report, f"{what}, decode at depth 7K", speeds, models.finish(),
                   {"stock_bf16": 3.0, "stock_f16": 2.0})
        models = Models(arguments, arguments.smollm2, names, threads, 64, 512)
        speeds = models.decode(32, 8, 32)
        add_ratios(report, f"{what}, decode at depth 32", speeds, models.finish(),
                   {"stock_bf16": 0.98, "stock_f16": None})


def measure_gemma(arguments, report):
    for threads in sorted(arguments.threads, reverse=True):
        names = ("gaac", "stock_f16", "stock_bf16")
        for depth in (32, 2048, 4096, 7168):
            models = Models(arguments, arguments.gemma, names, threads, max(depth, 64), 256)
            speeds = models.decode(depth, 6, 24)
            add_ratios(report, f"gemma-3-270m, threads {threads}, decode at depth {depth}", speeds, models.finish(),
                       {"stock_f16": 1.0, "stock_bf16": None})


def git(*words):
    result = subprocess.run(["git", "-C", ROOT, *words], capture_output=True, text=True, check=False)
    return result.stdout.strip() if result.returncode == 0 else ""


def machine(arguments):
    memory = next((line.split()[1] for line in pathlib.Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
                   if line.startswith("MemTotal")), "0")
    return {"processor": demo.processor(), "cpus": os.cpu_count(), "memory_gib": round(int(memory) / 2**20, 1),
            "kernel_sets": arguments.sets, "load_at_start": round(os.getloadavg()[0], 2)}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/release", help="build tree of GAAC")
    parser.add_argument("--stock", type=pathlib.Path, default=ROOT / "build/deps/stock", help="build tree of llama.cpp")
    parser.add_argument("--smollm2", type=pathlib.Path, default=ROOT / "build/deps/smollm2.gguf", help="a GGUF file")
    parser.add_argument("--gemma", type=pathlib.Path, default=ROOT / "build/deps/gemma.gguf", help="a GGUF file")
    parser.add_argument("--work", type=pathlib.Path, default=ROOT / "build/bench-targets",
                        help="folder for states and logs")
    parser.add_argument("--only", default=",".join(PARTS), help="parts to run, with commas")
    parser.add_argument("--skip", default="", help="parts to leave out, with commas")
    parser.add_argument("--threads", default="1,2", help="numbers of threads, with commas (default 1,2)")
    parser.add_argument("--seconds", type=float, default=1, help="of each measurement of attention (default 1)")
    parser.add_argument("--json", type=pathlib.Path, help="where the result goes (default bench/results/...)")
    arguments = parser.parse_args()
    skip = set(filter(None, arguments.skip.split(",")))
    arguments.parts = [part for part in arguments.only.split(",") if part not in skip]
    for part in {*arguments.parts, *skip} - set(PARTS):
        parser.error(f"unknown part '{part}' (there are {', '.join(PARTS)})")
    most = len(os.sched_getaffinity(0))
    arguments.threads = [threads for threads in map(int, arguments.threads.split(",")) if 1 <= threads <= most]
    if not arguments.threads:
        parser.error(f"--threads: 1 to {most} on this machine")
    arguments.gaac = arguments.build / "tools/gaac"
    arguments.harness = arguments.build / "tests/harness/gaac_harness"
    arguments.bench_ggml = arguments.build / "bench/ggml/bench_ggml"
    arguments.kvrun = arguments.build / "bench/demo/kvrun"
    arguments.plugin = arguments.build / "integrations/llama.cpp/libggml-gaac.so"
    if not arguments.gaac.exists():
        parser.error(f"{arguments.gaac} does not exist (make bench-targets builds it)")
    return arguments


def main():
    arguments = parse_arguments()
    needed = {"kernels": [arguments.harness], "attention": [], "ggml": [arguments.bench_ggml],
              "smollm2": [arguments.kvrun, arguments.plugin, arguments.smollm2],
              "gemma": [arguments.kvrun, arguments.plugin, arguments.gemma]}
    measure = {"kernels": measure_kernels, "attention": measure_attention, "ggml": measure_ggml,
               "smollm2": measure_smollm2, "gemma": measure_gemma}
    arguments.sets = kernel_sets(arguments)
    report, start = Report(), time.monotonic()
    now = datetime.datetime.now(datetime.timezone.utc)
    result = {"machine": machine(arguments), "date": now.strftime("%Y-%m-%dT%H:%M:%SZ"),
              "commit": git("rev-parse", "HEAD"), "uncommitted_changes": bool(git("status", "--porcelain", "-uno")),
              "command": shlex.join(["bench/targets.py", *sys.argv[1:]])}
    if result["machine"]["load_at_start"] > 0.5:
        print(f"targets: the machine is busy (load {result['machine']['load_at_start']}): expect times that say little",
              file=sys.stderr)
    failed = False
    for part in arguments.parts:
        missing = [path for path in needed[part] if not path.exists()]
        if missing:
            report.skip(part, f"{missing[0]} does not exist")
            continue
        try:
            measure[part](arguments, report)
        except (RuntimeError, SystemExit) as error:
            failed = True
            report.skip(part, f"failed: {error}")
    result |= {"seconds": round(time.monotonic() - start), "rows": report.rows, "not_measured": report.skipped}
    cpu = re.sub(r"[^a-z0-9]+", "-", re.sub(r"\((r|tm)\)", "", result["machine"]["processor"].lower())).strip("-")
    path = arguments.json or ROOT / f"bench/results/cpu-{cpu}-{now:%Y-%m-%d}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    missed = [row for row in report.rows if row["met"] is False]
    print(f"\n{len(report.rows)} rows, {len(missed)} targets missed, {result['seconds']} seconds; written to {path}")
    for row in missed:
        report.show(row)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
