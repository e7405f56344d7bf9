"""Scores by loops in float64, gradients too; in blocks of a Transformer and for a recurrent decoder alike."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import regard.nn.attend
from regard.dims import Dims
from regard.errors import UsageError
from regard.laws.attention import GROUPS, ways_agree
from regard.laws.subjects import enlivened
from regard.nn.attend import attend
from regard.nn.context import Context, places
from regard.nn.pattern import Causal, PerHead, Window
from regard.nn.position import Alibi, Shaw
from regard.nn.score import Additive, Dot, Multiplicative, ReducedRank, Score
from regard.spec import of

H, K, J, L, M = 3, 4, 6, 5, 7
DIMS = Dims(width=H * K, heads=H)
POS = places(torch.tensor([[1] * 9, [-1, -1, 1, 1, -1, 1, 1, 1, -1]]))


def one(score: Any, q: Tensor, k: Tensor, h: int) -> Tensor:
    """The score of one query with one key, from the papers."""
    if isinstance(score, Multiplicative):
        return q @ score.weight[h] @ k
    if isinstance(score, ReducedRank):
        return (score.query[h] @ q) @ (score.key[h] @ k)
    if isinstance(score, Additive):
        return score.value[h] @ (score.query[h].mT @ q + score.key[h].mT @ k).tanh()
    return q @ k / (math.sqrt(len(q)) if score.scale is None else 1 / score.scale) / score.temperature


MAKES = {
    "dot": lambda key: Dot(DIMS),
    "dot unscaled": lambda key: Dot(DIMS, scale=1.0),
    "dot warm": lambda key: Dot(DIMS, temperature=2.5),
    "multiplicative": lambda key: Multiplicative(DIMS, key=key),
    "reduced_rank": lambda key: ReducedRank(DIMS, rank=3, key=key),
    "additive": lambda key: Additive(DIMS, hidden=5, key=key),
}


@pytest.mark.parametrize("name", MAKES)
def test_every_pair_is_scored_as_in_the_paper(name: str) -> None:
    key = K if name.startswith("dot") else J  # a query and a key of different widths
    score = enlivened(MAKES[name](key)).double()  # type: ignore[no-untyped-call]
    q, k = (torch.randn(2, H, n, w, dtype=torch.float64, requires_grad=True) for n, w in ((L, K), (M, key)))
    pairs = [
        one(score, q[b, h, n], k[b, h, m], h)
        for b in range(2)
        for h in range(H)
        for n in range(L)
        for m in range(M)
    ]
    wanted, got = torch.stack(pairs).view(2, H, L, M), score(q, k)
    assert (got - wanted).abs().max() < 1e-12
    leaves = [q, k, *score.parameters()]
    found = (torch.autograd.grad(s.square().sum(), leaves) for s in (got, wanted))
    assert all((a - b).abs().max() < 1e-9 for a, b in zip(*found, strict=True))


def test_reduced_rank_can_be_any_matrix() -> None:
    """k = min(d1, d2) and W = U^T V: the same scores."""
    low, full = enlivened(ReducedRank(DIMS, rank=K, key=J)), Multiplicative(DIMS, key=J)
    with torch.no_grad():
        full.weight.copy_(low.query.mT @ low.key)
    q, k = torch.randn(2, H, L, K), torch.randn(2, H, M, J)
    assert torch.allclose(low(q, k), full(q, k), atol=1e-5)
    thin = ReducedRank(DIMS, rank=1, key=J)
    assert torch.linalg.matrix_rank(thin.query.mT @ thin.key).tolist() == [1] * H


def test_the_identity_between_them_is_luongs_dot() -> None:
    score = Multiplicative(DIMS)
    with torch.no_grad():
        score.weight.copy_(torch.eye(K).expand(H, K, K))
    q, k = torch.randn(2, H, L, K), torch.randn(2, H, M, K)
    assert torch.allclose(score(q, k), Dot(DIMS, scale=1.0)(q, k))


def test_a_recurrent_decoder_asks_step_by_step_what_was_read_once() -> None:
    """Query s_{i-1} of width d2, annotations of width d1; U h is computed once; padding is never read."""
    dims, score = Dims(width=10, heads=1), enlivened(Additive(Dims(width=10, heads=1), hidden=8, key=14))
    states, read = torch.randn(2, 1, 6, 10), torch.randn(2, 1, 9, 14)
    known = score.known(read)
    steps = [score.compare(score.asked(states[:, :, n : n + 1]), known) for n in range(6)]
    assert torch.allclose(torch.cat(steps, 2), score(states, read), atol=1e-6)
    general = Multiplicative(dims, key=14)
    for asks in (score, general):
        ctx = Context(torch.zeros(2, 1, dtype=torch.long), how="explicit")
        wide = read.clone()
        wide[1, :, [0, 1, 4, 8]] = 99.0
        seen = [
            attend(states[:, :, :1], keys, read, POS, ctx, score=asks, pattern=Sees())
            for keys in (read, wide)
        ]
        assert torch.allclose(*seen) and seen[0].shape == (2, 1, 1, 14)


class Sees(Causal):
    """A state of the decoder sees the whole source."""

    def __init__(self) -> None: ...

    def __call__(self, i: Tensor, j: Tensor) -> Tensor:
        return (i >= 0) | (j >= 0)


SCORES: dict[str, Any] = {
    "multiplicative": of(Multiplicative),
    "reduced_rank": of(ReducedRank, rank=3),
    "additive": of(Additive),
    "dot": of(Dot, temperature=0.5),
}
PATTERNS: dict[str, Any] = {
    "causal": of(Causal),
    "window": of(Window, width=5),
    "per_head": of(PerHead, patterns=[of(Window, width=2), of(Window, width=11)]),
}


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_every_way_gives_the_same(score: str, pattern: str) -> None:
    for groups in GROUPS.values():
        for place in (None, of(Alibi), of(Shaw, distance=3)):
            for pads in ("plain", "left"):
                assert ways_agree(place, PATTERNS[pattern], groups, pads, None, SCORES[score]) < 1e-5


@pytest.mark.parametrize(("score", "fuses"), [("multiplicative", 1), ("reduced_rank", 1), ("additive", 0)])
def test_what_is_a_dot_product_goes_to_the_kernel(
    score: str, fuses: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, fused = [], regard.nn.sums.F.scaled_dot_product_attention

    def watched(*given: Any, **more: Any) -> Tensor:
        calls.append(more)
        return fused(*given, **more)

    monkeypatch.setattr(regard.nn.sums.F, "scaled_dot_product_attention", watched)
    q, k, pos = torch.randn(1, H, L, K), torch.randn(1, 1, L, K), torch.arange(L)[None]
    part: Score = SCORES[score].build(DIMS)
    with torch.no_grad():  # what learns from few tokens takes another way
        attend(q, k, k, pos, Context(pos, True), score=part, pattern=Causal(DIMS))
    assert len(calls) == fuses


def test_newborn_scores_are_about_one() -> None:
    dims = Dims(width=256, heads=4)
    q, k = torch.randn(1, 4, 50, 64), torch.randn(1, 4, 50, 64)
    for make in (Multiplicative, ReducedRank, Additive):
        assert 0.3 < float(make(dims)(q, k).detach().std()) < 2.0, make


def test_what_cannot_be_is_refused_when_built() -> None:
    with pytest.raises(UsageError, match="from 1 to the smaller width, 4, but is 5"):
        ReducedRank(DIMS, rank=5)
    with pytest.raises(UsageError, match="must be above 0, but is 0"):
        Dot(DIMS, temperature=0.0)
