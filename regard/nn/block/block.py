"""A sublayer joins its body to the stream; a block is sublayers."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from regard.dims import Dims
from regard.nn.context import Context
from regard.nn.dropout import Dropout
from regard.nn.ffn import FFN
from regard.nn.mixer import Mixer
from regard.nn.norm import Norm
from regard.nn.residual import Residual
from regard.spec import Recipe

Order = Literal["pre", "post"]
Body = Recipe[Mixer | FFN]


class Sublayer(nn.Module):
    r"""A body, a norm, and the way both join the stream.

    post:  norm(x + dropout(F(x)))       Vaswani et al. 2017, section 3.1
    pre:   x + dropout(F(norm(x)))       Xiong et al. 2020, https://arxiv.org/abs/2002.04745
    """

    def __init__(
        self,
        dims: Dims,
        body: Body,
        norm: Recipe[Norm],
        residual: Recipe[Residual],
        order: Order,
        dropout: float,
    ) -> None:
        super().__init__()
        self.body, self.norm, self.residual = body.build(dims), norm.build(dims), residual.build(dims)
        self.order, self.dropout = order, Dropout(dropout)

    def say(self, x_BLD: Tensor, ctx: Context) -> Tensor:
        """What this sublayer would add, not yet added: reversible stacks need it alone."""
        y_BLD: Tensor = self.dropout(self.body(self.norm(x_BLD) if self.order == "pre" else x_BLD, ctx))
        return y_BLD

    def forward(self, x_BLD: Tensor, ctx: Context) -> Tensor:
        """The stream after this sublayer has spoken."""
        x_BLD = self.residual(x_BLD, self.say(x_BLD, ctx))
        return self.norm(x_BLD) if self.order == "post" else x_BLD


class Block(nn.Module):
    """Sublayers as one step of depth.

    order      norms stand before or after the bodies; pre-norm blocks need one more norm at the stack's end
    last_norm  the recipe of that norm
    """

    order: Order
    last_norm: Recipe[Norm]

    def forward(self, x_BLD: Tensor, ctx: Context) -> Tensor:
        """The stream one step deeper."""
        raise NotImplementedError
