"""How tokens learn of each other."""

from __future__ import annotations

from torch import Tensor, nn

from regard.nn.context import Context


class Mixer(nn.Module):
    """x_BLD -> y_BLD, across tokens."""

    usual = "attention"  # the kind, where a config does not say

    def forward(self, x_BLD: Tensor, ctx: Context) -> Tensor:
        """What the other tokens say to each."""
        raise NotImplementedError
