"""Relative positions of Transformer-XL: waves of the distance, compared with the query."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.dims import Dims
from regard.errors import UsageError
from regard.nn.position.position import Position
from regard.nn.position.sinusoidal import waves
from regard.spec import part

FAR = 2**30  # beyond every position
_known: dict[tuple[object, ...], Tensor] = {}


@part
class TransformerXL(Position):
    r"""A score is what query and key have in common, plus what the query makes of their distance.

        s_ij = ((q_i + u) . k_j + (q_i + v) . W_R r_{i-j}) / sqrt(K)

    Dai et al. 2019, section 3.3, https://arxiv.org/abs/1901.02860. r is a sinusoid, all sines first; u and v
    have a vector for each head and are shared by all layers, as in the authors' code; each layer has its W_R.
    Nothing is assumed about which keys are there: a distance is i - j, wherever they stand.

    A query meets each distance once, and what it found is handed to the key at that distance: where columns
    run on like positions, as a view (the paper's shift, appendix B, without its copy), else by picking.
    W_R goes to the distances where there are many queries, and to the queries where there are few.

    Differs from the authors' code: dropout on r is drawn anew in each layer. Keys ahead of their query get
    no second term, unless `causal` is off.

    Options:
      causal: keys are never ahead (decoders); else distances have a sign
      clamp: all beyond this distance is as far; none: every distance is told apart
      dropout: on r
    """

    biased = True
    layered = True

    def __init__(
        self, dims: Dims, causal: bool = True, clamp: int | None = None, dropout: float = 0.0
    ) -> None:
        super().__init__()
        if dims.width % 2:
            raise UsageError(f"Sinusoids come in pairs, so dims.width must be even, but is {dims.width}.")
        if clamp is not None and clamp < 1:
            raise UsageError(f"Distances can be clamped at 1 or more, but clamp is {clamp}.")
        self.causal, self.clamp, self.dropout, self.width = causal, clamp, dropout, dims.width
        self.u, self.v = (nn.Parameter(torch.empty(dims.heads, dims.size)) for _ in range(2))
        for both in (self.u, self.v):
            nn.init.normal_(both, std=0.02)
        self.keys = nn.ModuleList(
            nn.Linear(dims.width, dims.heads * dims.size, bias=False) for _ in range(dims.layers)
        )

    def turn(self, q_BHLK: Tensor, k_BGLK: Tensor, i_BL: Tensor) -> tuple[Tensor, Tensor]:
        """q + u; keys stay."""
        return q_BHLK + self.u[:, None], k_BGLK

    def bias(self, q_BHLK: Tensor, i_BL: Tensor, j_BM: Tensor) -> Tensor:
        """(q_i + v) . W_R r_{i-j} / sqrt(K)."""
        q_BHLK = (q_BHLK + self.v[:, None]) * q_BHLK.shape[-1] ** -0.5
        L, M = q_BHLK.shape[2], j_BM.shape[1]
        shift, most, least = _distances(i_BL, j_BM)
        if shift is not None:  # the distance at column (l, m) is l - m + shift
            most, wide = L - 1 + shift, max(M, L + shift) + 1 if self.causal else L + M
            s_BHLR = self._meet(q_BHLK, most, wide)
            s_BHX = s_BHLR.flatten(2)[..., L - 1 : L - 1 + L * (wide - 1)]
            s_BHLM: Tensor = s_BHX.unflatten(2, (L, wide - 1))[..., :M]
            return s_BHLM.tril(shift) if self.causal else s_BHLM
        gap_B1LM = (i_BL[:, None, :, None] - j_BM[:, None, None, :]).long()
        least = max(least, 0) if self.causal else least
        s_BHLR = self._meet(q_BHLK, most, max(most - least, 0) + 1)
        column_B1LM = (most - gap_B1LM).clamp(0, s_BHLR.shape[-1] - 1)  # padding may lie outside
        s_BHLM = s_BHLR.gather(-1, column_B1LM.expand(*q_BHLK.shape[:2], -1, -1))
        return s_BHLM.masked_fill(gap_B1LM < 0, 0.0) if self.causal else s_BHLM

    def _meet(self, q_BHLK: Tensor, most: int, count: int) -> Tensor:
        """q . W_R r for the distances most, most - 1, ..., `count` of them: (B, H, L, count)."""
        (B, H, L, K), D = q_BHLK.shape, self.width
        r_RD = _waves(most, count, D, self.clamp, q_BHLK.device).to(q_BHLK.dtype)
        r_RD = F.dropout(r_RD, self.dropout, self.training)
        matrix = self.keys[self.layer]
        assert isinstance(matrix, nn.Linear)
        w_HKD = matrix.weight.unflatten(0, (H, K)).to(q_BHLK.dtype)
        q_HXK = q_BHLK.transpose(0, 1).flatten(1, 2)  # one product for each head, whatever the rows are
        if B * L * D * (K + count) < count * K * (D + B * L):
            s_HXR = q_HXK @ w_HKD @ r_RD.mT
        else:
            s_HXR = q_HXK @ (w_HKD @ r_RD.mT)
        s_BHLR: Tensor = s_HXR.unflatten(1, (B, L)).transpose(0, 1)
        return s_BHLR


def _distances(i_BL: Tensor, j_BM: Tensor) -> tuple[int | None, int, int]:
    """How much more a distance is than its columns are apart, if always the same; the most and the least.

    Only real tokens count. Where tensors hold no numbers, what they would say if nothing were padded.
    """
    L, M = i_BL.shape[1], j_BM.shape[1]
    if type(i_BL) is not Tensor or i_BL.is_meta:
        return M - L, M, 0
    found = []
    for shift in (True, False):
        (few_i, many_i), (few_j, many_j) = _ends(i_BL, shift), _ends(j_BM, shift)
        least_B, most_B = few_i - many_j, many_i - few_j
        real_B = most_B > -FAR
        found += [most_B.amax(), torch.where(real_B, least_B, FAR).amin()]
    a, b, most, least = torch.stack(found).tolist()
    if most < -FAR or least > most:  # no query meets a key
        return 0, 0, 0
    return (a if a == b else None), most, least


def _ends(pos_BL: Tensor, shift: bool) -> tuple[Tensor, Tensor]:
    """The least and the most of each row's positions, or of how far they are ahead of their columns."""
    real_BL, pos_BL = pos_BL >= 0, pos_BL.long()
    if shift:
        pos_BL = pos_BL - torch.arange(pos_BL.shape[1], device=pos_BL.device)
    return torch.where(real_BL, pos_BL, 2 * FAR).amin(1), torch.where(real_BL, pos_BL, -2 * FAR).amax(1)


def _waves(most: int, count: int, width: int, clamp: int | None, device: torch.device) -> Tensor:
    """r of the distances most, most - 1, ...; a table that all layers and calls share."""
    size = 1 << max(most, count - most, 1).bit_length()  # room to grow
    key = size, width, clamp, device

    def make() -> Tensor:
        with torch.inference_mode(False), torch.no_grad():  # it outlives the call
            distance = torch.arange(size, -size, -1, device=device)
            far = distance if clamp is None else distance.clamp(-clamp, clamp)
            return waves(far, width, "halves")

    table = _known.get(key)
    if table is None:
        table = make()
        if type(table) is Tensor and not table.is_meta:  # where only shapes are asked for, nothing is kept
            if len(_known) > 3:
                _known.clear()
            _known[key] = table
    return table[size - most : size - most + count]
