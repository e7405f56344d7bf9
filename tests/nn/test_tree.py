"""Beams are a tree: what hypotheses share stands once, and what is dead or has left makes place."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import regard
from regard.errors import UsageError
from regard.laws import lively
from regard.laws.asking import begin, tokens
from regard.model import EncoderDecoder
from regard.nn.cache import Cache, Precision
from regard.nn.pattern import Causal
from regard.nn.slots import Kept
from regard.spec import of
from tests.nn.test_cache import WINDOW, fed, gpt


def test_beams_keep_what_they_share_once() -> None:
    """Two prompts of 20 tokens, four beams each: a token of a beam is a column, a prompt is not repeated."""
    model, cache = gpt(groups=2), Cache(2)
    column = 2 * 2 * 2 * 4 * 4  # layers x (k and v) x groups x numbers x bytes
    with torch.no_grad():
        model(tokens(2, 20, "plain"), cache=cache)
        assert cache.nbytes == 2 * 20 * column
        cache.reorder(torch.arange(2).repeat_interleave(4), torch.arange(2))
        assert cache.nbytes == 2 * 20 * column
        for step in range(1, 4):
            held = [slot.state for slot in cache.slots.values()]
            model(tokens(8, 1, "plain", seed=step), cache=cache)
            cache.reorder(torch.tensor([3, 1, 1, 0, 4, 5, 7, 6]), torch.arange(2))
            assert cache.nbytes == 2 * (20 + 4 * step) * column
            if step > 1:
                assert all(a[0] is b.state[0] for a, b in zip(held, cache.slots.values(), strict=True))
    assert cache.batch == 8 and cache.sources == 2


@pytest.mark.parametrize("precision", ["full", "int8"])
@pytest.mark.parametrize("pads", ["plain", "left"])
def test_columns_of_dead_beams_are_written_over(pads: str, precision: Precision) -> None:
    """All go on from one beam of each prompt, again and again: what the others wrote does not pile up."""
    model, ids = gpt(length=120, groups=2), tokens(3, 9, pads)
    cache, alone = Cache(3, precision=precision), Cache(3, precision=precision)
    first = torch.tensor([0, 5, 10]).repeat_interleave(4)  # the first, second and third beam
    most, random = 0, torch.Generator().manual_seed(0)
    with torch.no_grad():
        model(ids, cache=cache)
        model(ids, cache=alone)
        cache.reorder(torch.arange(3).repeat_interleave(4), torch.arange(3))
        alone.reorder(torch.arange(3).repeat_interleave(4))
        for _ in range(60):
            new = torch.randint(1, 13, (12, 1), generator=random)
            assert (model(new, cache=cache) - model(new, cache=alone)).abs().max() < 1e-4
            cache.reorder(first, torch.arange(3))
            alone.reorder(first)
            most = max(most, cache.columns)
            assert cache.length == alone.length and cache.next_B.tolist() == alone.next_B.tolist()
    assert cache.length == 69 and most == 68 + 4, "all of them would be 249"


@pytest.mark.parametrize("precision", ["full", "int8"])
def test_columns_that_only_some_beams_fill_are_not_read(precision: Precision) -> None:
    """Beams of the first prompt die, those of the second stay: they need more columns, the others do not.

    What stands behind the columns in use was never written, and may be no number at all.
    """
    model, ids = gpt(length=60, groups=2), tokens(2, 9, "plain")
    cache, alone = Cache(2, precision=precision), Cache(2, precision=precision)
    kept, random = torch.tensor([1, 1, 1, 3, 4, 5]), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for each in (cache, alone):
            model(ids, cache=each)
        cache.reorder(torch.arange(2).repeat_interleave(3), torch.arange(2))
        alone.reorder(torch.arange(2).repeat_interleave(3))
        for _ in range(8):
            for held in (t for slot in cache.slots.values() for t in slot.state if t.is_floating_point()):
                held[:, :, cache.columns :] = float("nan")
            new = torch.randint(1, 13, (6, 1), generator=random)
            assert (model(new, cache=cache) - model(new, cache=alone)).abs().max() < 1e-4
            cache.reorder(kept, torch.arange(2))
            alone.reorder(kept)
    assert cache.columns == 9 + 3 * 8


def test_columns_of_those_who_left_are_let_go_of() -> None:
    """One long prompt beside short ones: when it has left, the others are as short as if it never came."""
    model, cache = gpt(length=120), Cache(3)
    ids = torch.full((3, 60), -1)
    ids[0], ids[1:, 57:] = tokens(1, 60, "plain")[0], tokens(2, 3, "plain")
    with torch.no_grad():
        model(ids, cache=cache)
        cache.reorder(torch.arange(3).repeat_interleave(2), torch.arange(3))
        model(tokens(6, 1, "plain"), cache=cache)
        assert cache.columns == 62
        cache.reorder(torch.tensor([2, 3, 4, 5]), torch.tensor([1, 2]))
        assert cache.columns == 3 + 2
        assert cache.next_B.tolist() == [4] * 4


def test_sources_of_those_who_left_are_let_go_of() -> None:
    """One long source beside short ones: when it has left, those who join need not be as long."""
    model = lively(regard.system("vanilla", vocab=13, width=16, heads=4, layers=2, length=48))
    assert isinstance(model, EncoderDecoder)
    caches = []
    for lengths in ((30, 4, 6), (5, 3)):
        ids, some = torch.full((len(lengths), max(lengths)), -1), torch.arange(len(lengths))
        for row, length in enumerate(lengths):
            ids[row, :length] = tokens(1, length, "plain")[0]
        caches.append(cache := model.cache(len(lengths)))
        with torch.no_grad():
            cache.memory = model.encode(ids)
            model(None, tokens(len(lengths), 1, "plain"), cache=cache)
        cache.reorder(some.repeat_interleave(2), some)
    caches[0].reorder(torch.tensor([2, 3, 4, 5]), torch.tensor([1, 2]))
    caches[0].join(caches[1])
    assert caches[0].memory is not None and caches[0].memory.x_BMD.shape[:2] == (4, 6)
    held = [slot.state[0].shape[2] for slot in caches[0].slots.values() if isinstance(slot, Kept)]
    assert held and set(held) == {6}


@pytest.mark.parametrize("lengths", [(9, 4), (4, 9)])
def test_who_joins_stands_where_others_have_left(lengths: tuple[int, int]) -> None:
    """Four prompts, two leave, two come: nobody else is moved, and what stood there before is not seen."""
    model, caches, past = gpt(length=40, groups=2), [Cache(4), Cache(2)], []
    with torch.no_grad():
        for cache, length in zip(caches, lengths, strict=True):
            ids, some = tokens(cache.batch, length, "plain", seed=length), torch.arange(cache.batch)
            model(ids, cache=cache)
            cache.reorder(some.repeat_interleave(2), some)
            past += [ids[row] for row in some.repeat_interleave(2)]
        first, later = caches
        first.reorder(torch.tensor([0, 1, 6, 7]), torch.tensor([0, 3]))
        past = [past[row] for row in (0, 1, 6, 7, 8, 9, 10, 11)]
        held = [t.data_ptr() for slot in first.slots.values() for t in slot.state]
        for t in (t._base for slot in first.slots.values() for t in slot.state):
            assert t is not None and len(t) == 4, "those who left have left their place"
            t[2:] = t[:, :, first.columns :] = float("nan")
        first.join(later)
        assert held == [t.data_ptr() for slot in first.slots.values() for t in slot.state]
        for step in range(3):
            new = tokens(8, 1, "plain", seed=step)
            past = [torch.cat([old, one]) for old, one in zip(past, new, strict=True)]
            got = model(new, cache=first)[:, 0]
            for row, ids in enumerate(past):
                assert (got[row] - model(ids[None])[0, -1]).abs().max() < 1e-4


@pytest.mark.parametrize("pattern", [of(Causal), WINDOW])
def test_what_cannot_be_joined_is_refused(pattern: Any) -> None:
    model, ids = gpt(pattern=pattern), tokens(2, pads="plain")
    caches = [begin(model, ids) for _ in range(3)]
    for cache, each in zip(caches, (3, 2, 1), strict=True):
        fed(model, ids[:, :4], cache, [])
        if each > 1:
            cache.reorder(torch.arange(2).repeat_interleave(each), torch.arange(2))
    for other, rows in ((caches[1], 2), (caches[2], 1)):
        with pytest.raises(UsageError, match=f"here 3 and {rows} rows share a source; write them apart"):
            caches[0].join(other)
    assert caches[0].joins == (pattern != WINDOW) and not caches[2].joins
    assert caches[0].batch == 6 and caches[0].columns == 4, "nothing has changed"


def test_beams_cannot_be_taken_back() -> None:
    model, cache = gpt(), Cache(1)
    with torch.no_grad():
        model(tokens(1, 5, "plain"), cache=cache)
        cache.reorder(torch.zeros(2, dtype=torch.long), torch.zeros(1, dtype=torch.long))
    with pytest.raises(UsageError, match="beams cannot be taken back"):
        cache.rollback(1)
