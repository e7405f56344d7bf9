"""Tensors that have shapes but no numbers, so that the largest model takes a second and no memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._pytree import tree_leaves

MOST = 2**20  # whole numbers that may be real: enough to say which blocks meet, too few to be felt


class Hollow(FakeTensorMode):
    """As torch's, but a few whole numbers are real: which keys a pattern names can be looked up."""

    def __init__(self) -> None:
        super().__init__(allow_non_fake_inputs=True)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Compute what is small and made of whole numbers; of all else know only the shape."""
        kwargs = kwargs or {}
        if _real(func, args, kwargs):
            return func(*args, **kwargs)
        return super().__torch_dispatch__(func, types, args, kwargs)


def _real(func: Any, args: Any, kwargs: Any) -> bool:
    given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    if given:
        if any(isinstance(t, FakeTensor) or t.device.type == "meta" for t in given):
            return False
        try:
            return bool(prod(torch.broadcast_shapes(*(t.shape for t in given))) <= MOST)
        except RuntimeError:  # shapes that do not meet: indices, pieces to be joined
            return sum(t.numel() for t in given) <= MOST
    name, dtype, numbers = func.name(), kwargs.get("dtype"), [a for a in args if not isinstance(a, list)]
    whole = bool(dtype is not None and not dtype.is_floating_point and not dtype.is_complex)
    if name.startswith("aten::arange"):
        whole = whole or (dtype is None and all(isinstance(n, int) for n in numbers))
        return whole and max(map(abs, numbers), default=0) <= MOST
    sizes = next((a for a in args if isinstance(a, list | tuple)), [])
    return whole and name.split(".")[0] in MAKERS and prod(sizes) <= MOST


MAKERS = ("aten::zeros", "aten::ones", "aten::full", "aten::empty")


@contextmanager
def shapes_only(dtype: torch.dtype) -> Iterator[None]:
    """Inside, new tensors are of this type and have shapes but no numbers."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with Hollow():
            yield
    finally:
        torch.set_default_dtype(before)
