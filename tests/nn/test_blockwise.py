"""The blockwise way at its real size: the same sums and gradients as written out, and costs that do not grow
as those of dense attention do."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import regard
import regard.nn.attend
import regard.nn.blockwise
from regard.dims import Dims
from regard.laws import lively
from regard.laws.asking import tokens
from regard.nn.attend import attend
from regard.nn.blockwise import Piece, fitting, pieces, share
from regard.nn.context import Context, How, places, plain_places
from regard.nn.pattern import (
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
    Strided,
    Window,
)
from regard.nn.position import Alibi, Position, Shaw, T5Bias
from regard.nn.score import Dot
from regard.spec import of

H, K = 4, 8
DIMS = Dims(width=H * K, heads=H, length=1024)
PATTERNS: dict[str, Pattern] = {
    "strided": Strided(DIMS, 24),
    "code": Strided(DIMS, 24, band="code"),
    "second": Strided(DIMS, 20, "second"),
    "fixed": Fixed(DIMS, 32, 8),
    "fixed alike": Fixed(DIMS, 32, 4, distinct=False),
    "summaries": Fixed(DIMS, 30, 5, "second"),
    "dilated": Dilated(DIMS, 20, 6),
    "dilated both": Dilated(DIMS, 70, 3, both=True),
    "global": Window(DIMS, 40) | GlobalTokens(DIMS, 3),
    "global both": Window(DIMS, 40, both=True) | GlobalTokens(DIMS, 3, both=True),
    "image": Local2D(DIMS, 20, (4, 5), (4, 5)),
    "local": Local(DIMS, 50, 70),
    "by head": PerHead(DIMS, [of(Strided, stride=20, hop=hop) for hop in ("first", "second")]),
    "spans": PerHead(DIMS, [of(Window, width=w) for w in (1, 30, 300, 30)]),
    "with all": PerHead(DIMS, [of(Window, width=9), of(Causal), of(Fixed, stride=16), of(Full)]),
}


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regard.nn.attend, "BLOCK", 16)


def run(
    pattern: Pattern,
    how: How,
    pads: str = "plain",
    groups: int = H,
    position: Position | None = None,
    length: int = 210,
    dropout: float = 0.0,
    dtype: torch.dtype = torch.float64,
) -> list[Tensor]:
    """What is read, and the gradients of all that it was read from."""
    random = torch.Generator().manual_seed(0)
    ids = torch.ones(2, length, dtype=torch.long)
    if pads != "plain":
        ids[1, {"left": slice(0, 60), "right": slice(150, None), "middle": slice(30, 70)}[pads]] = -1
    pos = plain_places(0, length, ids.device) if pads == "plain" else places(ids)
    leaves = [
        torch.randn(2, n, length, K, generator=random, dtype=dtype).requires_grad_()
        for n in (H, groups, groups)
    ]
    real = (ids >= 0)[:, None, :, None]
    weigh = torch.randn(2, H, length, K, generator=random, dtype=dtype) * real
    ctx = Context(pos, pads == "plain", how=how)
    y = attend(*leaves, pos, ctx, score=Dot(DIMS), pattern=pattern, position=position, dropout=dropout)
    given = [*leaves, *(position.parameters() if position is not None else [])]
    return [(y * real).detach(), *torch.autograd.grad((y * weigh).sum(), given)]


def apart(first: list[Tensor], second: list[Tensor]) -> float:
    return max(float((a - b).abs().max()) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("pads", ["plain", "left", "middle"])
@pytest.mark.parametrize("name", PATTERNS)
def test_the_same_as_written_out_and_the_same_gradients(name: str, pads: str) -> None:
    """In float64. Left to itself, attend goes this way: little enough is seen."""
    groups = {"plain": H, "left": 2, "middle": 1}[pads]
    found = run(PATTERNS[name], "blockwise", pads, groups)
    assert apart(found, run(PATTERNS[name], "explicit", pads, groups)) < 1e-9
    assert apart(found, run(PATTERNS[name], "auto", pads, groups)) < 1e-9


@pytest.mark.parametrize("position", [Alibi, T5Bias, Shaw])
@pytest.mark.parametrize("name", ["strided", "fixed", "dilated both", "global both", "by head", "spans"])
def test_with_biases_and_what_is_read_besides(name: str, position: Any) -> None:
    """Heads that are asked apart get their own biases, and their own gradients."""
    place = position(DIMS).double()
    found = run(PATTERNS[name], "blockwise", "left", 2, place)
    assert apart(found, run(PATTERNS[name], "explicit", "left", 2, place)) < 1e-9


@pytest.mark.parametrize("position", [None, Alibi, Shaw])
@pytest.mark.parametrize("name", [*PATTERNS])
def test_short_reaches_have_blocks_that_fit(
    name: str, position: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Heads of one layer may have blocks of different sizes."""
    monkeypatch.setattr(regard.nn.attend, "BLOCK", 64)
    monkeypatch.setattr(regard.nn.blockwise, "LEAST", 4)
    place = None if position is None else position(DIMS).double()
    found = run(PATTERNS[name], "blockwise", "left", 2, place)
    assert apart(found, run(PATTERNS[name], "explicit", "left", 2, place)) < 1e-9


