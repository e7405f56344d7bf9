"""A matrix meets the stream: the one place where a linear layer is computed."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.native import multiplies, row_times
from regard.nn.uncompiled import constant

LEAST = 2**16  # smaller matrices lie in a cache, where one thread is as quick


class Linear(nn.Linear):
    """y = x W^T + b, as torch's own; a single row is computed by all threads (see `product`)."""

    def forward(self, input: Tensor) -> Tensor:
        """x W^T + b."""
        return product(input, self.weight, self.bias)


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x W^T + b.

    One row, as when a model writes token by token, takes as long as the matrix takes to be read. On a CPU,
    PyTorch leaves that to one thread, which reads half as fast as memory allows. Here all threads read, a
    share of the rows of W each (or of its columns, if it stands so).
    """
    if x.numel() != x.shape[-1] or not _splits(x, weight):
        return F.linear(x, weight, bias)
    # a compiler would write a kernel of its own for it, which is slower
    y = (torch.ops.regard.row if torch.compiler.is_compiling() else _row)(x, weight, bias)
    return y.view(*x.shape[:-1], len(weight))


def _row(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    if weight.is_contiguous() and (bias is None or bias.is_contiguous()) and multiplies():
        return row_times(x, weight, bias)
    return _shares(x, weight) if bias is None else _shares(x, weight) + bias


def _shares(x: Tensor, weight: Tensor) -> Tensor:
    """x W^T of one row as a batch of smaller products: each thread a share of the rows of W, or of its
    columns, if these are what stands one after the other."""
    threads, (rows, width) = torch.get_num_threads(), weight.shape
    if not weight.is_contiguous():
        share, x = width // threads, x.reshape(width)
        some, held = share * threads, weight.t()
        y = torch.bmm(x[:some].view(threads, 1, share), held[:some].view(threads, share, rows)).sum(0)[0]
        return y if some == width else y.addmv_(held[some:].t(), x[some:])
    share, rest = rows // threads, rows % threads
    # this layout, and few calls: another takes five times as long, and there are dozens in a step
    column = x.contiguous().as_strided((threads, width, 1), (0, 1, width))
    y = torch.bmm((weight[:-rest] if rest else weight).view(threads, share, width), column).view(-1)
    return torch.cat([y, torch.mv(weight[-rest:], x.reshape(width))]) if rest else y


LIBRARY = torch.library.Library("regard", "DEF")
LIBRARY.define("row(Tensor x, Tensor weight, Tensor? bias) -> Tensor")
LIBRARY.impl("row", _row, "CPU")
LIBRARY.impl("row", lambda x, weight, bias: x.new_empty(len(weight)), "Meta")


def _splits(x: Tensor, weight: Tensor) -> bool:
    """Whether threads can share it: nothing is traced or learned, and the matrix is large and whole."""
    if torch.is_grad_enabled() or x.device.type != "cpu" or x.shape[-1] != weight.shape[1]:
        return False
    plain = type(weight) in (Tensor, nn.Parameter) and (weight.is_contiguous() or weight.t().is_contiguous())
    if not plain or weight.numel() < LEAST or torch.is_autocast_enabled("cpu"):
        return False
    return x.dtype == weight.dtype == torch.float32 and _threads() > 1


@constant
def _threads() -> int:
    return torch.get_num_threads()
