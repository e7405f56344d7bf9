"""Far keys are penalised in proportion to their distance."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from regard.dims import Dims
from regard.nn.position.position import Position
from regard.spec import part


def slopes(heads: int) -> list[float]:
    """2^(-8/H), 2^(-16/H), ...; if H is no power of two, every second slope of the next power fills up."""
    if math.log2(heads).is_integer():
        return [2.0 ** (-8.0 * (h + 1) / heads) for h in range(heads)]
    below = 2 ** math.floor(math.log2(heads))
    return slopes(below) + slopes(2 * below)[0::2][: heads - below]


@part
class Alibi(Position):
    r"""No position vectors at all: scores fall with the distance, each head at its own slope.

        s_ij = q_i . k_j / sqrt(K) - m_h |i - j|,   m_h = 2^(-8h/H)

    Press et al. 2022, section 3, https://arxiv.org/abs/2108.12409. For keys ahead (encoders) the distance
    counts as well.
    """

    biased = True
    shared = True

    def __init__(self, dims: Dims) -> None:
        super().__init__()
        self.slopes = slopes(dims.heads)

    def bias(self, q_BHLK: Tensor, i_BL: Tensor, j_BM: Tensor) -> Tensor:
        """-m_h |i - j|."""
        gap_B1LM = (i_BL[:, None, :, None] - j_BM[:, None, None, :]).abs()
        m_H11 = torch.tensor(self.slopes, device=i_BL.device, dtype=q_BHLK.dtype)[:, None, None]
        return -m_H11 * gap_B1LM
