"""Attention against loops written from the papers, in float64; what each way may and may not do."""

from __future__ import annotations

import cmath
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import flex_attention

import regard.nn.attend
import regard.nn.blockwise
import regard.nn.sums
from regard.dims import Dims
from regard.errors import UsageError
from regard.laws import claims
from regard.laws.attention import ways_agree
from regard.nn.attend import attend
from regard.nn.context import Context, How, places, plain_places
from regard.nn.pattern import (
    AllOf,
    AnyOf,
    Causal,
    Dilated,
    Fixed,
    Full,
    GlobalTokens,
    Local,
    Local2D,
    Pattern,
    PerHead,
    Prefix,
    Strided,
    Window,
)
from regard.nn.position import Alibi, Position, Rotary, T5Bias
from regard.nn.score import Dot, Score
from regard.nn.sums import Short, explicit, for_few, fused, mask_of, shared
from regard.spec import of

H, K, L, B = 4, 4, 9, 2
DIMS = Dims(width=H * K, heads=H)
IDS = torch.tensor(
    [[1] * L, [-1, -1, 1, 1, -1, 1, 1, 1, -1]]
)  # padding on the left, in the middle and on the right
POS = places(IDS)
WAYS: tuple[How, ...] = ("explicit", "fused", "blockwise")

