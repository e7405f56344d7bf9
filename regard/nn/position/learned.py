"""A vector learned for each position, added to the input."""

from __future__ import annotations

from torch import Tensor, nn

from regard.dims import Dims
from regard.nn.position.position import Position
from regard.spec import part


@part
class Learned(Position):
    """x + P[pos], with one learned vector for each of `dims.length` positions, and none beyond.

    Gehring et al. 2017, section 3.1, https://arxiv.org/abs/1705.03122; GPT and BERT use it.
    """

    def __init__(self, dims: Dims) -> None:
        super().__init__()
        self.limit = dims.length
        self.table = nn.Embedding(dims.length, dims.width)

    def add(self, x_BLD: Tensor, pos_BL: Tensor) -> Tensor:
        """x + P[pos]."""
        out: Tensor = x_BLD + self.table(pos_BL.clamp(min=0))
        return out
