"""Streams side by side: every place once, rows that go on, pure functions of (seed, step)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.data.batch import Batch
from regard.data.segments import Pieces, Segments
from regard.errors import DataError, UsageError


def make(pieces: Pieces, epoch: int) -> Batch:
    """The places themselves."""
    return Batch([start for _, start, _ in pieces], tokens=sum(stop - start for _, start, stop in pieces))


@given(st.integers(1, 90), st.integers(1, 9), st.integers(1, 20), st.integers(0, 5), st.booleans())
@settings(max_examples=50, deadline=None)
def test_rows_go_on_and_every_place_comes_once(
    total: int, streams: int, length: int, seed: int, shuffle: bool
) -> None:
    if total < streams:
        total += streams
    seen: list[list[tuple[int, int]]] = []

    def look(given: Pieces, epoch: int) -> Batch:
        seen.append([(start, stop) for _, start, stop in given])
        return make(given, epoch)

    batches = Segments(total, streams, length, look, seed, shuffle)
    steps = batches.steps_in(0)
    for epoch in range(3):
        seen.clear()
        tokens = sum(batches.at(epoch * steps + position).tokens for position in range(steps))
        assert tokens == total
        rows = np.array(seen)  # (steps, streams, 2)
        assert (rows[1:, :, 0] == rows[:-1, :, 1]).all(), "each row begins where it stopped"
        assert rows[0, 0, 0] == 0 and rows[-1, -1, 1] == total
        assert (rows[0, 1:, 0] == rows[-1, :-1, 1]).all(), "a stream ends where the next one began"
        sizes = rows[..., 1] - rows[..., 0]
        assert sizes.max() <= length and np.ptp(sizes, 1).max() <= 1


def test_cuts_move_from_epoch_to_epoch_and_parts_keep_their_rows() -> None:
    one, two = (Segments(1000, 8, 16, make, seed=3) for _ in range(2))
    steps = one.steps_in(0)
    assert [one.at(s).ids for s in (1, 70, 3)] == [two.at(s).ids for s in (1, 70, 3)]
    assert one.at(1).ids != one.at(steps + 1).ids != Segments(1000, 8, 16, make, seed=4).at(steps + 1).ids
    still = Segments(1000, 8, 16, make, seed=3, shuffle=False)
    assert still.at(1).ids == still.at(still.steps_in(0) + 1).ids
    for parts in (1, 2, 3):
        for step in (0, 5, steps + 2):
            whole = one.at(step).ids
            assert [one.at(step, part, parts).ids for part in range(parts)] == [
                whole[part::parts] for part in range(parts)
            ]
    assert one.carried


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(DataError, match="8 streams need as many tokens, but the text has only 5"):
        Segments(5, 8, 4, make)
    with pytest.raises(UsageError, match="0 streams of segments of 4"):
        Segments(5, 0, 4, make)
