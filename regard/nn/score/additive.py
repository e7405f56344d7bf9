"""A small network that looks at query and key together."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard.dims import Dims
from regard.nn.score.score import Score
from regard.spec import part


@part
class Additive(Score):
    r"""Query and key are added in a hidden layer, and one number is read off it; each head has its own.

        s_ij = v . tanh(W q_i + U k_j)

    Bahdanau et al. 2015, section 3.1 and appendix A.1.2, https://arxiv.org/abs/1409.0473; Luong's concat is
    the same with [W U] as one matrix. It is no dot product: every pair needs `hidden` numbers. U k can be
    computed once for many queries: `compare(score.asked(q), known)` with known = `score.known(k)`.

    Options:
      hidden: numbers in the hidden layer; one head's width if not given
      key: the width of a key; that of a query, one head's, if not given
    """

    def __init__(self, dims: Dims, hidden: int | None = None, key: int | None = None) -> None:
        super().__init__()
        hidden = hidden or dims.size
        self.query = nn.Parameter(torch.empty(dims.heads, dims.size, hidden))
        self.key = nn.Parameter(torch.empty(dims.heads, key or dims.size, hidden))
        self.value = nn.Parameter(torch.empty(dims.heads, hidden))
        for matrix in (self.query, self.key):
            nn.init.normal_(matrix, std=matrix.shape[1] ** -0.5)
        nn.init.normal_(self.value, std=hidden**-0.5)

    def asked(self, q_BHLK: Tensor) -> Tensor:
        """W q: (B, H, L, hidden)."""
        return q_BHLK @ self.query.to(q_BHLK.dtype)

    def known(self, k_BHMK: Tensor) -> Tensor:
        """U k: (B, H, M, hidden)."""
        return k_BHMK @ self.key.to(k_BHMK.dtype)

    def compare(self, a_BHLF: Tensor, b_BHMF: Tensor) -> Tensor:
        """v . tanh(a + b) of every pair."""
        met_BHLMF = (a_BHLF[:, :, :, None] + b_BHMF[:, :, None]).tanh()
        s_BHLM: Tensor = (met_BHLMF @ self.value.to(met_BHLMF.dtype)[:, None, :, None])[..., 0]
        return s_BHLM

    def forward(self, q_BHLK: Tensor, k_BHMK: Tensor) -> Tensor:
        """Scores of every query with every key."""
        return self.compare(self.asked(q_BHLK), self.known(k_BHMK))
