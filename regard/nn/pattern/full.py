"""Everybody sees everybody."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from regard.dims import Dims
from regard.nn.pattern.pattern import Pattern
from regard.spec import part


@part
class Full(Pattern):
    """S_i = all keys, as in an encoder. Vaswani et al. 2017, section 3.2.3, https://arxiv.org/abs/1706.03762."""

    def __init__(self, dims: Dims | None = None) -> None:
        pass

    def __call__(self, i: Tensor, j: Tensor) -> Tensor:
        return torch.ones_like(i, dtype=torch.bool) & torch.ones_like(j, dtype=torch.bool)

    def amounts_to(self, length: int) -> Literal["causal", "full"] | None:
        """Full, always."""
        return "full"