def test_a_block_is_at_most_as_long_as_half_the_reach() -> None:
    sizes = [fitting(Window(DIMS, width), 128, True) for width in (1, 64, 100, 128, 255, 256, 2000)]
    assert sizes == [32, 32, 32, 64, 64, 128, 128]
    sizes = [fitting(Window(DIMS, width), 128, False) for width in (1, 100, 511, 512, 1023, 1024, 9000)]
    assert sizes == [32, 32, 32, 64, 64, 128, 128], "or an eighth, where scores are written out"
    assert fitting(Causal(DIMS), 128, True) == 128 and fitting(Window(DIMS, 1), 16, True) == 16


@pytest.mark.parametrize("name", ["strided", "fixed", "by head"])
def test_dropout_is_on_the_weights_of_all_pieces(name: str) -> None:
    y, *_ = run(PATTERNS[name], "blockwise", dropout=0.5)
    plain, *_ = run(PATTERNS[name], "blockwise")
    assert not torch.equal(y, plain)
    many = sum(run(PATTERNS[name], "blockwise", dropout=0.5)[0] for _ in range(30)) / 30
    assert (many - plain).abs().mean() < 0.3 * (y - plain).abs().mean()


@pytest.mark.parametrize("name", ["strided", "fixed", "global"])
def test_half_precision_stays_close(name: str) -> None:
    half = run(PATTERNS[name], "blockwise", dtype=torch.bfloat16)
    assert half[0].dtype == torch.bfloat16
    full = run(PATTERNS[name], "explicit", dtype=torch.float32)
    assert float((half[0].float() - full[0]).abs().max()) < 0.05


def test_union_of_the_two_hops_costs_and_says_the_same_as_the_merged_pattern() -> None:
    union = AnyOf(DIMS, [of(Strided, stride=24, hop=hop) for hop in ("first", "second")])
    merged = PATTERNS["strided"]
    assert apart(run(union, "blockwise"), run(merged, "blockwise")) < 1e-12
    assert share(union, 2048, 128) == share(merged, 2048, 128)


def test_how_much_is_looked_at() -> None:
    """Not a time, but what decides it: pairs of queries and keys. Dense is 1."""
    big = {n: Dims(width=8, length=n) for n in (4096, 16384)}
    for n, dims in big.items():
        root = int(n**0.5)
        assert share(Causal(), n, 128) == share(Full(), n, 128) == 1.0
        assert share(Window(dims, 128), n, 128) <= 256 / n
        assert share(Strided(dims), n, 128) <= (256 + root) / n
        assert share(Fixed(dims, summaries=4), n, 128) <= (256 + 4 * root) / n
        assert share(Dilated(dims, 128, 16), n, 128) <= 2.1 * 128 / n
        both = Window(dims, 128, both=True) | GlobalTokens(dims, 2, both=True)
        assert share(both, n, 128) <= (4 * 128 + 128) / n
    assert share(Strided(big[4096], 64, "second"), 4096, 128) == 1 / 64


def test_rows_that_see_much_stand_apart() -> None:
    """A few global tokens that see everything must not make all others look at everything."""
    both = Window(DIMS, 16, both=True) | GlobalTokens(DIMS, 2, both=True)
    found = pieces(both, 1600, 16)
    widths = sorted(int(p.blocks.shape[1]) for p in found if p.blocks is not None)
    assert widths[-1] == 100 and widths[-2] <= 4
    rows = torch.cat([p.rows for p in found if p.rows is not None])
    assert sorted(rows.tolist()) == list(range(100))


