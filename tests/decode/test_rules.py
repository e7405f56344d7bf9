"""Rules that cannot be meant are refused in a sentence."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from regard.decode import Rules
from regard.errors import UsageError


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"method": "best"}, "greedy, sample or beam"),
        ({"length": -1}, "length must be a whole number of at least 0, but is -1"),
        ({"length": 2.5}, "length must be a whole number"),
        ({"length": True}, "length must be a whole number"),
        ({"method": "sample", "temperature": -0.1}, "temperature"),
        ({"method": "sample", "temperature": math.nan}, "temperature"),
        ({"method": "sample", "temperature": math.inf}, "temperature"),
        ({"method": "sample", "top_k": 0}, "top_k"),
        ({"method": "sample", "top_p": 0.0}, "top_p"),
        ({"method": "sample", "top_p": 1.1}, "top_p must be a number from 1e-09 to 1, but is 1.1"),
        ({"method": "sample", "min_p": 2}, "min_p"),
        ({"repetition": 0}, "repetition"),
        ({"seed": 2**63}, "seed"),
        ({"method": "beam", "beam": 0}, "beam"),
        ({"method": "beam", "alpha": -0.5}, "alpha"),
        ({"method": "beam", "beam": 3, "nbest": 4}, "nbest must be at most beam, but is 4 with a beam of 3"),
        ({"stop": ("",)}, "not empty"),
        ({"stop": "end"}, "tuple"),
        ({"min_length": -1}, "min_length"),
        # an option that the method does not read would be lost
        ({"top_k": 5}, "top_k is an option of sample, but the method is greedy"),
        ({"method": "beam", "temperature": 0.5}, "temperature"),
        ({"method": "beam", "stop": ("x",)}, "stop is an option of greedy and sample"),
        ({"method": "beam", "repetition": 1.2}, "repetition"),
        ({"method": "sample", "beam": 5}, "beam is an option of beam"),
        ({"nbest": 2}, "nbest"),
    ],
)
def test_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        Rules(**options)
    assert words in str(caught.value)


def test_defaults_of_all_methods_stand() -> None:
    for method in ("greedy", "sample", "beam"):
        assert Rules(method=method).method == method  # type: ignore[arg-type]
    assert replace(Rules(), method="beam", beam=5).beam == 5
