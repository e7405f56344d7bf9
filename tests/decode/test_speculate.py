"""Guesses change when an answer comes, never what it is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from torch import Tensor

from regard.decode import Rules, stream
from regard.decode.engine import Session
from regard.decode.speculate import Echo
from regard.errors import UsageError
from tests.decode.asked import EOS, Make
from tests.decode.test_greedy import METHODS, busy_end, same


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("draft", [1, 4])
def test_an_answer_with_guesses_is_the_answer(make: Make, method: str, draft: int) -> None:
    """Also behind a window's ring, where what is taken back must not have pushed anything out."""
    asked, rules = make(count=5), METHODS[method]
    eos = busy_end(asked, rules)
    for guessed, plain in zip(
        asked.answers(replace(rules, draft=draft), eos), asked.answers(rules, eos), strict=True
    ):
        same(guessed[0], plain[0])


@pytest.mark.parametrize("right", [True, False])
def test_any_guess_will_do(make: Make, right: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guesses that are always right save steps; guesses that are always wrong are all taken back."""
    asked, rules = make(count=3), Rules(length=12)
    plain = asked.answers(rules, EOS)
    sizes: list[int] = []
    read = Session.read

    def counted(self: Session, ids: Any) -> Tensor:
        sizes.append(len(ids))
        return read(self, ids)

    monkeypatch.setattr(Session, "read", counted)
    for number, (known,) in enumerate(plain):
        sizes.clear()
        truth, start = known.ids, len(asked.prompts[number])

        def guess(self: Echo, count: int, truth: list[int] = truth, start: int = start) -> list[int]:
            at = len(self.ids) - start
            return [token if right else (token + 1) % 11 for token in truth[at : at + count]]

        monkeypatch.setattr(Echo, "guess", guess)
        same(asked.part([number]).answers(replace(rules, draft=3), EOS)[0][0], known)
        written = len(truth) + (known.end == "eos")
        if right:
            assert len(sizes) <= -(-written // 4)  # four tokens a step
        else:
            assert len(sizes) == written - 1  # one a step: the first comes from the prompt
            assert all(size <= 2 for size in sizes[1:]), "after a miss, only one more is guessed"


@pytest.mark.parametrize("system", ["gpt"])
def test_as_many_are_guessed_as_came_true(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Right at first, wrong from the third token of every guess on, right again in the end."""
    asked = make(count=1)
    truth, start = asked.answers(Rules(length=30))[0][0].ids, len(asked.prompts[0])
    asks: list[int] = []

    def guess(self: Echo, count: int) -> list[int]:
        at = len(self.ids) - start
        asks.append(count)
        found = truth[at : at + count]
        return [(t + 1) % 11 if 6 < at < 15 and n > 1 else t for n, t in enumerate(found)]

    monkeypatch.setattr(Echo, "guess", guess)
    assert asked.answers(Rules(length=30, draft=6))[0][0].ids == truth
    # asked after 1, 8, 11, 14, 17, 21 and 28 tokens: all came true; then two each time, and one more is tried
    assert asks == [6, 6, 3, 3, 3, 6, 1]


def test_streamed_with_guesses_too(make: Make) -> None:
    asked = make(count=1)
    source = None if asked.sources is None else asked.sources[0]
    both = [
        [
            piece.id
            for piece in stream(asked.model, asked.prompts[0], source, Rules(length=10, draft=draft), EOS)
        ]
        for draft in (0, 4)
    ]
    assert both[0] == both[1]


def test_the_longest_run_decides() -> None:
    echo = Echo([1, 2, 3, 9, 2, 3, 7, 1, 2, 3])
    assert echo.guess(4) == [9, 2, 3, 7]  # after 2 3 alone it would be 7
    assert Echo([1, 2, 3]).guess(2) == [] and Echo([]).guess(2) == []
    assert Echo([5, 5]).guess(3) == [5, 5, 5]


def test_guesses_are_for_one_answer_written_in_order() -> None:
    with pytest.raises(UsageError, match="draft is an option of greedy and sample"):
        Rules(method="beam", draft=2)
    with pytest.raises(UsageError, match="one answer at a time"):
        Rules(method="sample", nbest=2, draft=2)
    with pytest.raises(UsageError, match="draft must be a whole number"):
        Rules(draft=-1)
