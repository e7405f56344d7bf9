"""Layer normalisation."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.dims import Dims
from regard.native import can_norm, norm_rows
from regard.nn.norm.norm import Norm
from regard.spec import part


@part
class Layer(Norm):
    r"""Each token gets zero mean and unit variance over its features, then a learned scale and shift.

        y = (x - mean(x)) / sqrt(var(x) + eps) * g + b,   var with 1/D

    Ba et al. 2016, section 3, https://arxiv.org/abs/1607.06450.

    Options:
      eps: keeps the root away from zero; BERT takes 1e-12
      bias: the shift b
    """

    def __init__(self, dims: Dims, eps: float = 1e-5, bias: bool = True) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dims.width))
        self.bias = nn.Parameter(torch.zeros(dims.width)) if bias else None

    def forward(self, x_BLD: Tensor) -> Tensor:
        """(x - mean) / sqrt(var + eps) * g + b."""
        if can_norm(x_BLD, self.weight, self.bias):
            return norm_rows(x_BLD, self.weight, self.bias, self.eps)
        return F.layer_norm(x_BLD, self.weight.shape, self.weight, self.bias, self.eps)
