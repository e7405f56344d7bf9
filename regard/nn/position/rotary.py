"""Queries and keys turned by an angle that grows with their position."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from regard.dims import Dims
from regard.errors import UsageError
from regard.nn.position.position import Position
from regard.spec import part


@part
class Rotary(Position):
    r"""Pairs of coordinates turn by pos * theta_n, so that a dot product feels only the distance.

        (q_2n, q_2n+1) -> rotation by pos * theta_n,   theta_n = base^(-2n / K)

    Su et al. 2021, section 3.2.2, https://arxiv.org/abs/2104.09864.

    Options:
      base: the longest wavelength is 2 pi base
      pairs: halves (n with n + K/2, as in Llama's converted weights) or neighbours (2n with 2n + 1, as in the
        paper)
    """

    def __init__(
        self, dims: Dims, base: float = 10_000.0, pairs: Literal["halves", "neighbours"] = "halves"
    ) -> None:
        super().__init__()
        if dims.size % 2:
            raise UsageError(
                f"Rotary positions turn pairs, so the width of one head must be even, but is {dims.size}."
            )
        self.base, self.pairs = base, pairs

    def turn(self, q_BHLK: Tensor, k_BGLK: Tensor, i_BL: Tensor) -> tuple[Tensor, Tensor]:
        """Turn both by the angle of their position."""
        K = q_BHLK.shape[-1]
        rate = self.base ** (-torch.arange(0, K, 2, device=i_BL.device, dtype=torch.float32) / K)
        angle_BLK = i_BL[..., None].float() * rate
        cos, sin = (t[:, None].to(q_BHLK.dtype) for t in (angle_BLK.cos(), angle_BLK.sin()))
        return self._turn(q_BHLK, cos, sin), self._turn(k_BGLK, cos, sin)

    def _turn(self, x_BHLK: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        a, b = x_BHLK.chunk(2, -1) if self.pairs == "halves" else (x_BHLK[..., 0::2], x_BHLK[..., 1::2])
        a, b = a * cos - b * sin, b * cos + a * sin
        return torch.cat([a, b], -1) if self.pairs == "halves" else torch.stack([a, b], -1).flatten(-2)
