"""How what a body says is joined to what the stream carries."""

from __future__ import annotations

from torch import Tensor, nn


class Residual(nn.Module):
    """(x_BLD, y_BLD) -> x_BLD: the stream and what a body said to it."""

    def forward(self, x_BLD: Tensor, y_BLD: Tensor) -> Tensor:
        """The stream after the body has spoken."""
        raise NotImplementedError
