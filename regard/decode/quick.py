"""A compiled step: one token is written without Python in between.

Between the large matrices, a step is many small operations. `compiled(model)` has torch.compile make one
program of them, from the same code. That takes half a minute, so it begins only after a model has written for
a while: a short job never waits for it. The program is for the number of rows that were written by then, one
or several; steps of other numbers of rows, and what cannot be compiled, are written as before.
"""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from collections.abc import Callable
from itertools import count
from threading import Lock
from types import FunctionType
from typing import TypeVar
from weakref import ref

import torch
from torch import Tensor

from regard.errors import UsageError
from regard.model import Decoder, EncoderDecoder, Model
from regard.nn.cache import Cache

NUMBERS = count()  # of programs
AFTER = 256  # steps that are written as before: by then, half a minute may pay
Kind = TypeVar("Kind", bound=Model)
Program = Callable[[Decoder | EncoderDecoder, Tensor, Cache], Tensor]


def compiled(model: Kind, after: int = AFTER) -> Kind:
    """The same model, whose steps will be compiled once so many rows were written for `after` tokens."""
    if not isinstance(model, Decoder | EncoderDecoder):
        raise UsageError(
            f"only a model that writes has steps to compile, but this is a {type(model).__name__}."
        )
    if model.training:
        raise UsageError(
            "steps are compiled for answering, but this model is being trained: call model.eval() first."
        )
    _ = model.limit  # found once, before: its lock cannot be compiled
    model.quick = Quick(after)
    return model


def step(model: Decoder | EncoderDecoder, ids_N: Tensor, cache: Cache) -> Tensor:
    """Logits after one more token in each row, (N, V)."""
    return answer(model, model.states(ids_N[:, None], cache=cache))


def answer(model: Decoder | EncoderDecoder, x_NLD: Tensor) -> Tensor:
    """Logits after the last token: only the last position has a question to answer, (N, V)."""
    logits_N1V: Tensor = model.head(x_NLD[:, -1:])
    return logits_N1V[:, 0].float()


class Quick:
    """Decides which of a model's steps are compiled.

    Options:
        after: steps of a number of rows that are not
    """

    def __init__(self, after: int) -> None:
        self.after, self.lock, self.threads = after, Lock(), torch.get_num_threads()
        self.steps: Counter[int] = Counter()  # by rows
        self.rows: int | None = None  # that the program is for
        self.whose: ref[Model] | None = None  # weights are in it
        self.program: Program | None = _program()
        self.last: ref[Cache] | None = None

    def __deepcopy__(self, _: object) -> Quick:
        return Quick(self.after)  # a copy of a model compiles for itself

    def __call__(self, model: Decoder | EncoderDecoder, ids_N: Tensor, cache: Cache) -> Tensor:
        """As `step`."""
        # batches side by side have a thread each, and a program is for all of them
        fits = cache.own_BNM is None and torch.get_num_threads() == self.threads and not model.training
        if not fits or not self.lock.acquire(blocking=False):  # one at a time
            return step(model, ids_N, cache)
        try:
            rows = len(ids_N)
            self.steps[rows] += 1
            if self.rows is None and self.steps[rows] > self.after:
                self.rows = rows
            self.whose = self.whose or ref(model)
            if self.rows != rows or self.program is None or self.whose() is not model:
                return step(model, ids_N, cache)
            # a program that grows the cache would be another one, and so would one that fills it to the end
            if cache.reserve(2) or self.last is None or self.last() is not cache:
                for held, axis in cache.buffers():
                    torch._dynamo.maybe_mark_dynamic(held, axis)
                self.last = ref(cache)
            return self._run(model, ids_N, cache)
        finally:
            self.lock.release()

    def _run(self, model: Decoder | EncoderDecoder, ids_N: Tensor, cache: Cache) -> Tensor:
        from torch._inductor import config as inductor  # not before it is needed: it takes long

        assert self.program is not None
        length = cache.length
        try:
            with inductor.patch(freezing=True):  # weights are constants
                return self.program(model, ids_N, cache)
        except Exception as error:  # a compiler has many ways to fail, and none of them may cost an answer
            if cache.length != length:
                raise
            self.program = None
            print(f"regard: steps stay uncompiled: {_said(error)}", file=sys.stderr)
            return step(model, ids_N, cache)


def _said(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return " ".join(lines[: 2 if lines[0].endswith(":") else 1])


def _program() -> Program:
    # PyTorch warns of its own way
    warnings.filterwarnings("ignore", message="To copy construct from a tensor")
    # Whose model it is, is not asked before every token: its weights are constants of the program. So each
    # program has code of its own, by which PyTorch knows it.
    code = step.__code__.replace(co_name=f"step_{next(NUMBERS)}")
    unasked = torch.compiler.skip_guard_on_all_nn_modules_unsafe
    own = FunctionType(code, step.__globals__)
    return torch.compile(own, fullgraph=True, options={"guard_filter_fn": unasked})
