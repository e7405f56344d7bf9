"""Where a token is. A scheme overrides the moments it needs, and only those."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from regard.nn.context import Context
    from regard.nn.pattern.pattern import Pattern


class Position(nn.Module):
    """The moments at which a position can enter: at the input, on queries and keys, on scores, on values.

    biased  `bias` is used
    shared  the bias does not depend on the queries, so that layers that share the scheme share it too
    valued  `value` is used: weights must be written out
    every   `add` comes before every layer, not only before the first
    layered layers differ: it holds weights for each of `dims.layers`, or counts them
    layer   the one it is asked for; an attention's own scheme has no other than 0
    limit   positions must stay below this; None: any
    """

    biased: bool = False
    shared: bool = False
    valued: bool = False
    every: bool = False
    layered: bool = False
    layer: int = 0
    limit: int | None = None

    def at(self, layer: int) -> Position:
        """The scheme as this layer of the stack has it: the same weights, seen from there."""
        if not self.layered:
            return self
        here = copy(self)
        here.layer = layer
        return here

    def add(self, x_BLD: Tensor, pos_BL: Tensor) -> Tensor:
        """At the input of the stack."""
        return x_BLD

    def turn(self, q_BHLK: Tensor, k_BGLK: Tensor, i_BL: Tensor) -> tuple[Tensor, Tensor]:
        """On queries and new keys, before keys are cached; both stand at i_BL."""
        return q_BHLK, k_BGLK

    def ask(self, q_BHLK: Tensor, x_BLD: Tensor) -> Tensor:
        """What a bias is made from, a row for each head and query: the unturned queries, if nothing else."""
        return q_BHLK

    def bias(self, q_BHLK: Tensor, i_BL: Tensor, j_BM: Tensor) -> Tensor:
        """On scores, from what `ask` gave: (B or 1, H, L, M)."""
        raise NotImplementedError

    def value(self, w_BHLM: Tensor, i_BL: Tensor, j_BM: Tensor) -> Tensor:
        """What is read besides the values, by the same weights: (B, H, L, K)."""
        raise NotImplementedError

    def narrow(self, pattern: Pattern) -> Pattern:
        """The pattern without the keys that this scheme gives no weight."""
        return pattern

    def under(self, pattern: Pattern) -> Position:
        """The scheme where this pattern says who is seen: of those who are not, it may say anything.

        Not for a bias that layers share: they would not find it again.
        """
        return self

    def some(self, heads: list[int], of: int) -> Position:
        """The scheme of these heads `of` so many, where heads are asked apart."""
        return Some(self, heads, of)

    def charge(self, ctx: Context, raw_BHLK: Tensor) -> None:
        """Put what this scheme costs under `ctx.losses`, where it has a price; `ask` gave raw_BHLK."""


class Some(Position):
    """Some heads of a scheme: it is asked for all, and the others are left out."""

    def __init__(self, position: Position, heads: list[int], of: int) -> None:
        super().__init__()
        self.whole, self.heads, self.of = [position], heads, of  # in a list: its weights are not ours
        self.biased, self.valued = position.biased, position.valued

    def bias(self, q_BHLK: Tensor, i_BL: Tensor, j_BM: Tensor) -> Tensor:
        """Of these heads."""
        return self.whole[0].bias(self._all(q_BHLK), i_BL, j_BM)[:, self.heads]

    def value(self, w_BHLM: Tensor, i_BL: Tensor, j_BM: Tensor) -> Tensor:
        """Of these heads."""
        return self.whole[0].value(self._all(w_BHLM), i_BL, j_BM)[:, self.heads]

    def _all(self, t_BHLX: Tensor) -> Tensor:
        shape = (t_BHLX.shape[0], self.of, *t_BHLX.shape[2:])
        index = torch.tensor(self.heads, device=t_BHLX.device)
        return t_BHLX.new_zeros(shape).index_copy(1, index, t_BHLX)
