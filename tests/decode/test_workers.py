"""Batches side by side: the same answers, all of them, and threads as before."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch

from regard.decode import Rules
from regard.decode.workers import Waiting, side_by_side, workers
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


def test_each_worker_has_a_thread_of_its_own() -> None:
    meet, numbers = threading.Barrier(3, timeout=30), iter(range(1, 7))

    def work() -> Iterator[tuple[int, int]]:
        for _ in range(2):
            meet.wait()  # three at a time, or never
            yield next(numbers), torch.get_num_threads()

    found = list(side_by_side(work, 3))
    assert sorted(n for n, _ in found) == [1, 2, 3, 4, 5, 6] and {count for _, count in found} == {1}
    assert torch.get_num_threads() == 3


def test_what_goes_wrong_is_raised_and_threads_are_given_back() -> None:
    numbers, made = iter([1, 2, *[3] * 10**6]), []

    def work() -> Iterator[int]:
        for number in numbers:
            if number == 2:
                raise ValueError("two")
            made.append(number)
            yield number

    with pytest.raises(ValueError, match="two"):
        list(side_by_side(work, 2))
    assert torch.get_num_threads() == 3
    assert len(made) < 10**6, "the others stop too"


def test_who_waits_takes_the_places_that_are_free() -> None:
    waiting = Waiting({7: 40, 3: 30, 5: 30, 1: 20, 2: 20, 4: 20}, budget=100, most=4)
    assert waiting.take() == [7, 3, 5], "another would be too many tokens"
    assert waiting.take([7, 3, 5]) == [], "less than a quarter is free"
    assert waiting.take([7, 3]) == [1]
    assert waiting.take([1, 2, 4, 3]) == [], "four are the most"
    assert waiting.take([3]) == [2, 4]
    assert waiting.take([3]) == waiting.take() == []
    assert Waiting({0: 500, 1: 5}, budget=100, most=4).take() == [0], "one that is too large goes alone"


def test_large_models_go_one_after_the_other(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make(count=1).model
    assert workers(model) == 3
    monkeypatch.setattr("regard.decode.workers.SMALL", 10)
    assert workers(model) == 1
