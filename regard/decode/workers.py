"""Batches side by side: small models leave most of a processor idle between their small products.

One thread for each batch uses it better than all threads for each product, as long as the weights are few.
Rows of beams are many, though: where kernels of our own multiply them, two threads share a batch that is
twice as large, and do not wait for each other's Python. No answer depends on it, because none depends on its
batch. Nor does its last bit depend on which thread was quicker: each has a line of its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from queue import Queue
from threading import Event
from typing import TypeVar

import torch

from regard.model import Model

Out = TypeVar("Out")

SMALL = 2**26  # bytes of weights up to which a model is small


def workers(model: Model, beams: bool = False) -> tuple[int, int]:
    """How many batches are answered at a time, and how many times as large each may be: if the model is
    small, as many as there are threads, or, of beams that kernels of our own multiply, half as many.
    """
    weights, modules = list(model.parameters()), list(model.modules())
    if any(w.device.type != "cpu" for w in weights):
        return 1, 1
    held = sum(w.nbytes for w in weights) + sum(getattr(m, "packed_bytes", 0) for m in modules)
    if held > SMALL:
        return 1, 1
    threads, shared = torch.get_num_threads(), beams and any(getattr(m, "small", False) for m in modules)
    return (threads // 2, 2) if shared and threads > 1 else (threads, 1)


class Waiting:
    """Prompts that wait for a place.

    Options:
        sizes: of each prompt, by its number, in the order in which they come
        budget: the most that those who are there may take; each takes the place of the largest, for they are
            filled up to its length. Who is larger than that by himself comes alone.
    """

    def __init__(self, sizes: dict[int, int], budget: int) -> None:
        self.sizes, self.budget, self.numbers = sizes, budget, deque(sizes)

    def take(self, alive: Sequence[int] = ()) -> list[int]:
        """Numbers of those who come in beside those who are there, if a quarter of the places is free."""
        largest, taken = max((self.sizes[number] for number in alive), default=0), list[int]()
        if 4 * largest * len(alive) > 3 * self.budget:
            return taken
        while self.numbers:
            there, largest = len(alive) + len(taken), max(largest, self.sizes[self.numbers[0]])
            if there and largest * (there + 1) > self.budget:
                break
            taken.append(self.numbers.popleft())
        return taken


def side_by_side(work: Callable[[int], Iterator[Out]], count: int) -> Iterator[Out]:
    """What workers 0 .. count - 1 find, each with its share of the threads, as they find it."""
    if count < 2:
        yield from work(0)
        return
    found, over, threads = Queue[Out | Ended](), Event(), torch.get_num_threads()
    half, dtype = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")  # said of a thread alone

    def run(number: int) -> None:
        error: BaseException | None = None
        try:
            with torch.autocast("cpu", dtype, enabled=half):
                for item in work(number):
                    found.put(item)
                    if over.is_set():
                        break
        except BaseException as raised:
            error = raised
        found.put(Ended(error))

    with ThreadPoolExecutor(
        count, initializer=torch.set_num_threads, initargs=(threads // count or 1,)
    ) as pool:
        for number in range(count):
            pool.submit(run, number)
        try:
            while count:
                item = found.get()
                if not isinstance(item, Ended):
                    yield item
                elif item.error is not None:
                    raise item.error
                else:
                    count -= 1
        finally:
            over.set()
            pool.shutdown()
            torch.set_num_threads(threads)  # some libraries count threads for all of them


@dataclass(frozen=True)
class Ended:
    """A worker is done, or has failed."""

    error: BaseException | None
