"""Spans that are learned: by loops in float64, gradients too; what is trimmed has no weight."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import regard
import regard.nn.attend
from regard.blank import blank
from regard.dims import Dims
from regard.errors import UsageError
from regard.laws import lively
from regard.nn.attend import attend
from regard.nn.context import Context, How, places, plain_places
from regard.nn.pattern import Causal, Full, PerHead, Window
from regard.nn.position import AdaptiveSpan
from regard.nn.score import Dot
from regard.spec import of

H, K, L, S, R = 4, 4, 9, 8, 3
DIMS = Dims(width=H * K, heads=H, length=S)
POS = places(torch.tensor([[1] * L, [-1, -1, 1, 1, -1, 1, 1, 1, -1]]))


def born(val: list[float], **options: Any) -> AdaptiveSpan:
    part = AdaptiveSpan(DIMS, ramp=R, **options).double().eval()
    with torch.no_grad():
        part.span.copy_(torch.tensor(val, dtype=torch.float64))
    return part


def loop(q: Tensor, k: Tensor, v: Tensor, x_BLD: Tensor, part: AdaptiveSpan, itself: bool) -> Tensor:
    """Sukhbaatar et al. 2019, eq. 4 to 6 and 8: weights m exp(s) over the sum of m exp(s)."""
    rows = []
    for b in range(2):
        for h in range(H):
            for n in range(L):
                z = S * part.span[h]
                if part.dynamic:
                    z = S * (part.look[0].weight[h] @ x_BLD[b, n] + part.span[h]).sigmoid()
                top, below = torch.zeros(K, dtype=q.dtype), torch.zeros((), dtype=q.dtype)
                for m in range(L):
                    gap = int(POS[b, n] - POS[b, m])
                    if POS[b, m] < 0 or POS[b, n] < 0 or gap < (0 if itself else 1):
                        continue
                    p = part.keys.weight[min(gap, S - 1)] if part.keys is not None else 0.0
                    fade = ((R + z - gap) / R).clamp(0, 1)
                    w = fade * (q[b, h, n] @ (k[b, h, m] + p) / math.sqrt(K)).exp()
                    top, below = top + w * v[b, h, m], below + w
                rows.append(top / below if below > 0 else top)
    return torch.stack(rows).view(2, H, L, K)


@pytest.mark.parametrize("itself", [True, False])
@pytest.mark.parametrize("options", [{}, {"relative": False}, {"dynamic": True}], ids=str)
def test_it_is_the_loop_of_the_paper(options: Any, itself: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regard.nn.attend, "BLOCK", 4)
    part = born([0.06, 0.19, 0.55, 0.93], **options)
    q, k, v = (torch.randn(2, H, L, K, dtype=torch.float64, requires_grad=True) for _ in range(3))
    x_BLD = torch.randn(2, L, H * K, dtype=torch.float64, requires_grad=True)
    leaves = [q, k, v, *part.parameters(), *([x_BLD] if part.dynamic else [])]
    real, pattern = (POS >= 0)[:, None, :, None], Window(DIMS, width=L + 1, itself=itself)
    wanted = loop(q, k, v, x_BLD, part, itself)
    slopes = torch.autograd.grad(wanted.square().sum(), leaves)
    ways: tuple[How, ...] = ("explicit", "fused", "blockwise")
    for how in ways:
        raw, seen = part.ask(q, x_BLD), part.narrow(pattern)
        ctx = Context(POS, how=how)
        y = attend(q, k, v, POS, ctx, score=Dot(DIMS), pattern=seen, position=part, raw_BHLK=raw)
        assert ((y - wanted) * real).abs().max() < 1e-9, how
        found = torch.autograd.grad((y * real).square().sum(), leaves)
        assert all((a - b).abs().max() < 1e-9 for a, b in zip(found, slopes, strict=True)), how


def test_the_mask_is_that_of_the_authors() -> None:
    """clamp(template / R + val S / R + 1) over template = 1 - S ... 0, the nearest key last."""
    part, val = (
        born([0.0, 0.2, 0.5, 1.0], relative=False),
        torch.tensor([0.0, 0.2, 0.5, 1.0], dtype=torch.float64),
    )
    mask_HM = (torch.arange(1 - S, 1, dtype=torch.float64)[None] / R + val[:, None] * S / R + 1).clamp(0, 1)
    q, i, j = torch.zeros(1, H, 1, K).double(), torch.tensor([[S - 1]]), torch.arange(S)[None]
    assert torch.allclose(part.bias(q, i, j)[0, :, 0].exp(), mask_HM, atol=1e-12)


@pytest.mark.parametrize("pads", [0, 43])
def test_trimming_to_each_heads_span_changes_nothing(pads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regard.nn.attend, "BLOCK", 16)
    dims, length = Dims(width=16, heads=4, length=256), 256
    part = AdaptiveSpan(dims, ramp=8).eval()
    with torch.no_grad():
        part.span.copy_(torch.tensor([-0.1, 0.031, 0.2, 0.7]))
    ids = torch.ones(1, length, dtype=torch.long)
    ids[:, :pads] = -1
    pos = places(ids) if pads else plain_places(0, length, ids.device)
    q, k, v = (torch.randn(1, H, length, K, requires_grad=True) for _ in range(3))
    narrowed = part.narrow(Causal(dims))
    assert [narrowed.head(h).reach for h in range(H)] == [8, 8 + 8, 52 + 8, 180 + 8]
    found = []
    for pattern, how in ((narrowed, "auto"), (Causal(dims), "explicit")):
        ctx = Context(pos, not pads, how=how)  # type: ignore[arg-type]
        y = attend(q, k, v, pos, ctx, score=Dot(dims), pattern=pattern, position=part)[:, :, pads:]
        found.append([y, *torch.autograd.grad(y.square().sum(), [q, k, v, part.span])])
    assert all((a - b).abs().max() < 1e-5 * max(1.0, b.abs().max()) for a, b in zip(*found, strict=True))


def test_only_the_past_is_trimmed() -> None:
    part = born([0.0] * H)
    assert part.narrow(Full()) == Full()
    assert isinstance(part.narrow(Causal(DIMS)).patterns[1], PerHead)  # type: ignore[attr-defined]
    assert born([0.0] * H, dynamic=True).narrow(Causal(DIMS)) == Causal(DIMS)


def test_a_far_needle_lengthens_the_span_and_a_price_shortens_it() -> None:
    """The gradient of z is finite where m = 0, and has the right sign."""
    part, pos = born([0.3] * H, relative=False, penalty=0.5), torch.arange(L)[None]
    q = torch.zeros(1, H, L, K).double()
    far = torch.zeros(1, H, L, K).double()
    far[:, :, 4] = 1.0  # four back from the last query: on the ramp from 2.4 to 5.4
    y = attend(q, q, far, pos, Context(pos), score=Dot(DIMS), pattern=Causal(DIMS), position=part)
    (slope,) = torch.autograd.grad(y[0, :, -1, 0].sum(), part.span)
    assert bool((slope > 0).all()) and bool(slope.isfinite().all())
    losses: dict[str, Tensor] = {}
    part.charge(Context(pos, losses=losses, path="decoder/0/self"), q)
    assert set(losses) == {"decoder/0/self/span"}
    assert abs(float(losses["decoder/0/self/span"].detach()) - 0.5 * 0.3 * S) < 1e-6
    (slope,) = torch.autograd.grad(losses["decoder/0/self/span"], part.span)
    assert torch.allclose(slope, torch.full((H,), 0.5 * S / H).double())


def test_a_value_outside_comes_back_at_the_next_step() -> None:
    part, pos = born([-0.7, 1.9, 0.5, 0.0]).train(), torch.arange(L)[None]
    assert torch.allclose(part.spans.detach()[0], torch.tensor([0.0, S, S / 2, 0.0]).double(), atol=1e-6)
    assert part.span.min() == 0 and part.span.max() == 1
    before, q = part.span.detach().clone(), torch.randn(1, H, L, K).double()
    part.bias(q, pos, pos)  # reads it too, in the same graph
    (part.spans * torch.tensor([-1.0, 1.0, 0.0, 1.0])).sum().backward()
    with torch.no_grad():
        part.span -= 0.1 * part.span.grad  # type: ignore[operator]
    moved = part.spans.detach()[0] / S - before
    assert torch.allclose(moved, torch.tensor([0.8, -0.8, 0.0, 0.0]).double(), atol=1e-6)


def test_the_dynamic_price_is_the_mean_over_real_tokens() -> None:
    part = born([-1.0, 0.0, 0.5, 1.0], dynamic=True, penalty=0.1)
    x_BLD, q = torch.randn(2, L, H * K).double(), torch.randn(2, H, L, K).double()
    losses: dict[str, Tensor] = {}
    part.charge(Context(POS, losses=losses), part.ask(q, x_BLD))
    z = S * (x_BLD @ part.look[0].weight.mT + part.span).sigmoid()
    wanted = 0.1 * z[POS >= 0].mean()
    assert torch.allclose(losses["span"], wanted)


def test_the_system_charges_every_layer_and_shares_its_vectors() -> None:
    model = lively(
        regard.system("adaptive_span", vocab=13, width=16, heads=4, layers=3, length=20, penalty=1.0)
    )
    part = next(m for m in model.modules() if isinstance(m, AdaptiveSpan))
    losses: dict[str, Tensor] = {}
    model.states(torch.randint(0, 13, (2, 30)), losses=losses)  # type: ignore[operator]
    assert list(losses) == [f"decoder/{n}/self/span" for n in range(3)]
    for n in range(3):
        assert torch.allclose(losses[f"decoder/{n}/self/span"], part.spans[n].mean())
    assert part.keys is not None and tuple(part.keys.weight.shape) == (20, 4)


def test_what_cannot_be_is_refused_when_built() -> None:
    with pytest.raises(UsageError, match="but they are 0, 8 and"):
        AdaptiveSpan(DIMS, ramp=0)
    assert of(AdaptiveSpan, longest=5).build(DIMS).longest == 5


@pytest.mark.parametrize(("size", "millions"), [("small", 38), ("large", 209)])
def test_the_sizes_are_those_of_the_paper(size: str, millions: int) -> None:
    with blank():
        model = regard.system("adaptive_span", size=size).build()
    assert abs(sum(p.numel() for p in model.parameters()) / 1e6 - millions) < 1
