"""What keeps the stream at one scale."""

from __future__ import annotations

from torch import Tensor, nn


class Norm(nn.Module):
    """x_BLD -> x_BLD, each token by itself."""

    def forward(self, x_BLD: Tensor) -> Tensor:
        """The normalised stream."""
        raise NotImplementedError
