"""The plain sum."""

from __future__ import annotations

from torch import Tensor

from regard.dims import Dims
from regard.nn.residual.residual import Residual
from regard.spec import part


@part
class Add(Residual):
    """x + y. He et al. 2016, eq. 1, https://arxiv.org/abs/1512.03385."""

    def __init__(self, dims: Dims) -> None:
        super().__init__()

    def forward(self, x_BLD: Tensor, y_BLD: Tensor) -> Tensor:
        """x + y."""
        return x_BLD + y_BLD
