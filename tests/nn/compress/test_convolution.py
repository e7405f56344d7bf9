"""Memory-compressed attention: the formula, who sees which group, the cache and its bytes, refusals."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import regard
from regard.dims import Dims
from regard.errors import UsageError
from regard.laws import beams_equal_forward, decode_equals_forward, lively, rollback_equals_forward
from regard.laws.asking import tokens
from regard.model import Decoder
from regard.nn.compress import Convolution
from regard.nn.context import Context, plain_places
from regard.nn.mixer import Attention
from regard.nn.pattern import Causal, Full, Pattern, Window
from regard.nn.position import Alibi, Position, Rotary
from regard.spec import Recipe, of

DIMS = Dims(width=24, heads=4, layers=1, length=40)


def attention(width: int = 3, groups: int | None = None) -> Attention:
    torch.manual_seed(0)
    fold = of(Convolution, width=width)
    return Attention(DIMS, pattern=of(Causal), compress=fold, groups=groups).double()


def naive(a: Attention, x_LD: Tensor) -> Tensor:
    """One row, query by query: the first key, then each group of w tokens that is full by then."""
    part, K, per = a.compress, a.size, a.heads // a.groups
    assert isinstance(part, Convolution)
    w = part.width
    q, k, v = a.qkv(x_LD).split([a.heads * K, a.groups * K, a.groups * K], 1)
    said = []
    for i in range(len(x_LD)):
        heads = []
        for h in range(a.heads):
            g = h // per
            mine = slice(g * K, (g + 1) * K)
            keys, values = [k[0, mine]], [v[0, mine]]
            for m in range((i + 1) // w):
                taps = [(w * m + n, slice(n * K, (n + 1) * K)) for n in range(w)]
                keys.append(sum((k[t, mine] @ part.k[g, rows] for t, rows in taps), torch.zeros(K).double()))
                values.append(
                    sum((v[t, mine] @ part.v[g, rows] for t, rows in taps), torch.zeros(K).double())
                )
            weight = torch.softmax(torch.stack(keys) @ q[i, h * K : (h + 1) * K] / K**0.5, 0)
            heads.append(weight @ torch.stack(values))
        said.append(torch.cat(heads))
    out: Tensor = a.out(torch.stack(said))
    return out


@pytest.mark.parametrize(("width", "groups", "length"), [(3, None, 13), (2, 2, 8), (4, 1, 3)])
def test_the_formula_and_its_gradients(width: int, groups: int | None, length: int) -> None:
    a = attention(width, groups)
    x, weight = torch.randn(2, 2, length, 24, dtype=torch.double)
    got = a(x, Context(plain_places(0, length, x.device), plain=True))
    wanted = torch.stack([naive(a, row) for row in x])
    assert (got - wanted).abs().max() <= 1e-9
    own = [p for p in a.parameters() if length >= width or p.ndim < 3]
    for one, other in zip(
        torch.autograd.grad((got * weight).sum(), own),
        torch.autograd.grad((wanted * weight).sum(), own),
        strict=True,
    ):
        assert (one - other).abs().max() <= 1e-9


def test_a_group_is_seen_once_it_is_full_and_the_first_token_always() -> None:
    a, x = attention(), torch.randn(1, 10, 24, dtype=torch.double)
    tape: dict[str, Tensor] = {}
    a(x, Context(torch.arange(10)[None], plain=True, path="a", tape=tape))
    seen = tape["a"][0, 0] > 0
    assert seen.shape == (10, 4)
    assert [row.nonzero()[:, 0].tolist() for row in seen] == [
        *([[0]] * 2),
        *([[0, 1]] * 3),
        *([[0, 1, 2]] * 3),
        *([[0, 1, 2, 3]] * 2),
    ]


def model(position: Recipe[Position] | None = None, **options: Any) -> Decoder:
    given = {"vocab": 13, "width": 16, "heads": 4, "layers": 2, "length": 200, "local": 5, "dropout": 0.0}
    recipe = regard.system("memory_compressed", **given, **options)
    if position is not None:
        recipe = recipe.but(stack=recipe.options["stack"].but(position=position))
    built = lively(recipe)
    assert isinstance(built, Decoder)
    return built


@pytest.mark.parametrize(("fold", "position"), [(2, of(Alibi)), (5, of(Rotary))])
def test_any_cuts_any_padding_any_cache(fold: int, position: Recipe[Position] | None) -> None:
    built = model(position, fold=fold, groups=2)
    for static in (False, True):
        for chunk, pads in ((1, "left"), (4, "middle"), (1, "plain"), (4, "plain")):
            assert decode_equals_forward(built, static, chunk, pads=pads) < 1e-4
        assert beams_equal_forward(built, static) < 1e-4
        assert rollback_equals_forward(built, static) < 1e-4


def test_a_growing_cache_grows_past_its_first_buffer() -> None:
    built, ids = model(), tokens(2, 200)
    with torch.no_grad():
        cache = built.cache(2)
        pieces = [built(piece, cache=cache) for piece in ids.split([70, 61, 1, 1, 67], 1)]
        assert (torch.cat(pieces, 1) - built(ids))[ids >= 0].abs().max() < 1e-4


def test_bytes_are_those_of_a_third() -> None:
    built = model()
    for length, spare in ((None, 0), (None, 4), (60, 0), (60, 4)):
        cache = built.cache(3, length, spare)
        with torch.no_grad():
            built(tokens(3, 50), cache=cache)
        fed = length or 50
        near, far = min(fed, 5 + spare), 1 + fed // 3 + 3 + spare
        assert cache.nbytes == 2 * 3 * (near + far) * 16 * 4


def test_taking_back_more_than_is_spared_is_refused() -> None:
    built = model()
    cache = built.cache(1)
    with torch.no_grad():
        built(tokens(1, 10, "plain"), cache=cache)
    with pytest.raises(UsageError, match="has let go of keys that would be needed again"):
        cache.rollback(2)


@pytest.mark.parametrize("states", [True, False])
def test_a_memory_over_segments_is_refused(states: bool) -> None:
    built = model()
    with pytest.raises(UsageError, match=r"cannot recall|cannot be carried"):
        built(tokens(1, 10, "plain"), cache=built.recent(1, 8, states))


@pytest.mark.parametrize("pattern", [of(Full), of(Window, width=9)])
def test_other_patterns_are_refused_when_built(pattern: Recipe[Pattern]) -> None:
    with pytest.raises(UsageError, match="need the pattern causal, but it is"):
        Attention(DIMS, pattern=pattern, compress=of(Convolution))
    with pytest.raises(UsageError, match="at least 2 tokens"):
        Convolution(DIMS, width=1)


def test_folded_keys_are_born_as_large_as_keys() -> None:
    torch.manual_seed(0)
    t = torch.randn(2, 2, 300, 32)
    part = Convolution(Dims(width=64, heads=2))
    k, v, _ = part(t, t, Context(torch.arange(300)[None], plain=True))
    assert 0.9 < k.std() < 1.1 and 0.9 < v.std() < 1.1
