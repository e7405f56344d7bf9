"""The own block, and a few summaries of every block before."""

from __future__ import annotations

import math
from copy import copy

import torch
from torch import Tensor

from regard.dims import Dims
from regard.errors import UsageError
from regard.nn.pattern.causal import Causal
from regard.nn.pattern.lanes import Lanes, Summaries
from regard.nn.pattern.local import Local
from regard.nn.pattern.pattern import Pattern
from regard.nn.pattern.strided import Hop
from regard.spec import part


@part
class Fixed(Pattern):
    r"""A token sees its own block, and the c last positions of every block: they sum up what came before.

        A(1)_i = {j <= i : floor(j / l) = floor(i / l)},   A(2)_i = {j <= i : j mod l in {l - c, ..., l - 1}}

    Child et al. 2019 (Sparse Transformer), section 4.3, https://arxiv.org/abs/1904.10509; for text. Heads
    take different sub-blocks of c positions as their summaries, the first head the last ones (section 4.3,
    end). Blockwise, the n c / l summaries are one small set of keys that all queries share.

    Options:
      stride: l; the root of dims.length if not given
      summaries: c, must divide l; the paper takes 8 to 32 where l is 128 or 256
      hop: both: a head sees the union (a merged head); first, second: A(1) or A(2) alone, for layers that
        alternate or heads that differ
      distinct: each head has summaries of its own, as long as there are enough; else all take the last c
    """

    causal = True

    def __init__(
        self,
        dims: Dims,
        stride: int | None = None,
        summaries: int = 1,
        hop: Hop = "both",
        distinct: bool = True,
    ) -> None:
        self.stride = round(math.sqrt(dims.length)) if stride is None else stride
        if self.stride < 1 or summaries < 1 or self.stride % summaries:
            raise UsageError(
                f"summaries must divide the stride of a fixed pattern, but {summaries} does not divide "
                f"{self.stride}; give other numbers."
            )
        self.summaries, self.hop, self.near = summaries, hop, Local(dims, width=self.stride, memory=0)
        self.reach = self.stride if hop == "first" else None
        self.heads = dims.heads if distinct and hop != "first" else 1
        self.by_head = self.heads > 1
        self.start = self.stride - summaries

    def head(self, h: int) -> Pattern:
        """Head h takes the h-th sub-block from the end, in turn."""
        one = copy(self)
        one.start = self.stride - self.summaries * (1 + h % (self.stride // self.summaries))
        one.heads, one.by_head = 1, False
        return one if self.by_head else self

    def __call__(self, i: Tensor, j: Tensor) -> Tensor:
        if self.by_head:
            return torch.cat([self.head(h)(i, j) for h in range(self.heads)], 1)
        return self._of(self.start, i, j)

    def _of(self, start: int | Tensor, i: Tensor, j: Tensor) -> Tensor:
        column = j % self.stride - start
        far = (j <= i) & (column >= 0) & (column < self.summaries)
        return {"first": self.near(i, j), "second": far}.get(self.hop, self.near(i, j) | far)

    def sees(self, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """With the summaries of head h."""
        if not self.by_head:
            return self(i, j)
        turn = h % (self.stride // self.summaries)
        return self._of(self.stride - self.summaries * (1 + turn), i, j)

    def keys(self, block: int, count: int) -> Tensor | None:
        """Near blocks are few; summaries lie in all of them."""
        return self.near.keys(block, count) if self.hop == "first" else None

    def split(self) -> tuple[Pattern | None, Lanes] | None:
        """Summaries in lanes; the last of them, in the block before, are seen as what is near."""
        if self.hop == "first" or self.by_head:
            return None
        near = copy(self.near)
        near.memory = self.stride
        return near, Summaries(self.stride, self.start, self.summaries, Causal())
