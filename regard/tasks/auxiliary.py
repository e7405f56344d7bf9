"""Predictions that are asked for in training only."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from regard.dims import Dims
from regard.errors import UsageError
from regard.nn.head import Linear, nll

FURTHER = 0.5  # the weight of targets beyond the next one


def weight(layer: int, layers: int, done: float) -> float:
    """w_l: layer l of n counts until l / 2n of the training is done, the last one always."""
    return float(layer == layers or done < layer / (2 * layers))


class Auxiliary(nn.Module):
    r"""Every layer predicts, and more than the next token: heads of their own, which the model does not keep.

        loss = sum_{l=1}^n w_l(t) sum_{k=1}^K c_k L_{l,k}
        w_l(t) = [t < l / 2n],  w_n = 1,  c_1 = 1,  c_k = 0.5 for k > 1

    where L_{l,k} is the mean of -log p of the token k places ahead, from the stream after layer l, and t the
    share of the training that is done: after half of it only the last layer is left. L_{n,1} is the model's
    own loss, not counted here. Al-Rfou et al. 2018, "Auxiliary losses", https://arxiv.org/abs/1808.04444
    (where a number of steps, 62.5K a layer, contradicts the formula: the formula is meant here).

    Options:
      vocab: number of tokens
      layers: whether the layers before the last one predict too
      targets: K
    """

    def __init__(self, dims: Dims, vocab: int, layers: bool = True, targets: int = 1) -> None:
        super().__init__()
        self.layers = dims.layers
        every = range(1 if layers else dims.layers, dims.layers + 1)
        asked = [(layer, ahead) for layer in every for ahead in range(1, targets + 1)]
        asked.remove((dims.layers, 1))
        self.heads = nn.ModuleDict({f"{layer}-{ahead}": Linear(dims, vocab) for layer, ahead in asked})

    def forward(
        self, streams: Sequence[Tensor], target_BL: Tensor, done: float, count: int
    ) -> dict[str, Tensor]:
        """What each head costs: a mean over `count` targets, already weighed."""
        if len(streams) != self.layers:
            raise UsageError(
                "Losses of layers need a stack that shows the stream after each of them, "
                f"but {len(streams)} of {self.layers} did; choose a sequential stack."
            )
        found: dict[str, Tensor] = {}
        for name, head in self.heads.items():
            assert isinstance(head, Linear)
            layer, ahead = map(int, name.split("-"))
            counts = weight(layer, self.layers, done) * (1.0 if ahead == 1 else FURTHER)
            if counts:
                found[f"layer/{name}"] = (
                    counts / max(count, 1) * self._cost(head, streams[layer - 1], target_BL, ahead)
                )
            else:  # several processes wait for a gradient of every weight
                found[f"layer/{name}"] = 0.0 * head.weight.sum()
        return found

    def _cost(self, head: Linear, x_BLD: Tensor, target_BL: Tensor, ahead: int) -> Tensor:
        later_BL = torch.full_like(target_BL, -1)
        later_BL[:, : target_BL.shape[1] - ahead + 1] = target_BL[:, ahead - 1 :]
        return head.loss(x_BLD, later_BL, nll)
