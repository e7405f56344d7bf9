"""Long sequences placed by two small tables."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

from regard.dims import Dims
from regard.errors import UsageError
from regard.nn.position.position import Position
from regard.spec import part


@part
class Axial(Position):
    r"""The sequence is folded into lines; a position is its line's vector beside its column's.

        x + [rows[pos div n] ; columns[pos mod n]]

    so that length / n + n vectors serve instead of `length`. Kitaev et al. 2020 (Reformer), and the authors'
    code (trax, axial positional encoding), https://arxiv.org/abs/2001.04451.

    Options:
      across: n, the tokens in a line; the root of dims.length, rounded up, if not given
      join: beside (as above), or added: both as wide as the stream
      rows: the width of the row's part, if they stand beside each other; half if not given
    """

    def __init__(
        self,
        dims: Dims,
        across: int | None = None,
        join: Literal["beside", "added"] = "beside",
        rows: int | None = None,
    ) -> None:
        super().__init__()
        self.across = math.isqrt(dims.length - 1) + 1 if across is None else across
        beside = dims.width // 2 if rows is None else rows
        if self.across < 1 or not 0 < beside < dims.width:
            raise UsageError(
                f"Axial positions need lines of at least 1 and both parts in the width {dims.width}, but "
                f"across is {self.across} and rows {beside}."
            )
        self.limit, self.join = dims.length, join
        widths = (beside, dims.width - beside) if join == "beside" else (dims.width, dims.width)
        self.rows = nn.Embedding(-(-dims.length // self.across), widths[0])
        self.columns = nn.Embedding(self.across, widths[1])

    def add(self, x_BLD: Tensor, pos_BL: Tensor) -> Tensor:
        """x + [row ; column], or x + row + column."""
        pos_BL = pos_BL.clamp(min=0)
        row, column = self.rows(pos_BL // self.across), self.columns(pos_BL % self.across)
        return x_BLD + (torch.cat([row, column], -1) if self.join == "beside" else row + column)
