"""Linformer: the formula, exactness where nothing is lost, sharing, padding, refusals."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import regard
from regard.dims import Dims
from regard.errors import UsageError
from regard.model import Encoder, Model
from regard.nn.block import Serial
from regard.nn.compress import Linformer
from regard.nn.context import Context, places, plain_places
from regard.nn.ffn import Dense
from regard.nn.mixer import Attention
from regard.nn.pattern import Causal, Pattern, Prefix, Window
from regard.nn.position import Alibi, Learned, Rotary, T5Bias
from regard.nn.stack import Sequential
from regard.spec import Recipe, of

DIMS = Dims(width=24, heads=4, layers=3, length=12)


def attention(groups: int | None = None, **options: Any) -> Attention:
    torch.manual_seed(0)
    return Attention(DIMS, compress=of(Linformer, **options), groups=groups).double()


def naive(a: Attention, x_LD: Tensor, e_HML: Tensor, f_HML: Tensor) -> Tensor:
    """One row, head by head and query by query, as the paper writes it; E and F for each head."""
    K, per = a.size, a.heads // a.groups
    q, k, v = a.qkv(x_LD).split([a.heads * K, a.groups * K, a.groups * K], 1)
    said = []
    for h in range(a.heads):
        g = h // per
        keys = sum(e_HML[g][:, n, None] * k[None, n, g * K : (g + 1) * K] for n in range(len(x_LD)))
        values = sum(f_HML[g][:, n, None] * v[None, n, g * K : (g + 1) * K] for n in range(len(x_LD)))
        rows = [torch.softmax(q[i, h * K : (h + 1) * K] @ keys.T / K**0.5, 0) @ values for i in range(len(q))]
        said.append(torch.stack(rows))
    out: Tensor = a.out(torch.cat(said, 1))
    return out


@pytest.mark.parametrize("sharing", ["none", "headwise", "kv", "layerwise"])
@pytest.mark.parametrize("groups", [None, 2])
@pytest.mark.parametrize("length", [12, 7])
def test_the_formula_and_its_gradients(sharing: str, groups: int | None, length: int) -> None:
    a = attention(groups, keys=5, sharing=sharing)
    part = a.compress
    assert isinstance(part, Linformer)
    x = torch.randn(2, length, 24, dtype=torch.double)
    e, f = part.e[..., :length], (part.e if part.f is None else part.f)[..., :length]
    e, f = (t if t.ndim == 3 else t.expand(a.groups, -1, -1) for t in (e, f))
    weight = torch.randn(2, length, 24, dtype=torch.double)
    got = a(x, Context(plain_places(0, length, x.device), plain=True))
    wanted = torch.stack([naive(a, row, e, f) for row in x])
    assert (got - wanted).abs().max() <= 1e-9
    own = list(a.parameters())
    for one, other in zip(
        torch.autograd.grad((got * weight).sum(), own),
        torch.autograd.grad((wanted * weight).sum(), own),
        strict=True,
    ):
        assert (one - other).abs().max() <= 1e-9


def test_nothing_is_lost_where_each_key_is_a_token() -> None:
    """k = n and E = F = I: exact attention."""
    a = attention(keys=12, sharing="kv")
    torch.manual_seed(0)
    dense = Attention(DIMS).double()
    dense.load_state_dict({n: p for n, p in a.state_dict().items() if not n.startswith("compress")})
    assert isinstance(a.compress, Linformer)
    a.compress.e.data.copy_(torch.eye(12))
    x, ctx = torch.randn(3, 12, 24, dtype=torch.double), Context(torch.arange(12)[None], plain=True)
    assert (a(x, ctx) - dense(x, ctx)).abs().max() <= 1e-12


@pytest.mark.parametrize("pads", ["left", "right", "middle"])
def test_a_token_meets_the_column_of_its_position(pads: str) -> None:
    a = attention(keys=5, sharing="none")
    x = torch.randn(1, 6, 24, dtype=torch.double)
    alone = a(x, Context(torch.arange(6)[None], plain=True))
    at = {"left": [4, 5, 6, 7, 8, 9], "right": [0, 1, 2, 3, 4, 5], "middle": [0, 2, 3, 6, 8, 9]}[pads]
    ids = torch.full((1, 10), -1)
    ids[0, at] = 1
    wide = torch.randn(1, 10, 24, dtype=torch.double)
    wide[0, at] = x[0]
    assert (a(wide, Context(places(ids)))[:, at] - alone).abs().max() <= 1e-12


def stack(**options: Any) -> Recipe[Sequential]:
    position = options.pop("position", of(Learned))
    attending = of(Attention, compress=of(Linformer, **options))
    return of(
        Sequential, block=of(Serial, sublayers={"self": attending, "ffn": of(Dense)}), position=position
    )


def test_layers_share_one_matrix() -> None:
    counts = {"none": 3 * 2 * 4, "headwise": 3 * 2, "kv": 3, "layerwise": 1}
    for sharing, count in counts.items():
        built = stack(keys=5, sharing=sharing).build(DIMS)
        own = {id(p): p.numel() for m in built.modules() if isinstance(m, Linformer) for p in m.parameters()}
        assert sum(own.values()) == count * 5 * 12


def test_layers_that_cannot_share_are_refused() -> None:
    sizes = [of(Attention, compress=of(Linformer, keys=n, sharing="layerwise")) for n in (3, 4)]
    block = [of(Serial, sublayers={"self": a, "ffn": of(Dense)}) for a in sizes]
    with pytest.raises(UsageError, match="with as many keys, but the first has"):
        of(Sequential, block=block).build(DIMS)


@pytest.mark.parametrize("pattern", [of(Causal), of(Window, width=3), of(Prefix, length=4)])
def test_hiding_the_future_is_refused_when_built(pattern: Recipe[Pattern]) -> None:
    with pytest.raises(UsageError, match=r"its pattern must be full, but is .*; use it in an encoder"):
        Attention(DIMS, pattern=pattern, compress=of(Linformer))


@pytest.mark.parametrize("position", [of(Alibi), of(T5Bias, causal=False)])
def test_a_bias_of_places_is_refused_when_built(position: Any) -> None:
    with pytest.raises(UsageError, match="stand nowhere, so that positions cannot be a bias on scores"):
        stack(position=position).build(DIMS)
    with pytest.raises(UsageError, match="stand nowhere"):
        Attention(DIMS, compress=of(Linformer), position=position)
    stack(position=of(Rotary)).build(DIMS)


def test_a_cache_and_more_tokens_than_columns_are_refused() -> None:
    model = regard.build(regard.system("linformer", vocab=13, width=24, heads=4, layers=2, length=12, keys=5))
    assert isinstance(model, Encoder) and model.limit == 12
    with pytest.raises(UsageError, match="holds 12 positions, but 13 are needed"):
        model(torch.ones(1, 13, dtype=torch.long))
    part = next(m for m in model.modules() if isinstance(m, Linformer))
    t = torch.zeros(1, 4, 3, 6)
    with pytest.raises(UsageError, match="cannot go on from a cache"):
        part(t, t, Context(torch.arange(3)[None], plain=True, cache=model.cache(1)))


def test_the_system_keeps_its_matrix_once(tmp_path: Any) -> None:
    recipe = regard.system(
        "linformer", vocab=13, width=24, heads=4, layers=3, length=12, keys=5, sharing="layerwise"
    )
    model: Model = regard.build(recipe)
    regard.save(model, tmp_path / "m")
    again = regard.load(tmp_path / "m").model
    parts = [m for m in again.modules() if isinstance(m, Linformer)]
    assert len(parts) == 3 and all(p.e is parts[0].e for p in parts)
    assert torch.equal(parts[0].e, next(m for m in model.modules() if isinstance(m, Linformer)).e)


def test_mixed_keys_are_born_as_large_as_keys() -> None:
    torch.manual_seed(0)
    dims = Dims(width=64, heads=2, length=300)
    t = torch.randn(2, 2, 300, 32)
    k, v, where = Linformer(dims, keys=50)(t, t, Context(torch.arange(300)[None], plain=True))
    assert where is None and k.shape == (2, 2, 50, 32)
    assert 0.9 < k.std() < 1.1 and 0.9 < v.std() < 1.1
