"""Up, bend, down."""

from __future__ import annotations

from torch import Tensor

from regard.dims import Dims
from regard.nn.context import Context
from regard.nn.dropout import Dropout
from regard.nn.ffn.ffn import ACTIVATIONS, FFN, Activation
from regard.nn.product import Linear
from regard.spec import part


@part
class Dense(FFN):
    r"""Two matrices with a bend between them, applied to each token alone.

        y = W2 f(W1 x + b1) + b2

    Vaswani et al. 2017, section 3.3, https://arxiv.org/abs/1706.03762.

    Options:
      hidden: width between the two; 4 x width if not given
      activation: f
      bias: b1 and b2
      dropout: on f(W1 x)
    """

    def __init__(
        self,
        dims: Dims,
        hidden: int | None = None,
        activation: Activation = "relu",
        bias: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        hidden = hidden or 4 * dims.width
        self.up = Linear(dims.width, hidden, bias=bias)
        self.down = Linear(hidden, dims.width, bias=bias)
        self.bend, self.dropout = ACTIVATIONS[activation], Dropout(dropout)

    def forward(self, x_BLD: Tensor, ctx: Context) -> Tensor:
        """W2 f(W1 x)."""
        y_BLD: Tensor = self.down(self.dropout(self.bend(self.up(x_BLD))))
        return y_BLD
