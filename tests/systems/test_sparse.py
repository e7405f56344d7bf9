"""Sparse Transformer, Image Transformer, Longformer: what their papers say of them."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

import regard
from regard.dims import Dims
from regard.laws import lively
from regard.model import Decoder, build
from regard.nn.context import Context
from regard.nn.pattern import Local2D, PerHead
from regard.systems import SYSTEMS

SMALL: dict[str, Any] = {"width": 16, "heads": 4, "layers": 4, "length": 64, "vocab": 11}


def parameters(name: str, size: str) -> float:
    """In millions; nothing is allocated."""
    with torch.device("meta"):
        return sum(p.numel() for p in regard.system(name, size).build().parameters()) / 1e6


@pytest.mark.parametrize(("size", "millions"), [("cifar10", 68), ("imagenet64", 152), ("enwik8", 95)])
def test_sparse_transformers_are_as_large_as_in_the_paper(size: str, millions: int) -> None:
    """Table 1: 59M, 152M, 95M; CIFAR's queries and keys are half as wide there, which is 8M."""
    assert round(parameters("sparse_transformer", size)) == millions


def test_the_blocks_of_the_sparse_transformer() -> None:
    """H + a(H) + b(H), a = attn(norm(H)), b = ff(norm(H + a)): section 5.2, with x s(1.702 x)."""
    model = lively(regard.system("sparse_transformer", **SMALL))
    assert isinstance(model, Decoder)
    block: Any = model.decoder.blocks[0]  # type: ignore[union-attr, index]
    own, ffn = block.sublayers["self"], block.sublayers["ffn"]
    x = torch.randn(1, 20, 16)
    ctx = Context(torch.arange(20)[None], True)
    a = own.body(own.norm(x), ctx)
    h = ffn.body.up(ffn.norm(x + a))
    b = ffn.body.down(h * torch.sigmoid(1.702 * h))
    assert (block(x, ctx) - (x + a + b)).abs().max() < 1e-5


def test_the_sparse_transformer_is_born_as_in_the_paper() -> None:
    """N(0, 0.125 / sqrt(d_in)); the last matrix of a sublayer by 1 / sqrt(2N) smaller; answers zero."""
    recipe = regard.system("sparse_transformer", width=256, heads=4, layers=3, length=64, vocab=50)
    model = build(recipe)
    found = {n: float(p.detach().std()) for n, p in model.named_parameters() if p.ndim > 1}
    for name, std in found.items():
        ins = {"down": 1024}.get(name.split(".")[-2], 256)
        wanted = 0.125 / math.sqrt(ins) / (math.sqrt(6) if ".out." in name or ".down." in name else 1)
        assert std == pytest.approx(0.0 if name.startswith("head") else wanted, rel=0.1), name
    logits = model(torch.randint(0, 50, (2, 9)))
    assert not logits.any(), "every answer is equally likely at birth"


def test_ways_of_the_sparse_transformer() -> None:
    merged = lively(regard.system("sparse_transformer", **SMALL))
    layers = lively(regard.system("sparse_transformer", way="layers", **SMALL))
    heads = lively(regard.system("sparse_transformer", way="heads", pattern="fixed", **SMALL))

    def patterns(model: Any) -> list[Any]:
        return [block.sublayers["self"].body.pattern for block in model.decoder.blocks]

    assert [p.hop for p in patterns(merged)] == ["both"] * 4
    assert [p.hop for p in patterns(layers)] == ["first", "second"] * 2
    assert all(isinstance(p, PerHead) for p in patterns(heads))
    assert [p.hop for p in patterns(heads)[0].patterns] == ["first", "second"]


@pytest.mark.parametrize("local", ["1d", "2d"])
def test_an_image_of_two_pixels_has_a_likelihood(local: str) -> None:
    """Over all images of 2 x 1 pixels with 5 levels, what the model says sums to 1."""
    options = {"local": local, "across": 2, "block": 2, "tile": (1, 1), "flange": (1, 1)}
    model = lively(regard.system("image_transformer", **{**SMALL, "vocab": 6, **options}))
    total = 0.0
    with torch.no_grad():
        for first, second in itertools.product(range(5), repeat=2):
            ids = torch.tensor([[5, first]])  # 5 begins
            logp = model(ids)[0, :, :5].double().log_softmax(-1)
            total += math.exp(float(logp[0, first] + logp[1, second]))
    assert total == pytest.approx(1.0, abs=1e-9)


def test_images_are_written_block_by_block() -> None:
    """Causal in the order of writing, by gradient; a pixel hears what is to the right above it, too."""
    options = {"local": "2d", "across": 8, "tile": (4, 4), "flange": (4, 4)}
    model = lively(regard.system("image_transformer", **{**SMALL, "layers": 1, **options}))
    pattern = Local2D(Dims(width=16), 8, (4, 4), (4, 4))
    x = model.embed(torch.randint(0, 11, (1, 64))).detach().requires_grad_()  # type: ignore[union-attr, operator]
    ctx = Context(torch.arange(64)[None], True)
    y = model.decoder(x, ctx)  # type: ignore[union-attr, operator]
    heard = torch.zeros(64, 64, dtype=torch.bool)
    for i in range(64):
        (slope,) = torch.autograd.grad(y[0, i].sum() + y[0, i].square().sum(), x, retain_graph=True)
        heard[i] = slope[0].abs().sum(-1) > 0
    at = torch.arange(64)
    assert torch.equal(heard, pattern(at[:, None], at[None]))
    place = {(int(r), int(c)): n for n, (r, c) in enumerate(zip(*pattern.place(at)[:2], strict=True))}
    assert heard[place[4, 0], place[3, 7]], "right above, in a block written before"
    assert not heard[place[0, 3], place[0, 4]], "to the right, not yet written"
    assert place[1, 0] == 4 and place[0, 4] == 16


def test_in_longformer_two_layers_carry_anything_anywhere() -> None:
    options = {"window": 2, "dropout": 0.0, "head": "each", "classes": 3}

    def moved(layers: int, count: int, far: int = 20) -> float:
        recipe = regard.system("longformer", **{**SMALL, "layers": layers, "count": count, **options})
        model = lively(recipe)
        ids = torch.randint(0, 11, (1, 30), generator=torch.Generator().manual_seed(0))
        other = ids.clone()
        other[0, far] = (ids[0, far] + 1) % 11
        with torch.no_grad():
            return float((model(ids) - model(other))[0, 5].abs().max())

    assert moved(2, 1) > 1e-4, "through the global token"
    assert moved(1, 1) == 0.0, "one layer does not reach that far"
    assert moved(1, 1, 7) > 1e-3, "within the window"
    tape: dict[str, Tensor] = {}
    lively(regard.system("longformer", **{**SMALL, "count": 2, **options}))(
        torch.ones(1, 30).long(), tape=tape
    )
    seen = tape["encoder/0/self"][0, 0] > 0
    assert seen[0].all() and seen[1].all() and seen[:, :2].all()
    assert seen[15].nonzero().flatten().tolist() == [0, 1, 13, 14, 15, 16, 17]


def test_all_sizes_build_on_paper() -> None:
    for name in ("sparse_transformer", "image_transformer", "longformer"):
        for size in SYSTEMS[name].sizes:
            assert parameters(name, size) > 10
