"""Blocks of an image that share what they see."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.dims import Dims
from regard.errors import UsageError
from regard.nn.pattern.pattern import Pattern, named
from regard.spec import part


@part
class Local2D(Pattern):
    r"""A pixel sees its own block up to itself, and what lies above and to the left of that block, so far.

    An image is written block by block, blocks as in a text, and in each block row by row: that order is the
    position, see `order`. A query in the block with rows t .. t + h_q - 1 and columns l .. l + w_q - 1 sees

        its own block, up to itself;
        left:   rows t .. t + h_q - 1, columns l - w_m .. l - 1;
        above:  rows t - h_m .. t - 1, columns l - w_m .. l + w_q - 1 + w_m, so to the right above, too;

    and nothing beyond the borders of the image. All of it was written before. Parmar et al. 2018 (Image
    Transformer), section 3.3, 2D local attention, https://arxiv.org/abs/1802.05751, and the authors' code
    (tensor2tensor: make_2d_block_raster_mask).

    Options:
      across: columns of the image: numbers in a row, so three times the pixels for colours
      block: h_q and w_q, rows and columns of a block of queries; w_q must divide `across`
      flange: h_m and w_m, how far it sees above and to the sides
    """

    causal = True

    def __init__(
        self,
        dims: Dims,
        across: int = 32,
        block: tuple[int, int] = (8, 8),
        flange: tuple[int, int] = (8, 8),
    ) -> None:
        self.across, self.block, self.flange = across, (block[0], block[1]), (flange[0], flange[1])
        if min(across, *block) < 1 or min(flange) < 0 or across % block[1]:
            raise UsageError(
                f"Blocks of an image need at least one row and column and must fill a row of {across}, "
                f"but block is {list(block)} and flange {list(flange)}; choose a width that divides {across}."
            )

    @property
    def reach(self) -> int:  # type: ignore[override]
        """From the last pixel of a block to the first of the furthest block that it sees."""
        above, aside = self._blocks()
        return (above * (self.across // self.block[1]) + aside + 1) * self.block[0] * self.block[1]

    def place(self, i: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Row and column of the pixel written i-th, and of the first pixel of its block."""
        (high, wide), in_row = self.block, self.across // self.block[1]
        number, inside = i // (high * wide), i % (high * wide)
        top, left = number // in_row * high, number % in_row * wide
        return top + inside // wide, left + inside % wide, top, left

    def order(self, rows: int) -> Tensor:
        """Pixels of an image with so many rows, counted row by row, in the order they are written in."""
        row, column, _, _ = self.place(torch.arange(rows * self.across))
        return row * self.across + column

    def __call__(self, i: Tensor, j: Tensor) -> Tensor:
        wide, (up, side) = self.block[1], self.flange
        _, _, top, left = self.place(i)
        row, column, its_top, its_left = self.place(j)
        own = (its_top == top) & (its_left == left) & (j <= i)
        before = (its_top == top) & (column < left) & (column >= left - side)
        above = (row < top) & (row >= top - up) & (column >= left - side) & (column < left + wide + side)
        return own | before | above

    def keys(self, block: int, count: int) -> Tensor | None:
        """Blocks of the sequence that hold pixels of the blocks of the image that are seen."""
        size, in_row = self.block[0] * self.block[1], self.across // self.block[1]
        above, aside = self._blocks()
        rows = []
        for n in range(count):
            seen = set()
            for own in range(n * block // size, ((n + 1) * block - 1) // size + 1):
                for up in range(above + 1):
                    first = max(0, own % in_row - aside)
                    last = min(in_row - 1, own % in_row + (aside if up else 0))
                    start = (own // in_row - up) * in_row
                    if start < 0:
                        continue
                    low, high = (start + first) * size, (start + last + 1) * size - 1
                    seen |= set(range(low // block, min(high // block, n) + 1))
            rows.append(sorted(seen))
        return named(rows)

    def _blocks(self) -> tuple[int, int]:
        """How many blocks of the image above, and to the side, are touched."""
        return -(-self.flange[0] // self.block[0]), -(-self.flange[1] // self.block[1])
