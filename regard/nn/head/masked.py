"""BERT's head for hidden words."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard.dims import Dims
from regard.nn.ffn import ACTIVATIONS, Activation
from regard.nn.head.head import Head
from regard.nn.norm import Layer, Norm
from regard.nn.product import Linear
from regard.spec import Recipe, of, part


@part
class Masked(Head):
    r"""logits = E norm(f(W x + c)) + b, E the embedding's own matrix.

    Devlin et al. 2019, https://arxiv.org/abs/1810.04805, as in the authors' code.

    Options:
      vocab: number of words
      activation: f
      norm: after f
    """

    def __init__(
        self,
        dims: Dims,
        vocab: int,
        activation: Activation = "gelu",
        norm: Recipe[Norm] = of(Layer, eps=1e-12),
    ) -> None:
        super().__init__()
        self.turn, self.norm = Linear(dims.width, dims.width), norm.build(dims)
        self.weight = nn.Parameter(torch.empty(vocab, dims.width))
        self.bias = nn.Parameter(torch.zeros(vocab))
        self.bend = ACTIVATIONS[activation]
        nn.init.normal_(self.weight, std=dims.width**-0.5)

    def ready(self, x_BLD: Tensor) -> Tensor:
        """norm(f(W x + c))."""
        y_BLD: Tensor = self.norm(self.bend(self.turn(x_BLD)))
        return y_BLD
