#!/usr/bin/env python3
"""GAAC on a GPU against BF16 attention and general compressors, in one process and on the same data.

Prints a table and writes a result file (README.md beside this explains its fields).
"""
import argparse
import datetime
import fnmatch
import json
import os
import pathlib
import platform
import shlex
import subprocess
import sys
import threading
import time
import traceback

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE))
CASE_SECONDS = 100  # longer, and the case is given up


class Report:
    """The result file, written after each case, so that nothing is lost when a later one fails."""

    def __init__(self, path, resumed):
        self.path = path
        self.data = {"rows": [], "failures": [], "done": []}
        if resumed and path.exists():
            self.data = json.loads(path.read_text(encoding="utf-8"))
        self.lock = threading.Lock()

    def row(self, case, baseline, us, baseline_us=None, **fields):
        row = {"case": case, "baseline": baseline, "us": round(us, 2),
               "baseline_us": None if baseline_us is None else round(baseline_us, 2),
               "speedup": None if baseline_us is None else round(baseline_us / us, 4),
               "mismatches": fields.pop("mismatches", None)}
        row.update({name: round(value, 4) if isinstance(value, float) else value for name, value in fields.items()})
        if row.get("target") is not None:
            measured = row[row["target_field"]]
            row["met"] = measured <= row["target"] if row["target_field"] == "us" else measured >= row["target"]
        with self.lock:
            self.data["rows"].append(row)
        self.show(row)

    @staticmethod
    def show(row):
        def number(value, form):
            return "-" if value is None else format(value, form)
        more = [f"{name} {row[name]}" for name in ("setting", "ratio", "baseline_ratio", "note") if row.get(name)]
        if row.get("target") is not None:
            more.insert(0, f"target {row['target']} {'met' if row['met'] else 'MISSED'}")
        print(f"{row['case']:<34} {row['baseline']:<34} {number(row['us'], '10.1f')} us"
              f"{number(row['baseline_us'], '10.1f'):>11}{number(row['speedup'], '.3f'):>8}"
              f"{number(row.get('gb_per_s'), '.0f'):>6} GB/s  mism. {number(row['mismatches'], 'd'):<4}"
              f"spread {100 * row.get('spread', 0):.1f}%  {', '.join(more)}", flush=True)

    def fail(self, case, who, error):
        text = str(error).strip().splitlines()
        reason = f"{type(error).__name__}: {text[0][:300]}" if text else type(error).__name__
        with self.lock:
            self.data["failures"].append({"case": case, "who": who, "why": reason})
        print(f"{case:<34} {who:<34} not measured: {reason}", flush=True)

    def save(self):
        with self.lock:
            self.data["seconds"] = round(time.time() - self.data["started"], 1)
            unfinished = self.path.with_name(self.path.name + ".part")
            unfinished.write_text(json.dumps(self.data, indent=1) + "\n", encoding="utf-8")
            unfinished.replace(self.path)


class Watchdog:
    """Ends a case that hangs: writes down so, and starts the program again behind it."""

    def __init__(self, report):
        self.report, self.case, self.deadline = report, None, None
        threading.Thread(target=self._watch, daemon=True).start()

    def start(self, case):
        self.case, self.deadline = case, time.monotonic() + CASE_SECONDS

    def stop(self):
        self.deadline = None

    def _watch(self):
        while True:
            time.sleep(1)
            if self.deadline is not None and time.monotonic() > self.deadline:
                again(self.report, self.case, TimeoutError(f"no end after {CASE_SECONDS} s"))


def again(report, case, error):
    """After a fault that leaves the GPU's context unusable: the rest in a new process image."""
    report.fail(case, "the whole case", error)
    report.data["done"].append(case)
    report.save()
    sys.stdout.flush()
    arguments = [argument for argument in sys.argv if argument != "--resume"]
    os.execv(sys.executable, [sys.executable, *arguments, "--resume"])


def machine():
    import torch
    asked = subprocess.run(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"], capture_output=True,
                           text=True, check=False)
    gpu = torch.cuda.get_device_properties(0)
    return {"machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs", "gpu": gpu.name,
            "multiprocessors": gpu.multi_processor_count, "memory_gib": round(gpu.total_memory / 2**30, 1),
            "driver": asked.stdout.strip().splitlines()[0] if asked.stdout.strip() else "unknown",
            "cuda": torch.version.cuda, "torch": torch.__version__, "cudnn": torch.backends.cudnn.version()}


