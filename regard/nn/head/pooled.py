"""One answer for the whole sequence."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from regard.dims import Dims
from regard.nn.dropout import Dropout
from regard.nn.head.cost import Cost, nll
from regard.nn.head.head import Head
from regard.nn.product import Linear, product
from regard.spec import part


@part
class Pooled(Head):
    r"""logits = W pool(x) + b, with pool the first token's state or the mean over real tokens.

    Devlin et al. 2019, https://arxiv.org/abs/1810.04805: the first token, through tanh(P x + c) (`turn`).

    Options:
      classes: number of answers
      take: first or mean
      turn: tanh(P x + c) before W
      dropout: before W
    """

    def __init__(
        self,
        dims: Dims,
        classes: int,
        take: Literal["first", "mean"] = "first",
        turn: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.take = take
        self.turn = Linear(dims.width, dims.width) if turn else None
        self.weight = nn.Parameter(torch.empty(classes, dims.width))
        self.bias = nn.Parameter(torch.zeros(classes))
        self.dropout = Dropout(dropout)
        nn.init.normal_(self.weight, std=dims.width**-0.5)

    def forward(self, x_BLD: Tensor, pos_BL: Tensor | None = None) -> Tensor:
        """Logits (B, C); positions below zero (padding) do not count."""
        pool_BD = self._pool(x_BLD, pos_BL)
        if self.turn is not None:
            pool_BD = self.turn(pool_BD).tanh()
        return product(self.dropout(pool_BD), self.weight, self.bias)

    def loss(
        self, x_BLD: Tensor, target_BL: Tensor, cost: Cost = nll, pos_BL: Tensor | None = None
    ) -> Tensor:
        """The summed cost over rows that have a target: target (B,)."""
        kept_N = (target_BL >= 0).nonzero()[:, 0]
        return cost(self(x_BLD, pos_BL).index_select(0, kept_N), target_BL.index_select(0, kept_N))

    def _pool(self, x_BLD: Tensor, pos_BL: Tensor | None) -> Tensor:
        if pos_BL is None:
            return x_BLD[:, 0] if self.take == "first" else x_BLD.mean(1)
        pos_BL = pos_BL.expand(x_BLD.shape[:2])
        real_BL1 = ((pos_BL == 0) if self.take == "first" else (pos_BL >= 0))[..., None].to(x_BLD.dtype)
        return (x_BLD * real_BL1).sum(1) / real_BL1.sum(1).clamp(min=1)
