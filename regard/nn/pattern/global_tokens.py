"""A few tokens that everybody sees."""

from __future__ import annotations

from torch import Tensor

from regard.dims import Dims
from regard.errors import UsageError
from regard.nn.pattern.pattern import Pattern, named
from regard.spec import part


@part
class GlobalTokens(Pattern):
    r"""The first g tokens are seen by all; with `both`, they also see all.

        S_i = {j <= i : j < g};   with `both`: S_i = {j : j < g or i < g}

    Beltagy et al. 2020 (Longformer), section 3.1, https://arxiv.org/abs/2004.05150, who join it to a window:
    `any_of` this and `window`. Differs from the paper: global tokens are the first ones (a question, a
    [CLS]), and share the projections of all others.

    Options:
      count: g
      both: for encoders
    """

    def __init__(self, dims: Dims, count: int = 1, both: bool = False) -> None:
        if count < 1:
            raise UsageError(f"There must be at least 1 global token, but count is {count}.")
        self.count, self.both = count, both

    @property
    def causal(self) -> bool:  # type: ignore[override]
        """Unless it looks both ways."""
        return not self.both

    def __call__(self, i: Tensor, j: Tensor) -> Tensor:
        return (j < self.count) | (i < self.count) if self.both else (j < self.count) & (j <= i)

    def keys(self, block: int, count: int) -> Tensor | None:
        """The first blocks; for the first blocks, with `both`, all."""
        first = min(count, -(-self.count // block))
        if self.both:
            return named([range(count)] * first + [range(first)] * (count - first))
        return named([range(min(first, n + 1)) for n in range(count)])
