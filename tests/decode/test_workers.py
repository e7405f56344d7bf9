"""Batches side by side: the same answers, all of them, and threads as before."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch

from regard.decode import Rules
from regard.decode.workers import side_by_side, workers
from tests.decode.asked import EOS, Make
from tests.decode.test_greedy import same


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    """Three threads, given back."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("rules", [Rules(length=8), Rules(length=8, method="beam", beam=3), Rules(draft=3)])
def test_the_same_answers(make: Make, rules: Rules, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = make(count=7)
    together = asked.answers(rules, EOS)
    monkeypatch.setattr("regard.decode.workers.SMALL", 0)  # one after the other
    for ours, wanted in zip(together, asked.answers(rules, EOS), strict=True):
        for one, other in zip(ours, wanted, strict=True):
            same(one, other)


def test_each_batch_has_a_thread_of_its_own() -> None:
    meet = threading.Barrier(3, timeout=30)

    def work(number: int) -> tuple[int, int]:
        meet.wait()  # three at a time, or never
        return number * number, torch.get_num_threads()

    found = dict(side_by_side(work, [1, 2, 3, 4, 5, 6], 3))
    assert {n: square for n, (square, _) in found.items()} == {n: n * n for n in range(1, 7)}
    assert {count for _, count in found.values()} == {1}
    assert torch.get_num_threads() == 3


def test_what_goes_wrong_is_raised_and_threads_are_given_back() -> None:
    def work(number: int) -> int:
        if number == 2:
            raise ValueError("two")
        return number

    with pytest.raises(ValueError, match="two"):
        list(side_by_side(work, [1, 2, 3], 2))
    assert torch.get_num_threads() == 3


def test_large_models_go_one_after_the_other(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make(count=1).model
    assert workers(model) == 3
    monkeypatch.setattr("regard.decode.workers.SMALL", 10)
    assert workers(model) == 1
