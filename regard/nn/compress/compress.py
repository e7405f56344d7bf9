"""Keys and values made fewer before they are looked at."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard.nn.context import Context
from regard.nn.pattern.pattern import Pattern
from regard.nn.position.position import Position


class Compress(nn.Module):
    """Many keys become few; where there is a cache, a part keeps there what later calls need.

    limit  positions must stay below this; None: any
    """

    limit: int | None = None

    def check(self, pattern: Pattern) -> None:
        """Refuse a pattern that the part cannot keep, when the model is built."""

    def meet(self, position: Position) -> None:
        """Refuse a scheme of positions that the part cannot keep, when the model is built."""

    def columns(self, tokens: int, spare: int = 0) -> int:
        """Of how many keys and values a cache holds after so many tokens."""
        return 0

    def share(self, first: Compress) -> None:
        """Take over from the first layer's what all layers of a stack have in common."""

    def forward(self, k_BGLK: Tensor, v_BGLK: Tensor, ctx: Context) -> tuple[Tensor, Tensor, Tensor | None]:
        """All keys and values that the queries of this call may see, and where they stand.

        The new ones, given here, stand at `ctx.pos_BL`; a compressed key stands where the last token that
        went into it stood, so that a causal pattern never lets it be seen too early. None: nowhere, seen by
        all.
        """
        raise NotImplementedError


def settle(blocks: nn.Module, position: Position | None) -> None:
    """What the layers of a stack must agree on, once they are built: whoever is choosy meets its position."""
    for part in blocks.modules():
        meet = getattr(part, "meet", None)
        if position is not None and callable(meet):
            meet(position)
    found = [part for part in blocks.modules() if isinstance(part, Compress)]
    for part in found:
        part.share(next(first for first in found if type(first) is type(part)))


def placed(t_BGLK: Tensor, ctx: Context) -> Tensor:
    """Tokens in the columns of their positions, wherever padding stood; zeros where a row has none."""
    if ctx.plain:
        return t_BGLK
    B, G, L, K = t_BGLK.shape
    column_BL = torch.where(ctx.pos_BL >= 0, ctx.pos_BL, L).expand(B, L)
    index = column_BL[:, None, :, None].expand(B, G, L, K)
    return t_BGLK.new_zeros(B, G, L + 1, K).scatter(2, index, t_BGLK)[:, :, :L]
