"""The scaled dot product."""

from __future__ import annotations

from torch import Tensor

from regard.dims import Dims
from regard.nn.score.score import Score
from regard.spec import part


@part
class Dot(Score):
    r"""The more a query and a key point the same way, the better they match.

        s_ij = q_i . k_j / sqrt(K)

    Vaswani et al. 2017, section 3.2.1, https://arxiv.org/abs/1706.03762.

    Options:
      scale: another factor than 1 / sqrt(K), the width of one head; T5 takes 1 and folds it into its birth
        weights
    """

    is_dot = True

    def __init__(self, dims: Dims, scale: float | None = None) -> None:
        super().__init__()
        self.scale = scale

    def scale_of(self, q_BHLK: Tensor) -> float:
        """1 / sqrt(K) unless another was chosen."""
        return super().scale_of(q_BHLK) if self.scale is None else self.scale
