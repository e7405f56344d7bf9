"""Batches: which samples make step n, and the tensors they become.

Everything here is a pure function of (seed, step): there is no cursor to save, nothing to lose when a run
is killed, and the batch of step n is the same whether it is reached at once or step by step, on one process
or on eight.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from regard.data.buckets import Cuts, buckets, cut, deal
from regard.data.order import mix, order
from regard.data.prefetch import Prefetch, prefetch
from regard.errors import DataError, UsageError

__all__ = ["Batch", "Batches", "Prefetch", "Rows", "buckets", "mix", "order", "pad", "prefetch"]

Numbers = NDArray[np.int64]


@dataclass
class Batch:
    """The samples of one step as tensors: `ids` are their numbers, `tokens` is how many targets they have."""

    ids: list[int]
    tensors: dict[str, Tensor] = field(default_factory=dict)
    tokens: int = 0

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]

    def __contains__(self, name: object) -> bool:
        return name in self.tensors

    def __len__(self) -> int:
        return len(self.ids)

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on another device."""
        moved = {name: tensor.to(device, non_blocking=True) for name, tensor in self.tensors.items()}
        return Batch(self.ids, moved, self.tokens)


def pad(rows: Sequence[ArrayLike], side: Literal["right", "left"] = "right", multiple: int = 1) -> Tensor:
    """Rows of different length as one (B, L) tensor of int64, the missing places -1.

    Options:
      side      where the padding goes; "left" brings the last ids of all rows together, as generation needs.
      multiple  round L up to a multiple of this, so that fewer different shapes are met.
    """
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))  # type: ignore[arg-type]
    return _padded(_flat(rows, int(lengths.sum())), lengths, side, multiple)


def _padded(flat: NDArray[Any], lengths: Numbers, side: str, multiple: int) -> Tensor:
    width = -(-int(lengths.max(initial=0)) // multiple) * multiple
    place = np.arange(width)
    if side == "right":
        filled = place < lengths[:, None]
    elif side == "left":
        filled = place >= width - lengths[:, None]
    else:
        raise UsageError(f"side must be right or left, but is {side!r}.")
    out = np.full((len(lengths), width), -1, np.int64)
    out[filled] = flat
    return torch.from_numpy(out)


def _flat(rows: Sequence[Any], total: int) -> Numbers:
    if rows and isinstance(rows[0], np.ndarray):
        return np.concatenate(rows, dtype=np.int64)
    return np.fromiter(chain.from_iterable(rows), np.int64, total)


class Rows:
    """Many short rows of ids in one array, a tenth of the memory that lists of ints take: `rows[i]` is row i.

    flat = [5 6 7 | 8 | 9 9]    starts = [0 3 4 6]
    """

    def __init__(self, rows: Iterable[Sequence[int]]) -> None:
        rows = list(rows)
        self.starts: Numbers = np.cumsum([0, *map(len, rows)], dtype=np.int64)
        self.flat: NDArray[np.int32] = _flat(rows, int(self.starts[-1])).astype(np.int32)

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, row: int) -> NDArray[np.int32]:
        if not 0 <= row < len(self):
            raise IndexError(f"there are rows 0 to {len(self) - 1}, but row {row} was asked for.")
        return self.flat[self.starts[row] : self.starts[row + 1]]

    @property
    def lengths(self) -> Numbers:
        """How long each row is."""
        return np.diff(self.starts)

    def pad(self, numbers: ArrayLike, side: Literal["right", "left"] = "right", multiple: int = 1) -> Tensor:
        """Some rows as one padded tensor, as `pad` makes it, and quicker."""
        chosen = np.asarray(numbers, np.int64)
        starts = self.starts[chosen]
        lengths = self.starts[chosen + 1] - starts
        ends = np.cumsum(lengths)
        where = np.repeat(starts - ends + lengths, lengths) + np.arange(int(lengths.sum()))
        return _padded(self.flat[where], lengths, side, multiple)


