"""One matrix to the vocabulary."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard.dims import Dims
from regard.nn.head.head import Head
from regard.spec import part


@part
class Linear(Head):
    r"""logits = W x (+ b), W often the embedding's own matrix.

    Press and Wolf 2017, https://arxiv.org/abs/1608.05859 (tied); T5 multiplies x by D^-1/2 where it is
    (`scaled`).

    Options:
      vocab: number of answers
      bias: b
      scaled: x is multiplied by D^-1/2 first
    """

    def __init__(self, dims: Dims, vocab: int, bias: bool = False, scaled: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab, dims.width))
        self.bias = nn.Parameter(torch.zeros(vocab)) if bias else None
        self.factor = dims.width**-0.5 if scaled else 1.0
        nn.init.normal_(self.weight, std=dims.width**-0.5)

    def ready(self, x_BLD: Tensor) -> Tensor:
        """x, scaled if asked for."""
        return x_BLD if self.factor == 1.0 else x_BLD * self.factor
