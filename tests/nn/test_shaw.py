"""Shaw's relative keys and values: by loops in float64, gradients too; what a cached step costs."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

import regard.nn.attend
from regard.dims import Dims
from regard.errors import UsageError
from regard.laws.subjects import enlivened
from regard.nn.attend import attend
from regard.nn.context import Context, How, places
from regard.nn.mixer import Attention
from regard.nn.pattern import Causal, Full, Pattern, Window
from regard.nn.position import Shaw
from regard.nn.score import Dot
from regard.spec import of

H, K, L = 4, 4, 9
DIMS = Dims(width=H * K, heads=H)
POS = places(torch.tensor([[1] * L, [-1, -1, 1, 1, -1, 1, 1, 1, -1]]))


def loop(q: Tensor, k: Tensor, v: Tensor, part: Shaw, seen: Pattern) -> Tensor:
    """Shaw et al. 2018, eq. 3 and 4, one query at a time."""
    far, rows = part.distance, []
    for b in range(2):
        for h in range(H):
            g = h * k.shape[1] // H
            for n in range(L):
                scores, values = [], []
                for m in range(L):
                    if POS[b, m] < 0 or POS[b, n] < 0 or not bool(seen(POS[b, n], POS[b, m])):
                        continue
                    c = max(-far, min(far, int(POS[b, m] - POS[b, n]))) + far
                    a_key = part.keys.weight[c] if part.keys is not None else 0.0
                    a_value = part.values.weight[c] if part.values is not None else 0.0
                    scores.append((q[b, h, n] * (k[b, g, m] + a_key)).sum() / math.sqrt(K))
                    values.append(v[b, g, m] + a_value)
                if scores:
                    w = torch.stack(scores).softmax(0)
                    rows.append((w[:, None] * torch.stack(values)).sum(0))
                else:
                    rows.append(torch.zeros(K, dtype=q.dtype))
    return torch.stack(rows).view(2, H, L, K)


@pytest.mark.parametrize("on", ["both", "keys", "values"])
@pytest.mark.parametrize(
    "pattern", [of(Causal), of(Full), of(Window, width=3)], ids=lambda p: p.make.__name__
)
def test_it_is_the_loop_of_the_paper(pattern: Any, on: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regard.nn.attend, "BLOCK", 4)
    part, seen = enlivened(Shaw(DIMS, distance=2, on=on)).double(), pattern.build(DIMS)
    q, k, v = (torch.randn(2, n, L, K, dtype=torch.float64, requires_grad=True) for n in (H, 2, 2))
    leaves, real = [q, k, v, *part.parameters()], (POS >= 0)[:, None, :, None]
    wanted = loop(q, k, v, part, seen)
    slopes = torch.autograd.grad(wanted.square().sum(), leaves)
    ways: tuple[How, ...] = ("explicit", "fused", "blockwise")
    for how in ways:
        y = attend(q, k, v, POS, Context(POS, how=how), score=Dot(DIMS), pattern=seen, position=part)
        assert ((y - wanted) * real).abs().max() < 1e-12, how
        found = torch.autograd.grad((y * real).square().sum(), leaves)
        assert all((a - b).abs().max() < 1e-9 for a, b in zip(found, slopes, strict=True)), how


def test_each_layer_has_its_own_vectors_and_an_attention_only_its_own() -> None:
    part, q = enlivened(Shaw(DIMS.but(layers=3), distance=2)), torch.randn(1, H, 5, K)
    pos = torch.arange(5)[None]
    found = [part.at(n).bias(q, pos, pos) for n in range(3)]
    assert not torch.allclose(found[0], found[1]) and not torch.allclose(found[1], found[2])
    assert part.keys is not None and part.keys.weight.shape == (3 * 5, K)
    here = enlivened(Shaw(DIMS, distance=2))
    assert here.keys is not None
    with torch.no_grad():
        here.keys.weight.copy_(part.keys.weight[10:])
    assert torch.equal(here.bias(q, pos, pos), found[2])
    own = Attention(DIMS.but(layers=3), position=of(Shaw, distance=2)).position
    assert isinstance(own, Shaw) and own.keys is not None and own.keys.weight.shape == (5, K)


class Products(TorchFunctionMode):
    """Notes how large both sides of each matrix product are."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[tuple[int, int]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (Tensor.matmul, Tensor.__matmul__):
            self.sizes.append((args[0].numel(), args[1].numel()))
        return func(*args, **(kwargs or {}))


def test_a_cached_step_multiplies_as_much_for_many_keys_as_for_few() -> None:
    part, q, w = Shaw(DIMS, distance=8), torch.randn(1, H, 1, K), torch.rand(1, H, 1, 1000)
    for many in (10, 1000):
        i, j = torch.tensor([[many - 1]]), torch.arange(many)[None]
        with Products() as seen:
            part.bias(q, i, j)
            part.value(w[..., :many], i, j)
        assert seen.sizes == [(H * K, 17 * K), (H * 17, 17 * K)]


def test_what_cannot_be_is_refused_when_built() -> None:
    with pytest.raises(UsageError, match="at least 0, but distance is -1"):
        Shaw(DIMS, distance=-1)
