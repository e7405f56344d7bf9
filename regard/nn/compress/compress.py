"""Keys and values made fewer before they are looked at."""

from __future__ import annotations

from torch import Tensor, nn

from regard.nn.context import Context
from regard.nn.pattern.pattern import Pattern


class Compress(nn.Module):
    """Many keys become few; where there is a cache, a part keeps there what later calls need."""

    def check(self, pattern: Pattern) -> None:
        """Refuse a pattern that the part cannot keep, when the model is built."""

    def forward(self, k_BGLK: Tensor, v_BGLK: Tensor, ctx: Context) -> tuple[Tensor, Tensor, Tensor]:
        """All keys and values that the queries of this call may see, and where they stand.

        The new ones, given here, stand at `ctx.pos_BL`; a compressed key stands where the last token that
        went into it stood, so that a causal pattern never lets it be seen too early.
        """
        raise NotImplementedError
