"""Waves of many lengths, added to the input."""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.dims import Dims
from regard.errors import UsageError
from regard.nn.position.distance import blank
from regard.nn.position.position import Position
from regard.spec import part

Form = Literal["paper", "halves", "tensor2tensor"]
FIRST = 1024  # positions that are looked up; beyond, they are computed


def waves(pos_BL: Tensor, width: int, form: Form = "paper") -> Tensor:
    r"""Sinusoids at positions: (B, L) -> (B, L, width).

    paper:          PE[2i] = sin(pos / 10000^(2i / width)),  PE[2i + 1] = cos(the same),  i = 0 .. width/2 - 1
    halves:         the same numbers, all sines first: [sin ... | cos ...]
    tensor2tensor:  [sin ... | cos ...] with 10000^(i / (width/2 - 1))
    """
    half = torch.arange(width // 2, device=pos_BL.device, dtype=torch.float64)
    steps = half / max(width // 2 - 1, 1) if form == "tensor2tensor" else 2 * half / width
    angle = (
        pos_BL[..., None].to(torch.float64) * 10_000.0**-steps
    )  # far positions need more than float32 holds
    sin, cos = angle.sin(), angle.cos()
    both = torch.stack([sin, cos], -1).flatten(-2) if form == "paper" else torch.cat([sin, cos], -1)
    return both.float()


@part
class Sinusoidal(Position):
    r"""Each position is a chord of sines and cosines, added to the token once, before the first layer.

        PE(pos, 2i) = sin(pos / 10000^(2i/D)),   PE(pos, 2i+1) = cos(pos / 10000^(2i/D))

    Vaswani et al. 2017, section 3.5, https://arxiv.org/abs/1706.03762.

    Options:
      form: paper (above); halves, sines before cosines (Transformer-XL, Marian); tensor2tensor, the authors'
        code, which Whisper follows
    """

    def __init__(self, dims: Dims, form: Form = "paper") -> None:
        super().__init__()
        if dims.width % 2:
            raise UsageError(
                f"Sinusoidal positions come in pairs, so dims.width must be even, but is {dims.width}."
            )
        self.form = form

    def add(self, x_BLD: Tensor, pos_BL: Tensor) -> Tensor:
        """x + PE(pos)."""
        pos_BL, width = pos_BL.clamp(min=0), x_BLD.shape[-1]
        if _is_here(pos_BL) and (most := int(pos_BL.max()) + 1) <= FIRST:
            table_LD = _table(max(64, 1 << (most - 1).bit_length()), width, self.form)
            return x_BLD + F.embedding(pos_BL, table_LD).to(x_BLD.dtype)
        return x_BLD + waves(pos_BL, width, self.form).to(x_BLD.dtype)


@lru_cache(maxsize=16)
def _table(count: int, width: int, form: Form) -> Tensor:
    """The first positions, made once: who writes token by token asks at every step."""
    return waves(torch.arange(count), width, form)


def _is_here(pos_BL: Tensor) -> bool:
    """Whether positions can be looked at: there are some, and neither a GPU nor a compiler is asked."""
    here = pos_BL.device.type == "cpu" and not torch.compiler.is_compiling()
    return here and not blank(pos_BL) and pos_BL.numel() > 0
