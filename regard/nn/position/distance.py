"""What a query makes of each distance, handed to the keys at that distance, wherever they stand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

FAR = 2**30  # beyond every position


def spread(
    meet: Callable[[int, int], Tensor], i_BL: Tensor, j_BM: Tensor, causal: bool, unseen: bool = False
) -> Tensor:
    """s_ij = what the query at i makes of the distance i - j: (B or 1, H, L, M).

    `meet(most, count)` says what each query makes of the distances most, most - 1, ...: (B, H, L, count). So
    a query meets a distance once, however many keys there are. Where columns run on like positions, the
    answer is a view of that (the shift of Dai et al. 2019, appendix B, without its copy); else it is picked.
    If `causal`, keys ahead of their query get 0, or anything where they are `unseen`.
    """
    L, M = i_BL.shape[1], j_BM.shape[1]
    shift, most, least = _distances(i_BL, j_BM)
    if shift is not None:  # the distance at column (l, m) is l - m + shift
        wide = max(M, L + shift) + 1 if causal else L + M
        rows_BHLR = meet(L - 1 + shift, wide)
        # a compiler has its own way with gradients
        s_BHLM: Tensor = (
            shifted(rows_BHLR, M) if torch.compiler.is_compiling() else Shifted.apply(rows_BHLR, M)
        )
        return s_BHLM.tril(shift) if causal and not unseen else s_BHLM
    gap_B1LM = (i_BL[:, None, :, None] - j_BM[:, None, None, :]).long()
    count = max(most - (max(least, 0) if causal else least), 0) + 1
    column_B1LM = (most - gap_B1LM).clamp(0, count - 1)  # padding may lie outside
    s_BHLR = meet(most, count)
    both = max(len(s_BHLR), len(column_B1LM)), s_BHLR.shape[1], -1, -1
    s_BHLM = s_BHLR.expand(both).gather(-1, column_B1LM.expand(both))
    return s_BHLM.masked_fill(gap_B1LM < 0, 0.0) if causal and not unseen else s_BHLM


def shifted(x_BHLR: Tensor, M: int) -> Tensor:
    """Rows of R, one after the other, read as rows of one less: what was at column c of row l is at

    m = c - (L - 1) + l,    m < M < R
    """
    (B, H, L, R), x_BHX = x_BHLR.shape, x_BHLR.flatten(2)
    row, head, _ = x_BHX.stride()
    return x_BHX.as_strided((B, H, L, M), (row, head, R - 1, 1), x_BHX.storage_offset() + L - 1)


class Shifted(torch.autograd.Function):
    """The same; its gradient is laid out as the rows were in one go, all rows of a head together."""

    @staticmethod
    def forward(ctx: Any, x_BHLR: Tensor, M: int) -> Tensor:
        ctx.wide = x_BHLR.shape[-1]
        return shifted(x_BHLR, M)

    @staticmethod
    def backward(ctx: Any, dy_BHLM: Tensor) -> tuple[Tensor, None]:
        (B, H, L, M), R = dy_BHLM.shape, ctx.wide
        dy_HBLM, rest_HBL = dy_BHLM.transpose(0, 1), dy_BHLM.new_zeros(H, B, L)
        dy_HBX = (dy_HBLM if M == R - 1 else F.pad(dy_HBLM, (0, R - 1 - M))).flatten(2)
        dx_HBX = torch.cat([rest_HBL[..., 1:], dy_HBX, rest_HBL[..., :1]], -1)
        return dx_HBX.view(H, B, L, R).transpose(0, 1), None


def _distances(i_BL: Tensor, j_BM: Tensor) -> tuple[int | None, int, int]:
    """How much more a distance is than its columns are apart, if always the same; the most and the least.

    Only real tokens count. Where tensors hold no numbers, what they would say if nothing were padded.
    """
    L, M = i_BL.shape[1], j_BM.shape[1]
    found = []
    for shift in (True, False):
        (few_i, many_i), (few_j, many_j) = _ends(i_BL, shift), _ends(j_BM, shift)
        least_B, most_B = few_i - many_j, many_i - few_j
        found += [most_B.amax(), least_B.masked_fill(most_B < -FAR, FAR).amin()]
    known = torch.stack(found)
    if blank(known):
        return M - L, M, 0
    a, b, most, least = known.tolist()
    if most < -FAR:  # no query meets a key
        return 0, 0, 0
    return (a if a == b else None), most, least


def _ends(pos_BL: Tensor, shift: bool) -> tuple[Tensor, Tensor]:
    """The least and the most of each row's positions, or of how far they are ahead of their columns."""
    none_BL, pos_BL = pos_BL < 0, pos_BL.long()
    if shift:
        pos_BL = pos_BL - torch.arange(pos_BL.shape[1], device=pos_BL.device)
    return pos_BL.masked_fill(none_BL, 2 * FAR).amin(1), pos_BL.masked_fill(none_BL, -2 * FAR).amax(1)


def blank(t: Tensor) -> bool:
    """It has a shape but no numbers: costs are being counted."""
    return t.is_meta or type(t) not in (Tensor, torch.nn.Parameter)