class Batches:
    """All batches of a run, by step: epoch follows epoch, each sample once in each.

        step = epoch * steps_in(epoch) + position

    With `tokens`, samples of similar length come together (see `buckets`), and the padded size of a batch,
    rows * (longest source + longest target), stays within the budget. With `size`, a batch has that many
    samples and the last of an epoch what is left. Both together limit both.

    A step can be shared: `at(step, part, parts)` is every parts-th sample of the step, from the part-th on.
    The parts of a step are together always the same samples, so ranks and accumulation change nothing but who
    does the work. A part is empty when a step has fewer samples than parts: its tensors then have no rows.

    Options:
      samples  how many there are, or the length of each: (N,), or (N, 2) for source and target.
      make     makes the Batch from sample numbers and the epoch, and depends on nothing else that changes.
      tokens   the budget of one step, padding included.
      size     the most samples in one step.
      seed     with the epoch, decides the order.
      shuffle  False keeps one order for every epoch: by number with `size`, by length with `tokens`.

    carried  whether the rows of a step go on from those of the step before (see `regard.data.segments`).
    """

    carried: bool = False

    def __init__(
        self,
        samples: int | ArrayLike,
        make: Callable[[Numbers, int], Batch],
        tokens: int | None = None,
        size: int | None = None,
        seed: int = 0,
        shuffle: bool = True,
    ) -> None:
        if tokens is None and size is None:
            raise UsageError("batches must be given a budget: tokens=4096 or size=32.")
        for name, value in (("tokens", tokens), ("size", size)):
            if value is not None and value < 1:
                raise UsageError(f"{name} of a batch must be at least 1, but is {value}.")
        lengths = None if isinstance(samples, int) else np.asarray(samples, np.int64)
        self.samples = samples if isinstance(samples, int) else len(lengths)  # type: ignore[arg-type]
        if self.samples < 1:
            raise DataError("there must be at least one sample, but there is none.")
        self.make, self.seed, self.shuffle, self.size = make, seed, shuffle, size
        self._ways: list[Cuts] = []
        self._lengths = None if lengths is None else lengths.reshape(len(lengths), -1)
        if tokens is not None:
            if lengths is None:
                raise UsageError("a budget of tokens needs the length of each sample, not only their number.")
            self._ways = cut(lengths, tokens, size)
        self._plans: dict[int, list[Numbers]] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Steps in an epoch; the same for each."""
        return len(self._ways[0].bounds) - 1 if self._ways else -(-self.samples // (self.size or 1))

    def padding(self) -> float | None:
        """The share of an epoch's places that hold no token; None where lengths are not known."""
        if self._lengths is None:
            return None
        each = [self._lengths[numbers] for numbers in self.plan(0)]
        places = sum(len(rows) * int(rows.max(0).sum()) for rows in each)
        return 1 - int(self._lengths.sum()) / max(places, 1)

    def steps_in(self, epoch: int) -> int:
        """Steps in this epoch."""
        return len(self)

    def epoch_of(self, step: int) -> tuple[int, int]:
        """The epoch a step is in, and its position there, both from 0."""
        if step < 0:
            raise UsageError(f"a step is counted from 0, but {step} was asked for.")
        return divmod(step, len(self))

    def plan(self, epoch: int) -> list[Numbers]:
        """The sample numbers of every step of an epoch. The two epochs used last are kept."""
        with self._lock:  # a prefetching thread may ask at the same time
            found = self._plans.pop(epoch, None)
            self._plans[epoch] = plan = self._plan(epoch) if found is None else found
            while len(self._plans) > 2:
                del self._plans[next(iter(self._plans))]
            return plan

    def _plan(self, epoch: int) -> list[Numbers]:
        if self._ways:
            return deal(self._ways, self.seed, epoch if self.shuffle else None)
        whole = order(self.samples, self.seed, epoch) if self.shuffle else np.arange(self.samples)
        return [whole[start : start + (self.size or 1)] for start in range(0, self.samples, self.size or 1)]

    def numbers(self, step: int, part: int = 0, parts: int = 1) -> Numbers:
        """The sample numbers of a step, or of one part of it."""
        if not 0 <= part < parts:
            raise UsageError(f"part must be one of 0 to parts - 1, but part {part} of {parts} was asked for.")
        epoch, position = self.epoch_of(step)
        return self.plan(epoch)[position][part::parts]

    def at(self, step: int, part: int = 0, parts: int = 1) -> Batch:
        """The batch of a step, or one part of it."""
        epoch, _ = self.epoch_of(step)
        mine = self.numbers(step, part, parts)
        if len(mine):
            return self.make(mine, epoch)
        like = self.make(self.numbers(step)[:1], epoch)
        return Batch([], {name: tensor[:0] for name, tensor in like.tensors.items()}, 0)
