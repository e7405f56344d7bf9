"""Running text, cut: windows that stand alone, or streams that are read side by side, piece after piece."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np

from regard.data.batch import Batch, Batches, Numbers
from regard.data.order import mix
from regard.errors import DataError, UsageError

Pieces = Sequence[tuple[int, int, int]]


class Segments(Batches):
    """Batches whose rows go on: row b of a step continues row b of the step before.

        stream b of B   places b T / B .. (b + 1) T / B of the text
        step p          segment p of every stream

    An epoch reads every stream once, from its beginning to its end, so that each place is in exactly one
    segment; the last segments may differ by one place. Each epoch cuts the streams elsewhere. What a row
    remembers after step p is what the same row needs at step p + 1: part n of N always has the rows n, n + N,
    n + 2 N, ..., and at position 0 of an epoch nothing is remembered.

    Options:
      total    places of the text.
      streams  B, the rows of a batch.
      length   places of a segment.
      make     makes the Batch from (sample number, start, stop) of each row, and the epoch.
      seed     with the epoch, decides where the streams are cut.
      shuffle  False cuts every epoch at the same places.
    """

    carried = True

    def __init__(
        self,
        total: int,
        streams: int,
        length: int,
        make: Callable[[Pieces, int], Batch],
        seed: int = 0,
        shuffle: bool = True,
    ) -> None:
        if streams < 1 or length < 1:
            raise UsageError(
                f"streams and length must be at least 1, but {streams} streams of segments of {length} "
                "were asked for."
            )
        if total < streams:
            raise DataError(f"{streams} streams need as many tokens, but the text has only {total}.")
        self.streams = streams
        bounds = np.arange(streams + 1) * total // streams
        longest = int(np.diff(bounds).max())

        @lru_cache(maxsize=2)
        def edges(epoch: int) -> Numbers:
            if not shuffle:
                return still_edges(longest, length)
            return shifted_edges(longest, length, 1 + int(mix(seed, epoch, 0)[0] % np.uint64(length)))

        def of_numbers(numbers: Numbers, epoch: int) -> Batch:
            position, row = np.divmod(numbers, streams)
            begin, end = bounds[row], bounds[row + 1]
            start, stop = (np.minimum(begin + edges(epoch)[at], end) for at in (position, position + 1))
            return make(list(zip(numbers.tolist(), start.tolist(), stop.tolist(), strict=True)), epoch)

        steps = len(edges(0)) - 1
        super().__init__(steps * streams, of_numbers, size=streams, seed=seed, shuffle=False)


def still_edges(total: int, length: int) -> Numbers:
    """Windows of `length`, one after the other, the last one shorter: 0, length, 2 length, ..., total."""
    return np.append(np.arange(0, total, length), total)


def shifted_edges(total: int, length: int, shift: int) -> Numbers:
    """The same with a first window of `shift` (1 to length): each of `total` places is in exactly one window.

    There is always one window more than `still_edges` has, so that every epoch has as many: where the shift
    would give fewer, the longest of the first two is halved.
    """
    edges = np.unique(np.concatenate([[0], np.arange(shift, total, length), [total]]))
    if len(edges) - 1 < -(-total // length) + 1:
        first = int(np.argmax(np.diff(edges[:3])))
        edges = np.insert(edges, first + 1, (edges[first] + edges[first + 1]) // 2)
    return edges
