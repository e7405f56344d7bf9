"""log p of given answers is the sum of what the model says token by token."""

from __future__ import annotations

import itertools
import math

import pytest

from regard.decode import Rules, score, score_tokens
from regard.errors import UsageError
from tests.decode.asked import EOS, Asked, Make


def naive(asked: Asked, number: int, ids: list[int]) -> list[float]:
    return [float(asked.logits(number, ids[:n]).log_softmax(-1)[ids[n]]) for n in range(len(ids))]


ANSWERS = [[3, 4], [], [5], [6, 7, 8, 9, 3, 3], [1, 1, 1]]


@pytest.mark.parametrize("budget", [1, 20, 10_000])
def test_ragged_batches_equal_token_by_token(make: Make, budget: int) -> None:
    asked = make(count=5)
    for eos in (None, EOS):
        expected = [naive(asked, n, ids if eos is None else [*ids, eos]) for n, ids in enumerate(ANSWERS)]
        found = score_tokens(asked.model, asked.prompts, ANSWERS, asked.sources, eos, budget)
        for one, other in zip(found, expected, strict=True):
            assert one == pytest.approx(other, abs=1e-4)
        sums = score(asked.model, asked.prompts, ANSWERS, asked.sources, eos, budget)
        assert sums == pytest.approx([sum(each) for each in expected], abs=1e-4)


def test_what_is_generated_scores_what_it_says(make: Make) -> None:
    asked = make(count=5)
    for rules in (
        Rules(length=9),
        Rules(length=9, repetition=2.0, min_length=3),
        Rules(length=9, method="sample", top_k=4, nbest=2),
        Rules(length=9, method="beam", nbest=3),
    ):
        for number, found in enumerate(asked.answers(rules)):
            for answer in found:
                whole = [*answer.ids, EOS] if answer.end == "eos" else answer.ids
                some = asked.part([number])
                logp = score(asked.model, some.prompts, [whole], some.sources)[0]
                assert answer.logp == pytest.approx(logp, abs=1e-4)


def test_probabilities_of_all_answers_sum_to_one(make: Make) -> None:
    asked = make(count=1, vocab=4).part([0] * 40)
    every = [list(ids) for length in range(3) for ids in itertools.product((0, 2, 3), repeat=length)]
    ended = score(asked.model, asked.prompts[:13], every, asked.sources and asked.sources[:13], eos=EOS)
    longer = [list(ids) for ids in itertools.product((0, 2, 3), repeat=3)]
    rest = score(asked.model, asked.prompts[:27], longer, asked.sources and asked.sources[:27])
    assert sum(map(math.exp, ended + rest)) == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("system", ["gpt"])
def test_limits_are_kept_in_sentences(make: Make) -> None:
    asked = make(count=1, length=8)
    assert len(score_tokens(asked.model, [[3] * 8], [[4]])[0]) == 1
    with pytest.raises(UsageError, match="Prompt 0 has 9 tokens, but the model holds 8"):
        score(asked.model, [[3] * 8], [[4, 5]])
    with pytest.raises(UsageError, match="1 prompts and 2 continuations"):
        score(asked.model, [[3]], [[4], [5]])
    with pytest.raises(UsageError, match="Prompt 0 is empty"):
        score(asked.model, [[]], [[4]])
    with pytest.raises(UsageError, match="Continuation 0 must hold token ids of at least 0"):
        score(asked.model, [[3]], [[4, -1]])
