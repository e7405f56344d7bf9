"""The page of all benchmarks: what it says of figures as the benchmarks print them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.common import LIMIT, Result

Page = Callable[[list[dict[str, Any]], int], str]


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> Page:
    """The page; its script finds its neighbours by name."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "bench")
    from bench.page import page as made

    return made


def test_a_row_for_each_library_by_its_best_variant(page: Page) -> None:
    rates = {"regard": [90.0, 110.0], "regard, bf16": [200.0, 220.0], "a": [105.0, 100.0]}
    rates[LIMIT] = [400.0, 440.0]
    absent = {"b": "ImportError: no b", "c": "ImportError: no b"}
    case = Result("training, small", "tokens/s", rates, absent, [0.5]).summary()
    text = page([{"bench": "train", "cases": [case], "peaks": {"fp32": 2e11, "bf16": 4e11, "read": 3e10}}], 2)
    assert "| regard, bf16 | 210 | 200 - 220 | |" in text and "| regard |" not in text
    assert "| a | 102 | 100 - 105 | 2.05x | 1.90 - 2.20 |" in text
    assert "| limit of the machine | 420 | 400 - 440 | 0.50x | 0.50 - 0.50 |" in text
    assert "Not measured (ImportError: no b): b; c." in text and "Other programs took 0.50 cores" in text
    assert "200 GFLOP/s in fp32, 400 in bf16; memory is read at 30 GB/s" in text


def test_growth_by_length(page: Page) -> None:
    row = [{"length": n, "ms": ms} for n, ms in ((1024, 10.0), (2048, 21.0))]
    found = {
        "bench": "length",
        "rows": {"window": row},
        "growth": {"window": {"time": 1.07, "memory": None}},
        "at_longest": {"window": {"faster_than_dense": 12.5}},
        "absent": {},
        "foreign_cores": 0.0,
    }
    assert "| window | 10 | 21 | 1.07 |  | 12.50 |  |  |" in page([found], 2)