def kept(pattern: Pattern, length: int) -> int:
    """Bytes that the backward pass keeps."""
    seen: dict[int, int] = {}

    def pack(t: Tensor) -> Tensor:
        seen[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t

    q, pos = torch.randn(1, H, length, K, requires_grad=True), plain_places(0, length, torch.device("cpu"))
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        attend(q, q, q, pos, Context(pos, True), score=Dot(DIMS), pattern=pattern)
    return sum(seen.values())


@pytest.mark.parametrize("name", ["strided", "fixed", "second", "dilated", "global both", "by head"])
def test_memory_grows_with_the_length_alone(name: str) -> None:
    assert kept(PATTERNS[name], 2048) / kept(PATTERNS[name], 1024) < 2.2


def watch(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Groups and queries, groups and keys, whether there is a mask, whether the order is causal."""
    calls: list[tuple[Any, ...]] = []
    real = regard.nn.blockwise.kernel

    def watched(q: Tensor, k: Tensor, v: Tensor, mask: Any, causal: bool, scale: float) -> Any:
        calls.append((tuple(q.shape[:3]), k.shape[2], mask is not None, causal))
        return real(q, k, v, mask, causal, scale)

    monkeypatch.setattr(regard.nn.blockwise, "kernel", watched)
    return calls


def test_what_is_far_needs_no_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns of the stride are plain causal attention of length / stride keys."""
    calls = watch(monkeypatch)
    run(PATTERNS["second"], "auto", length=200)
    assert calls == [((2 * H, 20, 10), 10, False, True)]


def test_each_head_costs_its_own_pattern(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spans of 1, 30, 300, 30: not four times the longest. Heads that see alike are asked at once."""
    calls = watch(monkeypatch)
    run(PATTERNS["spans"], "auto", length=640)
    assert [(rows[0], keys) for rows, keys, _, _ in calls] == [(2, 16), (4, 48), (2, 320)]


@pytest.mark.parametrize("groups", [4, 2, 1])
def test_a_few_heads_at_a_time_say_the_same(groups: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is brought together is bounded; heads that share keys stay together."""
    for name, pads in (("strided", "plain"), ("fixed alike", "left"), ("spans", "left")):
        at_once = run(PATTERNS[name], "blockwise", pads, groups)
        with monkeypatch.context() as patch:
            patch.setattr(regard.nn.blockwise, "SMALL", 1)
            calls = watch(patch)
            assert apart(run(PATTERNS[name], "blockwise", pads, groups), at_once) < 1e-12
        assert name == "spans" or {rows[0] for rows, *_ in calls} == {2 * H // groups}


def gpt(blocks: Any) -> Any:
    return regard.system("gpt", vocab=13, width=16, heads=4, layers=2, length=64, **blocks)


def test_the_three_ways_to_use_two_hops() -> None:
    """Child et al. 2019, section 4.2: layers that alternate, a merged head, heads that differ."""
    first, second = (of(Strided, stride=4, hop=hop) for hop in ("first", "second"))
    base = gpt({"pattern": of(Strided, stride=4)})
    block = base.options["stack"].options["block"]
    own = block.options["sublayers"]

    def layer(pattern: Any) -> Any:
        return block.but(sublayers={**own, "self": own["self"].but(pattern=pattern)})

    alternating = base.but(stack=base.options["stack"].but(block=[layer(first), layer(second)]))
    ways = {
        "interleaved": alternating,
        "merged": base,
        "merged by union": gpt({"pattern": of(AnyOf, patterns=[first, second])}),
        "by head": gpt({"pattern": of(PerHead, patterns=[first, second])}),
    }
    ids, answers = tokens(2, 48, "plain"), {}
    for name, recipe in ways.items():
        model, tape = lively(recipe), dict[str, Tensor]()
        with torch.no_grad():
            answers[name] = model(ids, tape=tape)
            told = model.head(model.states(ids, how="blockwise"))
        assert (told - answers[name]).abs().max() < 1e-4, name
        seen = [(tape[f"decoder/{n}/self"][0, :, -1] > 0) for n in (0, 1)]
        near, far = list(range(43, 48)), list(range(3, 48, 4))
        per = {
            "interleaved": [[near] * 4, [far] * 4],
            "by head": [[near, far, near, far]] * 2,
        }.get(name, [[sorted({*near, *far})] * 4] * 2)
        for n in (0, 1):
            assert [row.nonzero().flatten().tolist() for row in seen[n]] == per[n], name
    assert torch.equal(answers["merged"], answers["merged by union"])


def test_a_piece_brings_everything_there_and_back() -> None:
    t = torch.arange(2 * 3 * 50 * 2.0).view(2, 3, 50, 2)
    names = Window(DIMS, 20).keys(8, 7)
    assert names is not None
    for piece in (
        Piece(),
        Piece(blocks=names, block=8),
        *pieces(PATTERNS["dilated"], 50, 8),
        *pieces(PATTERNS["second"], 50, 8),
    ):
        assert torch.equal(piece.back(piece.queries(t), 50), t)
        assert piece.queries(t).shape[:3] == piece.keys(t).shape[:3]


@pytest.mark.parametrize("position", [None, of(Alibi)], ids=["none", "alibi"])
def test_one_more_token_reads_only_the_keys_it_sees(position: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """After 400 tokens, a stride of 20 shows 21 + 19 of them; a cache holds all, and only those are read."""
    recipe = regard.system(
        "gpt",
        vocab=13,
        width=16,
        heads=4,
        layers=2,
        length=512,
        pattern=of(Strided, stride=20),
        position=position,
    )
    model, ids = lively(recipe), tokens(2, 404, "plain")
    with torch.no_grad():
        whole, cache = model(ids), model.cache(2)
        model(ids[:, :400], cache=cache)
        read: list[int] = []
        real = F.scaled_dot_product_attention

        def watched(q: Tensor, k: Tensor, *given: Any, **more: Any) -> Tensor:
            read.append(k.shape[2])
            return real(q, k, *given, **more)

        monkeypatch.setattr(F, "scaled_dot_product_attention", watched)
        steps = [model(ids[:, n : n + 1], cache=cache) for n in range(400, 404)]
    assert (torch.cat(steps, 1) - whole[:, 400:]).abs().max() < 1e-4
    assert read == [21 + 19] * 8
