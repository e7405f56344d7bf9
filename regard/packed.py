"""A model ready to answer quickly: its large matrices laid out as the processor reads them best.

Answering is bound by how fast weights can be read and how well few rows use the processor. `packed(model,
precision)` is a copy of a model, for answering only, whose matrices were laid out once for oneDNN:

    fp32   the same numbers; several rows at once are quicker
    bf16   half the bytes
    int8   a quarter of the bytes, and products of whole numbers

The stream between the matrices, norms, attention and caches stay in float32. For processors that
cannot multiply bfloat16, or sum products of bytes with loss, the same numbers stand in float16 (see `Held`):
half the bytes in both cases, and the same answers.
"""

from __future__ import annotations

from copy import deepcopy
from functools import cache
from itertools import count
from typing import Literal, cast
from weakref import WeakValueDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.errors import UsageError
from regard.heap import in_large_pages
from regard.model import Model
from regard.native import multiplies, panels, row_of_bytes, rows_times
from regard.nn.ffn import Dense, Gated
from regard.nn.head import Head, Linear
from regard.nn.mixer import Attention
from regard.nn.product import LIBRARY, product

Precision = Literal["fp32", "bf16", "int8"]
SMALL = 2**18  # numbers of a matrix that stays near, 1 MiB
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

    packed_bytes is what one product reads. A small matrix stays near: there, what oneDNN does before it
    multiplies costs more than the product of some rows, so that it is left to a kernel of our own.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.plain, self.bias = weight, bias
        self.small = weight.numel() <= SMALL and weight.dtype == torch.float32 and multiplies()
        self.laid = panels(weight) if self.small else self.lay(weight)
        self.packed_bytes = weight.nbytes
        if torch.backends.cpu.get_cpu_capability() == "AVX2":  # there, columns are read quicker than rows
            self.plain = weight.t().contiguous().t()
            in_large_pages([self.plain.t()])

    @staticmethod
    def lay(weight: Tensor) -> Tensor:
        """The matrix in oneDNN's own order."""
        return cast(Tensor, torch.ops.mkldnn._reorder_linear_weight(weight.contiguous()))

    def forward(self, x: Tensor) -> Tensor:
        """One row is read by all threads as it is; several by oneDNN or our own kernel."""
        if x.numel() == x.shape[-1]:
            return product(x, self.plain, self.bias)
        if self.small:
            if x.dtype != torch.float32 or x.shape[-1] != self.laid.shape[1]:
                return F.linear(x, self.plain, self.bias)  # which says what is wrong
            rows = torch.ops.regard.rows if torch.compiler.is_compiling() else rows_times
            return cast(Tensor, rows(x, self.laid, self.bias, len(self.plain)))
        return _multiplied(x, self.laid, self.bias)


