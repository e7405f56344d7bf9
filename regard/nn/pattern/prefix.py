"""The beginning is read in both directions, the rest from left to right."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from regard.dims import Dims
from regard.nn.pattern.pattern import Pattern
from regard.spec import part

if TYPE_CHECKING:
    from regard.nn.context import Context


@part
class Prefix(Pattern):
    """S_i = {j : j <= i or j < p}: the first p tokens see each other, later ones only what came before.

    Raffel et al. 2020, section 3.2.1, https://arxiv.org/abs/1910.10683. A call with `prefix_B` gives each row
    its own p. A prefix must be fed to a cache in one call: its tokens see each other.

    Options:
      length: p, where the call does not say
    """

    prefixed = True

    def __init__(self, dims: Dims, length: int = 0) -> None:
        self.length: int | Tensor = length

    def __call__(self, i: Tensor, j: Tensor) -> Tensor:
        return (j <= i) | (j < self.length)

    def bind(self, ctx: Context) -> Pattern:
        """With the prefix length of each row of this batch."""
        if ctx.prefix_B is None:
            return self
        bound = PerRow.__new__(PerRow)
        bound.length = ctx.prefix_B[:, None, None, None]
        return bound


class PerRow(Prefix):
    """A prefix whose length differs from row to row; equal only to itself."""

    length: Tensor

    def sees(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """With the prefix of row b."""
        return (j <= i) | (j < self.length[b, 0, 0, 0])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PerRow) and self.length is other.length

    def __hash__(self) -> int:
        return id(self.length)
