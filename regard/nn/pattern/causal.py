"""Nobody sees the future."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from regard.dims import Dims
from regard.nn.pattern.pattern import Pattern
from regard.spec import part


@part
class Causal(Pattern):
    """S_i = {j : j <= i}: a token sees itself and what came before. Vaswani et al. 2017, section 3.2.3.

    https://arxiv.org/abs/1706.03762. Scores outside are minus infinity before the softmax, so that weights
    sum to one.
    """

    causal = True

    def __init__(self, dims: Dims | None = None) -> None:
        pass

    def __call__(self, i: Tensor, j: Tensor) -> Tensor:
        return j <= i

    def amounts_to(self, length: int) -> Literal["causal", "full"] | None:
        """Causal, always."""
        return "causal"