class Half(Packed):
    """The same with W, b and x in bfloat16: 8 bits of precision, summed in float32."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        nn.Module.__init__(self)
        weight, self.bias = weight.bfloat16(), None if bias is None else bias.bfloat16()
        self.held = None if has_bf16() else Held(weight)
        if self.held is None:
            self.laid = self.lay(weight)
        self.packed_bytes = weight.nbytes

    def forward(self, x: Tensor) -> Tensor:
        """x W^T + b, and back to float32."""
        if self.held is None:
            return _multiplied(x.bfloat16(), self.laid, self.bias).to(x.dtype)
        y = self.held(x.bfloat16().float())
        return y if self.bias is None else y.add_(self.bias)


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
        self.held = None if sums_bytes() else Held(whole)
        if self.held is None:
            self.laid = torch.ops.onednn.qlinear_prepack(whole, None)
        self.zero, self.bias = torch.zeros(len(weight), dtype=torch.int64), bias
        self.packed_bytes = whole.nbytes if self.held is None else 2 * whole.nbytes
        self.whole = whole if self.held is None and multiplies() else None  # as one row is multiplied best
        if self.whole is not None:
            self.total = whole.sum(1, dtype=torch.int64)
            in_large_pages([self.whole])

    def forward(self, x: Tensor) -> Tensor:
        """Bytes of x are written from 1 to 255, with 128 for zero."""
        if self.whole is not None and x.numel() == self.whole.shape[1] and x.dtype == torch.float32:
            row = torch.ops.regard.row_of_bytes if torch.compiler.is_compiling() else row_of_bytes
            y: Tensor = row(x, self.whole, self.scale, self.total, self.bias)
            return y.view(*x.shape[:-1], -1)
        scale = x.abs().amax(-1, keepdim=True).mul_(1 / 127).clamp_(min=1e-30)
        if self.held is None:
            whole = torch.div(x, scale).add_(128.5).to(torch.uint8)
            y = _of_bytes(whole, self.laid, self.scale, self.zero)
        else:
            y = self.held(torch.div(x, scale).round_()).mul_(self.scale)
        return y.mul_(scale) if self.bias is None else torch.addcmul(self.bias, y, scale)


class Held:
    """A matrix that stands in float16 and is multiplied in float32, by FBGEMM, which needs no more than AVX2.

    Float16 holds the numbers of bfloat16 up to 65,504 (below 2**-14 in steps of 2**-24) and all whole numbers
    of a byte.
    """

    def __init__(self, weight: Tensor) -> None:
        if "fbgemm" not in torch.backends.quantized.supported_engines:
            raise UsageError(
                "this processor multiplies neither bf16 nor int8 as it must: give precision fp32, or none."
            )
        if (largest := float(weight.abs().max())) > torch.finfo(torch.float16).max:
            raise UsageError(
                f"weights must be at most 65,504 to stand in 16 bits on this processor, but {largest:g} is "
                "among them: give precision fp32, or none."
            )
        self.rows, self.number = len(weight), next(NUMBERS)
        self.laid = torch.ops.quantized.linear_prepack_fp16(weight.float(), None)
        HELD[self.number] = self

    def __deepcopy__(self, _: object) -> Held:
        return self  # it never changes

    def __call__(self, x: Tensor) -> Tensor:
        """x W^T."""
        # a compiler cannot look into what FBGEMM keeps: to it, a matrix is a number
        times = torch.ops.regard.held if torch.compiler.is_compiling() else _held
        return cast(Tensor, times(x, self.number, self.rows))


NUMBERS = count()
HELD: WeakValueDictionary[int, Held] = WeakValueDictionary()


def _held(x: Tensor, number: int, rows: int) -> Tensor:
    return cast(Tensor, torch.ops.quantized.linear_dynamic_fp16(x, HELD[number].laid))


LIBRARY.define("held(Tensor x, int number, int rows) -> Tensor")
LIBRARY.impl("held", _held, "CPU")
LIBRARY.impl("held", lambda x, number, rows: x.new_empty(*x.shape[:-1], rows), "Meta")


LIBRARY.define("rows(Tensor x, Tensor laid, Tensor? bias, int count) -> Tensor")
LIBRARY.impl("rows", rows_times, "CPU")
LIBRARY.impl("rows", lambda x, laid, bias, count: x.new_empty(*x.shape[:-1], count), "Meta")
LIBRARY.define("row_of_bytes(Tensor x, Tensor whole, Tensor scale, Tensor total, Tensor? bias) -> Tensor")
LIBRARY.impl("row_of_bytes", row_of_bytes, "CPU")
LIBRARY.impl("row_of_bytes", lambda x, whole, scale, total, bias: x.new_empty(len(whole)), "Meta")


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


@cache
def has_bf16() -> bool:
    """Whether the processor multiplies bfloat16, as AVX512 does and AVX2 does not."""
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


@cache
def sums_bytes() -> bool:
    """Whether sums of products of bytes are exact. Without VNNI, pairs are added in 16 bits, and what is too
    large is cut off: answers would be wrong, and nobody would say so. So it is tried.
    """
    laid = torch.ops.onednn.qlinear_prepack(torch.full((64, 64), 127, dtype=torch.int8), None)
    most, none = torch.full((16, 64), 255, dtype=torch.uint8), torch.zeros(64, dtype=torch.int64)
    return bool((_of_bytes(most, laid, torch.ones(64), none) == 64 * 127 * 127).all())


def _of_bytes(whole: Tensor, laid: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
    """x W^T of bytes, where 128 stands for zero."""
    y: Tensor = torch.ops.onednn.qlinear_pointwise(
        whole, 1.0, 128, laid, scale, zero, None, 1.0, 0, torch.float32, "none", [], ""
    )
    return y


def _multiplied(x: Tensor, laid: Tensor, bias: Tensor | None) -> Tensor:
    return cast(Tensor, torch.ops.mkldnn._linear_pointwise.default(x, laid, bias, "none", [], ""))
