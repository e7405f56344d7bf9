"""A tiny real training for the tests: gpt on noisy counting, a hundred steps a second; also a program.

python -m tests.train.toy OUT '{"steps": 60, "save_every": 7}' [--resume] [--slow 0.01] [--streams]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

import regard
from regard.data.batch import Batch, Batches, pad
from regard.data.segments import Segments
from regard.errors import CheckFailed, DataError, DiskError, TryAgain, UsageError
from regard.nn.recent import Recent
from regard.spec import Recipe, read
from regard.train import Summary, Training, train

VOCAB, LENGTH, SAMPLES = 11, 12, 37


@dataclass
class Loss:
    """What a task's loss returns."""

    sum: torch.Tensor
    count: int
    aux: dict[str, torch.Tensor] = field(default_factory=dict)


class Tokens:
    """Numbers as tokens."""

    def __init__(self, name: str = "numbers") -> None:
        self.name = name

    def digest(self) -> str:
        """Of the name."""
        return hashlib.sha256(self.name.encode()).hexdigest()

    def save(self, folder: Path) -> None:
        """A file beside the weights."""
        (folder / "tokens.txt").write_text(self.name)


class Counting:
    """Rows of several lengths that count upwards modulo VOCAB from a random start, with some noise."""

    metric, better, limit = "loss", "min", None

    def __init__(
        self,
        data: int = 0,
        poison: Callable[[int], bool] = lambda step: False,
        slow: float = 0.0,
        tokens: str = "numbers",
        figures: list[float] | None = None,
    ) -> None:
        self.data, self.poison, self.slow, self.tokens = data, poison, slow, Tokens(tokens)
        self.figures, self.calls, self.seen = figures, 0, []

    def data_digest(self) -> str:
        """Of the seed of the data."""
        return hashlib.sha256(str(self.data).encode()).hexdigest()

    def rows(self, split: str, numbers: Any) -> list[list[int]]:
        """Samples by number."""
        made = []
        for number in numbers:
            random = np.random.default_rng([self.data, split == "train", int(number)])
            row = (random.integers(VOCAB) + np.arange(random.integers(4, LENGTH + 2))) % VOCAB
            noise = random.random(len(row)) < 0.1
            made.append(np.where(noise, random.integers(VOCAB, size=len(row)), row).tolist())
        return made

    def batches(
        self, split: str, tokens: int | None = None, size: int | None = None, seed: int = 0
    ) -> Batches:
        """Rows of a split."""

        def make(numbers: Any, epoch: int) -> Batch:
            rows = self.rows(split, numbers)
            tensors = {"ids": pad([r[:-1] for r in rows]), "target": pad([r[1:] for r in rows])}
            return Batch([int(n) for n in numbers], tensors, sum(len(r) - 1 for r in rows))

        return Batches(
            SAMPLES if split == "train" else 8, make, size=size or 8, seed=seed, shuffle=split == "train"
        )

    def loss(self, model: Any, batch: Batch) -> Loss:
        """Next token, summed."""
        time.sleep(self.slow)
        self.calls += 1
        self.seen.append(sorted(batch.ids))
        pos = regard.nn.context.places(batch["ids"])
        x = model.states(batch["ids"], pos)
        total = model.head.loss(x, batch["target"])
        return Loss(total * math.nan if self.poison(self.calls) else total, batch.tokens)

    def extra(self, model: Any) -> None:
        """Nothing beside the model."""

    def learn(self, model: Any, batch: Batch, memory: Any, extra: Any, done: float) -> Loss:
        """As it is."""
        return self.loss(model, batch)

    def evaluate(self, model: Any, split: str, limit: int | None = None) -> dict[str, Any]:
        """Nats per target, or the next of the given figures."""
        if self.figures is not None:
            return {"loss": self.figures.pop(0)}
        model.eval()
        with torch.no_grad():
            batch = self.batches(split).at(0)
            x = model.states(batch["ids"], regard.nn.context.places(batch["ids"]))
            return {"loss": float(model.head.loss(x, batch["target"])) / batch.tokens}


class Streaming(Counting):
    """One long row that counts with noise, read in streams: each batch goes on from the one before."""

    memory = 7

    def batches(
        self, split: str, tokens: int | None = None, size: int | None = None, seed: int = 0
    ) -> Batches:
        """Segments of a split, a few of each stream."""
        random = np.random.default_rng([self.data, split == "train"])
        text = np.cumsum(random.random(301) < 0.9) % VOCAB

        def make(pieces: Any, epoch: int) -> Batch:
            rows = [text[start : stop + 1].tolist() for _, start, stop in pieces]
            tensors = {"ids": pad([r[:-1] for r in rows]), "target": pad([r[1:] for r in rows])}
            return Batch([n for n, _, _ in pieces], tensors, sum(len(r) - 1 for r in rows))

        return Segments(300, size or 5, LENGTH // 2, make, seed, split == "train")

    def remember(self, model: Any, rows: int) -> Recent:
        """As a language task does."""
        return model.recent(rows, self.memory, states=True)

    def learn(self, model: Any, batch: Batch, memory: Any, extra: Any, done: float) -> Loss:
        """Next token, summed, after what is remembered."""
        time.sleep(self.slow)
        self.calls += 1
        pos = regard.nn.context.places(batch["ids"], memory.next_B)
        ragged = bool((batch["ids"] < 0).any())
        x = model.states(batch["ids"], pos if ragged else None, memory)
        total = model.head.loss(x, batch["target"])
        return Loss(total * math.nan if self.poison(self.calls) else total, batch.tokens)


def recipe(**options: Any) -> Recipe[Any]:
    """A gpt of two small layers."""
    sizes = {"vocab": VOCAB, "width": 16, "heads": 2, "layers": 2, "length": LENGTH, "dropout": 0.1}
    return regard.system("gpt", **{**sizes, **options})


def training(**options: Any) -> Training:
    """One thread, checked like a config."""
    return read(Training, {"threads": 1, "lr": 1e-2, "save_every": 10, "log_every": 3, **options}).build()


def go(out: Path, task: Counting | None = None, model: Recipe[Any] | None = None, **options: Any) -> Summary:
    """Train in this process; `resume`, `allow_changed` and `config` go to train, the rest to Training."""
    how = {name: options.pop(name) for name in ("resume", "allow_changed", "config") if name in options}
    return train(model or recipe(), task or Counting(), training(**options), out, **how)  # type: ignore[arg-type]


def environment(**more: str) -> dict[str, str]:
    """For child processes: one thread, and this repository on the path."""
    root = str(Path(__file__).parents[2])
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": root, "GLOO_SOCKET_IFNAME": "lo", **more}


def main(arguments: list[str] | None = None) -> int:
    """The same from a command line, with exit codes as `regard train` has them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("options", nargs="?", default="{}")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--slow", type=float, default=0.0)
    parser.add_argument("--poison", type=int, default=-1)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--streams", action="store_true")
    given = parser.parse_args(arguments)
    kind = Streaming if given.streams else Counting
    task = kind(slow=given.slow, poison=lambda call: call == given.poison)
    where = {"position": {"kind": "t5_bias"}} if given.streams else {}
    model = recipe(dropout=given.dropout, width=given.width, **where)
    try:
        go(given.out, task, model, resume=given.resume, **json.loads(given.options))
    except (CheckFailed, DataError, DiskError, TryAgain, UsageError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return error.code
    return 0


if __name__ == "__main__":
    sys.exit(main())
