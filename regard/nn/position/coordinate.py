"""Where a token is and how deep it is, added before every step of depth."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from regard.dims import Dims
from regard.errors import UsageError
from regard.nn.position.position import Position
from regard.nn.position.sinusoidal import waves
from regard.spec import part


@part
class Coordinate(Position):
    r"""Two coordinates, position i and step t, each a chord of waves; their sum is added at every step.

        P^t(i, 2n)     = sin(i / 10000^(2n/D)) + sin(t / 10000^(2n/D))
        P^t(i, 2n + 1) = cos(i / 10000^(2n/D)) + cos(t / 10000^(2n/D))

    Dehghani et al. 2019 (Universal Transformer), section 2.1, https://arxiv.org/abs/1807.03819. Both are
    counted from 1. A step is a layer, or a turn of one block that is used again and again.

    Options:
      step: waves; learned, a vector for each of `dims.layers` steps, as in the authors' code (tensor2tensor)
    """

    every = True
    layered = True

    def __init__(self, dims: Dims, step: Literal["waves", "learned"] = "waves") -> None:
        super().__init__()
        if dims.width % 2:
            raise UsageError(f"Sinusoids come in pairs, so dims.width must be even, but is {dims.width}.")
        self.steps = nn.Embedding(dims.layers, dims.width) if step == "learned" else None

    def add(self, x_BLD: Tensor, pos_BL: Tensor) -> Tensor:
        """x + P^t, t = layer + 1."""
        width = x_BLD.shape[-1]
        place = waves(pos_BL.clamp(min=0) + 1, width).to(x_BLD.dtype)
        if self.steps is not None:
            step = self.steps.weight[self.layer]
        else:
            step = waves(torch.tensor(self.layer + 1, device=x_BLD.device), width)
        return x_BLD + place + step.to(x_BLD.dtype)
