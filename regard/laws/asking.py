"""How a law asks: ragged batches of random tokens, any model's answers, and how far two answers are apart."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from regard.model import EncoderDecoder, Model
from regard.nn.cache import Cache

LENGTH = 18  # of most sequences: three blocks of eight, the last one not full; beyond a window of five
PADS = ("plain", "left", "right", "middle")


def tokens(batch: int, length: int = LENGTH, pads: str = "left", seed: int = 0) -> Tensor:
    """Random ids; unless plain, the rows have 0, 3, 7, 0, 3, ... columns of padding on that side."""
    random = torch.Generator().manual_seed(seed)
    ids_BL = torch.randint(1, 13, (batch, length), generator=random)
    for row in range(batch if pads != "plain" else 0):
        count = (0, 3, 7)[row % 3]
        middle = torch.randperm(length - 2, generator=random)[:count] + 1
        sides = {"left": torch.arange(count), "right": length - 1 - torch.arange(count)}
        ids_BL[row, sides.get(pads, middle)] = -1 - row  # any negative id is padding
    return ids_BL


def ask(model: Model, ids_BL: Tensor, source_BM: Tensor | None = None, cache: Cache | None = None) -> Tensor:
    """The model's logits. What an encoder-decoder reads is `source_BM`, or what `begin` put in the cache."""
    if isinstance(model, EncoderDecoder):
        if cache is not None:
            return cast(Tensor, model(None, ids_BL, cache=cache))
        return cast(Tensor, model(source(ids_BL) if source_BM is None else source_BM, ids_BL))
    return cast(Tensor, model(ids_BL) if cache is None else model(ids_BL, cache=cache))


def source(ids_BL: Tensor) -> Tensor:
    """Something to read for each of these rows."""
    return tokens(len(ids_BL), 11, "right", seed=9)


def begin(model: Model, ids_BL: Tensor, length: int | None = None, spare: int = 0) -> Cache:
    """An empty cache for these rows; an encoder's memory is put into it."""
    cache = model.cache(len(ids_BL), length, spare)
    if isinstance(model, EncoderDecoder):
        with torch.no_grad():
            cache.memory = model.encode(source(ids_BL))
    return cache


def gap(a: Tensor, b: Tensor, where: Tensor | None = None) -> float:
    """The largest difference, of what counts if `where` says so; infinite if anything is not a number."""
    if a.shape != b.shape or not bool(a.isfinite().all() and b.isfinite().all()):
        return float("inf")
    difference = (a - b).detach().abs()
    difference = difference if where is None else difference[where]
    return float(difference.max()) if difference.numel() else 0.0


def weigh(y: Tensor, where: Tensor | None = None) -> Tensor:
    """One number from many, each with a weight of its own, so that no two errors cancel."""
    weight = torch.randn(y.shape[1:], generator=torch.Generator().manual_seed(5))
    y = y if where is None else y.masked_fill(~where, 0.0)
    total: Tensor = (y * weight).sum() / weight.numel() ** 0.5
    return total


def slopes_apart(first: list[Tensor], second: list[Tensor]) -> float:
    """The largest difference of gradients, as a part of the largest gradient where that is above 1."""
    largest = max(1.0, *(float(g.abs().max()) for g in first))
    return max(map(gap, first, second)) / largest


def gradients(model: Model, loss: Tensor) -> list[Tensor]:
    """Of every parameter; zero where none arrives."""
    own = list(model.parameters())
    found = torch.autograd.grad(loss, own, allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for p, g in zip(own, found, strict=True)]
