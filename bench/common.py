"""Timing that a busy machine cannot fool unseen: contenders take turns, every round, each in its own process.

A number of one library means little by itself; the ratio of two that ran side by side means much. So each
round runs every contender once, in an order that rotates, and the ratios are made within rounds. Processes of
their own, because the thread pool of one library slows that of another down, even while it sleeps. How much
of the processors other programs took meanwhile is measured and said.

A library may take part in variants, `transformers` and `transformers, bf16`: it is judged by its best. The
machine takes part, too, with what it could do at best in that very round: what it can do changes by the hour.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import psutil
import torch

from regard.heap import in_large_pages
from regard.packed import has_bf16

Run = Callable[[], object]  # a float that it gives is taken for its seconds
Make = Callable[[], Run]

FORK = multiprocessing.get_context("fork")
REST = 0.3  # seconds between two contenders: the threads of the one before wait busily for a while
LIMIT = "limit of the machine"  # the contender who only does what cannot be left out
NO_BF16 = "" if has_bf16() else "this processor knows no bf16"
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

    def best(self) -> dict[str, str]:
        """Of each library the variant with the highest median."""
        found: dict[str, str] = {}
        for name, each in self.rates.items():
            library = name.split(", ")[0]
            if library not in found or statistics.median(each) > statistics.median(
                self.rates[found[library]]
            ):
                found[library] = name
        return found

    def ratios(self, peer: str) -> list[float]:
        """regard's best rate over the peer's best, round by round: above 1 regard is faster."""
        best = self.best()
        both = zip(self.rates[best["regard"]], self.rates[best[peer]], strict=True)
        return [ours / theirs for ours, theirs in both]

    def summary(self) -> dict[str, Any]:
        """Everything as plain values."""
        rows = {
            name: {"median": statistics.median(each), "min": min(each), "max": max(each), "rounds": each}
            for name, each in self.rates.items()
        }
        ratios, best = {}, self.best()
        for peer in best:
            if peer != "regard" and "regard" in best:
                each = self.ratios(peer)
                ratios[peer] = {"median": statistics.median(each), "min": min(each), "max": max(each)}
        limit = ratios.pop(LIMIT, None)
        return {
            "case": self.case,
            "unit": self.unit,
            "rates": rows,
            "best": best,
            "regard_over": ratios,
            "slowest_peer": max(ratios, key=lambda peer: ratios[peer]["median"], default=None),
            "best_peer": min(ratios, key=lambda peer: ratios[peer]["median"], default=None),
            "of_limit": limit,
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


class Apart:
    """A contender in a process of its own, forked here: set up, warmed up, then run when it is asked to."""

    def __init__(self, make: Make) -> None:
        self.ours, theirs = FORK.Pipe()
        self.process = FORK.Process(target=self._serve, args=(make, theirs), daemon=True)
        self.process.start()
        theirs.close()

    @staticmethod
    def _serve(make: Make, pipe: Any) -> None:
        try:
            run = make()
            run()
            pipe.send(None)
        except BaseException as problem:
            lines = str(problem).splitlines()
            pipe.send(f"{type(problem).__name__}: {lines[0] if lines else ''}")
            raise
        while pipe.recv():
            gc.collect()
            time.sleep(REST)
            with Load() as load:
                start = time.perf_counter()
                said = run()
                seconds = time.perf_counter() - start
            pipe.send((said if isinstance(said, float) else seconds, load.foreign))

    def problem(self) -> str | None:
        """What went wrong while it was set up; None: it is ready."""
        return cast(str | None, self._hear())

    def run(self) -> tuple[float, float]:
        """Seconds of one run, and how many cores others took meanwhile."""
        self.ours.send(True)
        return cast(tuple[float, float], self._hear())

    def end(self) -> None:
        """Let it go."""
        if self.process.is_alive():
            self.ours.send(False)
        self.process.join()

    def _hear(self) -> Any:
        try:
            return self.ours.recv()
        except EOFError:
            self.process.join()
            raise RuntimeError(f"a contender died with code {self.process.exitcode}") from None


def race(case: Case, rounds: int) -> Result:
    """Set every contender up, one after the other, then let them take turns."""
    result = Result(case.name, case.unit)
    ready: dict[str, Apart] = {}
    try:
        for name, make in case.contenders.items():
            if NO_BF16 and "bf16" in name.split(", "):  # a step would take minutes
                result.absent[name] = NO_BF16
                continue
            one = Apart(make)
            problem = one.problem()
            if problem is None:
                ready[name] = one
            elif name == "regard":
                raise RuntimeError(problem)
            else:  # a peer that is missing or broken is said, and the others go on
                result.absent[name] = problem
        names = list(ready)
        result.rates = {name: [] for name in names}
        for number in range(rounds):
            turn = number % len(names)
            for name in names[turn:] + names[:turn]:
                seconds, foreign = ready[name].run()
                result.rates[name].append(case.work / seconds)
                result.foreign.append(foreign)
    finally:
        for one in ready.values():
            one.end()
    return result


def show(result: Result) -> None:
    """A table for people."""
    facts = result.summary()
    rounds = len(next(iter(result.rates.values())))
    print(f"\n{result.case}   ({result.unit}; median, min - max of {rounds} rounds)")
    print(f"  {'':36}{result.unit:>12}{'spread':>22}   {'regard is':>10}{'spread':>16}")
    libraries = {variant: library for library, variant in facts["best"].items()}
    for name, rate in facts["rates"].items():
        line = f"  {name:36}{rate['median']:12,.1f}{rate['min']:12,.1f} -{rate['max']:8,.1f}"
        ratio = facts["of_limit"] if name == LIMIT else facts["regard_over"].get(libraries.get(name))
        if ratio is not None:
            line += f"   {ratio['median']:9.2f}x{ratio['min']:9.2f} -{ratio['max']:5.2f}"
        print(line)
    for name, reason in result.absent.items():
        print(f"  {name:36}not measured: {reason}")
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


def peaks() -> dict[str, float]:
    """What the machine can do at best: operations a second of large products, bytes a second read.

    In a process of its own: one that has run threads must not be forked.
    """
    ours, theirs = FORK.Pipe()
    process = FORK.Process(target=lambda: theirs.send(_peaks()), daemon=True)
    process.start()
    found: dict[str, float] = ours.recv()
    process.join()
    return found


def _peaks() -> dict[str, float]:
    large = 1e15  # so that the seconds are many digits
    formats = {"fp32": torch.float32, "bf16": torch.bfloat16}
    made = {"read": reading(large)} | {name: products(large, dtype) for name, dtype in formats.items()}
    return {name: large / cast(float, make()()) for name, make in made.items()}


def reading(count: float) -> Make:
    """The limit of who must read so many bytes: as fast as memory is read at best."""

    def make() -> Run:
        big = torch.ones(1 << 26)  # far beyond every cache
        in_large_pages([big])
        return lambda: count / _best(4.0 * big.numel(), big.sum)

    return make


QUICKEST = torch.float32 if NO_BF16 else torch.bfloat16


def products(count: float, dtype: torch.dtype = QUICKEST, size: int = 1536) -> Make:
    """The limit of who must do so many operations: as fast as large matrices are multiplied at best."""

    def make() -> Run:
        a, b = (torch.randn(size, size).to(dtype) for _ in range(2))
        return lambda: count / _best(2.0 * size**3, lambda: a @ b)

    return make


def _best(work: float, run: Run, seconds: float = 1.0) -> float:
    """How much of it is done in a second, in the best of many tries."""
    best, end = 0.0, time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        run()
        best = max(best, work / (time.perf_counter() - start))
    return best


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
