"""Batches side by side: the same answers, all of them, and threads as before."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from regard.decode import Rules, generate
from regard.decode.beam import Beams
from regard.decode.engine import Session
from regard.decode.workers import Waiting, side_by_side, workers
from regard.native import multiplies
from regard.packed import packed
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
    meet = threading.Barrier(3, timeout=30)

    def work(worker: int) -> Iterator[tuple[int, int]]:
        for step in range(2):
            meet.wait()  # three at a time, or never
            yield 2 * worker + step, torch.get_num_threads()

    found = list(side_by_side(work, 3))
    assert sorted(n for n, _ in found) == [0, 1, 2, 3, 4, 5] and {count for _, count in found} == {1}
    assert torch.get_num_threads() == 3


def test_workers_are_as_precise_as_who_asks() -> None:
    def work(worker: int) -> Iterator[torch.dtype]:
        yield (torch.ones(2, 2) @ torch.ones(2, 2)).dtype

    assert set(side_by_side(work, 3)) == {torch.float32}
    with torch.autocast("cpu", torch.bfloat16):
        assert set(side_by_side(work, 3)) == {torch.bfloat16}


def test_what_goes_wrong_is_raised_and_threads_are_given_back() -> None:
    made = []

    def work(worker: int) -> Iterator[int]:
        for number in range(10**6):
            if worker and number == 2:
                raise ValueError("two")
            made.append(number)
            yield number

    with pytest.raises(ValueError, match="two"):
        list(side_by_side(work, 2))
    assert torch.get_num_threads() == 3
    assert len(made) < 10**6, "the others stop too"


def test_who_waits_takes_the_places_that_are_free() -> None:
    waiting = Waiting({7: 40, 3: 30, 5: 30, 1: 20, 2: 20, 4: 10}, budget=100)
    assert waiting.take() == [7, 3], "three as long as the first would be too many tokens"
    assert waiting.take([7, 3]) == [], "less than a quarter is free"
    assert waiting.take([3]) == [5, 1], "there are no longer ones than 30 now"
    assert waiting.take([5, 1]) == [2]
    assert waiting.take([2]) == [4]
    assert waiting.take([2]) == waiting.take() == []
    assert Waiting({0: 500, 1: 5}, budget=100).take() == [0], "one that is too large goes alone"


@pytest.mark.parametrize("slow", [0, 1, 2])
def test_who_shares_a_batch_does_not_depend_on_who_is_quick(
    make: Make, slow: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the last bits of answers would differ from run to run."""
    asked, rules = make(count=12, seed=3), Rules(length=9, method="beam", beam=2)
    begun: list[list[list[int]]] = [[]]
    usual = Beams.__init__, Beams.step

    def begin(self: Beams, session: Session, limits: Any, numbers: list[int], *rest: Any) -> None:
        begun[-1].append(numbers)
        usual[0](self, session, limits, numbers, *rest)

    def wait(self: Beams) -> None:
        if any(number % 3 == slow for number in self.number_B.tolist()):
            time.sleep(0.01)
        usual[1](self)

    monkeypatch.setattr(Beams, "__init__", begin)
    generate(asked.model, asked.prompts, asked.sources, rules, EOS, budget=60)
    begun.append([])
    monkeypatch.setattr(Beams, "step", wait)
    generate(asked.model, asked.prompts, asked.sources, rules, EOS, budget=60)
    assert sorted(begun[0]) == sorted(begun[1]) and len(begun[0]) > 3
    assert sorted(n for batch in begun[0] for n in batch) == list(range(12)), "each of them once"


def test_large_models_go_one_after_the_other(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make(count=1).model
    assert workers(model) == workers(model, beams=True) == (3, 1)
    monkeypatch.setattr("regard.decode.workers.SMALL", 10)
    assert workers(model) == (1, 1)


def test_two_threads_share_a_batch_of_beams_that_our_kernels_multiply(make: Make) -> None:
    model = packed(make(count=1).model)
    assert workers(model) == (3, 1)
    assert workers(model, beams=True) == ((1, 2) if multiplies() else (3, 1))
    found = list(side_by_side(lambda worker: iter([torch.get_num_threads()]), 2))
    assert found == [1, 1] and torch.get_num_threads() == 3
    torch.set_num_threads(4)
    assert list(side_by_side(lambda worker: iter([torch.get_num_threads()]), 2)) == [2, 2]


def test_a_search_that_is_over_is_let_go_of_before_the_next_begins(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two caches at a time would need twice the memory."""
    asked, usual, there = make(count=6), Beams.__init__, list[weakref.ref[Beams]]()

    def begin(self: Beams, *rest: Any) -> None:
        assert not any(one() is not None for one in there), "the one before is still held"
        usual(self, *rest)
        there.append(weakref.ref(self))

    monkeypatch.setattr("regard.decode.workers.SMALL", 0)  # one after the other
    monkeypatch.setattr(Beams, "__init__", begin)
    rules = Rules(length=5, method="beam", beam=2)
    generate(asked.model, asked.prompts, asked.sources, rules, EOS, budget=1)
    assert len(there) == 6


def test_progress_is_told_of_answers_that_have_no_room(make: Make) -> None:
    asked, told = make(count=3), list[tuple[int, int]]()
    generate(
        asked.model, asked.prompts, asked.sources, Rules(length=0), EOS, progress=lambda *a: told.append(a)
    )
    assert told == [(3, 3)]
