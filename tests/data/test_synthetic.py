"""Generated algorithms: right answers, and samples that depend on nothing but their address."""

from __future__ import annotations

import numpy as np
import pytest

from regard.data.synthetic import ALGORITHMS, SYMBOLS, Algorithm, alphabet, generator, sample
from regard.errors import UsageError


def some(name: Algorithm, count: int = 200, seed: int = 0, hops: int = 2) -> list[tuple[str, str]]:
    return [sample(name, seed, "train", n, 20, 2, 9, hops) for n in range(count)]


def follow(question: str, hops: int) -> str:
    pairs, _, at = question.partition("?")
    after = dict(zip(pairs[0::2], pairs[1::2], strict=True))
    for _ in range(hops):
        at = after[at]
    return at


RIGHT = {
    "copy": lambda q: q,
    "reverse": lambda q: "".join(reversed(q)),
    "sort": lambda q: "".join(sorted(q)),  # 20 symbols are lower-case letters only
    "addition": lambda q: str(sum(map(int, q.split("+")))),
    "parity": lambda q: str(q.count("1") % 2),
    "lookup": lambda q: follow(q, 2),
}


@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_answers_are_right_and_made_of_the_alphabet(name: Algorithm) -> None:
    letters = set(alphabet(name, 20))
    for question, answer in some(name):
        assert answer == RIGHT[name](question)
        assert set(question + answer) <= letters


@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_a_sample_depends_on_its_address_only(name: Algorithm) -> None:
    forwards = some(name, 50)
    backwards = [sample(name, 0, "train", n, 20, 2, 9, 2) for n in reversed(range(50))]
    assert forwards == backwards[::-1]
    assert forwards != some(name, 50, seed=1)
    assert forwards != [sample(name, 0, "valid", n, 20, 2, 9, 2) for n in range(50)]


def test_lengths_are_uniform_between_both_ends() -> None:
    lengths = np.bincount([len(q) for q, _ in some("reverse", 4000)])
    assert lengths[:2].sum() == 0 and len(lengths) == 10
    assert lengths[2:].min() > 400  # 500 each are expected


def test_lookup_lists_each_pair_once_and_never_ends_where_it_began() -> None:
    for question, answer in some("lookup", 300, hops=3):
        pairs, _, start = question.partition("?")
        assert len(pairs[0::2]) == len(set(pairs[0::2])) >= 4
        assert answer == follow(question, 3) != start


def test_splits_and_seeds_never_share_random_numbers() -> None:
    draws = {
        tuple(generator(s, split, n).integers(0, 2**60, 2))
        for s in range(4)
        for split in ("train", "valid", "test")
        for n in range(20)
    }
    assert len(draws) == 4 * 3 * 20


def test_too_many_symbols_are_refused() -> None:
    with pytest.raises(UsageError, match="between 1 and 62"):
        alphabet("copy", len(SYMBOLS) + 1)
