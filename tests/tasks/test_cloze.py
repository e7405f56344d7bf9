"""BERT's masking: exact counts, exact shares, nothing where nothing may be."""

from __future__ import annotations

import numpy as np
import pytest

from regard.tasks.cloze import choose, hide, how_many


@pytest.mark.parametrize(
    ("length", "count"), [(2, 1), (7, 1), (10, 2), (20, 3), (30, 4), (50, 8), (128, 19), (133, 20), (512, 20)]
)
def test_how_many_is_exactly_15_percent_rounded(length: int, count: int) -> None:
    assert how_many(length) == count  # python rounds halves to even: 1.5 -> 2, 4.5 -> 4, 7.5 -> 8


def test_most_is_an_upper_bound() -> None:
    assert how_many(512, most=77) == 77 and how_many(512, most=1000) == 77 and how_many(100, most=3) == 3


def test_choose_draws_without_replacement_and_exactly_the_count() -> None:
    draw = np.random.default_rng(0)
    for _ in range(200):
        chosen = choose([[n] for n in range(1, 40)], 6, draw)
        assert len(chosen) == len(set(chosen)) == 6 and chosen == sorted(chosen)
        assert 0 not in chosen and 40 not in chosen
    assert choose([[1], [2]], 5, draw) == [1, 2]


def test_whole_words_are_hidden_whole_or_not_at_all() -> None:
    draw, words = np.random.default_rng(1), [[1, 2, 3], [4], [5, 6], [7], [8, 9], [10]]
    for _ in range(300):
        chosen = set(choose(words, 4, draw))
        assert len(chosen) <= 4
        assert all(set(word) <= chosen or not set(word) & chosen for word in words)


def test_80_10_10_of_a_hundred_thousand() -> None:
    draw, vocab, mask = np.random.default_rng(7), 1000, 3
    ids = [5] * 500
    kinds = {"mask": 0, "same": 0, "other": 0}
    words: list[int] = []
    for _ in range(200):
        inputs, targets = hide(ids, range(500), mask, vocab, draw)
        assert targets == ids
        for token in inputs:
            kinds["mask" if token == mask else "same" if token == 5 else "other"] += 1
        words += [token for token in inputs if token not in (mask, 5)]
    # a random word is [MASK] or the same word once in 1000, which moves these shares by a ten-thousandth
    assert abs(kinds["mask"] / 1e5 - 0.8) < 0.005
    assert abs(kinds["same"] / 1e5 - 0.1) < 0.005
    assert abs(kinds["other"] / 1e5 - 0.1) < 0.005
    counts = np.bincount(words, minlength=vocab)
    assert (counts > 0).sum() == vocab - 2 and counts.max() < 40  # uniform over the whole vocabulary


def test_chi_square_of_80_10_10() -> None:
    draw, counts = np.random.default_rng(11), np.zeros(3)
    inputs, _ = hide([5] * 100_000, range(100_000), 3, 10**9, draw)
    for token in inputs:
        counts[0 if token == 3 else 1 if token == 5 else 2] += 1
    expected = np.array([80_000, 10_000, 10_000])
    assert ((counts - expected) ** 2 / expected).sum() < 13.8  # p = 0.001 with two degrees of freedom


def test_targets_are_only_at_the_chosen_places() -> None:
    inputs, targets = hide([7, 8, 9, 10], [1, 3], 3, 50, np.random.default_rng(0))
    assert targets == [-1, 8, -1, 10] and inputs[0] == 7 and inputs[2] == 9
