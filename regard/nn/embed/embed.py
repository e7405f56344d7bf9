"""From what is given to vectors."""

from __future__ import annotations

from torch import Tensor, nn


class Embed(nn.Module):
    """ids_BL -> x_BLD. A negative id is padding: its vector is never read."""

    weight: nn.Parameter

    def forward(self, ids_BL: Tensor, segments_BL: Tensor | None = None) -> Tensor:
        """A vector for each token."""
        raise NotImplementedError
