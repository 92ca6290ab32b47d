#!/usr/bin/env python3
"""GAAC on a GPU against BF16 attention and general compressors, in one process and on the same data.

Prints a table and writes a result file (README.md beside this explains its fields).
"""
import argparse
import datetime
import fnmatch
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
    from report import Report, targets
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
    print(f"{'case':<36} {'baseline':<34} {'GAAC':>10}    {'baseline':>10} speed-up", flush=True)
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
    if any("target" in row for row in report.data["rows"]):
        print("\n".join(["", *targets(report.data["rows"]), ""]))
    print(f"{len(report.data['rows'])} rows in {report.data['seconds']:.0f} s: {len(bad)} with mismatches, "
          f"{len(missed)} targets missed, {len(report.data['failures'])} not measured: {arguments.output}", flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
