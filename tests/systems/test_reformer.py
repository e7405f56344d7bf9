"""Reformer: the sizes of the paper, layers that alternate, and what it cannot do."""

from __future__ import annotations

import pytest
import torch

import regard
from regard.cost import cost, parameters, shapes_only
from regard.errors import UsageError
from regard.nn.mixer import Attention, Lsh
from regard.nn.stack import Reversible
from regard.systems import recipe

TINY = {"vocab": 11, "width": 16, "heads": 2, "layers": 4, "length": 64, "hidden": 24}


def test_looks_are_cycled_over_depth() -> None:
    model = regard.build(recipe("reformer", **TINY, looks=["local", "lsh"], local=8, chunk=4))
    assert isinstance(model.decoder, Reversible)
    kinds = [type(block.sublayers["self"].body) for block in model.decoder.blocks]
    assert kinds == [Attention, Lsh, Attention, Lsh]
    ids_BL = torch.randint(0, 11, (2, 40), generator=torch.Generator().manual_seed(0))
    cache = model.eval().cache(2)
    with torch.no_grad():
        steps = [model(part, cache=cache) for part in ids_BL.split([23, *[1] * 17], 1)]
        assert (torch.cat(steps, 1) - model(ids_BL)).abs().max() < 1e-4


def test_sizes() -> None:
    with shapes_only(torch.float32):
        big = parameters(recipe("reformer", "enwik8").build())
    assert 120e6 < big.body < 150e6
    assert big.embedding < 0.01 * big.total, "65536 places in two short tables"
    small = cost(recipe("reformer", "copy"), length=512)
    assert small.parameters.total < 5e6 and small.flops > 2 * small.parameters.body


def test_the_modes_of_the_paper_learn_but_do_not_write() -> None:
    for mode in ("paper", "trax"):
        model = regard.build(recipe("reformer", **TINY, mode=mode))
        ids_BL = torch.randint(0, 11, (1, 12))
        model(ids_BL).sum().backward()
        with pytest.raises(UsageError, match="mode='near'"):
            model(ids_BL, cache=model.cache(1))


def test_positions_that_need_one_order_for_all_heads_are_refused_when_it_is_built() -> None:
    with pytest.raises(UsageError, match="Alibi changes scores or values"):
        regard.build(recipe("reformer", **TINY, position=regard.of(regard.nn.position.Alibi)))
