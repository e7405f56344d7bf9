"""Prefill, then step: the model and its cache for a batch of answers that are being written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from regard.decode.quick import answer, step
from regard.decode.rules import Rules
from regard.errors import UsageError
from regard.model import Decoder, EncoderDecoder, Model
from regard.nn.cache import Cache, Precision
from regard.nn.context import Memory, places

PIECE = 512  # tokens of a prompt that are read at a time


class Session:
    """A batch of answers being written. `logits_NV` are the logits of each row's next token.

    Options:
        model: a decoder or an encoder-decoder
        prompts: what each answer begins with; an encoder-decoder's is its start token
        sources: what an encoder-decoder reads; None for a decoder
        precision: of the cache
        spare: how many tokens may be taken back
    """

    def __init__(
        self,
        model: Decoder | EncoderDecoder,
        prompts: Sequence[Sequence[int]],
        sources: Sequence[Sequence[int]] | None = None,
        precision: Precision = "full",
        spare: int = 0,
    ) -> None:
        self.model = model
        self.device = next(model.parameters()).device
        ids_BL = padded(prompts, self.device, left=True)
        self.cache = model.cache(len(prompts), spare=spare, precision=precision)
        with torch.no_grad():
            if sources is not None:
                assert isinstance(model, EncoderDecoder)
                self.cache.memory = model.encode(padded(sources, self.device))
            self.logits_NV = answer(model, prompted(model, ids_BL, prompts, self.cache))

    def step(self, ids_N: Tensor) -> None:
        """Append one token to each row."""
        with torch.no_grad():
            self.logits_NV = (self.model.quick or step)(self.model, ids_N, self.cache)

    def states(self, ids_N: Tensor) -> Tensor:
        """The same without logits, for who makes them of some rows at a time: the states of all rows."""
        with torch.no_grad():
            return self.model.states(ids_N[:, None], cache=self.cache)

    def logits(self, x_N1D: Tensor) -> Tensor:
        """Logits of the next token, from the states of some rows."""
        with torch.no_grad():
            return answer(self.model, x_N1D)

    def read(self, ids: Sequence[int]) -> Tensor:
        """Append several tokens to the only row: the logits after each of them, (L, V)."""
        with torch.no_grad():
            ids_1L = torch.tensor([ids], device=self.device)
            logits_1LV: Tensor = self.model.head(self.model.states(ids_1L, cache=self.cache))
        return logits_1LV[0].float()

    def rollback(self, count: int) -> None:
        """Take the last tokens back, as if they had never been read."""
        self.cache.rollback(count)

    def keep(self, index_N: Tensor, sources_B: Tensor | None = None) -> None:
        """Let the next step go on with these rows, in this order; rows may be left out or repeated.

        Given `sources_B`, only these sources are kept, and each has equally many of the rows, one after the
        other: what was computed once from a source stands there once.
        """
        self.cache.reorder(index_N, sources_B)

    def repeat(self, times: int) -> None:
        """Every row several times, one after the other."""
        rows = len(self.logits_NV)
        self.keep(torch.arange(rows, device=self.device).repeat_interleave(times))
        self.logits_NV = self.logits_NV.repeat_interleave(times, 0)


def prompted(
    model: Decoder | EncoderDecoder,
    ids_BL: Tensor,
    prompts: Sequence[Sequence[int]],
    cache: Cache | None = None,
    memory: Memory | None = None,
) -> Tensor:
    """States of rows that begin with these prompts; a prefix model reads those in both directions.

    With a cache, a long prompt is read piece by piece, and only the states of the last piece are given.
    """
    pos_BL = None if (ids_BL >= 0).all() else places(ids_BL)
    if isinstance(model, EncoderDecoder):
        return model.states(ids_BL, pos_BL, memory, cache)
    if model.prefixed:
        prefix_B = torch.tensor([len(prompt) for prompt in prompts], device=ids_BL.device)
        return model.states(ids_BL, pos_BL, cache, prefix_B=prefix_B)
    while cache is not None and ids_BL.shape[1] > PIECE:
        model.states(ids_BL[:, :PIECE], None if pos_BL is None else pos_BL[:, :PIECE], cache)
        ids_BL, pos_BL = ids_BL[:, PIECE:], None if pos_BL is None else pos_BL[:, PIECE:]
    return model.states(ids_BL, pos_BL, cache)


def padded(rows: Sequence[Sequence[int]], device: torch.device, left: bool = False) -> Tensor:
    """Rows of ids as one tensor, -1 where there is none."""
    width = max(map(len, rows))
    fill = [[-1] * (width - len(row)) for row in rows]
    both = zip(fill, rows, strict=True)
    return torch.tensor([[*pad, *row] if left else [*row, *pad] for pad, row in both], device=device)


@contextmanager
def at_rest(model: Model) -> Iterator[None]:
    """Without dropout inside the block; every module is put back to what it was."""
    active = [module for module in model.modules() if module.training]
    for module in active:
        module.training = False
    try:
        yield
    finally:
        for module in active:
            module.training = True


def check(
    model: Model, prompts: Sequence[Sequence[int]], sources: Sequence[Sequence[int]] | None
) -> Decoder | EncoderDecoder:
    """The model, if it can write answers to these prompts and sources; else a sentence that says why not."""
    if isinstance(model, EncoderDecoder):
        if sources is None:
            raise UsageError("An encoder-decoder writes from sources, but none were given.")
        if len(sources) != len(prompts):
            raise UsageError(
                f"Every prompt needs its source, but there are {len(prompts)} prompts "
                f"and {len(sources)} sources."
            )
    elif not isinstance(model, Decoder):
        raise UsageError(
            "Only decoders and encoder-decoders write answers, "
            f"but the model is of kind {type(model).__name__}."
        )
    elif sources is not None:
        raise UsageError("A decoder has prompts only, but sources were given; put them into the prompts.")
    held = model.limit
    check_rows("Prompt", prompts, "begin it with a start token", held)
    check_rows("Source", sources or (), "end it with an end token", held)
    return model


def check_rows(
    what: str, rows: Sequence[Sequence[int]], remedy: str | None = None, held: int | None = None
) -> None:
    """Refuse ids below 0, rows longer than what is held, and, if there is a remedy to name, empty rows."""
    for number, row in enumerate(rows):
        if not row and remedy:
            raise UsageError(f"{what} {number} is empty, and a model cannot begin from nothing; {remedy}.")
        if min(row, default=0) < 0:
            raise UsageError(f"{what} {number} must hold token ids of at least 0, but holds {min(row)}.")
        if held is not None and len(row) > held:
            raise UsageError(
                f"{what} {number} has {len(row)} tokens, but the model holds {held}; "
                "shorten it, or train a model with a larger length."
            )


def room(
    model: Model, prompts: Sequence[Sequence[int]], sources: Sequence[Sequence[int]] | None, rules: Rules
) -> list[int]:
    """The most new tokens of each answer: what the rules allow, as far as the model holds it."""
    most, answer = model.limit, []
    for number, prompt in enumerate(prompts):
        # One more than there are places left: the last token is written but not read.
        held = None if most is None else most - len(prompt) + 1
        if rules.length is not None:
            wanted = rules.length
        elif sources is not None:
            wanted = len(sources[number]) + 50
        else:
            wanted = model.dims.length - len(prompt) + 1
            if wanted <= 0:
                raise UsageError(
                    f"Prompt {number} has {len(prompt)} tokens, more than the model's length "
                    f"{model.dims.length}; say with `length` how many tokens shall follow it."
                )
        answer.append(wanted if held is None else min(wanted, held))
    return answer
