"""From vectors to answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from regard.errors import UsageError

Cost = Callable[[Tensor, Tensor], Tensor]
LARGEST = (
    2**25
)  # logits held at once; more rows than that are taken in pieces, computed again in the backward pass


def nll(logits_NV: Tensor, target_N: Tensor) -> Tensor:
    """sum_n -log p(target_n): the summed negative log-likelihood."""
    return F.cross_entropy(logits_NV.float(), target_N, reduction="sum")


class Head(nn.Module):
    """Answers from states: logits, their loss, their log-probabilities."""

    weight: nn.Parameter

    def forward(self, x_BLD: Tensor) -> Tensor:
        """Logits."""
        raise NotImplementedError

    def tie(self, weight: nn.Parameter) -> None:
        """Share the matrix of the embedding."""
        if self.weight.shape != weight.shape:
            raise UsageError(
                f"A tied head needs the embedding's shape {tuple(weight.shape)}, "
                f"but its own is {tuple(self.weight.shape)}."
            )
        self.weight = weight

    def log_prob(self, x_BLD: Tensor) -> Tensor:
        """log p over the vocabulary, in float32."""
        return self(x_BLD).float().log_softmax(-1)  # type: ignore[no-any-return]

    def loss(self, x_BLD: Tensor, target_BL: Tensor, cost: Cost = nll) -> Tensor:
        """The summed cost over positions that have a target (not negative); logits are made only there."""
        x_ND, target_N = x_BLD.reshape(-1, x_BLD.shape[-1]), target_BL.reshape(-1)
        kept_N = (target_N >= 0).nonzero()[:, 0]
        if len(kept_N) < len(target_N):
            x_ND, target_N = x_ND.index_select(0, kept_N), target_N.index_select(0, kept_N)
        rows = max(1, LARGEST // self.weight.shape[0])
        if len(target_N) <= rows:
            return self._cost(x_ND, target_N, cost)
        pieces = zip(x_ND.split(rows), target_N.split(rows), strict=True)
        costs = [cast(Tensor, checkpoint(self._cost, x, t, cost, use_reentrant=False)) for x, t in pieces]
        return torch.stack(costs).sum()

    def _cost(self, x_ND: Tensor, target_N: Tensor, cost: Cost) -> Tensor:
        return cost(self(x_ND), target_N)
