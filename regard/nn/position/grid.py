"""Rows and columns, for what is written line by line: images, or a text folded into lines."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

from regard.dims import Dims
from regard.errors import UsageError
from regard.nn.position.position import Position
from regard.nn.position.sinusoidal import waves
from regard.spec import part


@part
class Grid(Position):
    r"""A token has a row, a column and, in a picture, a colour; each has a vector.

        learned:     x + rows[r] + columns[c] + colours[h]
        sinusoidal:  x + [PE(r) ; PE(c) ; PE(h)], each a part of the width

    learned: Child et al. 2019 (Sparse Transformer), section 5.1, https://arxiv.org/abs/1904.10509, for text
    too, folded into lines as wide as the stride. sinusoidal: Parmar et al. 2018 (Image Transformer), section
    3.1, https://arxiv.org/abs/1802.05751.

    Options:
      across: numbers in a line, so pixels x colours; the root of dims.length, rounded up, if not given
      colours: how many numbers a pixel has: 3 for red, green, blue
      block: rows and columns of the blocks in which a picture is written, as in the pattern `local_2d`; line
        by line if not given
      form: learned or sinusoidal
    """

    def __init__(
        self,
        dims: Dims,
        across: int | None = None,
        colours: int = 1,
        block: tuple[int, int] | None = None,
        form: Literal["learned", "sinusoidal"] = "learned",
    ) -> None:
        super().__init__()
        self.across = across = math.isqrt(dims.length - 1) + 1 if across is None else across
        self.colours, self.block = colours, (1, across) if block is None else (block[0], block[1])
        if min(across, colours, *self.block) < 1 or across % colours or across % self.block[1]:
            raise UsageError(
                f"Colours and blocks must fill a line of {across}, but there are {colours} colours and block "
                f"is {list(self.block)}; choose numbers that divide {across}."
            )
        self.limit = dims.length
        lines = -(-dims.length // (across * self.block[0])) * self.block[0]
        sizes = [lines, across // colours, *([colours] if colours > 1 else [])]
        if form == "sinusoidal" and dims.width % (2 * len(sizes)):
            raise UsageError(
                f"{len(sizes)} chords of pairs must fill the width, but dims.width is {dims.width}; "
                f"choose a multiple of {2 * len(sizes)}."
            )
        self.tables = nn.ModuleList(nn.Embedding(n, dims.width) for n in sizes if form == "learned")

    def places(self, pos_BL: Tensor) -> list[Tensor]:
        """Row, column and, if there is more than one, colour."""
        (high, wide), in_line = self.block, self.across // self.block[1]
        number, inside = pos_BL // (high * wide), pos_BL % (high * wide)
        row = number // in_line * high + inside // wide
        column = number % in_line * wide + inside % wide
        return [row, column] if self.colours == 1 else [row, column // self.colours, column % self.colours]

    def add(self, x_BLD: Tensor, pos_BL: Tensor) -> Tensor:
        """x, its row, its column, its colour."""
        places = self.places(pos_BL.clamp(min=0))
        if self.tables:
            for table, place in zip(self.tables, places, strict=True):
                x_BLD = x_BLD + table(place)
            return x_BLD
        width = x_BLD.shape[-1] // len(places)
        return x_BLD + torch.cat([waves(place, width) for place in places], -1).to(x_BLD.dtype)
