"""A window with gaps."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.dims import Dims
from regard.errors import UsageError
from regard.nn.pattern.lanes import Lanes
from regard.nn.pattern.pattern import Pattern
from regard.nn.pattern.window import Window
from regard.spec import part


@part
class Dilated(Pattern):
    r"""Every d-th position, w of them: a window that reaches d times as far at the same cost.

        S_i = {j : (i - j) mod d = 0, 0 <= (i - j) / d < w};   with `both`, as many ahead

    Beltagy et al. 2020 (Longformer), section 3.1, https://arxiv.org/abs/2004.05150. Tokens whose positions
    differ by no multiple of d never meet: let layers or heads differ in d.

    Options:
      width: w, the number of keys on one side, the token itself included
      step: d
      both: look ahead as far as back (encoders)
    """

    def __init__(self, dims: Dims, width: int = 256, step: int = 2, both: bool = False) -> None:
        if step < 1:
            raise UsageError(f"The step of a dilated window must be at least 1, but is {step}.")
        self.window, self.step = Window(dims, width=width, both=both), step

    @property
    def causal(self) -> bool:  # type: ignore[override]
        """Unless it looks both ways."""
        return self.window.causal

    @property
    def reach(self) -> int:  # type: ignore[override]
        """From the token to the last key, that key included."""
        return (self.window.width - 1) * self.step + 1

    def __call__(self, i: Tensor, j: Tensor) -> Tensor:
        gap = i - j
        near = (gap.abs() if self.window.both else gap) < self.reach
        return (gap % self.step == 0) & near & (self.window.both | (gap >= 0))

    def keys(self, block: int, count: int) -> Tensor | None:
        """As a window without gaps."""
        back = -(-(self.reach - 1) // block)
        near = torch.arange(-back, back + 1 if self.window.both else 1)
        blocks = torch.arange(count)[:, None] + near
        return blocks.masked_fill((blocks < 0) | (blocks >= count), -1)

    def split(self) -> tuple[Pattern | None, Lanes] | None:
        """In the lanes of each residue of i modulo d it is a plain window."""
        return None, Lanes(self.step, self.window)
