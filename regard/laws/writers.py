"""Laws of models that write one token after the other."""

from __future__ import annotations

from itertools import pairwise
from typing import cast

import torch
from torch import Tensor, nn

from regard.laws.asking import LENGTH, ask, begin, gap, source, tokens, weigh
from regard.laws.subjects import attentions
from regard.model import Decoder, EncoderDecoder, Model
from regard.nn.mixer import Latent, Lsh


def future_is_blind(model: Model) -> float:
    """What comes later changes no answer by one bit; its gradient is 0: d out_i / d in_j = 0 where j > i."""
    ids_BL, worst = tokens(3), 0.0
    with torch.no_grad():
        before = ask(model, ids_BL)
        for at in range(1, LENGTH):
            other, later = ids_BL.clone(), ids_BL[:, at:]
            other[:, at:] = (later % 12 + 1).where(later >= 0, later)
            worst = max(worst, gap(ask(model, other)[:, :at], before[:, :at]))
    y_BLV, x_BLD = _watched(model, ids_BL)
    for at in range(LENGTH - 1):
        (slope_BLD,) = torch.autograd.grad(weigh(y_BLV[:, at]), x_BLD, retain_graph=True)
        ahead = slope_BLD[:, at + 1 :]
        worst = max(worst, gap(ahead, torch.zeros_like(ahead)))
    return worst


def _watched(model: Model, ids_BL: Tensor) -> tuple[Tensor, Tensor]:
    """Answers, and the vectors of the tokens that they come from."""
    assert isinstance(model, Decoder | EncoderDecoder)
    seen: list[Tensor] = []

    def watch(module: nn.Module, given: object, x_BLD: Tensor) -> Tensor:
        seen.append(x_BLD.detach().requires_grad_())
        return seen[-1]

    embed = model.embed if isinstance(model, Decoder) else model.target or model.embed
    handle = embed.register_forward_hook(watch)
    try:
        return ask(model, ids_BL), seen[-1]
    finally:
        handle.remove()


def decode_equals_forward(
    model: Model, static: bool = False, chunk: int = 1, first: int = 0, pads: str = "left"
) -> float:
    """Fed `chunk` by `chunk` through a cache, padded or not, it answers as in one pass.

    `first` is the size of the first piece where it must be another: a prefix is fed at once.
    """
    ids_BL = tokens(3, pads=pads)
    cache = begin(model, ids_BL, LENGTH if static else None)
    cuts = [0, *range(first or chunk, LENGTH, chunk), LENGTH]
    with torch.no_grad():
        pieces = [ask(model, ids_BL[:, a:b], cache=cache) for a, b in pairwise(cuts)]
        return gap(torch.cat(pieces, 1), ask(model, ids_BL), ids_BL >= 0)


Moves = tuple[tuple[list[int], list[int] | None, int], ...]  # rows, their sources if they share, tokens
ALONE: Moves = (([2, 0, 0, 1], None, 2), ([3, 1], None, 1), ([1, 0, 1], None, 2))
SHARED: Moves = (
    ([0, 0, 1, 1, 2, 2], [0, 1, 2], 1),  # two beams each
    ([1, 1, 3, 2, 5, 4], [0, 1, 2], 2),  # one dies, two change places
    ([5, 4, 4, 1, 0, 1], [2, 0], 1),  # a source leaves, three beams each
    ([4, 0, 5], None, 1),  # each goes on by itself
)


def beams_equal_forward(model: Model, static: bool = False, first: int = 0, pads: str = "left") -> float:
    """Rows of the cache are permuted, repeated and dropped on the way, alone and as beams that share what
    they descend from, and beams that came later join: each goes on from its own past."""
    moved = max(_moved(model, static, first, pads, moves) for moves in (ALONE, SHARED))
    return moved if static else max(moved, _joined(model, first, pads))


def _moved(model: Model, static: bool, first: int, pads: str, moves: Moves) -> float:
    ids_BL, new = tokens(3, pads=pads), tokens(6, pads="plain", seed=1)
    source_BM, worst = source(ids_BL), 0.0
    cache = begin(model, ids_BL, LENGTH if static else None)
    half = max(first, 9)
    with torch.no_grad():
        ask(model, ids_BL[:, :half], cache=cache)
        for index, sources, steps in moves:
            cache.reorder(torch.tensor(index), None if sources is None else torch.tensor(sources))
            at, source_BM = cache.length, source_BM[index]
            ids_BL = torch.cat([ids_BL[index, :at], new[: len(index), at : at + steps]], 1)
            piece = 1 if sources is None else steps
            got = [ask(model, ids_BL[:, n : n + piece], cache=cache) for n in range(at, at + steps, piece)]
            worst = max(worst, gap(torch.cat(got, 1), ask(model, ids_BL, source_BM)[:, at:]))
    return worst


