"""A feed-forward layer that takes the sequence a piece at a time."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from regard.dims import Dims
from regard.errors import UsageError
from regard.nn.context import Context
from regard.nn.ffn.dense import Dense
from regard.nn.ffn.ffn import FFN
from regard.spec import Recipe, of, part


@part
class Chunked(FFN):
    """The same answer as its body, piece by piece: only one piece's hidden layer is in memory at a time.

    Kitaev et al. 2020 (Reformer), section 3, https://arxiv.org/abs/2001.04451. In training, each piece is
    computed again in the backward pass.

    Options:
      body: the layer that is applied
      size: tokens in a piece
    """

    def __init__(self, dims: Dims, body: Recipe[FFN] = of(Dense), size: int = 128) -> None:
        super().__init__()
        if size < 1:
            raise UsageError(f"A piece must hold at least 1 token, but size is {size}.")
        self.body, self.size = body.build(dims), size

    def forward(self, x_BLD: Tensor, ctx: Context) -> Tensor:
        """The body on each piece."""
        if x_BLD.shape[1] <= self.size:
            y_BLD: Tensor = self.body(x_BLD, ctx)
            return y_BLD
        pieces = x_BLD.split(self.size, 1)
        if torch.is_grad_enabled():
            return torch.cat([checkpoint(self.body, piece, ctx, use_reentrant=False) for piece in pieces], 1)
        return torch.cat([self.body(piece, ctx) for piece in pieces], 1)
