"""Batches by a budget of tokens, of samples that are about equally long.

The budget counts what the machine computes, padding included: rows times the longest source plus rows times
the longest target. The plan has two halves. How to sort and where to cut depends on the lengths alone, so a
few good ways are worked out once, all with the same number of batches: every epoch has equally many steps.
Each epoch takes one of these ways, deals the samples among the places of the same (rounded) lengths, and puts
the batches in a new order, so that a sample meets other company each time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from regard.data.order import mix, order
from regard.errors import DataError

Numbers = NDArray[np.int64]

BITS = 4
"""Binary digits that lengths are rounded up to: exact to 16, then within an eighth. Company to mix with."""


@dataclass(frozen=True)
class Cuts:
    """Samples of equal `rank` may change places; batch b has the places from bounds[b] to bounds[b + 1]."""

    rank: Numbers
    bounds: Numbers


def buckets(
    lengths: ArrayLike, tokens: int, seed: int, epoch: int | None, size: int | None = None
) -> list[Numbers]:
    """Batches of sample numbers, each sample in exactly one, within a budget of tokens (padding included).

        rows * (longest source + longest target) <= tokens

    Options:
      lengths  (N,), or (N, 2) for source and target.
      epoch    deals and orders the batches anew; None keeps them in the order of their lengths.
      size     also the most rows.
    """
    return deal(cut(lengths, tokens, size), seed, epoch)


def cut(lengths: ArrayLike, tokens: int, size: int | None = None) -> list[Cuts]:
    """A few ways to sort by length and to cut as late as the budget allows; see `buckets`.

    With two lengths, sort by the first in steps of some width and by the second within, up and down in turn
    so that neighbours stay alike. The ways that need few batches are kept; large batches of the best are
    split until all have as many as the worst of them.
    """
    given = np.atleast_2d(np.asarray(lengths, np.int64).T).T
    whole = given.sum(1)
    if whole[most := int(whole.argmax())] > tokens:
        over = int((whole > tokens).sum())
        raise DataError(
            f"every sample must fit into a batch of {tokens} tokens, but {over} do not, such as sample "
            f"{most} of {whole[most]}; give a larger budget or shorten the samples."
        )
    rounded = _round_up(given)
    many = whole.sum() > 1000 * tokens  # then each length alone fills batches, and coarser steps gain nothing
    steps = (1, 1) if many or given.shape[1] == 1 else (1, 2, 3, 4, 6, 8)
    ways = [_cut(rounded, step, bool(n % 2), tokens, size) for n, step in enumerate(steps)]
    few = min(len(way.bounds) for way in ways)
    ways = [way for way in ways if len(way.bounds) <= 1.04 * few]
    count = max(len(way.bounds) for way in ways)
    return [_split(way, count) for way in ways]


def deal(ways: list[Cuts], seed: int, epoch: int | None) -> list[Numbers]:
    """The batches of an epoch: samples dealt to the places of their rank, then the batches put in order."""
    if epoch is None:
        return np.split(np.argsort(ways[0].rank, kind="stable"), ways[0].bounds[1:-1])
    cuts = ways[int(mix(seed, epoch, -1)[0] % len(ways))]
    first = order(len(cuts.rank), seed, epoch)
    seated = first[np.argsort(cuts.rank[first], kind="stable")]
    batches = np.split(seated, cuts.bounds[1:-1])
    return [batches[b] for b in order(len(batches), ~seed, epoch)]


def _round_up(lengths: Numbers) -> Numbers:
    """Up to the next number of BITS binary digits followed by zeros: 17 -> 18, 33 -> 36."""
    digits = np.frexp(lengths.astype(np.float64))[1]
    step = np.left_shift(1, np.maximum(digits - BITS, 0)).astype(np.int64)
    rounded: Numbers = -(-lengths // step) * step
    return rounded


def _cut(rounded: Numbers, step: int, down: bool, tokens: int, size: int | None) -> Cuts:
    main, rest = rounded[:, 0] // step, rounded[:, 1:]
    up_and_down = np.where(main[:, None] % 2 == 0, rest, -rest)
    seated = np.lexsort((rounded[:, 0], *up_and_down.T, main))
    seated = seated[::-1] if down else seated
    sizes = rounded[seated]
    rank = np.empty(len(seated), np.int64)
    rank[seated] = np.cumsum(np.r_[0, (sizes[1:] != sizes[:-1]).any(1)])
    most = tokens // max(1, int(sizes.sum(1).min())) + 1
    most = min(most, size) if size else most
    bounds = [0]
    while (start := bounds[-1]) < len(sizes):
        longest = np.maximum.accumulate(sizes[start : start + most]).sum(1)
        rows = int(np.searchsorted(longest * np.arange(1, len(longest) + 1), tokens, side="right"))
        bounds.append(
            start + max(1, rows)
        )  # one sample always fits: rounding up may only make it seem not to
    return Cuts(rank, np.array(bounds))


def _split(cuts: Cuts, count: int) -> Cuts:
    """The same cuts and, in the middle of the largest batches, as many more as bring them to `count`."""
    bounds = cuts.bounds
    while len(bounds) < count:
        largest = int(np.diff(bounds).argmax())
        bounds = np.insert(bounds, largest + 1, (bounds[largest] + bounds[largest + 1]) // 2)
    return Cuts(cuts.rank, bounds)
