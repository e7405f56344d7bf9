"""A learned number for each head and each range of distances, added to the scores."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from regard.dims import Dims
from regard.errors import UsageError
from regard.nn.position.position import Position
from regard.spec import part


def bucket(gap: Tensor, buckets: int, distance: int, causal: bool) -> Tensor:
    r"""The bucket of a gap = key position - query position.

    Half of the buckets hold one distance each; the rest grow with its logarithm up to `distance` and beyond.
    If not causal, half of all buckets are for keys after the query.
    """
    first = torch.zeros_like(gap)
    if causal:
        gap = (-gap).clamp(min=0)
    else:
        buckets //= 2
        first, gap = (gap > 0) * buckets, gap.abs()
    exact = buckets // 2
    far = gap.float().clamp(min=1) / exact
    far = exact + (far.log() / math.log(distance / exact) * (buckets - exact)).long()
    return first + torch.where(gap < exact, gap, far.clamp(max=buckets - 1))


@part
class T5Bias(Position):
    r"""Scores get a learned bias by head and bucket of the distance; near distances apart, far ones together.

        s_ij = q_i . k_j + b_h[bucket(j - i)]

    Raffel et al. 2020, section 2.1, https://arxiv.org/abs/1910.10683. T5 shares it over all layers of a stack
    and has none in cross-attention: give it to the stack. Given to an attention, that layer has its own.

    Options:
      buckets: how many
      distance: from here on all share the last bucket
      causal: keys are never ahead (decoders); else half of the buckets are for keys ahead
    """

    biased = True
    shared = True

    def __init__(self, dims: Dims, buckets: int = 32, distance: int = 128, causal: bool = True) -> None:
        super().__init__()
        if buckets < 4 or distance <= buckets // 2:
            raise UsageError(
                "T5's bias needs at least 4 buckets and a distance beyond half of them, "
                f"but buckets is {buckets} and distance {distance}."
            )
        self.buckets, self.distance, self.causal = buckets, distance, causal
        self.table = nn.Embedding(buckets, dims.heads)

    def bias(self, q_BHLK: Tensor, i_BL: Tensor, j_BM: Tensor) -> Tensor:
        """b_h[bucket(j - i)]."""
        gap_BLM = j_BM[:, None, :] - i_BL[:, :, None]
        chosen_BLM = bucket(gap_BLM, self.buckets, self.distance, self.causal)
        b_BLMH: Tensor = self.table(chosen_BLM)
        return b_BLMH.permute(0, 3, 1, 2)
