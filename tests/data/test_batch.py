"""Which samples make step n: pure, complete, the same for every number of ranks, and within the budget."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.data.batch import Batch, Batches, Rows, buckets, mix, order, pad, prefetch
from regard.errors import DataError, UsageError


def make(numbers: np.ndarray[Any, Any], epoch: int) -> Batch:
    return Batch(numbers.tolist(), {"x": torch.as_tensor(numbers)}, len(numbers))


def lengths(n: int, columns: int = 2) -> np.ndarray[Any, Any]:
    return (np.random.default_rng(n).gamma(4, 4, (n, columns)) + 1).astype(np.int64)


CASES: dict[str, Callable[[], Batches]] = {
    "tokens": lambda: Batches(lengths(500), make, tokens=300, seed=3),
    "tokens of one": lambda: Batches(lengths(500, 1)[:, 0], make, tokens=300, seed=3),
    "tokens and size": lambda: Batches(lengths(500), make, tokens=300, size=5, seed=3),
    "size": lambda: Batches(500, make, size=7, seed=3),
    "size that divides": lambda: Batches(500, make, size=10, seed=3),
    "tokens in order": lambda: Batches(lengths(500), make, tokens=300, shuffle=False),
    "size in order": lambda: Batches(500, make, size=7, shuffle=False),
}
every_case = pytest.mark.parametrize("case", CASES)


@every_case
def test_each_sample_once_in_each_epoch(case: str) -> None:
    batches = CASES[case]()
    step = 0
    for epoch in range(4):
        seen: list[int] = []
        for position in range(batches.steps_in(epoch)):
            assert batches.epoch_of(step) == (epoch, position)
            seen += batches.at(step).ids
            step += 1
        assert sorted(seen) == list(range(500))


@every_case
def test_any_step_can_be_reached_at_once(case: str) -> None:
    """The batches of a run that goes straight through, across epochs, and of one that starts anywhere."""
    walked = CASES[case]()
    steps = 3 * walked.steps_in(0) + 2
    straight = [walked.at(step).ids for step in range(steps)]
    for start in np.random.default_rng(0).integers(0, steps, 30).tolist() + [walked.steps_in(0)]:
        assert CASES[case]().at(start).ids == straight[start]


@every_case
@pytest.mark.parametrize("parts", [2, 3, 4, 16])
def test_parts_share_the_same_global_batch(case: str, parts: int) -> None:
    batches = CASES[case]()
    for step in range(batches.steps_in(0) + 3):
        whole = batches.at(step)
        shares = [CASES[case]().at(step, part, parts) for part in range(parts)] if step % 20 == 0 else []
        shares = shares or [batches.at(step, part, parts) for part in range(parts)]
        assert sorted(n for share in shares for n in share.ids) == sorted(whole.ids)
        assert sum(share.tokens for share in shares) == whole.tokens
        sizes = [len(share) for share in shares]
        assert max(sizes) - min(sizes) <= 1


def test_an_empty_part_has_tensors_without_rows() -> None:
    share = Batches(3, make, size=3).at(0, 3, 4)
    assert (share.ids, share.tokens, share["x"].shape, share["x"].dtype) == ([], 0, (0,), torch.int64)


def test_shuffled_epochs_differ_in_order_and_in_company() -> None:
    """Catches an order that ignores the epoch, or that shuffles only the batches and never their members."""
    for case in ("tokens", "tokens of one", "tokens and size", "size"):
        batches = CASES[case]()
        first, second = batches.plan(0), batches.plan(1)
        assert [b.tolist() for b in first] != [b.tolist() for b in second]
        together = [{frozenset(b.tolist()) for b in plan} for plan in (first, second)]
        assert len(together[0] & together[1]) < len(first) / 10
        batches.seed = 4
        assert [b.tolist() for b in batches.plan(2)] != [b.tolist() for b in CASES[case]().plan(2)]


def test_samples_of_one_length_are_dealt_anew_each_epoch() -> None:
    plans = [{frozenset(b.tolist()) for b in buckets(np.full(400, 9), 90, 0, epoch)} for epoch in range(5)]
    assert len(set().union(*plans)) == 5 * 40


def test_without_shuffle_every_epoch_is_the_same() -> None:
    assert Batches(5, make, size=2, shuffle=False).at(4).ids == [2, 3]
    batches = CASES["tokens in order"]()
    assert [batches.at(s).ids for s in range(len(batches))] == [
        batches.at(s + 5 * len(batches)).ids for s in range(len(batches))
    ]


def test_batches_are_not_in_the_order_of_their_length() -> None:
    size = lengths(500).sum(1)
    mean = [size[b].mean() for b in CASES["tokens"]().plan(0)]
    assert abs(np.corrcoef(mean, np.arange(len(mean)))[0, 1]) < 0.4


@given(
    st.lists(st.tuples(st.integers(0, 70), st.integers(0, 30)), min_size=1, max_size=200),
    st.integers(100, 1000),
    st.one_of(st.none(), st.integers(1, 9)),
    st.integers(0, 2**70),
    st.one_of(st.none(), st.integers(0, 1000)),
)
@settings(max_examples=200, deadline=None)
def test_buckets_keep_the_budget_and_every_sample(
    sizes: list[tuple[int, int]], tokens: int, size: int | None, seed: int, epoch: int | None
) -> None:
    both = np.array(sizes)
    plan = buckets(both, tokens, seed, epoch, size)
    assert sorted(np.concatenate(plan).tolist()) == list(range(len(sizes)))
    for batch in plan:
        assert len(batch) * both[batch].max(0).sum() <= tokens
        assert size is None or len(batch) <= size
        assert len(batch)


def test_little_padding_and_full_batches() -> None:
    """Lengths as of real text. Random batches would pad much more; batches cut early would be half full."""
    source = np.random.default_rng(0).gamma(6, 2.5, 29_000).astype(np.int64) + 3
    both = np.stack(
        [source, (source * np.random.default_rng(1).normal(1, 0.15, 29_000)).astype(np.int64) + 2], 1
    )
    for tokens, least in ((1024, 0.95), (4096, 0.93), (25_000, 0.85)):
        plan = buckets(both, tokens, 0, 0)
        padded = np.array([len(b) * both[b].max(0).sum() for b in plan])
        assert both.sum() / padded.sum() > least
        assert padded.mean() > 0.93 * tokens


def test_a_sample_beyond_the_budget_is_named() -> None:
    with pytest.raises(DataError, match=r"a batch of 20 tokens, but 2 do not, such as sample 1 of 30"):
        Batches([[5, 5], [10, 20], [1, 20]], make, tokens=20)
    assert Batches([[5, 5], [10, 10]], make, tokens=40).steps_in(0) == 1
    assert len(buckets([17, 17], 17, 0, 0)) == 2  # 17 rounds up to 18, but 17 fits


def test_impossible_batches_are_refused() -> None:
    with pytest.raises(UsageError, match="tokens=4096 or size=32"):
        Batches(5, make)
    with pytest.raises(UsageError, match="needs the length of each sample"):
        Batches(5, make, tokens=100)
    with pytest.raises(DataError, match="at least one sample"):
        Batches(0, make, size=2)
    for wrong in ({"size": 0}, {"tokens": -1}):
        with pytest.raises(UsageError, match="at least 1"):
            Batches([3], make, **wrong)  # type: ignore[arg-type]
    batches = Batches(5, make, size=2)
    with pytest.raises(UsageError, match="counted from 0"):
        batches.at(-1)
    for part, parts in ((2, 2), (-1, 2), (0, 0)):
        with pytest.raises(UsageError, match="part must be"):
            batches.at(0, part, parts)


def test_plans_of_two_epochs_are_kept() -> None:
    batches = CASES["tokens"]()
    last, first = batches.plan(0), batches.plan(1)
    assert batches.plan(0) is last
    assert batches.plan(1) is first
    batches.plan(2)
    assert batches.plan(1) is first
    assert batches.plan(0) is not last
    assert len(batches._plans) == 2


def test_order_is_what_it_always_was() -> None:
    """Written down once: a resumed run of an older version must meet the same samples."""
    assert order(10, 0, 0).tolist() == [0, 7, 8, 2, 5, 9, 4, 6, 3, 1]
    assert mix(1, 2, [3, 4]).tolist() == [2869315087210772132, 4356551549751739576]


@given(st.integers(0, 200), st.integers(-(2**65), 2**65), st.integers(0, 2**33))
@settings(max_examples=100, deadline=None)
def test_order_is_a_permutation(n: int, seed: int, epoch: int) -> None:
    assert sorted(order(n, seed, epoch).tolist()) == list(range(n))


def test_order_is_fair() -> None:
    """Each sample comes first about equally often, and neighbours do not stay neighbours."""
    orders = np.array([order(10, 7, epoch) for epoch in range(4000)])
    counts = np.array([np.bincount(orders[:, place], minlength=10) for place in range(10)])
    assert np.abs(counts - 400).max() < 5 * np.sqrt(400)
    assert abs((orders[:, 1:] == orders[:, :-1] + 1).mean() - 0.1) < 0.01
    seeds = np.array([order(10, seed, 0) for seed in range(4000)])
    assert np.abs(np.bincount(seeds[:, 0], minlength=10) - 400).max() < 5 * np.sqrt(400)


@given(st.lists(st.lists(st.integers(0, 9), max_size=6), max_size=6), st.integers(1, 5))
@settings(max_examples=100, deadline=None)
def test_pad_against_a_loop(rows: list[list[int]], multiple: int) -> None:
    width = max([len(row) for row in rows], default=0)
    width += -width % multiple
    right = [row + [-1] * (width - len(row)) for row in rows]
    left = [[-1] * (width - len(row)) + row for row in rows]
    assert pad(rows, multiple=multiple).tolist() == right
    assert pad(rows, "left", multiple).tolist() == left
    assert pad([np.array(row, np.int32) for row in rows], "left", multiple).tolist() == left
    assert pad(rows).dtype == torch.int64
    assert pad(rows, multiple=multiple).shape == (len(rows), width)


def test_pad_knows_two_sides() -> None:
    with pytest.raises(UsageError, match="right or left"):
        pad([[1]], "middle")  # type: ignore[arg-type]


def test_rows_are_the_lists_they_came_from() -> None:
    lists = [[5, 6, 7], [], [8], [2**31 - 1]]
    rows = Rows(lists)
    assert [rows[n].tolist() for n in range(len(rows))] == lists
    assert rows.lengths.tolist() == [3, 0, 1, 1]
    assert [row.tolist() for row in rows] == lists
    assert len(Rows([])) == 0
    for chosen in ([2, 0, 0, 1], [1], [], [3, 2]):
        some = [lists[n] for n in chosen]
        assert rows.pad(chosen, "left", 2).tolist() == pad(some, "left", 2).tolist()
        assert torch.equal(rows.pad(np.array(chosen, np.int64)), pad(some))
    with pytest.raises(IndexError, match="row 4"):
        rows[4]


def test_batch_reads_like_a_dictionary() -> None:
    batch = make(np.array([3, 1]), 0)
    assert batch["x"].tolist() == [3, 1]
    assert "x" in batch
    assert "y" not in batch
    moved = batch.to("meta")
    assert (moved["x"].device.type, moved.ids, moved.tokens) == ("meta", [3, 1], 2)


def threads() -> int:
    return sum(t.name == "prefetch" and t.is_alive() for t in threading.enumerate())


def test_prefetch_gives_what_at_gives() -> None:
    batches = CASES["tokens"]()
    start = batches.steps_in(0) - 2  # across the edge of an epoch
    with prefetch(CASES["tokens"](), start, part=1, parts=2) as ready:
        assert [b.ids for b in islice(ready, 6)] == [batches.at(start + n, 1, 2).ids for n in range(6)]
    with prefetch(CASES["tokens"](), start, part=[2, 3], parts=4) as ready:
        expected = [batches.at(start + n, part, 4).ids for n in range(3) for part in (2, 3)]
        assert [b.ids for b in islice(ready, 6)] == expected
    assert threads() == 0
    assert list(ready) == []


def test_prefetch_works_ahead_but_not_far() -> None:
    made: list[int] = []

    def slow(numbers: np.ndarray[Any, Any], epoch: int) -> Batch:
        made.append(int(numbers[0]))
        return make(numbers, epoch)

    with prefetch(Batches(1000, slow, size=1), ahead=3) as ready:
        next(ready)
        deadline = time.monotonic() + 5
        while len(made) < 5 and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.1)
        assert len(made) == 5  # one given, three waiting, one in hand
    assert threads() == 0


def test_prefetch_raises_at_the_batch_that_failed_and_names_its_samples() -> None:
    def fails(numbers: np.ndarray[Any, Any], epoch: int) -> Batch:
        if 7 in numbers:
            raise RuntimeError("no such picture")
        return make(numbers, epoch)

    ready = prefetch(Batches(20, fails, size=2, shuffle=False))
    assert [next(ready).ids for _ in range(3)] == [[0, 1], [2, 3], [4, 5]]
    for _ in range(2):
        with pytest.raises(
            DataError, match=r"samples 6, 7 \(step 3\) could not .* no such picture"
        ) as caught:
            next(ready)
        assert isinstance(caught.value.__cause__, RuntimeError)
    assert threads() == 0
    ready.close()


def test_a_forgotten_prefetch_ends_its_thread() -> None:
    ready = prefetch(Batches(20, make, size=2))
    next(ready)
    assert threads() == 1
    del ready
    gc.collect()
    deadline = time.monotonic() + 5
    while threads() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert threads() == 0


def test_padding_is_the_share_of_empty_places() -> None:
    batches = Batches(
        [[3, 1], [5, 4], [2, 2]], lambda numbers, epoch: Batch(list(numbers)), size=2, shuffle=False
    )
    # two rows of 5 + 4 places and one of 2 + 2; 17 tokens
    assert batches.padding() == pytest.approx(1 - 17 / 22)
    assert Batches(3, lambda numbers, epoch: Batch(list(numbers)), size=2).padding() is None
