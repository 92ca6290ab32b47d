"""Times GPU calls in turns: the second-level cache is emptied before each, the host is never waited for.

In front of a call stand a read of a large buffer, which leaves none of the call's data in the L2 cache and no dirty
lines that would have to be written back, and a kernel that does nothing for as long as the host takes to make the call:
so what lies between the two events is the device's work alone, for a call of one kernel from C as for one of several
from Python.
"""
import dataclasses
import random
import statistics
import time
import typing

import torch

CYCLES_OF_US = 2000  # a little above the clock, so that the wait is long enough


@dataclasses.dataclass
class Contender:
    name: str
    run: typing.Callable[[], None]
    setup: typing.Callable[[], None] = None  # before each run, not timed
    host_us: float = 0.0


@dataclasses.dataclass
class Sample:
    us: float  # the median
    spread: float  # (90th - 10th percentile) / median
    runs: int


class Timer:
    def __init__(self):
        self.buffer = torch.ones(80 << 20, dtype=torch.float32, device="cuda")
        self.sum = torch.zeros((), dtype=torch.float32, device="cuda")

    def flush(self):
        torch.sum(self.buffer, dim=0, out=self.sum)

    def warm_up(self, contender):
        for i in range(3):
            if contender.setup:
                contender.setup()
            torch.cuda.synchronize()
            start = time.perf_counter()
            contender.run()
            taken = (time.perf_counter() - start) * 1e6
            contender.host_us = taken if i == 0 else min(contender.host_us, taken)
            torch.cuda.synchronize()

    def _one(self, contender):
        if contender.setup:
            contender.setup()
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.flush()
        torch.cuda._sleep(int((min(contender.host_us, 1000) * 1.5 + 20) * CYCLES_OF_US))
        before.record()
        contender.run()
        after.record()
        return before, after

    def measure(self, contenders, seconds, fewest=11, most=101):
        """{name: Sample} of contenders that have been warmed up. Each round has an order of its own: a run finds the
        instructions that it shares with the one before it, so nobody may always come behind the same."""
        times = {contender.name: [] for contender in contenders}
        start, rounds = time.perf_counter(), 0
        while rounds < fewest or (rounds < most and time.perf_counter() - start < seconds):
            order = random.Random(rounds).sample(contenders, len(contenders))
            events = [(contender.name, self._one(contender)) for contender in order]
            torch.cuda.synchronize()
            for name, (before, after) in events:
                times[name].append(before.elapsed_time(after) * 1e3)
            rounds += 1
        samples = {}
        for name, values in times.items():
            values.sort()
            median = statistics.median(values)
            low, high = values[len(values) // 10], values[-1 - len(values) // 10]
            samples[name] = Sample(median, (high - low) / median, len(values))
        return samples

    def fastest_setting(self, peer, contender):
        """Sets the peer's setting to its fastest. Settings that fail are left out; if all do, the last error."""
        best, last_error = None, None
        for setting in peer.settings if len(peer.settings) > 1 else ():
            peer.setting = setting
            try:
                self.warm_up(contender)
            except Exception as error:
                last_error = error
                torch.cuda.synchronize()  # an error that stays is raised here
                continue
            us = self.measure([contender], 0, fewest=7)[contender.name].us
            if best is None or us < best[0]:
                best = us, setting
        if best is not None:
            peer.setting = best[1]
        elif last_error is not None:
            raise last_error
        self.warm_up(contender)
