"""Only what is near."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from regard.dims import Dims
from regard.errors import UsageError
from regard.nn.pattern.pattern import Pattern
from regard.spec import part


@part
class Window(Pattern):
    """S_i = {j : 0 <= i - j < w}: a token sees itself and the w - 1 before it; with `both`, as many after it.

    Beltagy et al. 2020, section 3.1, https://arxiv.org/abs/2004.05150. Blockwise, time and memory grow with
    length x w.

    Options:
      width: w, the number of keys on one side, the token itself included
      both: look ahead as far as back (encoders)
      itself: a token sees itself; else only the others (adaptive span)
    """

    def __init__(self, dims: Dims, width: int = 256, both: bool = False, itself: bool = True) -> None:
        if width < 1:
            raise UsageError(f"A window must be at least 1 wide, but width is {width}.")
        self.width, self.both, self.itself = width, both, itself

    @property
    def causal(self) -> bool:  # type: ignore[override]
        """Unless it looks both ways."""
        return not self.both

    @property
    def reach(self) -> int:  # type: ignore[override]
        """Its width."""
        return self.width

    def __call__(self, i: Tensor, j: Tensor) -> Tensor:
        gap = i - j
        near = (gap.abs() < self.width) if self.both else (gap >= 0) & (gap < self.width)
        return near if self.itself else near & (gap != 0)

    def amounts_to(self, length: int) -> Literal["causal", "full"] | None:
        """All there is, while the sequence is no longer than the window."""
        if not self.itself or length > self.width:
            return None
        return "full" if self.both else "causal"

    def keys(self, block: int, count: int) -> Tensor | None:
        """The query's own block and as many before it (and after it) as the window touches."""
        back = -(-(self.width - 1) // block)
        near = torch.arange(-back, back + 1 if self.both else 1)
        blocks = torch.arange(count)[:, None] + near
        return blocks.masked_fill((blocks < 0) | (blocks >= count), -1)
