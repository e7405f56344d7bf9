"""Dropout that is not there where nothing is learned."""

from __future__ import annotations

from torch import Tensor, nn


class Dropout(nn.Dropout):
    """As torch's own, but who answers token by token is spared a call in every sublayer."""

    def forward(self, input: Tensor) -> Tensor:
        """Some numbers are zero, the others larger; while answering, x itself."""
        return super().forward(input) if self.training and self.p else input
