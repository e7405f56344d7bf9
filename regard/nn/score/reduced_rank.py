"""Two thin matrices between query and key."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard.dims import Dims
from regard.errors import UsageError
from regard.nn.score.score import Score
from regard.spec import part


@part
class ReducedRank(Score):
    r"""As `multiplicative`, but W = U^T V has a low rank, and so fewer numbers.

        s_ij = (U q_i) . (V k_j) = q_i^T (U^T V) k_j

    U has `rank` rows and as many columns as a query is wide, V as a key. With rank min of both widths, it can
    be any W. Both go to the query, as in `multiplicative`. Lecture notes after Luong et al. 2015,
    https://arxiv.org/abs/1508.04025; as factors of each head's own projections, it is also what Vaswani et
    al. 2017 do.

    Options:
      rank: how many rows; half of one head's width if not given
      key: the width of a key; that of a query, one head's, if not given
    """

    is_dot = True

    def __init__(self, dims: Dims, rank: int | None = None, key: int | None = None) -> None:
        super().__init__()
        key = key or dims.size
        rank = max(dims.size // 2, 1) if rank is None else rank
        if not 1 <= rank <= min(dims.size, key):
            raise UsageError(
                f"The rank must be from 1 to the smaller width, {min(dims.size, key)}, but is {rank}."
            )
        self.query = nn.Parameter(torch.empty(dims.heads, rank, dims.size))
        self.key = nn.Parameter(torch.empty(dims.heads, rank, key))
        for matrix in (self.query, self.key):
            nn.init.normal_(matrix, std=(matrix.shape[-1] * rank**0.5) ** -0.5)  # scores of about 1

    def prepare(self, q_BHLK: Tensor, k_BGMK: Tensor) -> tuple[Tensor, Tensor]:
        """V^T U q, and k."""
        return q_BHLK @ self.query.mT.to(q_BHLK.dtype) @ self.key.to(q_BHLK.dtype), k_BGMK

    def scale_of(self, q_BHLK: Tensor) -> float:
        """None: U and V have it."""
        return 1.0