def _joined(model: Model, first: int, pads: str) -> float:
    """Two beams of each of 3 sentences and, after other lengths and sources, of 2; then some are left."""
    ids, caches = (tokens(3, pads=pads), tokens(2, pads="plain", seed=3)), []
    sources, halves = (source(ids[0]), tokens(2, 8, "right", seed=4)), (max(first, 9), max(first, 5))
    past: list[tuple[Tensor, Tensor]] = []  # what each row has read, and its source
    with torch.no_grad():
        for ids_BL, source_BM, half in zip(ids, sources, halves, strict=True):
            cache, every = model.cache(len(ids_BL)), torch.arange(len(ids_BL))
            if isinstance(model, EncoderDecoder):
                cache.memory = model.encode(source_BM)
            ask(model, ids_BL[:, :half], cache=cache)
            cache.reorder(every.repeat_interleave(2), every)
            caches.append(cache)
            past += [(ids_BL[row, :half], source_BM[row]) for row in every.repeat_interleave(2)]
        together, later = caches
        if not (together.joins and later.joins):
            return 0.0
        together.join(later)
        new, worst = tokens(10, 4, "plain", seed=1), 0.0
        for n, index in enumerate(([*range(10)], [1, 1, 3, 2, 9, 8], [2, 2, 4, 5])):
            left = torch.tensor(index)
            together.reorder(left, left[::2] // 2)
            past = [
                (torch.cat([past[old][0], new[row, n : n + 1]]), past[old][1]) for row, old in enumerate(left)
            ]
            got = ask(model, new[: len(past), n : n + 1], cache=together)[:, 0]
            for alike in ([row for row in range(len(past)) if len(past[row][1]) == M] for M in (11, 8)):
                ids_BL, source_BM = map(torch.stack, zip(*(past[row] for row in alike), strict=True))
                worst = max(worst, gap(got[alike], ask(model, ids_BL, source_BM)[:, -1]))
    return worst


def rollback_equals_forward(model: Model, static: bool = False, first: int = 0, pads: str = "left") -> float:
    """Tokens that were fed and taken back, again and again, padded unevenly or not, leave nothing behind."""
    ids_BL, guess = tokens(3, pads=pads), tokens(3, 3, "plain", seed=2)
    if pads != "plain":
        guess[0, 0] = guess[1, 2] = -1
    cache = begin(model, ids_BL, LENGTH + 3 if static else None, spare=3)
    cuts = [0, *range(max(first, 8), LENGTH, 2), LENGTH]
    got: list[Tensor] = []
    with torch.no_grad():
        for a, b in pairwise(cuts):
            got.append(ask(model, ids_BL[:, a:b], cache=cache))
            ask(model, guess, cache=cache)
            cache.rollback(1)
            cache.rollback(2)
        return gap(torch.cat(got, 1), ask(model, ids_BL), ids_BL >= 0)


def cache_is_counted(model: Model, static: bool = False, spare: int = 0) -> float:
    """cache.nbytes is exactly 2 x batch x columns x groups x head x bytes, summed over the attentions.

    Columns are the tokens fed, what was preallocated if static, at most a window's reach, what is left where
    keys are compressed, and the source's length in cross-attention.
    """
    ids_BL, length = tokens(3), 30 if static else None
    cache = begin(model, ids_BL, length, spare)
    with torch.no_grad():
        ask(model, ids_BL, cache=cache)
    wanted = 0
    for a in attentions(cast(nn.Module, model.decoder)):
        columns = 11 if a.cross else length or LENGTH
        if not a.cross and a.pattern.reach is not None:
            columns = min(columns, a.pattern.reach + spare)
        if a.compress is not None:
            columns = a.compress.columns(columns, spare)
        wanted += 2 * 3 * columns * a.groups * a.size * 4
    for h in (m for m in cast(nn.Module, model.decoder).modules() if isinstance(m, Lsh)):  # and the buckets
        wanted += 3 * (length or LENGTH) * h.heads * (2 * h.size + h.rounds) * 4
    for m in (m for m in cast(nn.Module, model.decoder).modules() if isinstance(m, Latent)):
        columns = min(length or LENGTH, (m.pattern.reach or LENGTH + 30) + spare)
        wanted += 3 * columns * (m.rank + m.shared) * 4
    return abs(cache.nbytes - wanted)
