"""Blocks in depth."""

from __future__ import annotations

from torch import Tensor, nn

from regard.nn.context import Context
from regard.nn.position import Position


class Stack(nn.Module):
    """x_BLD -> x_BLD, through all layers. `position` is the scheme that its self-attentions share."""

    usual = "sequential"  # the kind, where a config does not say
    position: Position | None

    def forward(self, x_BLD: Tensor, ctx: Context) -> Tensor:
        """The stream after all layers."""
        raise NotImplementedError