def commit():
    def git(*words):
        return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=True).stdout
    try:
        return git("rev-parse", "HEAD").strip() + (" with changes" if git("status", "--porcelain") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", type=pathlib.Path, default=ROOT / "build/cuda-device/lib/libgaac_cuda.so.0")
    parser.add_argument("--peers", type=pathlib.Path, default=ROOT / "build/cuda-peers/peers",
                        help="what get-peers.sh made, unpacked")
    parser.add_argument("--kv", type=pathlib.Path,
                        help="samples of real keys and values (*.npy); default: kv in --peers")
    parser.add_argument("--cases", default="", help="only cases that contain or match one of these, with commas")
    parser.add_argument("--skip", default="", help="none of these, likewise")
    parser.add_argument("--quick", action="store_true", help="few cases, short")
    parser.add_argument("--seconds", type=float, help="of timing for each case; 1, or 0.3 with --quick")
    parser.add_argument("--limit", type=float, default=480, help="no case is begun after so many seconds")
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "build/cuda-bench.json")
    parser.add_argument("--commit", help="of the library, where there is no git repository")
    parser.add_argument("--list", action="store_true", help="print the names of the cases and end")
    parser.add_argument("--resume", action="store_true", help="go on behind the last case of the output file")
    arguments = parser.parse_args()
    if arguments.kv is None:
        arguments.kv = arguments.peers / "kv"
    if arguments.seconds is None:
        arguments.seconds = 0.3 if arguments.quick else 1.0
    return arguments


def matches(name, patterns):
    return any(pattern and (pattern in name or fnmatch.fnmatch(name, pattern)) for pattern in patterns.split(","))


def chosen(cases, arguments):
    for case in cases:
        if arguments.cases and not matches(case.name, arguments.cases):
            continue
        if arguments.quick and not arguments.cases and not case.quick:
            continue
        if not matches(case.name, arguments.skip):
            yield case


def main():
    arguments = parse()
    from case_list import CASES
    if arguments.list:
        for case in CASES:
            print(case.name + (" (quick)" if case.quick else ""))
        return 0
    begun = time.time()
    sys.path.append(str(arguments.peers / "site"))
    import torch
    if not torch.cuda.is_available():
        print("bench.py: torch sees no GPU", file=sys.stderr)
        return 77
    from cases import Bench
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    report = Report(arguments.output, arguments.resume)
    if "started" not in report.data:
        now = datetime.datetime.now(datetime.timezone.utc)
        report.data = {**machine(), "date": now.strftime("%Y-%m-%dT%H:%M:%SZ"),
                       "commit": arguments.commit or commit(),
                       "command": shlex.join(["bench/cuda/bench.py", *sys.argv[1:]]), "started": begun,
                       **report.data}
    bench = Bench(arguments, report)
    watchdog = Watchdog(report)
    print(f"{'case':<34} {'baseline':<34} {'GAAC':>10}    {'baseline':>10} speed-up", flush=True)
    for case in chosen(CASES, arguments):
        if case.name in report.data["done"]:
            continue
        if time.time() - report.data["started"] > arguments.limit:
            report.fail(case.name, "the whole case", TimeoutError(f"begins after {arguments.limit:g} s"))
            continue
        watchdog.start(case.name)
        start = time.monotonic()
        try:
            bench.run(case)
            torch.cuda.synchronize()
        except Exception as error:
            traceback.print_exc(limit=-4)
            try:
                torch.cuda.synchronize()
                torch.ones(1, device="cuda").item()
            except Exception:
                again(report, case.name, error)
            report.fail(case.name, "the whole case", error)
        watchdog.stop()
        print(f"-- {time.monotonic() - start:.1f} s", flush=True)
        report.data["done"].append(case.name)
        report.save()
    report.save()
    bad = [row for row in report.data["rows"] if row["mismatches"]]
    missed = [row for row in report.data["rows"] if row.get("met") is False]
    print(f"{len(report.data['rows'])} rows in {report.data['seconds']:.0f} s: {len(bad)} with mismatches, "
          f"{len(missed)} targets missed, {len(report.data['failures'])} not measured: {arguments.output}", flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
