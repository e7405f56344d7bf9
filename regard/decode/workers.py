"""Batches side by side: small models leave most of a processor idle between their small products.

One thread for each batch uses it better than all threads for each product, as long as the weights are few. No
answer depends on it, because none depends on its batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TypeVar

import torch

from regard.model import Model

In = TypeVar("In")
Out = TypeVar("Out")

SMALL = 2**26  # bytes of weights up to which a model is small


def workers(model: Model) -> int:
    """How many batches are answered at a time: as many as there are threads, if the model is small."""
    weights = list(model.parameters())
    if any(w.device.type != "cpu" for w in weights):
        return 1
    held = sum(w.nbytes for w in weights) + sum(getattr(m, "packed_bytes", 0) for m in model.modules())
    return torch.get_num_threads() if held <= SMALL else 1


def side_by_side(work: Callable[[In], Out], batches: Sequence[In], count: int) -> Iterator[tuple[In, Out]]:
    """Each batch with what came of it, as it is done; `count` at a time, a thread each."""
    if count < 2 or len(batches) < 2:
        for batch in batches:
            yield batch, work(batch)
        return
    threads = torch.get_num_threads()
    with ThreadPoolExecutor(count, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        try:
            asked = {pool.submit(work, batch): batch for batch in batches}
            for done in as_completed(asked):
                yield asked[done], done.result()
        finally:
            pool.shutdown(cancel_futures=True)
            torch.set_num_threads(threads)  # some libraries count threads for all of them
