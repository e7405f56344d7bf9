"""The scaled dot product."""

from __future__ import annotations

from torch import Tensor

from regard.dims import Dims
from regard.errors import UsageError
from regard.nn.score.score import Score
from regard.spec import part


@part
class Dot(Score):
    r"""The more a query and a key point the same way, the better they match.

        s_ij = q_i . k_j / (sqrt(K) temperature)

    Vaswani et al. 2017, section 3.2.1, https://arxiv.org/abs/1706.03762; without the root, scale 1: Luong et
    al. 2015, section 3.1, https://arxiv.org/abs/1508.04025.

    Options:
      scale: another factor than 1 / sqrt(K), the width of one head; T5 takes 1 and folds it into its birth
        weights
      temperature: above 1, weights are more even; below, sharper
    """

    is_dot = True

    def __init__(self, dims: Dims, scale: float | None = None, temperature: float = 1.0) -> None:
        super().__init__()
        if temperature <= 0:
            raise UsageError(f"A temperature must be above 0, but is {temperature}.")
        self.scale, self.temperature = scale, temperature

    def scale_of(self, q_BHLK: Tensor) -> float:
        """1 / sqrt(K) unless another was chosen, by the temperature."""
        return (super().scale_of(q_BHLK) if self.scale is None else self.scale) / self.temperature
