"""Root mean square normalisation."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.dims import Dims
from regard.native import can_norm, norm_rows
from regard.nn.norm.norm import Norm
from regard.spec import part


@part
class Rms(Norm):
    r"""Each token is divided by the root mean square of its features; no mean is taken away, no shift added.

        y = x / sqrt(mean(x^2) + eps) * g

    Zhang and Sennrich 2019, section 4, https://arxiv.org/abs/1910.07467. T5 calls this its layer norm.

    Options:
      eps: keeps the root away from zero
    """

    def __init__(self, dims: Dims, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dims.width))

    def forward(self, x_BLD: Tensor) -> Tensor:
        """x / rms(x) * g."""
        if can_norm(x_BLD, self.weight):
            return norm_rows(x_BLD, self.weight, None, self.eps, centred=False)
        return F.rms_norm(x_BLD, self.weight.shape, self.weight, self.eps)
