"""Relative positions of Transformer-XL: waves of the distance, compared with the query."""

from __future__ import annotations

from copy import copy
from functools import partial
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.dims import Dims
from regard.errors import UsageError
from regard.nn.position.distance import blank, spread
from regard.nn.position.position import Position
from regard.nn.position.sinusoidal import waves
from regard.nn.product import Linear
from regard.spec import part

if TYPE_CHECKING:
    from regard.nn.pattern.pattern import Pattern

_known: dict[tuple[object, ...], Tensor] = {}


@part
class TransformerXL(Position):
    r"""A score is what query and key have in common, plus what the query makes of their distance.

        s_ij = ((q_i + u) . k_j + (q_i + v) . W_R r_{i-j}) / sqrt(K)

    Dai et al. 2019, section 3.3, https://arxiv.org/abs/1901.02860. r is a sinusoid, all sines first; u and v
    have a vector for each head and are shared by all layers, as in the authors' code; each layer has its W_R.
    Nothing is assumed about which keys are there: a distance is i - j, wherever they stand.

    A query meets each distance once (see `distance.spread`). W_R goes to the distances where there are many
    queries, and to the queries where there are few.

    Differs from the authors' code: dropout on r is drawn anew in each layer. Keys ahead of their query get
    no second term, unless `causal` is off.

    Options:
      causal: keys are never ahead (decoders); else distances have a sign
      clamp: all beyond this distance is as far; none: every distance is told apart
      dropout: on r
    """

    biased = True
    layered = True
    unseen = False  # keys ahead of their query

    def __init__(
        self, dims: Dims, causal: bool = True, clamp: int | None = None, dropout: float = 0.0
    ) -> None:
        super().__init__()
        if dims.width % 2:
            raise UsageError(f"Sinusoids come in pairs, so dims.width must be even, but is {dims.width}.")
        if clamp is not None and clamp < 1:
            raise UsageError(f"Distances can be clamped at 1 or more, but clamp is {clamp}.")
        self.causal, self.clamp, self.dropout, self.width = causal, clamp, dropout, dims.width
        self.some_heads: list[int] | slice = slice(None)
        self.u, self.v = (nn.Parameter(torch.empty(dims.heads, dims.size)) for _ in range(2))
        for both in (self.u, self.v):
            nn.init.normal_(both, std=0.02)
        self.keys = nn.ModuleList(
            Linear(dims.width, dims.heads * dims.size, bias=False) for _ in range(dims.layers)
        )

    def turn(self, q_BHLK: Tensor, k_BGLK: Tensor, i_BL: Tensor) -> tuple[Tensor, Tensor]:
        """q + u; keys stay."""
        return q_BHLK + self.u[:, None], k_BGLK

    def bias(self, q_BHLK: Tensor, i_BL: Tensor, j_BM: Tensor) -> Tensor:
        """(q_i + v) . W_R r_{i-j} / sqrt(K)."""
        q_BHLK = q_BHLK + self.v[self.some_heads, None]
        return spread(partial(self._meet, q_BHLK), i_BL, j_BM, self.causal, self.unseen)

    def under(self, pattern: Pattern) -> Position:
        """Keys ahead need no zeros where they are not seen."""
        if not (self.causal and pattern.causal) or self.unseen:
            return self
        here = copy(self)
        here.unseen = True
        return here

    def some(self, heads: list[int], of: int) -> Position:
        """Those heads, with their vectors and their part of W_R."""
        here = copy(self)
        here.some_heads = heads
        return here

    def _meet(self, q_BHLK: Tensor, most: int, count: int) -> Tensor:
        """q . W_R r / sqrt(K) for the distances most, most - 1, ...: (B, H, L, count)."""
        (B, _, L, K), D = q_BHLK.shape, self.width
        r_RD = _waves(most, count, D, self.clamp, q_BHLK)
        r_RD = F.dropout(r_RD, self.dropout, self.training)
        matrix = self.keys[self.layer]
        assert isinstance(matrix, nn.Linear)
        w_HKD = matrix.weight.unflatten(0, (-1, K))[self.some_heads].to(q_BHLK.dtype) * K**-0.5
        q_HXK = q_BHLK.transpose(0, 1).flatten(1, 2)  # one product for each head, whatever the rows are
        if B * L * D * (K + count) < count * K * (D + B * L):
            s_HXR = q_HXK @ w_HKD @ r_RD.mT
        else:
            s_HXR = q_HXK @ (w_HKD @ r_RD.mT)
        s_BHLR: Tensor = s_HXR.unflatten(1, (B, L)).transpose(0, 1)
        return s_BHLR


def _waves(most: int, count: int, width: int, clamp: int | None, like: Tensor) -> Tensor:
    """r of the distances most, most - 1, ...; from a table that all layers and calls share."""
    size = 1 << max(most, count - most, 1).bit_length()  # room to grow
    key = size, width, clamp, like.device, like.dtype
    table = _known.get(key)
    if table is None or blank(like):
        with torch.inference_mode(False), torch.no_grad():  # it outlives the call
            distance = torch.arange(size, -size, -1, device=like.device)
            far = distance if clamp is None else distance.clamp(-clamp, clamp)
            table = waves(far, width, "halves").to(like.dtype)
        if not blank(like):  # where only shapes are asked for, nothing is kept
            if len(_known) > 3:
                _known.clear()
            _known[key] = table
    return table[size - most : size - most + count]
