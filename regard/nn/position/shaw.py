"""A vector learned for each distance, added to keys and to values."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from regard.dims import Dims
from regard.errors import UsageError
from regard.nn.position.position import Position
from regard.spec import part


@part
class Shaw(Position):
    r"""Keys and values differ with their distance from the query, up to k; all beyond is as far as k.

        e_ij = q_i . (k_j + a^K_c) / sqrt(K),   z_i = sum_j w_ij (v_j + a^V_c),   c = clip(j - i, -k, k)

    Shaw et al. 2018, section 3.2, https://arxiv.org/abs/1803.02155. The 2k + 1 vectors serve all heads; each
    layer has its own. A query meets each vector once, and what it found is handed to the keys at that
    distance; weights of keys at one distance are summed before they meet the vector. So a key costs one
    number more, whatever is cached.

    Options:
      distance: k, the farthest that is told apart
      on: both, or keys or values alone
    """

    biased = True
    valued = True
    layered = True

    def __init__(
        self, dims: Dims, distance: int = 16, on: Literal["both", "keys", "values"] = "both"
    ) -> None:
        super().__init__()
        if distance < 0:
            raise UsageError(f"The farthest distance must be at least 0, but distance is {distance}.")
        self.distance, self.biased, self.valued = distance, on != "values", on != "keys"
        rows = dims.layers * (2 * distance + 1)
        self.keys = nn.Embedding(rows, dims.size) if self.biased else None
        self.values = nn.Embedding(rows, dims.size) if self.valued else None

    def bias(self, q_BHLK: Tensor, i_BL: Tensor, j_BM: Tensor) -> Tensor:
        """q_i . a^K_c / sqrt(K)."""
        assert self.keys is not None
        s_BHLR: Tensor = q_BHLK @ self._own(self.keys).mT * q_BHLK.shape[-1] ** -0.5
        return s_BHLR.gather(-1, self._clip(i_BL, j_BM).expand(*q_BHLK.shape[:2], -1, -1))

    def value(self, w_BHLM: Tensor, i_BL: Tensor, j_BM: Tensor) -> Tensor:
        """sum_j w_ij a^V_c."""
        assert self.values is not None
        a_RK = self._own(self.values)
        w_BHLR = w_BHLM.new_zeros(*w_BHLM.shape[:3], len(a_RK))
        w_BHLR = w_BHLR.scatter_add(-1, self._clip(i_BL, j_BM).expand_as(w_BHLM), w_BHLM)
        y_BHLK: Tensor = w_BHLR @ a_RK.to(w_BHLM.dtype)
        return y_BHLK

    def some(self, heads: list[int], of: int) -> Position:
        """All heads share the vectors."""
        return self

    def _own(self, table: nn.Embedding) -> Tensor:
        """The vectors of this layer, from -k to k."""
        return table.weight.unflatten(0, (-1, 2 * self.distance + 1))[self.layer]  # type: ignore[no-any-return]

    def _clip(self, i_BL: Tensor, j_BM: Tensor) -> Tensor:
        gap_B1LM = (j_BM[:, None, None, :] - i_BL[:, None, :, None]).long()
        return gap_B1LM.clamp(-self.distance, self.distance) + self.distance
