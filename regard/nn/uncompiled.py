"""What torch.compile is told of a function, without importing the compiler, which takes a second.

The decorators of torch.compiler do the same, but import it when they are used.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

Given = ParamSpec("Given")
Found = TypeVar("Found")


def uncompiled(function: Callable[Given, Found]) -> Callable[Given, Found]:
    """Never traced, nor anything it calls: `torch.compiler.disable`."""

    apart: list[Callable[Given, Found]] = []

    @wraps(function)
    def call(*args: Given.args, **options: Given.kwargs) -> Found:
        if "torch._dynamo" not in sys.modules:
            return function(*args, **options)
        if not apart:
            apart.append(torch._dynamo.disable(function))
        return apart[0](*args, **options)

    call._torchdynamo_disable = True  # type: ignore[attr-defined]
    return call


def constant(function: Callable[Given, Found]) -> Callable[Given, Found]:
    """Asked when it is traced, and then a constant: `torch.compiler.assume_constant_result`."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function
