"""A model ready to answer quickly: its large matrices laid out as the processor reads them best.

Answering is bound by how fast weights can be read and how well few rows use the processor. `packed(model,
precision)` is a copy of a model, for answering only, whose matrices were laid out once for oneDNN:

    fp32   the same numbers; several rows at once are quicker
    bf16   half the bytes
    int8   a quarter of the bytes, and products of whole numbers

The stream between the matrices, norms, attention and caches stay in float32.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Literal, cast

import torch
from torch import Tensor, nn

from regard.errors import UsageError
from regard.model import Model
from regard.nn.ffn import Dense, Gated
from regard.nn.head import Head, Linear
from regard.nn.mixer import Attention
from regard.nn.product import product

Precision = Literal["fp32", "bf16", "int8"]
HOLDERS = (Attention, Dense, Gated)  # who only multiplies by its matrices, and makes no hash of the answer


def packed(model: Model, precision: Precision = "fp32") -> Model:
    """A copy of the model with the same answers, or nearly: it shares what was not laid out anew."""
    if precision not in ("fp32", "bf16", "int8"):
        raise UsageError(f"precision must be fp32, bf16 or int8, but is {precision!r}.")
    if next(model.parameters()).device.type != "cpu" or not torch.backends.mkldnn.is_available():
        raise UsageError("weights can be packed for a CPU with oneDNN only: leave precision out.")
    if model.training:
        raise UsageError(
            "a packed model only answers, but this one is being trained: call model.eval() first."
        )
    copy = deepcopy(model, {id(kept): kept for kept in (*model.parameters(), *model.buffers(), model.recipe)})
    with torch.no_grad():
        for module in list(copy.modules()):
            if isinstance(module, HOLDERS):
                for name, child in list(module.named_children()):
                    if isinstance(child, nn.Linear):
                        setattr(module, name, _matrix(child.weight, child.bias, precision))
        if type(copy.head) is Linear:
            copy.head = PackedHead(copy.head, precision)
    return copy


def _matrix(weight: Tensor, bias: Tensor | None, precision: Precision) -> Packed:
    kinds: dict[str, type[Packed]] = {"fp32": Packed, "bf16": Half, "int8": Whole}
    return kinds[precision](weight.detach(), None if bias is None else bias.detach())


class Packed(nn.Module):
    """y = x W^T + b, for any number of rows.

    packed_bytes is what one product reads.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.plain, self.laid, self.bias = weight, self.lay(weight), bias
        self.packed_bytes = weight.nbytes

    @staticmethod
    def lay(weight: Tensor) -> Tensor:
        """The matrix in oneDNN's own order."""
        return cast(Tensor, torch.ops.mkldnn._reorder_linear_weight(weight.contiguous()))

    def forward(self, x: Tensor) -> Tensor:
        """One row is read by all threads as it is; several are multiplied by oneDNN."""
        if x.numel() == x.shape[-1]:
            return product(x, self.plain, self.bias)
        return _multiplied(x, self.laid, self.bias)


class Half(Packed):
    """The same with W, b and x in bfloat16: 8 bits of precision, summed in float32."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        nn.Module.__init__(self)
        self.laid, self.bias = self.lay(weight.bfloat16()), None if bias is None else bias.bfloat16()
        self.packed_bytes = weight.nbytes // 2

    def forward(self, x: Tensor) -> Tensor:
        """x W^T + b, and back to float32."""
        return _multiplied(x.bfloat16(), self.laid, self.bias).to(x.dtype)


class Whole(Packed):
    r"""The same in whole numbers of 8 bits, a scale for each row of W and for each token.

        y = s_x s_W (round(x / s_x) . round(W / s_W)) + b,   s = max |.| / 127

    Each token has its own scale, so that batch-mates change nothing. Dettmers et al. 2022, section 2,
    https://arxiv.org/abs/2208.07339 (vector-wise quantization, without its outliers).
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        nn.Module.__init__(self)
        tiny = torch.finfo(torch.float32).tiny
        self.scale = (weight.abs().amax(1) / 127).clamp(min=tiny)
        whole = (weight / self.scale[:, None]).round().to(torch.int8)
        self.laid = cast(Tensor, torch.ops.onednn.qlinear_prepack(whole, None))
        self.zero, self.bias = torch.zeros(len(weight), dtype=torch.int64), bias
        self.packed_bytes = whole.nbytes

    def forward(self, x: Tensor) -> Tensor:
        """Whole numbers of x are written from 1 to 255, with 128 for zero."""
        scale = x.abs().amax(-1, keepdim=True).mul_(1 / 127).clamp_(min=1e-30)
        whole = torch.div(x, scale).add_(128.5).to(torch.uint8)
        y: Tensor = torch.ops.onednn.qlinear_pointwise(
            whole, 1.0, 128, self.laid, self.scale, self.zero, None, 1.0, 0, torch.float32, "none", [], ""
        )
        return y.mul_(scale) if self.bias is None else torch.addcmul(self.bias, y, scale)


class PackedHead(Head):
    """A linear head whose matrix was laid out; what it is tied to keeps its own."""

    def __init__(self, head: Linear, precision: Precision) -> None:
        super().__init__()
        self.factor = head.factor
        self.product = _matrix(head.weight, head.bias, precision)
        self.weight = cast(nn.Parameter, torch.empty(head.weight.shape, device="meta"))  # its shape alone

    def forward(self, x_BLD: Tensor) -> Tensor:
        """Logits."""
        y_BLV: Tensor = self.product(x_BLD if self.factor == 1.0 else x_BLD * self.factor)
        return y_BLV


def _multiplied(x: Tensor, laid: Tensor, bias: Tensor | None) -> Tensor:
    return cast(Tensor, torch.ops.mkldnn._linear_pointwise(x, laid, bias, "none", [], ""))
