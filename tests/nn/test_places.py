"""Positions that are added: by layer, by step, by row and column; by formula, one token at a time."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from regard.dims import Dims
from regard.errors import UsageError
from regard.laws.subjects import enlivened
from regard.nn.block import Serial
from regard.nn.context import Context, places
from regard.nn.ffn import Dense
from regard.nn.init import Normal
from regard.nn.mixer import Attention
from regard.nn.pattern import Local2D
from regard.nn.position import Axial, Coordinate, Grid, Learned, Position, TransformerXL
from regard.nn.stack import Sequential
from regard.spec import of

DIMS = Dims(width=16, heads=4, layers=3, length=24)
POS = places(torch.tensor([[1] * 9, [-1, -1, 1, 1, -1, 1, 1, 1, -1]]))
PLAIN = torch.arange(24)[None]


def added(part: Position, pos: Tensor = PLAIN) -> Tensor:
    return part.add(torch.zeros(1, pos.shape[1], 16), pos)[0]


def wave(at: int, width: int) -> Tensor:
    pairs = [(math.sin(a), math.cos(a)) for a in (at / 10000 ** (2 * n / width) for n in range(width // 2))]
    return torch.tensor([x for pair in pairs for x in pair])


def test_each_layer_may_have_a_table_of_its_own() -> None:
    """Al-Rfou: N x L x D numbers, added before every layer."""
    part, one = enlivened(Learned(DIMS, every=True)), Learned(DIMS)
    assert tuple(part.table.weight.shape) == (3 * 24, 16) and tuple(one.table.weight.shape) == (24, 16)
    for n in range(3):
        assert torch.equal(added(part.at(n)), part.table.weight[24 * n : 24 * (n + 1)])
    assert part.every and not one.every and one.at(2) is one
    block = of(Serial, sublayers={"ffn": of(Dense, hidden=8)})
    stack = enlivened(Sequential(DIMS, block=block, position=of(Learned, every=True), leave=None))
    x = torch.randn(2, 9, 16)
    wanted, tables = x, stack.position.table.weight.view(3, 24, 16)  # type: ignore[union-attr, operator]
    for n, layer in enumerate(stack.blocks):
        wanted = layer(wanted + tables[n][POS.clamp(min=0)], Context(POS))
    assert torch.equal(stack(x, Context(POS)), wanted)


def test_coordinates_are_position_and_step_both_counted_from_one() -> None:
    part = Coordinate(DIMS)
    for t in range(3):
        for i in range(24):
            assert torch.allclose(added(part.at(t))[i], wave(i + 1, 16) + wave(t + 1, 16), atol=1e-6)
    learned = enlivened(Coordinate(DIMS, step="learned"))
    assert learned.steps is not None
    wanted = torch.stack([wave(i + 1, 16) for i in range(24)]) + learned.steps.weight[2]
    assert torch.allclose(added(learned.at(2)), wanted, atol=1e-6)


def test_coordinates_are_in_the_stream_and_in_what_is_asked() -> None:
    """A^t = LN((H + P^t) + MHSA(H + P^t)): the dossier's error 30 leaves P^t out of the residual."""
    block = of(Serial, sublayers={"self": of(Attention)}, order="post")
    stack = enlivened(Sequential(DIMS, block=block, position=of(Coordinate)))
    x = torch.randn(2, 9, 16)
    wanted, part = x, Coordinate(DIMS)
    for t, layer in enumerate(stack.blocks):
        here = part.at(t).add(wanted, POS)
        body = layer.sublayers["self"]  # type: ignore[index, union-attr]
        wanted = body.norm(here + body.body(here, Context(POS)))
    assert torch.allclose(stack(x, Context(POS))[POS >= 0], wanted[POS >= 0], atol=1e-6)


