"""Latent attention: the formula, looking at latents against making keys, what is kept, refusals."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor

import regard
from regard.cost import cache_bytes
from regard.dims import Dims
from regard.errors import UsageError
from regard.laws import (
    beams_equal_forward,
    decode_equals_forward,
    future_is_blind,
    lively,
    rollback_equals_forward,
)
from regard.laws.asking import tokens
from regard.model import Decoder, Model
from regard.nn.cache import Cache
from regard.nn.context import Context
from regard.nn.init import T5, Normal, Xavier
from regard.nn.mixer import Latent
from regard.nn.pattern import Causal, Window
from regard.nn.position import Alibi, Position, Rotary, Shaw, TransformerXL
from regard.spec import Recipe, of

DIMS = Dims(width=24, heads=4, layers=1, length=40)


def mixer(queries: int | None = None) -> Latent:
    torch.manual_seed(0)
    return Latent(DIMS, pattern=of(Causal), position=of(Rotary), queries=queries, rank=20, shared=4).double()


def turned(x_LR: Tensor) -> Tensor:
    """Rotary, written out: halves n and n + R/2 by the angle i base^(-2n/R), in fp32 as there."""
    R, rows = x_LR.shape[1], []
    for i, x in enumerate(x_LR):
        row = list(x)
        for n in range(R // 2):
            angle = i * 10_000.0 ** (-torch.tensor(2.0 * n) / R)
            cos, sin, a, b = angle.cos().double(), angle.sin().double(), x[n], x[n + R // 2]
            row[n] = a * cos - b * sin
            row[n + R // 2] = b * cos + a * sin
        rows.append(torch.stack(row))
    return torch.stack(rows)


def rms(x: Tensor, g: Tensor) -> Tensor:
    return x / ((x**2).mean(-1, keepdim=True) + 1e-6).sqrt() * g


def naive(m: Latent, x_LD: Tensor) -> Tensor:
    """DeepSeek-V2, eqs. 9 to 19, one row, head by head."""
    K, R, C, H = m.size, m.shared, m.rank, m.heads
    c, kr = (x_LD @ m.down.weight.T).split([C, R], 1)
    c, kr = rms(c, m.norm.weight), turned(kr)
    cq = x_LD
    if m.q_down is not None and m.q_norm is not None:
        cq = rms(x_LD @ m.q_down.weight.T, m.q_norm.weight)
    q = cq @ m.q.weight.T
    keys, values = (c @ m.up.weight.T).chunk(2, 1)
    said = []
    for h in range(H):
        mine = q[:, h * (K + R) : (h + 1) * (K + R)]
        qh = torch.cat([mine[:, :K], turned(mine[:, K:])], 1)
        kh = torch.cat([keys[:, h * K : (h + 1) * K], kr], 1)
        rows = []
        for i in range(len(x_LD)):
            w = torch.softmax(kh[: i + 1] @ qh[i] / (K + R) ** 0.5, 0)
            rows.append(w @ values[: i + 1, h * K : (h + 1) * K])
        said.append(torch.stack(rows))
    return torch.cat(said, 1) @ m.out.weight.T


def slopes(m: Latent, y: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad((y * weight).sum(), list(m.parameters()), retain_graph=True)


@pytest.mark.parametrize("queries", [None, 10])
def test_the_formula_and_its_gradients(queries: int | None) -> None:
    m = mixer(queries)
    x, weight = torch.randn(2, 2, 9, 24, dtype=torch.double)
    got = m(x, Context(torch.arange(9)[None], plain=True))
    wanted = torch.stack([naive(m, row) for row in x])
    assert (got - wanted).abs().max() <= 1e-9
    for one, other in zip(slopes(m, got, weight), slopes(m, wanted, weight), strict=True):
        assert (one - other).abs().max() <= 1e-9


def test_looking_at_latents_is_looking_at_keys() -> None:
    """The absorbed form, gradients too: a cache that gives back what it is given shows it for all tokens."""
    m = mixer()
    x, weight = torch.randn(2, 2, 8, 24, dtype=torch.double)
    pos_BL, asked = torch.arange(8)[None], list[int]()

    def extend(
        path: str, c: Tensor, r: Tensor, reach: int | None, shared: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        asked.append(c.shape[-1] + r.shape[-1])
        return c, r, pos_BL

    fake = SimpleNamespace(states=False, extend=extend, plain=True, capacity=0, seen_BM=None, own_BNM=None)
    cache = cast(Cache, fake)
    made, absorbed = (m(x, Context(pos_BL, plain=True, cache=c)) for c in (None, cache))
    assert asked == [24] and 8 * (20 - 6) < 20 * 6, "few enough to look at latents"
    assert (absorbed - made).abs().max() <= 1e-12
    for one, other in zip(slopes(m, made, weight), slopes(m, absorbed, weight), strict=True):
        assert (one - other).abs().max() <= 1e-9


def latent_gpt(width: int = 16, position: Recipe[Position] | None = None, **options: Any) -> Recipe[Model]:
    gpt = regard.system("gpt", vocab=13, width=width, heads=4, layers=2, length=48, position=position)
    stack = gpt.options["stack"]
    block = stack.options["block"]
    bodies = block.options["sublayers"] | {"self": of(Latent, **{"pattern": of(Causal), **options})}
    return gpt.but(stack=stack.but(block=block.but(sublayers=bodies)))


def model(position: Recipe[Position] | None = None, **options: Any) -> Decoder:
    built = lively(latent_gpt(position=position, **options))
    assert isinstance(built, Decoder)
    return built


@pytest.mark.parametrize(
    ("position", "options"),
    [
        (of(Rotary), {}),
        (of(Rotary), {"pattern": of(Window, width=5), "queries": 7}),
        (of(Alibi), {"rank": 5, "shared": 3}),
        (of(Shaw, distance=4, on="keys"), {}),
    ],
)
def test_any_cache(position: Recipe[Position], options: dict[str, Any]) -> None:
    built = model(position, **options)
    assert future_is_blind(built) == 0
    for static in (False, True):
        assert decode_equals_forward(built, static, 1) < 1e-4
        assert decode_equals_forward(built, static, 7, pads="plain") < 1e-4
        assert beams_equal_forward(built, static) < 1e-4
        assert rollback_equals_forward(built, static) < 1e-4


@pytest.mark.parametrize("precision", ["full", "int8"])
@pytest.mark.parametrize("window", [None, 5])
def test_only_the_latents_are_kept(precision: Any, window: int | None) -> None:
    built = model(of(Rotary), rank=6, shared=2, pattern=of(Window, width=window) if window else of(Causal))
    cache = built.cache(3, precision=precision)
    with torch.no_grad():
        built(tokens(3), cache=cache)
    one = 8 * 4 if precision == "full" else 8 + 2 * 2
    assert cache.nbytes == 3 * (window or 18) * one * 2
    [(text, found)] = cache_bytes(built, 3, 18, "fp32", precision)
    assert found == cache.nbytes
    if window is None:
        full = "3 x 18 tokens x (6 + 2) x 2 layers x 4 bytes"
        assert text == (
            full if precision == "full" else "3 x 18 tokens x (6 + 2 + 4 scale) x 2 layers x 1 byte"
        )


def test_birth() -> None:
    """What is written back is smaller by depth; keys and values are drawn each by itself; T5 by fan-in."""
    recipe = latent_gpt(width=128, rank=64)
    for init, stds in (
        (of(Normal, std=0.02, depth=True), {"out": 0.01, "up": 0.02, "q": 0.02}),
        (of(Xavier), {"out": 128**-0.5, "up": (2 / (64 + 128)) ** 0.5, "q": (2 / (128 + 192)) ** 0.5}),
        (of(T5), {"out": 128**-0.5, "up": 64**-0.5, "q": 128**-0.5}),
    ):
        built = regard.build(recipe.but(init=init))
        part = next(m for m in built.modules() if isinstance(m, Latent))
        for name, std in stds.items():
            assert getattr(part, name).weight.std().item() == pytest.approx(std, rel=0.05), name


@pytest.mark.parametrize("position", [of(Shaw), of(TransformerXL)])
def test_positions_that_need_whole_heads_are_refused_when_built(position: Recipe[Position]) -> None:
    with pytest.raises(UsageError, match="positions cannot add to values or to whole queries, but"):
        model(position)
    with pytest.raises(UsageError, match="cannot add to values"):
        Latent(DIMS, position=position)
