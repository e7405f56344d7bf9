"""Blocks of keys brought to the blocks of queries that need them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

Run = tuple[
    int, int, int, int
]  # place among the gathered, first and last + 1 block of queries, shift to the keys


def runs(blocks_NS: Tensor) -> list[Run]:
    """The moves that gather blocks: stretches of queries whose keys lie at one and the same distance.

    A window is one stretch for each place, so that it moves by slices, there and back again.
    """
    found: list[Run] = []
    for place, column in enumerate(blocks_NS.T.tolist()):
        for query, key in enumerate(column):
            if key < 0:
                continue
            last = found[-1] if found else None
            if last and last[0] == place and last[2] == query and last[3] == key - query:
                found[-1] = (place, last[1], query + 1, last[3])
            else:
                found.append((place, query, query + 1, key - query))
    return found


class _Gather(torch.autograd.Function):
    """Slices out, slices back: indexing would add gradients one row at a time."""

    @staticmethod
    def forward(ctx: Any, t_BHNCK: Tensor, blocks_NS: Tensor, empty: float) -> Tensor:
        (B, H, _, C, K), (N, S) = t_BHNCK.shape, blocks_NS.shape
        moves = runs(blocks_NS)
        out = t_BHNCK.new_empty(B, H, N, S, C, K)
        for place, query in (blocks_NS.T < 0).nonzero().tolist():
            out[:, :, query, place] = empty
        for place, first, last, shift in moves:
            out[:, :, first:last, place] = t_BHNCK[:, :, first + shift : last + shift]
        ctx.moves, ctx.shape = moves, t_BHNCK.shape
        return out.flatten(3, 4)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        grad = grad.unflatten(3, (-1, ctx.shape[3]))
        moves = sorted(ctx.moves, key=lambda run: run[1] - run[2])  # the longest first
        whole = bool(moves) and moves[0][2] - moves[0][1] == ctx.shape[2]
        back = grad.new_empty(ctx.shape) if whole else grad.new_zeros(ctx.shape)
        for number, (place, first, last, shift) in enumerate(moves):
            piece, into = grad[:, :, first:last, place], back[:, :, first + shift : last + shift]
            if whole and number == 0:
                into.copy_(piece)
            else:
                into.add_(piece)
        return back, None, None


def gather(t_BHNCK: Tensor, blocks_NS: Tensor, empty: float = 0) -> Tensor:
    """For each block of queries n, the key blocks blocks_NS[n] side by side: (B, H, N, S*C, K).

    A negative block is filled with `empty`.
    """
    return _Gather.apply(t_BHNCK, blocks_NS, empty)  # type: ignore[no-any-return]
