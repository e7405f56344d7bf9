"""Blocks of queries that share what they see."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.dims import Dims
from regard.errors import UsageError
from regard.nn.pattern.pattern import Pattern, named
from regard.spec import part


@part
class Local(Pattern):
    r"""A token sees its own block up to itself, and the l_m positions before that block.

        S_i = {j : l_q floor(i / l_q) - l_m <= j <= i}

    Parmar et al. 2018 (Image Transformer), section 3.3, 1D local attention, https://arxiv.org/abs/1802.05751.
    Without memory, blocks of tokens do not see each other: Child et al. 2019, A(1) of their fixed attention,
    https://arxiv.org/abs/1904.10509.

    Options:
      width: l_q, the length of a block of queries
      memory: l_m; as long as a block if not given, as in the authors' code (tensor2tensor)
    """

    causal = True

    def __init__(self, dims: Dims, width: int = 256, memory: int | None = None) -> None:
        self.width, self.memory = width, width if memory is None else memory
        if self.width < 1 or self.memory < 0:
            raise UsageError(
                f"Local blocks need a width of at least 1 and no negative memory, but width is {width} "
                f"and memory {memory}."
            )

    @property
    def reach(self) -> int:  # type: ignore[override]
        """From the last token of a block to the first of its memory."""
        return self.width + self.memory

    def __call__(self, i: Tensor, j: Tensor) -> Tensor:
        return (j <= i) & (j >= i - i % self.width - self.memory)

    def keys(self, block: int, count: int) -> Tensor | None:
        """From the memory of its first query to its own block."""
        first = torch.arange(0, count * block, block)
        seen = ((first - first % self.width - self.memory).clamp(min=0) // block).tolist()
        return named([range(start, n + 1) for n, start in enumerate(seen)])