# What the papers say, in plain Python: may the query at position i of head h see the key at position j?
SEES: dict[str, tuple[Callable[[], Pattern], Callable[[int, int, int], bool]]] = {
    "full": (lambda: Full(), lambda h, i, j: True),
    "causal": (lambda: Causal(DIMS), lambda h, i, j: j <= i),
    "window": (lambda: Window(DIMS, width=3), lambda h, i, j: i - 2 <= j <= i),
    "window both": (lambda: Window(DIMS, width=3, both=True), lambda h, i, j: i - 2 <= j <= i + 2),
    "prefix": (lambda: Prefix(DIMS, length=4), lambda h, i, j: j <= i or j < 4),
    "all_of": (
        lambda: AllOf(DIMS, [of(Causal), of(Window, width=4, both=True)]),
        lambda h, i, j: i - 3 <= j <= i,
    ),
    "any_of": (
        lambda: AnyOf(DIMS, [of(Window, width=2), of(Window, width=3, both=True)]),
        lambda h, i, j: i - 2 <= j <= i + 2,
    ),
    "local": (lambda: Local(DIMS, 3, 2), lambda h, i, j: i // 3 * 3 - 2 <= j <= i),
    "strided": (lambda: Strided(DIMS, 3), lambda h, i, j: j <= i and (i - j <= 3 or (i - j) % 3 == 0)),
    "second": (lambda: Strided(DIMS, 2, "second"), lambda h, i, j: j <= i and (i - j) % 2 == 0),
    "fixed": (
        lambda: Fixed(DIMS, 4, 2),
        lambda h, i, j: j <= i and (i // 4 == j // 4 or j % 4 in [(2, 3), (0, 1)][h % 2]),
    ),
    "dilated": (
        lambda: Dilated(DIMS, 2, 3, both=True),
        lambda h, i, j: j in (i - 3, i, i + 3),
    ),
    "global": (
        lambda: Window(DIMS, width=2, both=True) | GlobalTokens(DIMS, 1, both=True),
        lambda h, i, j: abs(i - j) < 2 or not i or not j,
    ),
    "local_2d": (
        lambda: Local2D(DIMS, 4, (1, 2), (1, 1)),
        lambda h, i, j: (
            j
            in {
                0: [0],
                1: [0, 1],
                2: [1, 2],
                3: [1, 2, 3],
                4: [0, 1, 2, 4],
                5: [0, 1, 2, 4, 5],
                6: [1, 2, 3, 5, 6],
                7: [1, 2, 3, 5, 6, 7],
                8: [4, 5, 6, 8],
            }.get(i, [])
        ),
    ),
    "per_head": (
        lambda: PerHead(DIMS, [of(Causal), of(Window, width=2), of(Full)]),
        lambda h, i, j: [j <= i, i - 1 <= j <= i, True, j <= i][h],
    ),
}


def turned(x: list[float], place: int, pairs: str, base: float = 10_000.0) -> list[float]:
    """Su et al. 2021, eq. 34, with complex numbers: the n-th pair turns by place * base^(-2n/K)."""
    y = list(x)
    for n in range(K // 2):
        a, b = (2 * n, 2 * n + 1) if pairs == "neighbours" else (n, n + K // 2)
        z = complex(x[a], x[b]) * cmath.exp(1j * place * base ** (-2 * n / K))
        y[a], y[b] = z.real, z.imag
    return y


def t5_bucket(gap: int, causal: bool, buckets: int = 32, distance: int = 128) -> int:
    """Raffel et al. 2020, as in the authors' code, one number at a time."""
    first = 0
    if not causal:
        buckets //= 2
        first, gap = (buckets if gap > 0 else 0), -abs(gap)
    back = max(-gap, 0)
    exact = buckets // 2
    if back < exact:
        return first + back
    far = exact + int(math.log(back / exact) / math.log(distance / exact) * (buckets - exact) + 1e-9)
    return first + min(far, buckets - 1)


def naive(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sees: Callable[[int, int, int], bool],
    position: str,
    table: Any,
    scale: float,
) -> Tensor:
    """y_i = sum_{j in S_i} exp(s_ij) v_j / sum_{j in S_i} exp(s_ij), in three loops. Vaswani et al. 2017."""
    y = torch.zeros_like(q)
    groups = k.shape[1]
    for b in range(B):
        for h in range(H):
            g = h * groups // H  # Ainslie et al. 2023
            for n in range(L):
                i = int(POS[b, n])
                scores: dict[int, float] = {}
                for m in range(L):
                    j = int(POS[b, m])
                    if j < 0 or not sees(h, i, j):
                        continue
                    a, c = q[b, h, n].tolist(), k[b, g, m].tolist()
                    if position.startswith("rotary"):
                        pairs = position.split()[1]
                        a, c = turned(a, i, pairs), turned(c, j, pairs)
                    s = scale * sum(x * z for x, z in zip(a, c, strict=True))
                    if position == "alibi":
                        s -= 2 ** (-8 * (h + 1) / H) * abs(i - j)
                    if position.startswith("t5"):
                        s += float(table[t5_bucket(j - i, position == "t5 causal"), h])
                    scores[m] = s
                total = sum(math.exp(s) for s in scores.values())
                for m, s in scores.items():
                    y[b, h, n] += math.exp(s) / total * v[b, g, m]
    return y


def positions(name: str) -> Position | None:
    return {
        "none": lambda: None,
        "alibi": lambda: Alibi(DIMS),
        "rotary halves": lambda: Rotary(DIMS, pairs="halves"),
        "rotary neighbours": lambda: Rotary(DIMS, pairs="neighbours"),
        "t5 causal": lambda: T5Bias(DIMS, causal=True),
        "t5 both": lambda: T5Bias(DIMS, causal=False),
    }[name]()  # type: ignore[no-untyped-call]


def drawn(*shapes: tuple[int, ...]) -> list[Tensor]:
    return [torch.randn(shape, dtype=torch.float64) for shape in shapes]


@pytest.mark.parametrize(
    "position", ["none", "alibi", "rotary halves", "rotary neighbours", "t5 causal", "t5 both"]
)
@pytest.mark.parametrize("pattern", SEES)
def test_every_way_is_the_loop_of_the_paper(
    pattern: str, position: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(regard.nn.attend, "BLOCK", 4)
    make, sees = SEES[pattern]
    groups, scale = (2, None) if position in ("none", "alibi") else (1, 1.0)
    q, k, v = drawn((B, H, L, K), (B, groups, L, K), (B, groups, L, K))
    place = positions(position)
    if place is not None:
        place.double()
    table = place.table.weight.detach() if isinstance(place, T5Bias) else None
    wanted = naive(q, k, v, sees, position, table, 1 / math.sqrt(K) if scale is None else scale)
    real = (IDS >= 0)[:, None, :, None]
    tq, tk = (q, k) if place is None else place.turn(q, k, POS)
    for how in WAYS:
        score, ctx = Dot(DIMS, scale=scale), Context(POS, how=how)
        got = attend(tq, tk, v, POS, ctx, score=score, pattern=make(), position=place, raw_BHLK=q)
        # rotary's angles are float32, as in every implementation; all else is exact
        assert ((got - wanted) * real).abs().max() < (1e-6 if "rotary" in position else 1e-12), how


def test_query_head_h_reads_group_floor_hG_over_H() -> None:
    v = torch.arange(2.0).view(1, 2, 1, 1).expand(1, 2, L, K)
    q, k = torch.randn(1, H, L, K), torch.randn(1, 2, L, K)
    pos = plain_places(0, L, q.device)
    for how in WAYS:
        ctx = Context(pos, True, how=how)
        y = attend(q, k, v, pos, ctx, score=Dot(DIMS), pattern=Causal(DIMS))
        assert torch.allclose(y[0, :, :, 0], torch.tensor([[0.0], [0.0], [1.0], [1.0]]).expand(4, L)), how


@pytest.mark.parametrize("groups", [1, 2])
def test_shared_keys_equal_repeated_keys_bit_for_bit(groups: int) -> None:
    q, k, v = torch.randn(B, H, L, K), torch.randn(B, groups, L, K), torch.randn(B, groups, L, K)
    many = [torch.stack([t[:, h * groups // H] for h in range(H)], 1) for t in (k, v)]
    for how in WAYS:
        ctx = Context(POS, how=how)
        shared = attend(q, k, v, POS, ctx, score=Dot(DIMS), pattern=Causal(DIMS))
        apart = attend(q, *many, POS, ctx.but(known={}), score=Dot(DIMS), pattern=Causal(DIMS))
        assert torch.equal(shared, apart), how


@pytest.mark.parametrize("rows", [1, B])
@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize(("masked", "seen"), [(False, 1), (True, 1), (True, B)])
def test_a_bias_that_learns_gets_the_gradient_of_the_scores(
    rows: int, groups: int, masked: bool, seen: int
) -> None:
    """Against the scores written out, gradients too; some queries of a masked row see nothing."""
    given = drawn((B, H, L, K), (B, groups, L, K), (B, groups, L, K + 2), (rows, H, L, L))
    allow = torch.rand(seen, 1, L, L) < 0.3 if masked else None

    def found(written: bool) -> list[Tensor]:
        q, k, v, bias = (t.clone().requires_grad_() for t in given)
        if written:
            k_BHMK, v_BHMK = shared(k, H), shared(v, H)
            y = explicit(q @ k_BHMK.mT * 0.3, v_BHMK, allow, bias, None, 0.0, Context(POS))
        else:
            y = fused(q, k, v, 0.3, allow, bias, False, 0.0)
        weights = torch.arange(y.numel(), dtype=y.dtype).view(y.shape).cos()
        return [y.detach(), *torch.autograd.grad((y * weights).sum(), (q, k, v, bias))]

    for ours, wanted in zip(found(False), found(True), strict=True):
        assert (ours - wanted).abs().max() < 1e-9


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("seen", ["causal", "all", "keys", "pairs"])
def test_short_sequences_learn_as_long_ones(groups: int, seen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kept scores against those written out, in blocks of 4 queries, gradients too."""
    monkeypatch.setattr(regard.nn.sums, "BLOCK", 4)
    given = drawn((B, H, L, K), (B, groups, L, K), (B, groups, L, K + 2))
    places = torch.rand(B, 1, L, L) < 0.3, torch.rand(B, 1, 1, L) < 0.7, torch.ones(L, L).tril().bool()
    allow = {"all": None, "pairs": places[0], "keys": places[1], "causal": places[2]}[seen]

    def found(written: bool) -> list[Tensor]:
        q, k, v = (t.clone().requires_grad_() for t in given)
        if written:
            y = explicit(q @ shared(k, H).mT * 0.3, shared(v, H), allow, None, None, 0.0, Context(POS))
        else:
            causal = seen == "causal"
            y = Short.apply(q, k, v, 0.3, None if causal else allow, None, causal)
        weights = torch.arange(y.numel(), dtype=y.dtype).view(y.shape).cos()
        return [y.detach(), *torch.autograd.grad((y * weights).sum(), (q, k, v))]

    for ours, wanted in zip(found(False), found(True), strict=True):
        assert (ours - wanted).abs().max() < 1e-9


def test_short_sequences_in_half_precision_are_near(monkeypatch: pytest.MonkeyPatch) -> None:
    """As near to float64 as PyTorch's kernel is, and taken only where something is learned."""
    taken: list[int] = []
    short = regard.nn.sums._short
    monkeypatch.setattr(regard.nn.sums, "_short", lambda *given: taken.append(1) or short(*given))  # type: ignore[func-returns-value]
    exact = drawn((B, H, L, K), (B, H, L, K), (B, H, L, K))
    wanted = F.scaled_dot_product_attention(*exact, is_causal=True)
    halves = [t.bfloat16().requires_grad_() for t in exact]
    near = fused(*halves, K**-0.5, None, None, True, 0.0)
    assert taken and near.dtype == torch.bfloat16
    with torch.no_grad():
        kernel = fused(*halves, K**-0.5, None, None, True, 0.0)
    assert len(taken) == 1
    assert (near - wanted).abs().max() <= 1.2 * (kernel - wanted).abs().max()
    near.sum().backward()
    assert all(t.grad is not None and t.grad.dtype == torch.bfloat16 for t in halves)


def test_scores_are_not_rounded_where_values_are_halves() -> None:
    """64 and 64.25 are one number in bfloat16, and two here; so are their slopes."""
    q = torch.tensor([64.0, 1.0]).view(1, 1, 1, 2).bfloat16().requires_grad_()
    k = torch.tensor([[1.0, 0.0], [1.0, 0.25]]).view(1, 1, 2, 2).bfloat16().requires_grad_()
    v = torch.tensor([0.0, 1.0]).view(1, 1, 2, 1).bfloat16().requires_grad_()
    y = Short.apply(q, k, v, 4.0, None, None, False)
    wanted = float(torch.sigmoid(torch.tensor(4.0 * 0.25)))
    assert float(y.detach()) == pytest.approx(wanted, rel=2**-8)
    dq, dk, dv = torch.autograd.grad(y.sum(), (q, k, v))
    slope = 4.0 * wanted * (1 - wanted)
    assert dq.flatten().tolist() == pytest.approx([0.0, slope * 0.25], rel=0.02, abs=1e-3)
    assert dk.flatten().tolist() == pytest.approx([-slope * 64, -slope, slope * 64, slope], rel=0.02)
    assert dv.flatten().tolist() == pytest.approx([1 - wanted, wanted], rel=0.01)


def test_blocks_of_halves_are_near() -> None:
    """Three blocks that see more and more, in bfloat16, and a bias of it: as near as rounding allows."""
    long = 300
    q, k, v = (t.bfloat16() for t in drawn((B, H, long, K), (B, H, long, K), (B, H, long, K)))
    added = drawn((B, H, long, long))[0].bfloat16()
    allow = torch.ones(long, long, dtype=torch.bool).tril()[None, None]

    def found(dtype: torch.dtype) -> list[Tensor]:
        given = [t.to(dtype).requires_grad_() for t in (q, k, v, added)]
        y = Short.apply(*given[:3], 0.3, allow, given[3], False)
        weights = torch.arange(y.numel()).view(y.shape).cos().to(dtype)
        return [y.detach(), *torch.autograd.grad((y * weights).sum(), given)]

    for near, exact in zip(found(torch.bfloat16), found(torch.float64), strict=True):
        assert near.dtype == torch.bfloat16
        assert float((near - exact).norm() / exact.norm()) < 0.01


@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize("bias", ["none", "whole", "shared"])
@pytest.mark.parametrize("seen", ["later", "window", "nothing first"])
def test_blocks_of_queries_end_where_their_keys_do(seen: str, bias: str, groups: int) -> None:
    """Queries that go on after 60 keys, in three blocks: as with scores written out, gradients too."""
    long, memory = 300, 60
    i, j = torch.arange(long)[:, None] + memory, torch.arange(long + memory)
    allow = {
        "later": j <= i,
        "window": (j <= i) & (j > i - 20),
        "nothing first": (j <= i - memory - 140) & (j % 3 > 0),
    }[seen][None, None]
    q, k, v = drawn((B, H, long, K), (B, groups, long + memory, K), (B, groups, long + memory, K))
    shape = {"none": (), "whole": (B, H, long, long + memory), "shared": (1, H, long, long + memory)}[bias]
    (added,) = drawn(shape) if bias != "none" else (None,)
    given = [t.requires_grad_() for t in (q, k, v, added) if t is not None]

    def found(slow: bool) -> list[Tensor]:
        if slow:
            y = explicit(q @ shared(k, H).mT * 0.3, shared(v, H), allow, added, None, 0.0, Context(POS))
        else:
            y = Short.apply(q, k, v, 0.3, allow, added, False)
        weights = torch.arange(y.numel(), dtype=y.dtype).view(y.shape).cos()
        return [y.detach(), *torch.autograd.grad((y * weights).sum(), given)]

    for ours, wanted in zip(found(False), found(True), strict=True):
        assert (ours - wanted).abs().max() < 1e-9
    blocks = list(regard.nn.sums._blocks(long, long + memory, False, allow))
    assert [end for _, _, end in blocks] == {"nothing first": [360, 116, 360]}.get(seen, [188, 316, 360])


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("biased", [False, True])
def test_a_query_that_sees_nothing_reads_nothing(how: How, biased: bool) -> None:
    """Padding before the first token, under a causal pattern: no key at all. No NaN, forward or backward."""
    q, k, v = (torch.randn(B, H, L, K, requires_grad=True) for _ in range(3))
    place = T5Bias(DIMS) if biased else None
    y = attend(q, k, v, POS, Context(POS, how=how), score=Dot(DIMS), pattern=Causal(DIMS), position=place)
    assert not y[1, :, :2].any()
    y.square().sum().backward()
    assert all(bool(t.grad.isfinite().all()) for t in (q, k, v))  # type: ignore[union-attr]
    assert not k.grad[1, :, [0, 1, 4, 8]].any() and not v.grad[1, :, [0, 1, 4, 8]].any()  # type: ignore[index]
    if place is not None:
        assert bool(place.table.weight.grad.isfinite().all())  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "pattern", [of(Causal), of(Window, width=3), of(Full)], ids=["causal", "window", "full"]
)
def test_the_tape_holds_weights_over_keys_that_sum_to_one(pattern: Any) -> None:
    """Over keys, not over queries; the root of K inside the exponent: either mistake shows in the sum."""
    q, k, v = (3 * torch.randn(B, H, L, K) for _ in range(3))
    tape: dict[str, Tensor] = {}
    ctx = Context(POS, path="decoder/0/self", tape=tape, how="fused")
    y = attend(q, k, v, POS, ctx, score=Dot(DIMS), pattern=pattern.build(DIMS))
    w_BHLM = tape["decoder/0/self"]
    assert w_BHLM.shape == (B, H, L, L)
    real = (IDS >= 0)[:, None, :, None]
    assert torch.allclose((w_BHLM.sum(-1, keepdim=True) * real), real.float().expand(B, H, L, 1), atol=1e-6)
    assert not w_BHLM.masked_select((IDS < 0)[:, None, None, :]).any()
    assert torch.allclose(w_BHLM @ v, y, atol=1e-6)
    assert not torch.allclose(w_BHLM.sum(-2), torch.ones(B, H, L), atol=0.1)


def spy(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    calls: list[dict[str, Any]] = []
    fused = F.scaled_dot_product_attention

    def watched(
        q: Tensor, k: Tensor, v: Tensor, mask: Any, dropout: float, causal: bool, **more: Any
    ) -> Tensor:
        calls.append({"mask": mask, "causal": causal, "keys": k.shape[-2], "queries": q.shape[-2]})
        return fused(q, k, v, mask, dropout, causal, **more)

    monkeypatch.setattr(F, "scaled_dot_product_attention", watched)
    return calls


def test_plain_causal_attention_never_builds_a_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = spy(monkeypatch)
    q = torch.randn(B, H, L, K)
    pos = plain_places(0, L, q.device)
    attend(q, q, q, pos, Context(pos, True), score=Dot(DIMS), pattern=Causal(DIMS))
    assert calls == [{"mask": None, "causal": True, "keys": L, "queries": L}]
    attend(q, q, q, pos, Context(pos, True), score=Dot(DIMS), pattern=Full())
    assert calls[1]["mask"] is None and not calls[1]["causal"]
    attend(q, q, q, pos, Context(pos, True), score=Dot(DIMS), pattern=Window(DIMS, width=L))
    assert calls[2]["mask"] is None and calls[2]["causal"], "a window as wide as the sequence is plain causal"
    attend(q, q, q, pos, Context(pos, True), score=Dot(DIMS), pattern=Window(DIMS, width=L - 1))
    assert calls[3]["mask"] is not None
    attend(q, q, q, POS, Context(POS), score=Dot(DIMS), pattern=Causal(DIMS))
    assert calls[4]["mask"] is not None, "padding needs a mask"


@pytest.mark.parametrize("pads", ["plain", "left"])
def test_long_windows_go_blockwise_by_themselves(pads: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the real size of a block, with a length that is no multiple of it: the same sums and gradients."""
    calls, length = list[tuple[int, int]](), 700
    kernel = regard.nn.blockwise.kernel

    def watched(q: Tensor, k: Tensor, *given: Any) -> Any:
        calls.append((q.shape[2], k.shape[2]))
        return kernel(q, k, *given)

    monkeypatch.setattr(regard.nn.blockwise, "kernel", watched)
    ids = torch.ones(2, length, dtype=torch.long)
    if pads == "left":
        ids[1, :133] = -1
    pos, plain = (plain_places(0, length, ids.device), True) if pads == "plain" else (places(ids), False)
    leaves = [torch.randn(2, n, length, K, requires_grad=True) for n in (2, 1, 1)]
    found = []
    for how in ("auto", "explicit"):
        ctx = Context(pos, plain, how=how)  # type: ignore[arg-type]
        y = attend(*leaves, pos, ctx, score=Dot(DIMS), pattern=Window(DIMS, width=100))
        y = y * (ids >= 0)[:, None, :, None]
        found.append([y, *torch.autograd.grad(y.square().sum(), leaves)])
    assert calls == [(32, 160)]
    for a, b in zip(*found, strict=True):
        assert (a - b).abs().max() < 1e-5


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("first", [of(Window, width=3), of(Causal)], ids=["window", "causal"])
def test_flex_leaves_out_no_block_that_another_head_needs(
    first: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU skips what the mask of blocks leaves out, so it must be made for each head where heads differ."""
    made: list[Any] = []
    real = flex_attention.create_block_mask

    def watched(*given: Any, **more: Any) -> Any:
        made.append(real(*given, **more))
        return made[-1]

    monkeypatch.setattr(flex_attention, "create_block_mask", watched)
    q, dims = torch.randn(1, 2, 300, 8), Dims(width=16, heads=2)
    pos = plain_places(0, 300, q.device)
    with torch.no_grad():
        for pattern in (first.build(dims), PerHead(dims, [first, of(Causal)])):
            ctx = Context(pos, True)
            ways = [ctx.but(how=how, known={}) for how in ("flex", "explicit")]
            a, b = (attend(q, q, q, pos, c, score=Dot(dims), pattern=pattern) for c in ways)
            assert (a - b).abs().max() < 1e-5
    dense = [mask.to_dense()[0] for mask in made]
    assert [len(d) for d in dense] == [1, 2]
    below = torch.ones(3, 3).tril().int()
    assert torch.equal(dense[1][1], below), "the second head needs every block before it"
    assert torch.equal(dense[1][0], dense[0][0])


def test_memory_of_a_window_grows_with_the_length_alone() -> None:
    """What the backward pass keeps: twice the length, twice the bytes. Dense attention keeps four times."""

    def kept(length: int, how: How) -> int:
        seen: dict[int, int] = {}

        def pack(t: Tensor) -> Tensor:
            seen[t.data_ptr()] = t.numel() * t.element_size()
            return t

        q = torch.randn(1, 2, length, 8, requires_grad=True)
        pos = plain_places(0, length, q.device)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            attend(q, q, q, pos, Context(pos, True, how=how), score=Dot(DIMS), pattern=Window(DIMS, width=64))
        return sum(seen.values())

    assert kept(2048, "auto") / kept(1024, "auto") < 2.1
    assert kept(2048, "explicit") / kept(1024, "explicit") > 3.5


def test_blocks_need_queries_and_keys_of_the_same_tokens() -> None:
    q, k = torch.randn(1, H, 3, K), torch.randn(1, H, L, K)
    pos, j = plain_places(6, 3, q.device), plain_places(0, L, q.device)
    with pytest.raises(UsageError, match="needs queries and keys of the same tokens"):
        attend(q, k, k, j, Context(pos, True, how="blockwise"), score=Dot(DIMS), pattern=Causal(DIMS))


class Distance(Score):
    """A score that is no dot product: -|q - k|^2."""

    def forward(self, q_BHLK: Tensor, k_BHMK: Tensor) -> Tensor:
        return -(torch.cdist(q_BHLK, k_BHMK) ** 2)


@pytest.mark.parametrize("pads", ["plain", "left", "middle"])
def test_a_score_that_is_no_dot_product_goes_every_way_too(pads: str) -> None:
    recipe = of(lambda: None)
    object.__setattr__(recipe, "make", lambda dims: Distance())
    assert ways_agree(of(Alibi), of(Window, width=5), 2, pads, score=recipe) < 1e-5


@pytest.mark.parametrize("how", WAYS)
def test_dropout_is_on_the_weights_and_keeps_their_mean(how: How) -> None:
    q, k = torch.randn(2, H, 64, K), torch.randn(2, H, 64, K)
    v = torch.ones(2, H, 64, K)
    pos = plain_places(0, 64, q.device)

    def run(dropout: float) -> Tensor:
        ctx = Context(pos, True, how=how)
        return attend(q, k, v, pos, ctx, score=Dot(DIMS), pattern=Full(), dropout=dropout)

    assert torch.allclose(run(0.0), v)
    y = run(0.5)
    assert not torch.equal(y, run(0.5)) and y.std() > 0.05
    assert abs(float(y.mean()) - 1.0) < 0.02


@pytest.mark.parametrize("how", WAYS)
def test_half_precision_stays_close(how: How) -> None:
    q, k, v = (torch.randn(B, H, L, K) for _ in range(3))
    real = (IDS >= 0)[:, None, :, None]

    def run(dtype: torch.dtype) -> Tensor:
        ctx, t = Context(POS, how=how), [x.to(dtype) for x in (q, k, v)]
        y = attend(*t, POS, ctx, score=Dot(DIMS), pattern=Causal(DIMS), position=Alibi(DIMS))
        assert y.dtype == dtype
        return y.float() * real

    assert (run(torch.bfloat16) - run(torch.float32)).abs().max() < 0.05


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, when its compiler is imported
def test_a_compiled_model_learns_from_kept_scores_too() -> None:
    """The same gradients as with scores written out; three blocks of queries, the last one short."""
    sizes = {"vocab": 17, "width": 16, "heads": 4, "layers": 2, "length": 300}
    model = regard.build(regard.system("gpt", **sizes)).double().train()
    ids_BL = torch.randint(0, 17, (2, 300))
    kept: list[Any] = []

    def learned(states: Any, **more: Any) -> list[Tensor]:
        model.zero_grad()
        with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.shape) or t, lambda t: t):  # type: ignore[func-returns-value]
            y_BLD = states(ids_BL, **more)
        (y_BLD * torch.linspace(-1, 1, y_BLD.numel()).view_as(y_BLD)).sum().backward()
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    _ = model.limit
    wanted = learned(model.states, how="explicit")
    kept.clear()
    found = learned(torch.compile(model.states, backend="aot_eager"))
    assert (8, 44, 300) in {tuple(shape) for shape in kept}, "scores of the last block were not kept"
    for one, other in zip(found, wanted, strict=True):
        assert (one - other).abs().max() <= 1e-9 * (1 + other.abs().max())


@pytest.mark.parametrize("keys", [1, 5, 16, 37])
@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("shape", ["none", "row", "head"])
def test_few_queries_with_scores_written_out(keys: int, groups: int, shape: str) -> None:
    """As the formula says; who sees nothing reads nothing; a view of a larger buffer is as good."""
    random = torch.Generator().manual_seed(keys)
    q, k, v = (
        torch.randn(3, heads, length, K, dtype=torch.float64, generator=random)
        for heads, length in ((H, 5), (groups, 64), (groups, 64))
    )
    k, v = k[:, :, :keys], v[:, :, :keys]
    allow = None
    if shape != "none":
        allow = torch.rand(3, H if shape == "head" else 1, 5, keys, generator=random) < 0.7
        allow[1, :, 2] = False
    given = shared(k, H), shared(v, H)
    s = q @ given[0].mT * 0.3
    true = explicit(s, given[1], allow, None, None, 0.0, Context(POS))
    found = for_few(q, k, v, 0.3, mask_of(q, k, allow))
    assert (found - true).abs().max() <= 1e-12
    assert allow is None or not found[1, :, 2].any()


@pytest.mark.parametrize("name", ["for_few", "attend_few"])
@pytest.mark.parametrize("subject", ["vanilla", "gpt", "llama", "t5", "mixer latent", "sparse_transformer"])
def test_laws_hold_where_few_are_asked_together(
    subject: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The laws are tried on few rows; here each of them is many: by PyTorch, and by the kernel in C."""
    monkeypatch.setattr(regard.nn.sums, "ROWS", 1)
    if name == "for_few":
        monkeypatch.setattr(regard.native, "library", lambda: None)
    elif regard.native.library() is None:
        pytest.skip("kernels were not compiled for this processor")
    asked = []
    way = getattr(regard.nn.attend, name)
    monkeypatch.setattr(regard.nn.attend, name, lambda *given: asked.append(1) or way(*given))
    laws = {"beams", "stepwise", "padding", "future"}
    tried = [claim for claim in claims() if claim.subject == subject and claim.law in laws]
    assert len(tried) == len(laws)
    for claim in tried:
        row = claim.row()
        assert row.ok, f"{row.law}: {row.figure} in {row.worst}"
    assert asked or subject == "t5", "a bias goes by the kernel"
