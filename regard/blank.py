"""Building a model without numbers: shapes and names only, at once and in no memory, however large it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class _Undrawn(TorchFunctionMode):
    """Leaves out `normal_`: without numbers it draws nothing, but makes torch import its compiler."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        if func in (torch.Tensor.normal_, torch.nn.init.normal_):
            return args[0] if args else given["tensor"]
        return func(*args, **given)


@contextmanager
def blank() -> Iterator[None]:
    """Inside, what is built has shapes but no numbers: `with blank(): model = recipe.build()`."""
    with torch.device("meta"), _Undrawn():
        yield
