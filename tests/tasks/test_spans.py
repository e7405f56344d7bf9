"""Span corruption: the official lengths, the shape of inputs and targets, and nothing lost."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.errors import UsageError
from regard.tasks.spans import corrupt, lengths, noise, raw_length, reconstruct, spans


@pytest.mark.parametrize(("inputs", "raw", "targets"), [(512, 568, 114), (128, 141, 29), (64, 70, 14)])
def test_official_lengths(inputs: int, raw: int, targets: int) -> None:
    assert raw_length(inputs) == raw
    assert lengths(raw) == (inputs, targets)


def test_real_samples_have_the_official_lengths() -> None:
    draw = np.random.default_rng(3)
    ids = list(range(3, 3 + 568))
    inputs, targets = corrupt(ids, spans(568, draw), vocab=1000, eos=1)
    assert (len(inputs), len(targets)) == (512, 114)


def test_inputs_and_targets_of_known_spans() -> None:
    inputs, targets = corrupt([10, 11, 12, 13, 14, 15, 16], np.array([2, 1, 3, 1]), vocab=100, eos=1)
    assert inputs == [10, 11, 99, 13, 14, 15, 98, 1]  # sentinels count down from vocab - 1
    assert targets == [99, 12, 98, 16, 1]
    assert reconstruct(inputs, targets, first=90) == [10, 11, 12, 13, 14, 15, 16]


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 700), st.integers(0, 2**32 - 1))
def test_nothing_is_lost_and_kept_spans_come_first(length: int, seed: int) -> None:
    sizes = spans(length, np.random.default_rng(seed))
    dropped, count = noise(length, 0.15, 3.0)
    assert sizes.min() >= 1 and sizes[0::2].sum() == length - dropped and sizes[1::2].sum() == dropped
    assert len(sizes) == 2 * count
    ids = list(range(5, 5 + length))
    inputs, targets = corrupt(ids, sizes, vocab=2000, eos=1)
    assert (len(inputs), len(targets)) == lengths(length)
    assert inputs[0] == ids[0] and inputs[-1] == targets[-1] == 1
    assert (
        [t for t in inputs if t > 1000]
        == [t for t in targets if t > 1000]
        == list(range(1999, 1999 - count, -1))
    )
    assert reconstruct(inputs, targets, first=1900) == ids


def test_density_and_mean_span() -> None:
    for length in (100, 512, 568):
        dropped, count = noise(length, 0.15, 3.0)
        assert dropped == round(0.15 * length) and count == round(dropped / 3)
    assert noise(2, 0.15, 3.0) == (1, 1)


def test_spans_are_spread_over_the_text() -> None:
    """Every way to cut is equally likely: inner places are dropped about equally often."""
    draw, hits = np.random.default_rng(0), np.zeros(40)
    for _ in range(4000):
        at, sizes = 0, spans(40, draw)
        for n, size in enumerate(sizes):
            hits[at : at + size] += n % 2
            at += size
    share = hits[5:35] / 4000
    assert hits[0] == 0 and hits[39] == 4000  # a text ends with a dropped span, as in the official code
    assert share.min() > 0.06 and share.max() < 0.2


def test_a_model_too_short_is_refused() -> None:
    with pytest.raises(UsageError, match="at least length 3"):
        raw_length(2)
