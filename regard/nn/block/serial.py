"""Sublayers one after the other."""

from __future__ import annotations

from torch import Tensor, nn

from regard.dims import Dims
from regard.nn.block.block import Block, Body, Order, Sublayer
from regard.nn.context import Context
from regard.nn.norm import Layer, Norm
from regard.nn.residual import Add, Residual
from regard.spec import Recipe, of, part


@part
class Serial(Block):
    """Sublayers in order. Encoder: self, ffn. Decoder: self, cross, ffn. Vaswani et al. 2017, section 3.1.

    https://arxiv.org/abs/1706.03762.

    Options:
      sublayers: a name and a body each; the name is part of the address of caches, recordings and weights
      norm: one for each sublayer
      residual: how a body joins the stream
      order: post, norm(x + F(x)), as in the paper; pre, x + F(norm(x)), as almost everywhere since
      dropout: on what a body says, before it joins
    """

    def __init__(
        self,
        dims: Dims,
        sublayers: dict[str, Body],
        norm: Recipe[Norm] = of(Layer),
        residual: Recipe[Residual] = of(Add),
        order: Order = "pre",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.order, self.last_norm = order, norm
        self.sublayers = nn.ModuleDict(
            {name: Sublayer(dims, body, norm, residual, order, dropout) for name, body in sublayers.items()}
        )

    def forward(self, x_BLD: Tensor, ctx: Context) -> Tensor:
        """Each sublayer in turn."""
        for name, sublayer in self.sublayers.items():
            x_BLD = sublayer(x_BLD, ctx.at(name))
        return x_BLD
