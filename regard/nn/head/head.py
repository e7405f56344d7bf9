"""From vectors to answers."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from regard.errors import UsageError
from regard.nn.head.cost import LARGEST, Cost, CrossEntropy, Summed, nll
from regard.nn.product import product


class Head(nn.Module):
    """Answers from states: logits, their loss, their log-probabilities.

    weight, bias   the matrix and the shift that make logits of what `ready` gives

    A head that makes its logits otherwise overrides `forward`; its loss is then differentiated by PyTorch.
    """

    weight: nn.Parameter
    bias: nn.Parameter | None

    def ready(self, x_BLD: Tensor) -> Tensor:
        """What meets the matrix: the states themselves, unless a head says otherwise."""
        return x_BLD

    def forward(self, x_BLD: Tensor) -> Tensor:
        """Logits."""
        return product(self.ready(x_BLD), self.weight, self.bias)

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
        learns, known = torch.is_grad_enabled(), isinstance(cost, CrossEntropy)
        if learns and known and type(self).forward is Head.forward:
            total: Tensor = Summed.apply(self.ready(x_ND), self.weight, self.bias, target_N, cost)
            return total
        rows = max(1, LARGEST // len(self.weight))
        if len(target_N) <= rows:
            return self._cost(x_ND, target_N, cost)
        pieces = zip(x_ND.split(rows), target_N.split(rows), strict=True)
        if learns:
            costs = [checkpoint(self._cost, x, t, cost, use_reentrant=False) for x, t in pieces]
        else:
            costs = [self._cost(x, t, cost) for x, t in pieces]
        return torch.stack(cast(list[Tensor], costs)).sum()

    def _cost(self, x_ND: Tensor, target_N: Tensor, cost: Cost) -> Tensor:
        return cost(self(x_ND), target_N)
