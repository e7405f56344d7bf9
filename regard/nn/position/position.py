"""Where a token is. A scheme overrides the moments it needs, and only those."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn


class Position(nn.Module):
    """Three moments at which a position can enter: at the input, on queries and keys, on scores.

    biased  `bias` is used
    shared  the bias does not depend on the queries, so that layers that share the scheme share it too
    limit   positions must stay below this; None: any
    """

    biased: ClassVar[bool] = False
    shared: ClassVar[bool] = False
    limit: int | None = None

    def add(self, x_BLD: Tensor, pos_BL: Tensor) -> Tensor:
        """At the input of the stack."""
        return x_BLD

    def turn(self, q_BHLK: Tensor, k_BGLK: Tensor, i_BL: Tensor) -> tuple[Tensor, Tensor]:
        """On queries and new keys, before keys are cached; both stand at i_BL."""
        return q_BHLK, k_BGLK

    def bias(self, q_BHLK: Tensor, i_BL: Tensor, j_BM: Tensor) -> Tensor:
        """On scores, from the unturned queries: (B or 1, H, L, M)."""
        raise NotImplementedError
