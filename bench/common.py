"""Timing that a busy machine cannot fool unseen: contenders take turns, every round, in one process.

A number of one library means little by itself; the ratio of two that ran side by side means much. So each
round runs every contender once, in an order that rotates, and the ratios are made within rounds. How much of
the processors other programs took meanwhile is measured and said.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import psutil
import torch

Run = Callable[[], object]
Make = Callable[[], Run]

BUSY = 0.15  # cores taken by others from which on a figure is called uncertain


@dataclass
class Case:
    """One thing that several libraries do.

    Options:
        name: what is done
        unit: what is counted, a second
        work: how many of them one run does
        contenders: name -> function that sets up and returns the run; regard first
    """

    name: str
    unit: str
    work: float
    contenders: dict[str, Make]


@dataclass
class Result:
    """What came out of a case: rates of each contender by round, and who could not take part."""

    case: str
    unit: str
    rates: dict[str, list[float]] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    foreign: list[float] = field(default_factory=list)

    def ratios(self, peer: str) -> list[float]:
        """regard's rate over the peer's, round by round: above 1 regard is faster."""
        return [ours / theirs for ours, theirs in zip(self.rates["regard"], self.rates[peer], strict=True)]

    def summary(self) -> dict[str, Any]:
        """Everything as plain values."""
        rows = {
            name: {"median": statistics.median(each), "min": min(each), "max": max(each), "rounds": each}
            for name, each in self.rates.items()
        }
        ratios = {}
        for peer in self.rates:
            if peer != "regard" and "regard" in self.rates:
                each = self.ratios(peer)
                ratios[peer] = {"median": statistics.median(each), "min": min(each), "max": max(each)}
        slowest = max(ratios, key=lambda peer: ratios[peer]["median"], default=None)
        return {
            "case": self.case,
            "unit": self.unit,
            "rates": rows,
            "regard_over": ratios,
            "slowest_peer": slowest,
            "absent": self.absent,
            "foreign_cores": statistics.median(self.foreign) if self.foreign else 0.0,
        }


class Load:
    """How many cores other programs kept busy while a block ran."""

    def __enter__(self) -> Load:
        self._start = self._now()
        return self

    def __exit__(self, *_: object) -> None:
        wall, busy, own = (end - start for end, start in zip(self._now(), self._start, strict=True))
        self.foreign = max(0.0, (busy - own) / wall) if wall > 0 else 0.0

    @staticmethod
    def _now() -> tuple[float, float, float]:
        every, own = psutil.cpu_times(), psutil.Process().cpu_times()
        idle = every.idle + getattr(every, "iowait", 0.0)
        # guest time is part of user time already
        total = sum(every) - getattr(every, "guest", 0.0) - getattr(every, "guest_nice", 0.0)
        return time.perf_counter(), total - idle, own.user + own.system


def race(case: Case, rounds: int) -> Result:
    """Set every contender up, warm it up, then let them take turns."""
    result = Result(case.name, case.unit)
    runs: dict[str, Run] = {}
    for name, make in case.contenders.items():
        try:
            runs[name] = make()
            runs[name]()
        except Exception as problem:  # a peer that is missing or broken is said, and the others go on
            if name == "regard":
                raise
            runs.pop(name, None)
            result.absent[name] = (
                f"{type(problem).__name__}: {str(problem).splitlines()[0] if str(problem) else ''}"
            )
    names = list(runs)
    result.rates = {name: [] for name in names}
    for number in range(rounds):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            gc.collect()
            with Load() as load:
                start = time.perf_counter()
                runs[name]()
                seconds = time.perf_counter() - start
            result.rates[name].append(case.work / seconds)
            result.foreign.append(load.foreign)
    return result


def show(result: Result) -> None:
    """A table for people."""
    facts = result.summary()
    print(f"\n{result.case}   ({result.unit}; median, min - max of {len(result.rates['regard'])} rounds)")
    print(f"  {'':28}{result.unit:>12}{'spread':>22}   {'regard is':>10}{'spread':>16}")
    for name, rate in facts["rates"].items():
        line = f"  {name:28}{rate['median']:12,.1f}{rate['min']:12,.1f} -{rate['max']:8,.1f}"
        if name in facts["regard_over"]:
            ratio = facts["regard_over"][name]
            line += f"   {ratio['median']:9.2f}x{ratio['min']:9.2f} -{ratio['max']:5.2f}"
        print(line)
    for name, reason in result.absent.items():
        print(f"  {name:28}not measured: {reason}")
    if facts["foreign_cores"] > BUSY:
        taken = f"{facts['foreign_cores']:.2f}"
        print(f"  other programs took {taken} cores meanwhile: trust the ratios more than the rates")


def arguments(
    description: str, rounds: int, add: Callable[[argparse.ArgumentParser], None] | None = None
) -> Any:
    """The options that every benchmark has; threads are set here."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=rounds, help=f"turns of each contender ({rounds})")
    parser.add_argument("--quick", action="store_true", help="smaller work, to see that it runs")
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of tables")
    parser.add_argument("--threads", type=int, default=2, help="threads of every contender (2)")
    if add is not None:
        add(parser)
    options = parser.parse_args()
    if options.rounds < 1 or options.threads < 1:
        parser.error("--rounds and --threads must be at least 1")
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    return options


def machine(threads: int) -> dict[str, Any]:
    """On what it ran."""
    return {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cores": psutil.cpu_count(),
        "threads": threads,
        "processor": torch.backends.cpu.get_cpu_capability(),
    }


def report(name: str, options: Any, cases: list[Case], **more: Any) -> None:
    """Run all cases and print them."""
    found = []
    for case in cases:
        result = race(case, options.rounds)
        found.append(result.summary())
        if not options.json:
            show(result)
            sys.stdout.flush()
        gc.collect()
    if options.json:
        print(
            json.dumps({"bench": name, "machine": machine(options.threads), "cases": found, **more}, indent=1)
        )
