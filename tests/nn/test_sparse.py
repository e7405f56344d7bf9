"""Patterns of the efficient family: the sets of the papers, written as sets; what two hops reach."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from regard.dims import Dims
from regard.errors import UsageError
from regard.nn.pattern import (
    AnyOf,
    Dilated,
    Fixed,
    GlobalTokens,
    Lanes,
    Local,
    Local2D,
    Pattern,
    PerHead,
    Strided,
    Window,
)
from regard.spec import kind_of, of, read, write

DIMS = Dims(width=16, heads=4, length=64)
SIZES = (37, 64, 100)


def seen(pattern: Pattern, length: int) -> Tensor:
    """(H or 1, length, length), true where a query may see a key."""
    pos = torch.arange(length)
    return pattern(pos[None, None, :, None], pos[None, None, None, :])[0].expand(-1, length, length)


def sets(pattern: Pattern, length: int, head: int = 0) -> list[set[int]]:
    table = seen(pattern, length)
    return [set(row.nonzero().flatten().tolist()) for row in table[head % len(table)]]


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("stride", [1, 4, 8, 10])
def test_strided_is_the_set_of_the_paper(n: int, stride: int) -> None:
    """Child et al. 2019, section 4.3."""
    near = [set(range(max(0, i - stride), i + 1)) for i in range(n)]
    code = [set(range(max(0, i - stride + 1), i + 1)) for i in range(n)]
    far = [{j for j in range(i + 1) if (i - j) % stride == 0} for i in range(n)]
    assert sets(Strided(DIMS, stride, "first"), n) == near
    assert sets(Strided(DIMS, stride, "second"), n) == far
    assert sets(Strided(DIMS, stride), n) == [a | b for a, b in zip(near, far, strict=True)]
    assert sets(Strided(DIMS, stride, "first", band="code"), n) == code
    assert sets(Strided(DIMS, stride, band="code"), n) == [a | b for a, b in zip(code, far, strict=True)]


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize(("stride", "c"), [(8, 1), (8, 2), (8, 8), (10, 5), (16, 4)])
def test_fixed_is_the_set_of_the_paper(n: int, stride: int, c: int) -> None:
    """Child et al. 2019, section 4.3; heads take distinct sub-blocks of length c, from the end, in turn."""
    near = [{j for j in range(i + 1) if j // stride == i // stride} for i in range(n)]
    assert sets(Fixed(DIMS, stride, c, "first"), n) == near
    for head in range(4):
        last = stride - c * (head % (stride // c))
        far = [{j for j in range(i + 1) if j % stride in range(last - c, last)} for i in range(n)]
        assert sets(Fixed(DIMS, stride, c, "second"), n, head) == far
        assert sets(Fixed(DIMS, stride, c), n, head) == [a | b for a, b in zip(near, far, strict=True)]
        if head == 0:
            assert sets(Fixed(DIMS, stride, c, "second", distinct=False), n, 3) == far


def test_heads_sum_up_at_distinct_places() -> None:
    blocks = [set.union(*sets(Fixed(DIMS, 16, 4, "second"), 64, h)) for h in range(4)]
    assert not any(blocks[a] & blocks[b] for a in range(4) for b in range(a)), "no two heads share a summary"
    assert set.union(*blocks) == set(range(64)), "16 = 4 heads x 4: every position sums up for one head"


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize(("width", "memory"), [(8, None), (8, 0), (5, 12), (16, 3), (64, 64)])
def test_local_is_the_set_of_the_paper(n: int, width: int, memory: int | None) -> None:
    """Parmar et al. 2018, section 3.3: the own block up to itself, and the l_m positions before the block."""
    m = width if memory is None else memory
    wanted = [{j for j in range(i + 1) if j >= i // width * width - m} for i in range(n)]
    assert sets(Local(DIMS, width, memory), n) == wanted
    if memory is None:  # tensor2tensor: the own block and the one before; the first block is plain causal
        blocks = [{j for j in range(i + 1) if i // width - j // width in (0, 1)} for i in range(n)]
        assert wanted == blocks


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize(("width", "step"), [(3, 2), (4, 5), (1, 3), (50, 2)])
def test_dilated_is_the_set_of_the_paper(n: int, width: int, step: int) -> None:
    back = [{i - step * a for a in range(width)} & set(range(n)) for i in range(n)]
    ahead = [{i + step * a for a in range(width)} & set(range(n)) for i in range(n)]
    assert sets(Dilated(DIMS, width, step), n) == back
    assert sets(Dilated(DIMS, width, step, both=True), n) == [a | b for a, b in zip(back, ahead, strict=True)]


@pytest.mark.parametrize("n", SIZES)
def test_longformer_is_a_window_and_global_tokens(n: int) -> None:
    both = Window(DIMS, width=4, both=True) | GlobalTokens(DIMS, count=3, both=True)
    wanted = [{j for j in range(n) if abs(i - j) < 4 or j < 3 or i < 3} for i in range(n)]
    assert sets(both, n) == wanted
    assert not both.causal
    back = AnyOf(DIMS, [of(Window, width=4), of(GlobalTokens, count=3)])
    assert sets(back, n) == [{j for j in range(i + 1) if i - j < 4 or j < 3} for i in range(n)]
    assert back.causal


def block_raster(rows: int, across: int, high: int, wide: int, up: int, side: int) -> list[set[int]]:
    """What each pixel sees, by the mask of the authors' code, in the order in which pixels are written.

    A block of queries meets a memory that is `up` rows higher and `side` columns wider on both sides than
    itself. Rows above are visible; in the block's own rows: the left side, then the block's triangle, then
    nothing on the right. What falls outside the image is padding.
    """
    size, in_row = high * wide, across // wide
    where: dict[tuple[int, int], int] = {}
    for number in range(rows * across):
        block, inside = divmod(number, size)
        where[block // in_row * high + inside // wide, block % in_row * wide + inside % wide] = number
    found = []
    for number in range(rows * across):
        block, inside = divmod(number, size)
        top, left = block // in_row * high, block % in_row * wide
        mine = set()
        for y in range(-up, high):
            for x in range(-side, wide + side):
                visible = y < 0 or x < 0 or (x < wide and y * wide + x <= inside)
                if visible and (top + y, left + x) in where:
                    mine.add(where[top + y, left + x])
        found.append(mine)
    return found


@pytest.mark.parametrize(
    ("rows", "across", "block", "flange"),
    [(8, 8, (4, 4), (4, 4)), (8, 8, (2, 4), (2, 2)), (8, 8, (4, 2), (3, 5)),
     (6, 9, (2, 3), (5, 1)), (8, 8, (8, 8), (0, 0))],
)  # fmt: skip
def test_local_2d_is_the_mask_of_the_authors_code(
    rows: int, across: int, block: tuple[int, int], flange: tuple[int, int]
) -> None:
    pattern = Local2D(DIMS, across, block, flange)
    assert sets(pattern, rows * across) == block_raster(rows, across, *block, *flange)
    order = pattern.order(rows)
    assert sorted(order.tolist()) == list(range(rows * across))
    assert order[: block[1] + 1].tolist() == [*range(block[1]), across if block[0] > 1 else block[1]]


def band(length: int, block: int) -> Tensor:
    """What each token sees, by the mask of the authors' code for lines.

    Fewer tokens than two blocks hold are one block. The first block is a triangle; each other one meets the
    block before and itself, and of these two it sees a triangle, moved to the right by a block.
    """
    block = length if length < 2 * block else block
    whole = length + -length % block
    table = torch.zeros(whole, whole, dtype=torch.bool)
    table[:block, :block] = torch.ones(block, block).tril().bool()
    for start in range(block, whole, block):
        table[start : start + block, start - block : start + block] = torch.ones(block, 2 * block).tril(block)
    return table[:length, :length]


def digest(table: Tensor) -> int:
    return zlib.crc32(np.packbits(table.numpy()).tobytes())


@pytest.mark.parametrize(
    ("length", "block", "wanted"),
    [(64, 4, 3370355596), (64, 8, 743091636), (64, 16, 1528005797), (64, 64, 2365715467),
     (37, 8, 4145119463), (100, 8, 667744638), (100, 64, 3035275589)],
)  # fmt: skip
def test_local_is_what_tensor2tensor_sees(length: int, block: int, wanted: int) -> None:
    """`wanted`: of what reached the outputs of masked_local_attention_1d, tensor2tensor 1.15.7."""
    table = seen(Local(DIMS, block), length)[0]
    assert torch.equal(table, band(length, block))
    assert digest(table) == wanted


@pytest.mark.parametrize(
    ("rows", "across", "block", "flange", "wanted"),
    [(8, 8, (4, 4), (4, 4), 955764232), (8, 8, (4, 4), (4, 8), 955764232), (8, 8, (2, 4), (2, 2), 414453312),
     (8, 8, (4, 2), (3, 5), 89804636), (6, 9, (2, 3), (5, 1), 111531266), (8, 8, (8, 8), (0, 0), 2365715467)],
)  # fmt: skip
def test_local_2d_is_what_tensor2tensor_sees(
    rows: int, across: int, block: tuple[int, int], flange: tuple[int, int], wanted: int
) -> None:
    """`wanted`: of what reached the outputs of masked_local_attention_2d; its pixels stand row by row."""
    pattern = Local2D(DIMS, across, block, flange)
    back = pattern.order(rows).argsort()
    assert digest(seen(pattern, rows * across)[0][back][:, back]) == wanted


def test_two_hops_reach_everything_and_near_alone_does_not() -> None:
    """Child et al. 2019, section 4.2: a path of length p + 1 = 3 positions from every j <= i."""
    n = 64
    below = torch.ones(n, n).tril().bool()

    def hops(*patterns: Pattern) -> Tensor:
        reach = torch.eye(n)
        for pattern in patterns:  # the first layer first
            reach = (seen(pattern, n)[0].float() @ reach).clamp(max=1)
        return reach.bool()

    for stride in (4, 8, 10):
        first, second = (Strided(DIMS, stride, hop) for hop in ("first", "second"))  # type: ignore[arg-type]
        assert torch.equal(hops(first, second), below) and torch.equal(hops(second, first), below)
        assert torch.equal(hops(Strided(DIMS, stride), Strided(DIMS, stride)), below)
        assert not torch.equal(hops(first, first), below)
    for stride, c in ((8, 1), (8, 4), (16, 2)):
        first, second = (Fixed(DIMS, stride, c, hop) for hop in ("first", "second"))  # type: ignore[arg-type]
        between = torch.arange(n)[:, None] // stride > torch.arange(n) // stride
        assert hops(first, second)[between].all(), "every earlier block, through its last cell"
        assert torch.equal(hops(Fixed(DIMS, stride, c), Fixed(DIMS, stride, c)), below)
        assert not torch.equal(hops(first, first), below)


def test_few_keys_of_each_query() -> None:
    """|S_i| is near sqrt(n), not n."""
    for n in (64, 256, 1024):
        root, dims = round(n**0.5), Dims(width=16, heads=4, length=n)
        assert Strided(dims).stride == Fixed(dims).stride == root
        assert int(seen(Strided(dims), n).sum(-1).max()) <= 2 * root
        assert int(seen(Fixed(dims), n).sum(-1).max()) <= 2 * root


@pytest.mark.parametrize(
    "pattern",
    [
        Strided(DIMS, 5), Strided(DIMS, 4, "second"), Strided(DIMS, 6, "both", "code"),
        Dilated(DIMS, 3, 4), Dilated(DIMS, 5, 3, both=True),
        Fixed(DIMS, 6, 2, distinct=False), Fixed(DIMS, 6, 1, "second").head(2), Fixed(DIMS, 8, 4).head(1),
        Strided(DIMS, 5) | Window(DIMS, width=7), GlobalTokens(DIMS, 2) | Fixed(DIMS, 4, 2, distinct=False),
    ],
    ids=repr,
)  # fmt: skip
@pytest.mark.parametrize("n", [1, 5, 24, 50])
def test_lanes_and_the_rest_are_the_whole(pattern: Pattern, n: int) -> None:
    """In lanes, in the order of rows, exactly what the lanes say is seen, and all of that is in the pattern;
    blocks that the rest names hold whatever else is."""
    parts = pattern.split()
    assert parts is not None
    rest, lanes = parts
    pos = torch.arange(n)
    table, far = seen(pattern, n)[0], lanes(pos[:, None], pos[None])
    assert not (far & ~table).any()
    column = pos[None, None, :, None]
    i, j = lanes.queries(column, -1)[0, 0, ..., 0], lanes.keys(column, -1)[0, 0, ..., 0]  # (lanes, rows)
    assert i.shape == j.shape == (lanes.stride, lanes.rows(n))
    met = torch.zeros(n, n, dtype=torch.bool)
    for rows_i, rows_j in zip(i, j, strict=True):
        inside = lanes.inner(torch.arange(len(rows_i))[:, None], torch.arange(len(rows_j))[None])
        for a, b in inside.nonzero().tolist():
            if rows_i[a] >= 0 and rows_j[b] >= 0:
                assert not met[rows_i[a], rows_j[b]], "nothing is seen twice"
                met[rows_i[a], rows_j[b]] = True
    assert torch.equal(met, far)
    there = lanes.back(lanes.queries(column + 1.0), n)[0, 0, :, 0]
    assert (there == pos + 1.0)[there > 0].all() and there[far.any(1)].all()
    if rest is None:
        assert torch.equal(far, table)
        return
    for block in (3, 8):
        count = -(-n // block)
        blocks = rest.keys(block, count)
        assert blocks is not None
        near = torch.zeros(count * block, count * block, dtype=torch.bool)
        for number, row in enumerate(blocks.tolist()):
            for b in row:
                if b >= 0:
                    near[number * block : (number + 1) * block, b * block : (b + 1) * block] = True
        assert not (table & ~far & ~near[:n, :n]).any()


def test_heads_that_differ_have_a_pattern_each() -> None:
    fixed = Fixed(DIMS, 8, 2)
    assert fixed.by_head and fixed.split() is None
    assert isinstance((fixed.head(1).split() or (None, None))[1], Lanes)
    mixed = PerHead(DIMS, [of(Strided, stride=4, hop="first"), of(Fixed, stride=8, summaries=2)]) | fixed
    for pattern in (fixed, mixed, Strided(DIMS, 4)):
        table = seen(pattern, 40)
        for h in range(4):
            assert torch.equal(seen(pattern.head(h), 40)[0], table[h % len(table)])
            assert not pattern.head(h).by_head
    assert fixed.head(0) == fixed.head(4) != fixed.head(1), "8 = 4 sub-blocks of 2"
    assert hash(fixed.head(0)) == hash(fixed.head(4))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Fixed(DIMS, 8, 3), "summaries must divide the stride of a fixed pattern, but 3 does"),
        (lambda: Strided(DIMS, 0), "A stride must be at least 1, but is 0"),
        (lambda: Local(DIMS, 0), "Local blocks need a width of at least 1"),
        (lambda: Dilated(DIMS, 4, 0), "The step of a dilated window must be at least 1"),
        (lambda: GlobalTokens(DIMS, 0), "There must be at least 1 global token"),
        (lambda: Local2D(DIMS, 10, (4, 4)), "choose a width that divides 10"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(make: Callable[[], Pattern], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        make()


def test_a_pattern_is_written_and_read() -> None:
    assert kind_of(Local2D) == "local_2d"
    recipe = of(Local2D, across=8, block=(4, 2), flange=(2, 2))
    again = read(Pattern, write(recipe))
    assert again.build(DIMS) == recipe.build(DIMS)
