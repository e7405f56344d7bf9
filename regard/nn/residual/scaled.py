"""A weighted sum."""

from __future__ import annotations

from torch import Tensor

from regard.dims import Dims
from regard.nn.residual.residual import Residual
from regard.spec import part


@part
class Scaled(Residual):
    r"""a x + b y, with fixed factors.

    Wang et al. 2022 (DeepNet), section 4, https://arxiv.org/abs/2203.00555, scale the stream (a > 1) so that
    very deep post-norm stacks train; Gulati et al. 2020 (Conformer), eq. 1, https://arxiv.org/abs/2005.08100,
    take b = 1/2.

    Options:
      stream: a
      body: b
    """

    def __init__(self, dims: Dims, stream: float = 1.0, body: float = 1.0) -> None:
        super().__init__()
        self.stream, self.body = stream, body

    def forward(self, x_BLD: Tensor, y_BLD: Tensor) -> Tensor:
        """a x + b y."""
        return self.stream * x_BLD + self.body * y_BLD
