"""One projection opens a gate for another."""

from __future__ import annotations

from torch import Tensor

from regard.dims import Dims
from regard.nn.context import Context
from regard.nn.dropout import Dropout
from regard.nn.ffn.ffn import ACTIVATIONS, FFN, Activation
from regard.nn.product import Linear
from regard.spec import part


@part
class Gated(FFN):
    r"""A gate, computed from the token, multiplies what is passed on.

        y = W2 (f(W x) * V x)

    Shazeer 2020, https://arxiv.org/abs/2002.05202: f = sigmoid GLU, identity bilinear (LiGLU), relu ReGLU,
    gelu GeGLU, silu SwiGLU. The paper takes hidden = 2/3 of a dense layer's, so that the number of weights is
    equal. W and V are one matrix here, W first.

    Options:
      hidden: width of the gate; 8/3 x width, rounded up to a multiple of 8, if not given
      activation: f
      bias: on all three matrices
      dropout: on f(W x) * V x
    """

    def __init__(
        self,
        dims: Dims,
        hidden: int | None = None,
        activation: Activation = "silu",
        bias: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        hidden = hidden or -(-8 * dims.width // 24) * 8
        self.up = Linear(dims.width, 2 * hidden, bias=bias)
        self.down = Linear(hidden, dims.width, bias=bias)
        self.bend, self.dropout = ACTIVATIONS[activation], Dropout(dropout)

    def forward(self, x_BLD: Tensor, ctx: Context) -> Tensor:
        """W2 (f(W x) * V x)."""
        gate_BLF, value_BLF = self.up(x_BLD).chunk(2, -1)
        y_BLD: Tensor = self.down(self.dropout(self.bend(gate_BLF) * value_BLF))
        return y_BLD
