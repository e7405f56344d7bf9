"""Averages, seeds and threads."""

from __future__ import annotations

import pytest
import torch

import regard
from regard.errors import UsageError
from regard.save import weights
from regard.train.precision import cores, seed, threads
from regard.train.weights import differences, finite, mean, put
from tests.train.toy import recipe


def test_mean_of_sets() -> None:
    sets = [
        {"w": torch.tensor([1.0, 2.0]), "n": torch.tensor(3)},
        {"w": torch.tensor([2.0, 5.0]), "n": torch.tensor(4)},
    ]
    found = mean(iter(sets))
    assert torch.equal(found["w"], torch.tensor([1.5, 3.5])) and found["w"].dtype == torch.float32
    assert found["n"] == 4
    assert torch.equal(mean([sets[0]])["w"], sets[0]["w"])


def test_mean_is_not_spoiled_by_rounding() -> None:
    """In single precision 2^24 + 1 is 2^24."""
    values = [16_777_216.0, 1.0, 1.0, 2.0]
    assert float(mean([{"w": torch.tensor([v])} for v in values])["w"]) == 4_194_305.0


def test_what_does_not_fit_is_named() -> None:
    ours, theirs = weights(regard.build(recipe())), weights(regard.build(recipe(width=8)))
    found = differences(ours, theirs)
    assert any(
        "embed.weight is (11, 8) in the checkpoint and (11, 16) in the model" in text for text in found
    )
    with pytest.raises(UsageError, match="the checkpoint must fit the model"):
        put(ours, theirs)
    assert differences({"a": torch.zeros(1)}, {"b": torch.zeros(1)}) == [
        "a is only in the model",
        "b is only in the checkpoint",
    ]


def test_finite_sees_every_tensor() -> None:
    assert finite([torch.ones(3), torch.tensor(5), torch.zeros(0)])
    for bad in (float("nan"), float("inf"), -float("inf")):
        assert not finite([torch.ones(3), torch.tensor([1.0, bad])])
    assert finite([])


def test_seeds_of_neighbours_are_unrelated() -> None:
    """Each of (seed, step, part) matters, their order too, and the same numbers give the same draw."""

    def draw(*numbers: int) -> float:
        seed(*numbers)
        return float(torch.rand(()))

    places = [(s, t, p) for s in range(4) for t in range(40) for p in range(4)]
    drawn = [draw(*place) for place in places]
    assert len(set(drawn)) == len(places)
    assert draw(1, 2, 3) == draw(1, 2, 3) != draw(3, 2, 1)
    assert 0.45 < sum(drawn) / len(drawn) < 0.55


def test_threads_follow_the_option_then_the_environment_then_the_cores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    with threads(2) as count:
        assert count == torch.get_num_threads() == 2
    with threads(None) as count:
        assert count == torch.get_num_threads() == 3
    monkeypatch.delenv("OMP_NUM_THREADS")
    with threads(None) as count:
        assert count == cores() >= 1
    assert torch.get_num_threads() == 1
