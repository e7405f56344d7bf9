"""How a query is compared with a key."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn


class Score(nn.Module):
    """s_ij = score(q_i, k_j). Where `is_dot`, a scaled dot product of what `prepare` returns is the score."""

    usual: ClassVar[str] = "dot"  # the kind, where a config does not say
    is_dot: ClassVar[bool] = False

    def prepare(self, q_BHLK: Tensor, k_BGMK: Tensor) -> tuple[Tensor, Tensor]:
        """Queries and keys whose dot product is the score."""
        return q_BHLK, k_BGMK

    def scale_of(self, q_BHLK: Tensor) -> float:
        """What the dot product is multiplied by."""
        return float(q_BHLK.shape[-1] ** -0.5)

    def forward(self, q_BHLK: Tensor, k_BHMK: Tensor) -> Tensor:
        """Scores of every query with every key."""
        q, k = self.prepare(q_BHLK, k_BHMK)
        return q @ k.mT * self.scale_of(q)
