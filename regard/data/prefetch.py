"""The next batches, made by one thread while the machine works on this one."""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Iterator, Sequence
from itertools import count
from typing import TYPE_CHECKING, Self

from regard.errors import DataError

if TYPE_CHECKING:
    from regard.data.batch import Batch, Batches


def prefetch(
    batches: Batches, start: int = 0, part: int | Sequence[int] = 0, parts: int = 1, ahead: int = 2
) -> Prefetch:
    """The batches from step `start` on, without end, each made before it is asked for.

    An error while making one is raised, as DataError naming the samples, when that batch is asked for. Close
    the iterator when done (`with prefetch(...) as ready:`); the order is pure, so nothing made ahead is lost.

    Options:
      part, parts  as in `Batches.at`; several parts of a step (accumulation) follow each other.
      ahead        how many batches may wait.
    """
    return Prefetch(batches, start, [part] if isinstance(part, int) else list(part), parts, ahead)


class Prefetch(Iterator["Batch"]):
    """An endless iterator over batches, made by `prefetch`."""

    def __init__(self, batches: Batches, start: int, mine: Sequence[int], parts: int, ahead: int) -> None:
        self._made: queue.Queue[Batch | DataError] = queue.Queue(ahead)
        self._failed: DataError | None = None
        stop = threading.Event()
        # The thread must not know this object, or an iterator that was only forgotten would never end it.
        self._thread = threading.Thread(
            target=_work, args=(batches, start, mine, parts, self._made, stop), name="prefetch", daemon=True
        )
        self._end = weakref.finalize(self, stop.set)
        self._thread.start()

    def __next__(self) -> Batch:
        if self._failed:
            raise self._failed
        if not self._end.alive:
            raise StopIteration
        item = self._made.get()
        if isinstance(item, DataError):
            self._failed = item
            self.close()
            raise item
        return item

    def close(self) -> None:
        """End the thread and wait for it."""
        self._end()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _work(
    batches: Batches,
    start: int,
    mine: Sequence[int],
    parts: int,
    made: queue.Queue[Batch | DataError],
    stop: threading.Event,
) -> None:
    for step in count(start):
        for part in mine:
            item = _make(batches, step, part, parts)
            while not stop.is_set():
                try:
                    made.put(item, timeout=0.1)
                    break
                except queue.Full:
                    continue
            if stop.is_set() or isinstance(item, DataError):
                return


def _make(batches: Batches, step: int, part: int, parts: int) -> Batch | DataError:
    try:
        return batches.at(step, part, parts)
    except (
        Exception
    ) as error:  # whatever it is, it belongs to these samples and is raised where they are used
        try:
            numbers = batches.numbers(step, part, parts).tolist()
        except Exception:
            numbers = []
        named = ", ".join(map(str, numbers[:8])) + (
            f" and {len(numbers) - 8} more" if len(numbers) > 8 else ""
        )
        made = DataError(f"samples {named or 'none'} (step {step}) could not be made into a batch: {error}")
        made.__cause__ = error
        return made
