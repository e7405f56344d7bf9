"""What is near, and every l-th before it."""

from __future__ import annotations

import math
from typing import Literal

from torch import Tensor

from regard.dims import Dims
from regard.errors import UsageError
from regard.nn.pattern.causal import Causal
from regard.nn.pattern.lanes import Lanes
from regard.nn.pattern.pattern import Pattern
from regard.nn.pattern.window import Window
from regard.spec import part

Hop = Literal["both", "first", "second"]


@part
class Strided(Pattern):
    r"""The last l positions, and every l-th position before: any token is reached in two hops.

        A(1)_i = {max(0, i - l), ..., i},   A(2)_i = {j <= i : (i - j) mod l = 0}

    Child et al. 2019 (Sparse Transformer), section 4.3, https://arxiv.org/abs/1904.10509; for data with a
    period, such as the rows of an image. With l near sqrt(n), time grows with n sqrt(n): blockwise, A(2) is
    causal attention inside each of the l columns of a table with rows of length l.

    Options:
      stride: l; the root of dims.length if not given
      hop: both: a head sees the union (a merged head); first, second: A(1) or A(2) alone, for layers that
        alternate or heads that differ
      band: paper: A(1) has l + 1 positions, as written above; code: l, as in the authors' code
    """

    causal = True

    def __init__(
        self,
        dims: Dims,
        stride: int | None = None,
        hop: Hop = "both",
        band: Literal["paper", "code"] = "paper",
    ) -> None:
        self.stride = round(math.sqrt(dims.length)) if stride is None else stride
        if self.stride < 1:
            raise UsageError(f"A stride must be at least 1, but is {stride}.")
        self.hop, self.near = hop, Window(dims, width=self.stride + (band == "paper"))
        self.reach = self.near.reach if hop == "first" else None

    def __call__(self, i: Tensor, j: Tensor) -> Tensor:
        far = (j <= i) & ((i - j) % self.stride == 0)
        return {"first": self.near(i, j), "second": far}.get(self.hop, self.near(i, j) | far)

    def keys(self, block: int, count: int) -> Tensor | None:
        """Near blocks are few; what is far lies in all of them."""
        return self.near.keys(block, count) if self.hop == "first" else None

    def split(self) -> tuple[Pattern | None, Lanes] | None:
        """A(2) is a lane for each residue of i modulo l."""
        if self.hop == "first":
            return None
        return (self.near if self.hop == "both" else None), Lanes(self.stride, Causal())
