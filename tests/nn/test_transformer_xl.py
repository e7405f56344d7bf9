"""Transformer-XL's relative positions: by loops in float64, gradients too; keys anywhere; what they cost."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import regard.nn.attend
from regard.dims import Dims
from regard.errors import UsageError
from regard.laws.subjects import enlivened
from regard.nn.attend import attend
from regard.nn.context import Context, How, places, plain_places
from regard.nn.pattern import Causal, Full, Pattern, Window
from regard.nn.position import TransformerXL
from regard.nn.position.distance import Shifted
from regard.nn.score import Dot
from regard.spec import of

H, K, L, D = 4, 4, 9, 16
DIMS = Dims(width=D, heads=H)
POS = places(torch.tensor([[1] * L, [-1, -1, 1, 1, -1, 1, 1, 1, -1]]))


def wave(distance: int) -> Tensor:
    """[sin | cos], distance / 10000^(2n / D)."""
    angles = [distance / 10000 ** (2 * n / D) for n in range(D // 2)]
    return torch.tensor([*map(math.sin, angles), *map(math.cos, angles)]).double()


def score(part: TransformerXL, q: Tensor, k: Tensor, h: int, distance: int) -> Tensor:
    """Dai et al. 2019, section 3.3: four terms, all of them by 1 / sqrt(K)."""
    R = part.keys[part.layer].weight[h * K : (h + 1) * K] @ wave(distance)
    u, v = part.u[h], part.v[h]
    return (q @ k + q @ R + u @ k + v @ R) / math.sqrt(K)


def loop(q: Tensor, k: Tensor, v: Tensor, part: TransformerXL, seen: Pattern) -> Tensor:
    rows = []
    for b in range(2):
        for h in range(H):
            g = h * k.shape[1] // H
            for n in range(L):
                see = [m for m in range(L) if POS[b, m] >= 0 and bool(seen(POS[b, n], POS[b, m]))]
                if POS[b, n] < 0 or not see:
                    rows.append(torch.zeros(K, dtype=q.dtype))
                    continue
                gaps = [int(POS[b, n] - POS[b, m]) for m in see]
                if part.clamp is not None:
                    gaps = [max(-part.clamp, min(part.clamp, gap)) for gap in gaps]
                s = [score(part, q[b, h, n], k[b, g, m], h, gap) for m, gap in zip(see, gaps, strict=True)]
                rows.append(torch.stack(s).softmax(0) @ v[b, g, see])
    return torch.stack(rows).view(2, H, L, K)


@pytest.mark.parametrize(
    ("pattern", "options"),
    [
        (of(Causal), {}),
        (of(Causal), {"clamp": 2}),
        (of(Window, width=3), {}),
        (of(Full), {"causal": False}),
        (of(Window, width=3, both=True), {"causal": False, "clamp": 1}),
    ],
    ids=["causal", "clamp", "window", "full", "both"],
)
def test_it_is_the_loop_of_the_paper(pattern: Any, options: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regard.nn.attend, "BLOCK", 4)
    part, seen = enlivened(TransformerXL(DIMS, **options)).double(), pattern.build(DIMS)
    q, k, v = (torch.randn(2, n, L, K, dtype=torch.float64, requires_grad=True) for n in (H, 2, 2))
    leaves, real = [q, k, v, *part.parameters()], (POS >= 0)[:, None, :, None]
    wanted = loop(q, k, v, part, seen)
    slopes = torch.autograd.grad(wanted.square().sum(), leaves)
    ways: tuple[How, ...] = ("explicit", "fused", "blockwise")
    for how in ways:
        ctx, (turned, k_) = Context(POS, how=how), part.turn(q, k, POS)
        y = attend(turned, k_, v, POS, ctx, score=Dot(DIMS), pattern=seen, position=part, raw_BHLK=q)
        assert ((y - wanted) * real).abs().max() < 1e-9, how
        found = torch.autograd.grad((y * real).square().sum(), leaves)
        assert all((a - b).abs().max() < 1e-9 for a, b in zip(found, slopes, strict=True)), how


def test_the_view_is_the_shift_of_the_authors_and_both_are_the_picking() -> None:
    """Appendix B: a column of zeros, another view, the first row dropped; garbage above the diagonal."""
    part, q = enlivened(TransformerXL(DIMS)).double(), torch.randn(2, H, 5, K, dtype=torch.float64)
    i, j = torch.arange(7, 12)[None], torch.arange(12)[None]  # seven keys are remembered
    r_MD = torch.stack([wave(11 - m) for m in range(12)])  # distances 11 ... 0
    raw = (q + part.v[:, None]) @ (r_MD @ part.keys[0].weight.mT).unflatten(1, (H, K)).permute(1, 2, 0)
    shifted = F.pad(raw, (1, 0)).view(2, H, 13, 5)[:, :, 1:].reshape(2, H, 5, 12) / math.sqrt(K)
    seen = j <= i.mT
    assert ((part.bias(q, i, j) - shifted) * seen).abs().max() < 1e-12
    order = torch.randperm(12)
    picked = part.bias(q, i, j[:, order])
    assert torch.allclose(picked[..., order.argsort()], part.bias(q, i, j), atol=1e-12)


@pytest.mark.parametrize("keys", [8, 6])
@pytest.mark.parametrize("apart", [True, False])
def test_the_gradient_of_the_view_is_laid_out_as_the_rows_were(keys: int, apart: bool) -> None:
    """Rows of 9, heads apart or not: y_lm is number 8 l + m + L - 1 of the rows, one after the other."""
    x = torch.randn(2, 3, 5, 9, dtype=torch.float64)
    x = (x.transpose(0, 1).contiguous().transpose(0, 1) if apart else x).requires_grad_()
    y = Shifted.apply(x, keys)
    flat = x.detach().flatten(2)
    for row in range(5):
        assert torch.equal(y[:, :, row], flat[..., 8 * row + 4 : 8 * row + 4 + keys])
    assert torch.autograd.gradcheck(lambda t: Shifted.apply(t, keys), x)
    assert torch.autograd.gradgradcheck(lambda t: Shifted.apply(t, keys) ** 2, x)


@pytest.mark.parametrize("causal", [True, False])
def test_keys_may_stand_anywhere(causal: bool) -> None:
    """Rings, static caches with empty columns, rows at places of their own, far memories: i - j counts."""
    part = enlivened(TransformerXL(DIMS, causal=causal)).double()
    q = torch.randn(2, H, 3, K, dtype=torch.float64)
    i = torch.tensor([[40, 41, 42], [7, 8, -1]])
    rings = torch.tensor([[40, 41, 42, 38, 39], [7, 8, -1, 5, 6]])
    static = torch.tensor([[39, 40, 41, 42, -1, -1, -1], [5, 6, 7, 8, -1, -1, -1]])
    far, ahead = torch.tensor([[1, 2, 30, 41], [-1, -1, -1, 0]]), torch.tensor([[41, 44], [9, 8]])
    nobody = torch.full((2, 4), -1)
    for j in (rings, static, far, ahead, nobody):
        bias = part.bias(q, i, j).detach()
        assert bias.shape == (2, H, 3, j.shape[1]) and bool(bias.isfinite().all())
        for b, n in (i >= 0).nonzero().tolist():
            for m in (j[b] >= 0).nonzero()[:, 0].tolist():
                gap = int(i[b, n] - j[b, m])
                for h in range(H):
                    zero = torch.zeros(K, dtype=torch.float64)
                    wanted = score(part, q[b, h, n], zero, h, gap) if gap >= 0 or not causal else zero[0]
                    assert abs(float(bias[b, h, n, m] - wanted.detach())) < 1e-9


def meetings(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, int]]:
    """Rows, queries and distances of every meeting."""
    seen, meet = [], TransformerXL._meet

    def watched(self: TransformerXL, q: Tensor, most: int, count: int) -> Tensor:
        seen.append((q.shape[0], q.shape[2], count))
        return meet(self, q, most, count)

    monkeypatch.setattr(TransformerXL, "_meet", watched)
    return seen


@pytest.mark.parametrize("pads", [0, 43])
def test_behind_a_window_each_query_meets_the_distances_of_its_window(
    pads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(regard.nn.attend, "BLOCK", 32)
    part, found = enlivened(TransformerXL(DIMS)), []
    seen = meetings(monkeypatch)
    for length in (256, 512):
        ids = torch.ones(1, length, dtype=torch.long)
        ids[:, :pads] = -1
        pos = places(ids) if pads else plain_places(0, length, ids.device)
        q = torch.randn(1, H, length, K)
        for how in ("auto", "explicit"):
            ctx, pattern = Context(pos, not pads, how=how), Window(DIMS, width=30)  # type: ignore[arg-type]
            y = attend(q, q, q, pos, ctx, score=Dot(DIMS), pattern=pattern, position=part, raw_BHLK=q)
            found.append(y[:, :, pads:])
    assert seen[0] == (8, 32, 65) and seen[2] == (16, 32, 65)
    assert all((a - b).abs().max() < 1e-5 for a, b in zip(found[::2], found[1::2], strict=True))


def test_few_queries_bring_the_matrix_to_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cached step never multiplies W_R with every distance; both orders give the same."""
    part, q = enlivened(TransformerXL(DIMS)), torch.randn(1, H, 64, K)
    pos = torch.arange(64)[None]
    largest, matmul = [], Tensor.__matmul__

    def watched(a: Tensor, b: Tensor) -> Tensor:
        largest.append(a.numel() * b.shape[-1] // (b.shape[0] if b.ndim == 3 else 1))
        return matmul(a, b)

    whole = part.bias(q, pos, pos)
    with monkeypatch.context() as patched:
        patched.setattr(Tensor, "__matmul__", watched)
        step = part.bias(q[:, :, 63:], pos[:, 63:], pos)
    assert (step - whole[:, :, 63:]).abs().max() < 1e-5
    assert max(largest) <= H * D * 65 < 65 * D * H * K


def test_u_and_v_are_shared_by_layers_and_the_matrices_are_not() -> None:
    part = enlivened(TransformerXL(DIMS.but(layers=3)))
    assert {n: tuple(p.shape) for n, p in part.named_parameters()} == {
        "u": (H, K),
        "v": (H, K),
        **{f"keys.{n}.weight": (D, D) for n in range(3)},
    }
    q, pos = torch.randn(1, H, 5, K), torch.arange(5)[None]
    found = [part.at(n).bias(q, pos, pos) for n in range(3)]
    assert not torch.allclose(found[0], found[1]) and not torch.allclose(found[1], found[2])
    assert all(torch.equal(part.at(n).turn(q, q, pos)[0], q + part.u[:, None]) for n in range(3))


def test_dropout_is_on_the_waves_and_only_in_training() -> None:
    part, q, pos = enlivened(TransformerXL(DIMS, dropout=0.5)), torch.randn(1, H, 5, K), torch.arange(5)[None]
    assert not torch.equal(part.at(0).bias(q, pos, pos), part.at(0).bias(q, pos, pos))
    part.eval()
    assert torch.equal(part.at(0).bias(q, pos, pos), part.at(0).bias(q, pos, pos))


def test_inference_leaves_nothing_behind_that_training_could_not_keep() -> None:
    part, q, pos = enlivened(TransformerXL(DIMS)), torch.randn(1, H, 200, K), torch.arange(200)[None]
    with torch.inference_mode():
        part.bias(q, pos, pos)
    part.bias(q, pos, pos).sum().backward()
    assert part.v.grad is not None


def test_what_cannot_be_is_refused_when_built() -> None:
    with pytest.raises(UsageError, match="width must be even, but is 15"):
        TransformerXL(Dims(width=15))
    with pytest.raises(UsageError, match="clamped at 1 or more, but clamp is 0"):
        TransformerXL(DIMS, clamp=0)


@pytest.mark.parametrize("plain", [True, False])
def test_keys_ahead_get_no_second_term_unless_nobody_sees_them(plain: bool) -> None:
    part, pos = enlivened(TransformerXL(DIMS)), plain_places(0, L, torch.device("cpu")) if plain else POS
    q, ahead = torch.randn(len(pos), H, L, K), pos[:, None, :, None] < pos[:, None, None, :]
    seen = part.under(Full()).bias(q, pos, pos)
    assert not seen.masked_select(ahead).any() and seen.masked_select(~ahead).all()
    unseen = part.under(Causal(DIMS)).bias(q, pos, pos)
    real = ~ahead & (pos[:, None, :, None] >= 0) & (pos[:, None, None, :] >= 0)
    assert torch.equal(unseen.masked_select(real), seen.masked_select(real))
    assert part.under(Causal(DIMS)) is not part and not part.unseen  # a copy: other layers may see all
