"""A vector learned for each position, added to the input."""

from __future__ import annotations

from torch import Tensor, nn

from regard.dims import Dims
from regard.nn.position.position import Position
from regard.spec import part


@part
class Learned(Position):
    """x + P[pos], with one learned vector for each of `dims.length` positions, and none beyond.

    Gehring et al. 2017, section 3.1, https://arxiv.org/abs/1705.03122; GPT and BERT use it. With `every`,
    each layer has vectors of its own, added before it: Al-Rfou et al. 2018, https://arxiv.org/abs/1808.04444.

    Options:
      every: a table for each layer
    """

    def __init__(self, dims: Dims, every: bool = False) -> None:
        super().__init__()
        self.limit, self.every, self.layered = dims.length, every, every
        self.length = dims.length
        self.table = nn.Embedding(dims.length * (dims.layers if every else 1), dims.width)

    def add(self, x_BLD: Tensor, pos_BL: Tensor) -> Tensor:
        """x + P[pos]."""
        out: Tensor = x_BLD + self.table(pos_BL.clamp(min=0) + self.layer * self.length)
        return out