@pytest.mark.parametrize("colours", [1, 3])
def test_a_grid_adds_rows_columns_and_colours(colours: int) -> None:
    part = enlivened(Grid(DIMS, across=6, colours=colours))
    assert [len(t.weight) for t in part.tables] == [4, 6 // colours, *([3] if colours == 3 else [])]
    rows, columns, *more = (t.weight for t in part.tables)
    for i in range(24):
        wanted = rows[i // 6] + columns[i % 6 // colours]
        wanted = wanted + more[0][i % 6 % 3] if more else wanted
        assert torch.allclose(added(part)[i], wanted)


def test_a_grid_of_waves_gives_each_axis_a_part_of_the_width() -> None:
    part = Grid(DIMS, across=6, form="sinusoidal")
    for i in range(24):
        assert torch.allclose(added(part)[i], torch.cat([wave(i // 6, 8), wave(i % 6, 8)]), atol=1e-6)
    three = Grid(DIMS.but(width=12), across=6, colours=3, form="sinusoidal")
    found = three.add(torch.zeros(1, 24, 12), PLAIN)[0]
    assert torch.allclose(found[11], torch.cat([wave(1, 4), wave(1, 4), wave(2, 4)]), atol=1e-6)


def test_a_picture_written_in_blocks_is_placed_as_its_pattern_sees_it() -> None:
    part, pattern = Grid(DIMS, across=6, block=(2, 3)), Local2D(DIMS, across=6, block=(2, 3))
    row, column = part.places(PLAIN)
    wanted = pattern.place(PLAIN)
    assert torch.equal(row, wanted[0]) and torch.equal(column, wanted[1])
    assert sorted((row * 6 + column)[0].tolist()) == list(range(24))
    assert len(Grid(DIMS.but(length=25), across=6, block=(2, 3)).tables[0].weight) == 6  # type: ignore[arg-type]


def test_axial_positions_are_two_small_tables() -> None:
    part = enlivened(Axial(DIMS, across=6, rows=5))
    assert part.rows.weight.shape == (4, 5) and part.columns.weight.shape == (6, 11)
    both = enlivened(Axial(DIMS, across=7, join="added"))
    assert both.rows.weight.shape == (4, 16) and both.columns.weight.shape == (7, 16)
    for i in range(24):
        assert torch.equal(added(part)[i], torch.cat([part.rows.weight[i // 6], part.columns.weight[i % 6]]))
        assert torch.equal(added(both)[i], both.rows.weight[i // 7] + both.columns.weight[i % 7])
    assert Axial(DIMS.but(length=4096)).across == 64 and Axial(DIMS.but(length=4097)).across == 65


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Coordinate(Dims(width=15)), "width must be even, but is 15"),
        (lambda: Grid(DIMS, across=7, colours=3), "must fill a line of 7, but there are 3 colours"),
        (lambda: Grid(DIMS, across=6, block=(2, 4)), r"block is \[2, 4\]; choose numbers that divide 6"),
        (lambda: Grid(DIMS.but(width=14, head=4), form="sinusoidal"), "choose a multiple of 4"),
        (lambda: Axial(DIMS, rows=16), "across is 5 and rows 16"),
    ],
)
def test_what_cannot_be_is_refused_when_built(make: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        make()


@pytest.mark.parametrize("part", [Learned, Grid, Axial, Coordinate], ids=lambda part: part.__name__)
def test_tables_that_are_added_are_born_with_the_std_of_positions(part: Any) -> None:
    """GPT-2: 0.01 for positions, 0.02 for all else."""
    options = {"step": "learned"} if part is Coordinate else {}
    place = part(Dims(width=64, heads=4, layers=9, length=900), **options)
    Normal(std=0.02, position=0.01)(place)
    stds = [float(p.detach().std()) for p in place.parameters()]
    assert stds and all(0.009 < std < 0.011 for std in stds)


def test_the_vectors_of_transformer_xl_are_born_like_matrices() -> None:
    place = TransformerXL(Dims(width=256, heads=4))
    Normal(std=0.1)(place)
    assert all(0.08 < float(p.detach().std()) < 0.12 for p in place.parameters())
