"""Patterns: the sets of the papers, and that what a pattern says of itself is true."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import regard
from regard.dims import Dims
from regard.errors import UsageError
from regard.laws import lively
from regard.laws.asking import tokens
from regard.model import Decoder
from regard.nn.context import Context
from regard.nn.pattern import (
    AllOf,
    AnyOf,
    Causal,
    Dilated,
    Fixed,
    Full,
    GlobalTokens,
    Local,
    Local2D,
    Pattern,
    PerHead,
    Prefix,
    Strided,
    Window,
)
from regard.spec import of

DIMS = Dims(width=16, heads=4)
L = 14


def seen(pattern: Pattern, length: int = L) -> Tensor:
    """(H or 1, length, length), true where a query may see a key."""
    pos = torch.arange(length)
    return pattern(pos[None, None, :, None], pos[None, None, None, :])[0].expand(-1, length, length)


def simple() -> st.SearchStrategy[Pattern]:
    width = st.integers(1, 40)
    return st.one_of(
        st.just(Full()),
        st.just(Causal(DIMS)),
        st.builds(lambda w, both: Window(DIMS, width=w, both=both), width, st.booleans()),
        st.builds(lambda n: Prefix(DIMS, length=n), st.integers(0, 20)),
        st.builds(lambda w, m: Local(DIMS, w, m), width, st.integers(0, 20)),
        st.builds(lambda w, s, both: Dilated(DIMS, w, s, both), width, st.integers(1, 5), st.booleans()),
        st.builds(lambda n, both: GlobalTokens(DIMS, n, both), st.integers(1, 9), st.booleans()),
        st.builds(lambda s, hop: Strided(DIMS, s, hop), width, st.sampled_from(["both", "first", "second"])),
        st.builds(lambda c, s, hop: Fixed(DIMS, c * s, c, hop), *[st.integers(1, 4)] * 2, st.just("both")),
        st.builds(
            lambda h, w, n, f: Local2D(DIMS, w * n, (h, w), f),
            *[st.integers(1, 3)] * 3,
            st.tuples(st.integers(0, 4), st.integers(0, 4)),
        ),
    )


def any_pattern() -> st.SearchStrategy[Pattern]:
    def joined(inner: st.SearchStrategy[Pattern]) -> st.SearchStrategy[Pattern]:
        some = st.lists(inner, min_size=1, max_size=3)
        return st.one_of(*(some.map(kind.join) for kind in (AllOf, AnyOf)))

    inner = st.recursive(simple(), joined, max_leaves=4)
    return st.one_of(inner, st.lists(inner, min_size=1, max_size=3).map(PerHead.join))


@pytest.mark.parametrize(
    ("pattern", "says"),
    [
        (Full(), lambda i, j: True),
        (Causal(DIMS), lambda i, j: j <= i),
        (Window(DIMS, width=1), lambda i, j: j == i),
        (Window(DIMS, width=4), lambda i, j: j in (i, i - 1, i - 2, i - 3)),
        (Window(DIMS, width=2, both=True), lambda i, j: j in (i - 1, i, i + 1)),
        (Prefix(DIMS, length=0), lambda i, j: j <= i),
        (Prefix(DIMS, length=5), lambda i, j: j <= i or j < 5),
        (Causal(DIMS) & Window(DIMS, width=3, both=True), lambda i, j: i - 2 <= j <= i),
        (Window(DIMS, width=2) | Prefix(DIMS, length=3), lambda i, j: j <= i or j < 3),
        (Window(DIMS, width=2) | Window(DIMS, width=2, both=True), lambda i, j: abs(i - j) < 2),
    ],
    ids=lambda value: repr(value) if isinstance(value, Pattern) else "",
)
def test_the_set_of_each_query(pattern: Pattern, says: Callable[[int, int], bool]) -> None:
    table = seen(pattern)[0]
    for i, j in itertools.product(range(L), range(L)):
        assert bool(table[i, j]) == says(i, j), (i, j)


def test_each_head_in_turn() -> None:
    pattern = PerHead(DIMS, [of(Causal), of(Window, width=2), of(Full)])
    table = seen(pattern)
    wanted = [Causal(DIMS), Window(DIMS, width=2), Full(), Causal(DIMS)]
    assert table.shape == (4, L, L)
    for h, one in enumerate(wanted):
        assert torch.equal(table[h], seen(one)[0])


@given(any_pattern(), st.integers(1, 9), st.integers(1, 6))
@settings(max_examples=100, deadline=None, derandomize=True)
def test_a_pattern_names_every_block_it_needs_and_none_twice(
    pattern: Pattern, block: int, count: int
) -> None:
    """A block left out is a key lost; a block named twice is a key counted twice."""
    blocks = pattern.keys(block, count)
    if blocks is None:
        return
    assert blocks.shape[0] == count
    table = seen(pattern, block * count).any(0)
    for n, row in enumerate(blocks.tolist()):
        named = [b for b in row if b >= 0]
        assert len(set(named)) == len(named) and all(b < count for b in named)
        for other in set(range(count)) - set(named):
            assert not table[n * block : (n + 1) * block, other * block : (other + 1) * block].any()


@given(any_pattern())
@settings(max_examples=100, deadline=None, derandomize=True)
def test_a_pattern_is_what_it_says(pattern: Pattern) -> None:
    """causal: nothing ahead. reach: nothing that far back. amounts_to: that. sees: the same, one by one."""
    table = seen(pattern, 24)
    i, j = torch.arange(24)[:, None], torch.arange(24)[None]
    if pattern.causal:
        assert not (table & (j > i)).any()
    if pattern.reach is not None:
        assert not (table & (i - j >= pattern.reach)).any()
    for length in (1, 5, 24):
        shape = pattern.amounts_to(length)
        if shape is not None:
            wanted = (j <= i) if shape == "causal" else torch.ones(24, 24, dtype=torch.bool)
            assert (table[:, :length, :length] == wanted[:length, :length]).all()
    heads = range(len(table))
    for h, a, b in itertools.product(heads, (0, 7, 23), (0, 6, 7, 8, 23)):
        one = pattern.sees(torch.tensor(0), torch.tensor(h), torch.tensor(a), torch.tensor(b))
        assert bool(one) == bool(table[h, a, b])


@given(any_pattern())
@settings(max_examples=60, deadline=None, derandomize=True)
def test_without_a_window_nothing_is_forgotten(pattern: Pattern) -> None:
    """If some query sees a key that lies far back, the pattern must not claim a shorter reach."""
    table, i, j = seen(pattern, 64), torch.arange(64)[:, None], torch.arange(64)[None]
    furthest = int((table * (i - j)).max())
    assert pattern.reach is None or pattern.reach > furthest
    assert not pattern.causal or int((table * (j - i)).max()) <= 0


def test_blocks_of_a_window_do_not_grow_with_the_length() -> None:
    for both, columns in ((False, 3), (True, 5)):
        pattern = Window(DIMS, width=200, both=both)
        shapes = [pattern.keys(128, count).shape for count in (8, 16, 128)]  # type: ignore[union-attr]
        assert shapes == [(8, columns), (16, columns), (128, columns)]
    narrow = Window(DIMS, width=129).keys(128, 8)
    assert narrow is not None and narrow.shape == (8, 2)


def test_equal_patterns_share_a_mask_and_others_do_not() -> None:
    assert Window(DIMS, width=5) == Window(DIMS, width=5) != Window(DIMS, width=6)
    assert hash(Window(DIMS, width=5)) == hash(Window(DIMS, width=5))
    assert Window(DIMS, width=5) != Window(DIMS, width=5, both=True)
    assert Full() != Causal(DIMS)
    assert AllOf.join([Causal(DIMS), Full()]) == AllOf.join([Causal(DIMS), Full()])
    assert AllOf.join([Causal(DIMS), Full()]) != AnyOf.join([Causal(DIMS), Full()])
    ctx = Context(torch.arange(4)[None], prefix_B=torch.tensor([1, 2]))
    one, two = Prefix(DIMS).bind(ctx), Prefix(DIMS).bind(ctx.but(prefix_B=torch.tensor([1, 2])))
    assert one != two, "prefixes that are different tensors may differ"


def test_layers_with_different_patterns_do_not_share_a_mask() -> None:
    """A stack that alternates a window and all: the mask made by one layer must not serve the other."""
    gpt = regard.system("gpt", vocab=13, width=16, heads=4, layers=2, length=32)
    block = gpt.options["stack"].options["block"]
    attention = block.options["sublayers"]["self"]

    def with_pattern(pattern: object) -> object:
        changed = attention.but(pattern=pattern)
        return block.but(sublayers={**block.options["sublayers"], "self": changed})

    narrow, wide = with_pattern(of(Window, width=3)), with_pattern(of(Causal))
    answers = []
    for blocks in ([narrow, wide], [wide, narrow], [narrow, narrow], [wide, wide]):
        model = lively(gpt.but(stack=gpt.options["stack"].but(block=blocks)))
        tape: dict[str, Tensor] = {}
        model(tokens(3), tape=tape)
        answers.append([int((tape[f"decoder/{n}/self"][0, 0, -1] > 0).sum()) for n in (0, 1)])
    assert answers == [[3, 18], [18, 3], [3, 3], [18, 18]]


def test_a_prefix_is_read_both_ways_and_what_follows_is_not() -> None:
    model = lively(
        regard.system("gpt", vocab=13, width=16, heads=4, layers=2, length=32, pattern=of(Prefix, length=6))
    )
    assert isinstance(model, Decoder)
    ids = tokens(2, 12, "plain")
    with torch.no_grad():
        before = model(ids)
        inside, after = ids.clone(), ids.clone()
        inside[:, 5] = ids[:, 5] % 12 + 1
        after[:, 9] = ids[:, 9] % 12 + 1
        assert (model(inside)[:, 0] - before[:, 0]).abs().max() > 1e-3, "the first token reads the sixth"
        assert torch.equal(model(after)[:, :9], before[:, :9]), "nobody reads the tenth before it is there"


@pytest.mark.parametrize("kind", [AllOf, AnyOf, PerHead])
def test_nothing_to_join_is_refused(kind: type[AllOf | AnyOf | PerHead]) -> None:
    with pytest.raises(UsageError, match=f"{kind.__name__} must be given at least one pattern"):
        kind(DIMS, [])


def test_a_window_of_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="A window must be at least 1 wide, but width is 0"):
        Window(DIMS, width=0)
