"""A learned vector for each token of a vocabulary."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.dims import Dims
from regard.errors import UsageError
from regard.nn.embed.embed import Embed
from regard.spec import part


@part
class Tokens(Embed):
    r"""E[id], times sqrt(D) if scaled, plus a vector for the segment if there are segments.

    Vaswani et al. 2017, section 3.4, https://arxiv.org/abs/1706.03762 (scaled); Devlin et al. 2019, section
    3, https://arxiv.org/abs/1810.04805 (segments).

    Options:
      vocab: number of different tokens
      scaled: multiply by sqrt(D), so that a matrix shared with the softmax is of the right size for both
      segments: number of segments; BERT has 2
    """

    def __init__(self, dims: Dims, vocab: int, scaled: bool = False, segments: int = 0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab, dims.width))
        self.factor = math.sqrt(dims.width) if scaled else 1.0
        self.segments = nn.Embedding(segments, dims.width) if segments else None
        nn.init.normal_(self.weight, std=dims.width**-0.5)

    def forward(self, ids_BL: Tensor, segments_BL: Tensor | None = None) -> Tensor:
        """E[id]."""
        try:
            x_BLD = F.embedding(ids_BL.clamp(min=0), self.weight)
        except IndexError:
            raise UsageError(
                f"Ids must be below the vocabulary of {len(self.weight)}, but {int(ids_BL.max())} was given; "
                "was the text read with another tokenizer?"
            ) from None
        if self.factor != 1.0:
            x_BLD = x_BLD * self.factor
        if self.segments is not None:
            segments_BL = torch.zeros_like(ids_BL) if segments_BL is None else segments_BL.clamp(min=0)
            x_BLD = x_BLD + self.segments(segments_BL)
        return x_BLD
