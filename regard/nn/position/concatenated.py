"""The position put beside the token's vector instead of onto it."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.dims import Dims
from regard.errors import UsageError
from regard.nn.position.position import Position
from regard.nn.position.sinusoidal import Form, waves
from regard.nn.product import Linear
from regard.spec import part


@part
class Concatenated(Position):
    r"""[x ; PE(pos)], brought back to the width of the stream by one matrix.

        y = W [x ; PE(pos)]

    What lecture notes often say that Vaswani et al. 2017 do; they add (section 3.5, https://arxiv.org/abs/1706.03762).
    With W = [I ; I] this is the sum again.

    Options:
      place: how many numbers describe a position
      form: of the sinusoids, as in `sinusoidal`
    """

    def __init__(self, dims: Dims, place: int = 64, form: Form = "paper") -> None:
        super().__init__()
        if place % 2 or place < 2:
            raise UsageError(f"Sinusoids come in pairs, so place must be even, but is {place}.")
        self.place, self.form = place, form
        self.join = Linear(dims.width + place, dims.width, bias=False)

    def add(self, x_BLD: Tensor, pos_BL: Tensor) -> Tensor:
        """W [x ; PE(pos)]."""
        place = waves(pos_BL.clamp(min=0), self.place, self.form).to(x_BLD.dtype)
        out: Tensor = self.join(torch.cat([x_BLD, place.expand(*x_BLD.shape[:2], -1)], -1))
        return out
