"""Embed, stack, head: the three forms a model takes.

A negative id is padding, wherever it stands; there is no mask to lose.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor, nn

from regard.dims import Dims
from regard.errors import UsageError
from regard.nn.cache import Cache, Precision
from regard.nn.compress import Compress
from regard.nn.context import Context, How, Memory, places, plain_places
from regard.nn.embed import Embed
from regard.nn.head import Head, Pooled
from regard.nn.init import Init
from regard.nn.mixer import Attention, Latent
from regard.nn.position import Position
from regard.nn.recent import Recent
from regard.nn.stack import Stack
from regard.spec import Recipe, part

Tape = dict[str, Tensor]


class Model(nn.Module):
    """Sequence in, answers out.

    dims    the numbers it was built with
    recipe  what it was built from
    limit   the longest sequence it can place
    quick   takes the place of a step of writing (see `regard.decode.quick`)
    """

    dims: Dims
    head: Head
    recipe: Recipe[Model] | None = None
    quick: Callable[[Any, Tensor, Cache], Tensor] | None = None

    def cache(
        self, batch: int, length: int | None = None, spare: int = 0, precision: Precision = "full"
    ) -> Cache:
        """An empty cache for `batch` rows: growing, or static with `length` columns; in full or in bytes."""
        return Cache(batch, length, spare, precision)

    def recent(self, batch: int, memory: int | None = None, states: bool = False) -> Recent:
        """An empty memory over segments for `batch` rows, of the last `memory` tokens before each call."""
        return Recent(batch, memory, states)

    @cached_property
    def limit(self) -> int | None:
        """Positions must stay below this; None: any length."""
        placing = (m for m in self.modules() if isinstance(m, Position | Compress))
        limits = [m.limit for m in placing if m.limit is not None]
        return min(limits, default=None)

    def _context(self, ids_BL: Tensor, pos_BL: Tensor | None, cache: Cache | None) -> Context:
        """Where the tokens stand: as given, or going on where the cache stopped."""
        _check_rows(ids_BL, cache)
        start, length = 0 if cache is None else cache.length, ids_BL.shape[1]
        plain = pos_BL is None and (cache is None or cache.plain)
        if plain:
            pos_BL = plain_places(start, length, ids_BL.device)
        elif pos_BL is None:
            assert cache is not None
            pos_BL = cache.next_B.to(ids_BL.device)[:, None] + torch.arange(length, device=ids_BL.device)
        assert pos_BL is not None
        if self.limit is not None and start + length > self.limit:
            needed = start + length if plain else int(pos_BL.max()) + 1  # padding needs no position
            if needed > self.limit:
                raise UsageError(
                    f"The model holds {self.limit} positions, but {needed} are needed; "
                    "shorten the input, or train with a larger dims.length."
                )
        if cache is not None:
            cache.begin(pos_BL, plain)
        return Context(pos_BL, plain)

    @staticmethod
    def _find(ids_BL: Tensor, cache: Cache | None = None) -> Tensor | None:
        """Positions of a batch that has padding; None where it has none. A compiled graph cannot look."""
        _check_rows(ids_BL, cache)
        if not torch.compiler.is_compiling() and not bool((ids_BL < 0).any()):
            return None
        return places(ids_BL, None if cache is None else cache.next_B.to(ids_BL.device))


def _check_rows(ids_BL: Tensor, cache: Cache | None) -> None:
    if cache is not None and cache.batch != ids_BL.shape[0]:
        raise UsageError(f"The cache holds {cache.batch} rows, but {ids_BL.shape[0]} were given.")


@part
class Decoder(Model):
    """Reads from left to right and says what comes next: GPT, Llama.

    Options:
      embed, stack, head: the parts
      tied: the head shares the embedding's matrix
      init: the weights it is born with
    """

    def __init__(
        self,
        dims: Dims,
        embed: Recipe[Embed],
        stack: Recipe[Stack],
        head: Recipe[Head],
        tied: bool = True,
        init: Recipe[Init] | None = None,
    ) -> None:
        super().__init__()
        self.dims = dims
        self.embed, self.decoder, self.head = embed.build(dims), stack.build(dims), head.build(dims)
        if tied:
            self.head.tie(self.embed.weight)
        if init:
            init.build()(self)

    def forward(self, ids_BL: Tensor, cache: Cache | None = None, tape: Tape | None = None) -> Tensor:
        """Logits of the next token after each (B, L, V)."""
        return self.head(self.states(ids_BL, self._find(ids_BL, cache), cache, tape))  # type: ignore[no-any-return]

    def states(
        self,
        ids_BL: Tensor,
        pos_BL: Tensor | None = None,
        cache: Cache | None = None,
        tape: Tape | None = None,
        losses: Tape | None = None,
        prefix_B: Tensor | None = None,
        how: How = "auto",
        layers: list[Tensor] | None = None,
    ) -> Tensor:
        """The stream before the head. Without `pos_BL`, nothing is padded."""
        x_BLD = self.embed(ids_BL)  # first: what it refuses must not be in the cache
        ctx = self._context(ids_BL, pos_BL, cache)
        ctx = ctx.but(path="decoder", cache=cache, tape=tape, losses=losses, prefix_B=prefix_B, how=how)
        ctx = ctx if layers is None else ctx.but(layers=layers)
        return self.decoder(x_BLD, ctx)  # type: ignore[no-any-return]

    @cached_property
    def prefixed(self) -> bool:
        """A prompt is read in both directions: its length belongs into `prefix_B`."""
        return any(isinstance(m, Attention | Latent) and m.pattern.prefixed for m in self.modules())


@part
class Encoder(Model):
    """Reads in both directions: BERT.

    Options:
      embed, stack, head: the parts; with a pooled head, one answer for each sequence
      tied: the head shares the embedding's matrix
      init: the weights it is born with
    """

    def __init__(
        self,
        dims: Dims,
        embed: Recipe[Embed],
        stack: Recipe[Stack],
        head: Recipe[Head],
        tied: bool = True,
        init: Recipe[Init] | None = None,
    ) -> None:
        super().__init__()
        self.dims = dims
        self.embed, self.encoder, self.head = embed.build(dims), stack.build(dims), head.build(dims)
        if tied:
            self.head.tie(self.embed.weight)
        if init:
            init.build()(self)

    def forward(self, ids_BL: Tensor, segments_BL: Tensor | None = None, tape: Tape | None = None) -> Tensor:
        """Logits: (B, L, V), or (B, C) with a pooled head."""
        pos_BL = self._find(ids_BL)
        x_BLD = self.states(ids_BL, pos_BL, segments_BL, tape)
        return self.head(x_BLD, pos_BL) if isinstance(self.head, Pooled) else self.head(x_BLD)  # type: ignore[no-any-return]

    def states(
        self,
        ids_BL: Tensor,
        pos_BL: Tensor | None = None,
        segments_BL: Tensor | None = None,
        tape: Tape | None = None,
        losses: Tape | None = None,
        how: How = "auto",
    ) -> Tensor:
        """The stream before the head. Without `pos_BL`, nothing is padded."""
        ctx = self._context(ids_BL, pos_BL, None).but(path="encoder", tape=tape, losses=losses, how=how)
        return self.encoder(self.embed(ids_BL, segments_BL), ctx)  # type: ignore[no-any-return]


@part
class EncoderDecoder(Model):
    """One stack reads a source, another writes a target while looking at it: Vaswani's Transformer, T5.

    Options:
      embed: of the source, and of the target where they share it
      encoder, decoder: the stacks
      head: from the decoder's states to answers
      tied: all: source, target and head share one matrix; inputs: source and target do; output: target and
        head do; none
      init: the weights it is born with
    """

    def __init__(
        self,
        dims: Dims,
        embed: Recipe[Embed],
        encoder: Recipe[Stack],
        decoder: Recipe[Stack],
        head: Recipe[Head],
        tied: Literal["all", "inputs", "output", "none"] = "all",
        init: Recipe[Init] | None = None,
    ) -> None:
        super().__init__()
        self.dims = dims
        self.embed = embed.build(dims)
        self.target = None if tied in ("all", "inputs") else embed.build(dims)
        self.encoder, self.decoder, self.head = encoder.build(dims), decoder.build(dims), head.build(dims)
        if tied in ("all", "output"):
            self.head.tie((self.target or self.embed).weight)
        if init:
            init.build()(self)

    def forward(
        self,
        source_BM: Tensor | None,
        target_BL: Tensor,
        cache: Cache | None = None,
        tape: Tape | None = None,
    ) -> Tensor:
        """Logits of the next target token after each (B, L, V).

        With `cache.memory` set, no source is needed.
        """
        memory = None
        if source_BM is not None:
            memory = self.encode(source_BM, tape=tape)
            if cache is not None:
                cache.memory = memory
        pos_BL = self._find(target_BL, cache)
        return self.head(self.states(target_BL, pos_BL, memory, cache, tape))  # type: ignore[no-any-return]

    def encode(
        self,
        source_BM: Tensor,
        pos_BM: Tensor | None = None,
        tape: Tape | None = None,
        losses: Tape | None = None,
        how: How = "auto",
    ) -> Memory:
        """What the encoder makes of the source. Without `pos_BM`, padding is found."""
        pos_BM = self._find(source_BM) if pos_BM is None else pos_BM
        ctx = self._context(source_BM, pos_BM, None).but(path="encoder", tape=tape, losses=losses, how=how)
        return Memory(self.encoder(self.embed(source_BM), ctx), ctx.pos_BL, ctx.plain)

    def states(
        self,
        target_BL: Tensor,
        pos_BL: Tensor | None = None,
        memory: Memory | None = None,
        cache: Cache | None = None,
        tape: Tape | None = None,
        losses: Tape | None = None,
        how: How = "auto",
    ) -> Tensor:
        """The decoder's stream before the head. Without `pos_BL`, nothing of the target is padded."""
        if memory is None and cache is not None:
            memory = cache.memory
        if memory is None:
            raise UsageError(
                "A target needs a source: give memory=model.encode(source), or set cache.memory to it."
            )
        x_BLD = (self.target or self.embed)(target_BL)  # first: what it refuses must not be in the cache
        ctx = self._context(target_BL, pos_BL, cache)
        ctx = ctx.but(path="decoder", memory=memory, cache=cache, tape=tape, losses=losses, how=how)
        return self.decoder(x_BLD, ctx)  # type: ignore[no-any-return]


def build(recipe: Recipe[Model], seed: int = 0) -> Model:
    """The model of a recipe; the same seed gives the same weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = recipe.build()
    model.recipe = recipe
    return model
