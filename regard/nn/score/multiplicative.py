"""A matrix between query and key."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard.dims import Dims
from regard.nn.score.score import Score
from regard.spec import part


@part
class Multiplicative(Score):
    r"""Query and key meet through a matrix that is learned, one for each head; they need not be as wide.

        s_ij = q_i^T W k_j

    Luong et al. 2015, section 3.1 (general), https://arxiv.org/abs/1508.04025. No root divides it. W goes to
    the query, so that what is left is a dot product with keys as they are: cached, shared by heads, fused.

    Options:
      key: the width of a key; that of a query, one head's, if not given
    """

    is_dot = True

    def __init__(self, dims: Dims, key: int | None = None) -> None:
        super().__init__()
        key = key or dims.size
        self.weight = nn.Parameter(torch.empty(dims.heads, dims.size, key))
        nn.init.normal_(self.weight, std=(dims.size * key) ** -0.5)  # scores of about 1

    def prepare(self, q_BHLK: Tensor, k_BGMK: Tensor) -> tuple[Tensor, Tensor]:
        """W^T q, and k."""
        return q_BHLK @ self.weight.to(q_BHLK.dtype), k_BGMK

    def scale_of(self, q_BHLK: Tensor) -> float:
        """None: W has it."""
        return 1.0
