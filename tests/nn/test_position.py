"""Positions: what each moment does, by loops in float64, and that only the place or the distance counts."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import regard
from regard.dims import Dims
from regard.errors import UsageError
from regard.laws import lively
from regard.laws.subjects import enlivened, positions
from regard.nn.block import Serial
from regard.nn.context import Context, places
from regard.nn.mixer import Attention
from regard.nn.pattern import Full
from regard.nn.position import Alibi, Concatenated, Learned, Position, Rotary, Sinusoidal, T5Bias
from regard.nn.position.sinusoidal import waves
from regard.nn.stack import Sequential
from regard.spec import of

DIMS = Dims(width=16, heads=4, length=40)
IDS = torch.tensor([[1] * 9, [-1, -1, 1, 1, -1, 1, 1, 1, -1]])
POS = places(IDS)
REAL = POS >= 0


def angle(place: int, index: int, width: int, form: str) -> float:
    """Vaswani et al. 2017, section 3.5; and the authors' code (get_timing_signal_1d)."""
    return place / 10000 ** (index / (width // 2 - 1) if form == "tensor2tensor" else 2 * index / width)


@pytest.mark.parametrize("form", ["paper", "halves", "tensor2tensor"])
def test_sinusoids_are_added_one_number_at_a_time(form: Any) -> None:
    x = torch.randn(2, 9, 16, dtype=torch.float64)
    y = Sinusoidal(DIMS, form=form).add(x, POS)
    for b in range(2):
        for n in range(9):
            for d in range(16):
                if not REAL[b, n]:
                    continue
                if form == "paper":
                    wave, index = (math.sin, math.cos)[d % 2], d // 2
                else:
                    wave, index = (math.sin, math.cos)[d // 8], d % 8
                wanted = x[b, n, d] + wave(angle(int(POS[b, n]), index, 16, form))
                assert abs(float(y[b, n, d] - wanted)) < 1e-7


@pytest.mark.parametrize("form", ["paper", "halves", "tensor2tensor"])
@pytest.mark.parametrize("last", [63, 64, 1023, 1024, 70_000])
def test_far_waves_are_those_of_their_position(form: Any, last: int) -> None:
    """Positions that are looked up, and those beyond, which are computed: bit by bit the same numbers."""
    pos_BL = torch.tensor([[0, 1, last - 1, last]])
    x_BLD = torch.zeros(1, 4, 16)
    assert torch.equal(Sinusoidal(DIMS, form=form).add(x_BLD, pos_BL), waves(pos_BL, 16, form))


def test_learned_positions_are_rows_of_a_table() -> None:
    part = Learned(DIMS)
    x = torch.randn(2, 9, 16)
    y = part.add(x, POS)
    for b, n in REAL.nonzero().tolist():
        assert torch.equal(y[b, n], x[b, n] + part.table.weight[POS[b, n]])
    assert part.limit == 40 and tuple(part.table.weight.shape) == (40, 16)


def test_concatenation_with_two_identities_is_the_sum() -> None:
    """W [x ; PE] with W = [I ; I] is what the paper does; with W = [I ; 0] there is no position."""
    part, x = Concatenated(DIMS, place=16), torch.randn(2, 9, 16)
    assert part.join.bias is None and tuple(part.join.weight.shape) == (16, 32)
    with torch.no_grad():
        part.join.weight.copy_(torch.cat([torch.eye(16), torch.eye(16)], 1))
        assert torch.allclose(part.add(x, POS), Sinusoidal(DIMS).add(x, POS), atol=1e-6)
        part.join.weight[:, 16:] = 0
        assert torch.allclose(part.add(x, POS), x, atol=1e-6)


@pytest.mark.parametrize("pairs", ["halves", "neighbours"])
@pytest.mark.parametrize("base", [10_000.0, 500.0])
def test_rotary_turns_each_pair_by_its_angle(pairs: Any, base: float) -> None:
    part, q = Rotary(DIMS, base=base, pairs=pairs), torch.randn(2, 4, 9, 4, dtype=torch.float64)
    turned, _ = part.turn(q, q, POS)
    for b, n in REAL.nonzero().tolist():
        for pair in range(2):
            x, y = (2 * pair, 2 * pair + 1) if pairs == "neighbours" else (pair, pair + 2)
            turn = int(POS[b, n]) * base ** (-2 * pair / 4)
            c, s = math.cos(turn), math.sin(turn)
            a, z = q[b, :, n, x], q[b, :, n, y]
            assert torch.allclose(turned[b, :, n, x], c * a - s * z, atol=1e-6)
            assert torch.allclose(turned[b, :, n, y], s * a + c * z, atol=1e-6)


@pytest.mark.parametrize("pairs", ["halves", "neighbours"])
def test_rotary_keeps_lengths_and_feels_only_the_distance(pairs: Any) -> None:
    part, q, k = Rotary(DIMS, pairs=pairs), torch.randn(1, 1, 9, 4), torch.randn(1, 1, 9, 4)

    def scores(shift: int) -> Tensor:
        a, b = part.turn(q, k, shift + torch.arange(9)[None])
        return a @ b.mT

    assert torch.allclose(scores(0), scores(1000), atol=1e-3)
    assert not torch.allclose(scores(0), q @ k.mT, atol=1e-1)
    turned, _ = part.turn(q, k, torch.arange(9)[None])
    assert torch.allclose(turned.norm(dim=-1), q.norm(dim=-1), atol=1e-6)


def test_the_two_pairings_are_the_same_up_to_the_order_of_features() -> None:
    q, k, order = torch.randn(1, 2, 9, 8), torch.randn(1, 2, 9, 8), [0, 2, 4, 6, 1, 3, 5, 7]
    dims, pos = Dims(width=16, heads=2), torch.arange(9)[None]
    near = Rotary(dims, pairs="neighbours").turn(q, k, pos)
    apart = Rotary(dims, pairs="halves").turn(q[..., order], k[..., order], pos)
    for a, b in zip(near, apart, strict=True):
        assert torch.allclose(a[..., order], b, atol=1e-6)


def test_a_key_is_turned_once_by_its_own_place() -> None:
    """What a cache holds was turned when it came; a later query at i meets it at distance i - j."""
    part, q, k = Rotary(DIMS), torch.randn(1, 1, 1, 4), torch.randn(1, 1, 1, 4)
    early = part.turn(k, k, torch.tensor([[3]]))[1]
    late = part.turn(q, q, torch.tensor([[10]]))[0]
    moved = part.turn(q, q, torch.tensor([[7]]))[0]
    assert torch.allclose(
        (late * early).sum(), (moved * part.turn(k, k, torch.tensor([[0]]))[1]).sum(), atol=1e-5
    )


@pytest.mark.parametrize("causal", [True, False])
def test_t5_adds_its_table_by_distance(causal: bool) -> None:
    part = enlivened(T5Bias(DIMS, buckets=8, distance=20, causal=causal))
    bias = part.bias(torch.zeros(2, 4, 9, 4), POS, POS)
    table = part.table.weight
    assert bias.shape == (2, 4, 9, 9)
    same = {}
    for b, n in REAL.nonzero().tolist():
        for c, m in REAL.nonzero().tolist():
            if b != c:
                continue
            gap = int(POS[b, m] - POS[b, n])
            same.setdefault(gap, bias[b, :, n, m])
            assert torch.equal(bias[b, :, n, m], same[gap])
    assert torch.equal(same[0], table[0]) and torch.equal(same[-1], table[1])
    assert torch.equal(same[1], table[0 if causal else 5])
    assert torch.equal(
        same[-8], table[4 + int(math.log(8 / 4) / math.log(20 / 4) * 4)] if causal else table[3]
    )


def test_alibi_falls_with_the_distance_each_head_at_its_slope() -> None:
    bias = Alibi(DIMS).bias(torch.zeros(2, 4, 9, 4), POS, POS)
    for b, n in REAL.nonzero().tolist():
        for m in REAL[b].nonzero()[:, 0].tolist():
            for h in range(4):
                wanted = -abs(int(POS[b, n] - POS[b, m])) * 2.0 ** (-2 * (h + 1))
                assert float(bias[b, h, n, m]) == wanted


@pytest.mark.parametrize("name", sorted(positions()))
def test_only_the_place_counts_not_the_column(name: str) -> None:
    """Padding moves columns, not places: added, turned and biased alike at equal places."""
    recipe = positions()[name]
    if recipe is None:
        return
    part = enlivened(recipe.build(DIMS))
    x, q = torch.randn(1, 5, 16), torch.randn(1, 4, 5, 4)
    columns, wide = [2, 3, 5, 6, 7], torch.zeros(1, 9, 16)
    plain = torch.arange(5)[None]
    wide[:, columns] = x
    assert torch.equal(part.add(wide, POS[1:])[:, columns], part.add(x, plain))
    far = torch.zeros(1, 4, 9, 4)
    far[:, :, columns] = q
    for a, b in zip(part.turn(far, far, POS[1:]), part.turn(q, q, plain), strict=True):
        assert torch.equal(a[:, :, columns], b)
    if part.biased:
        bias = part.bias(part.ask(far, wide), POS[1:], POS[1:])[:, :, columns][..., columns]
        assert torch.allclose(bias, part.bias(part.ask(q, x), plain, plain), atol=1e-6)


def encoder(position: Any) -> Any:
    """Without positions, a stack of full attention does not know in which order tokens came."""
    bert = regard.system("bert", vocab=13, width=16, heads=4, layers=2, length=40, dropout=0.0)
    return lively(bert.but(stack=bert.options["stack"].but(position=position)))


@pytest.mark.parametrize("name", sorted(positions()))
def test_attention_is_equivariant_without_positions_and_only_then(name: str) -> None:
    """P f(x) = f(P x): equivariant, not invariant (the dossier's error 48)."""
    model, ids = encoder(positions()[name]), torch.randint(1, 13, (2, 9))
    order = torch.tensor([4, 0, 8, 2, 6, 1, 3, 7, 5])
    with torch.no_grad():
        apart = (model(ids)[:, order] - model(ids[:, order])).abs().max()
    assert apart < 1e-5 if name == "none" else apart > 1e-3


@pytest.mark.parametrize("name", ["rotary", "alibi", "t5_bias", "shaw", "transformer_xl"])
def test_relative_positions_do_not_feel_a_shift(name: str) -> None:
    model, ids = encoder(positions()[name]), torch.randint(1, 13, (2, 9))
    with torch.no_grad():
        here = model.states(ids, torch.arange(9).expand(2, 9))
        there = model.states(ids, torch.arange(9).expand(2, 9) + 21)
    assert (here - there).abs().max() < 1e-4


def test_a_layer_may_have_a_scheme_of_its_own() -> None:
    """In place of the stack's, not on top of it."""
    own = Attention(DIMS, pattern=of(Full), position=of(Alibi))
    block = regard.system("gpt", vocab=13, width=16, heads=4, layers=1).options["stack"].options["block"]
    with_own = block.but(
        sublayers={"self": of(Attention, position=of(Alibi)), "ffn": block.options["sublayers"]["ffn"]}
    )
    without = block.but(sublayers={"self": of(Attention), "ffn": block.options["sublayers"]["ffn"]})
    x, ctx = torch.randn(2, 9, 16), Context(POS)
    stacks = []
    for recipe, shared in ((with_own, of(Rotary)), (without, of(Alibi)), (without, of(Rotary))):
        torch.manual_seed(3)
        stacks.append(enlivened(Sequential(DIMS, block=recipe, position=shared))(x, ctx.but(known={})))
    assert torch.equal(stacks[0], stacks[1]) and not torch.allclose(stacks[0], stacks[2], atol=1e-3)
    assert own.position is not None


def test_a_bias_of_one_layer_does_not_serve_another() -> None:
    """Layers that share a scheme share its bias; layers with tables of their own must not."""
    own = of(Attention, position=of(T5Bias))
    stack = enlivened(Sequential(DIMS.but(layers=2), block=of(Serial, sublayers={"self": own}), leave=None))
    x = torch.randn(2, 9, 16)
    apart = x
    for depth, block in enumerate(stack.blocks):
        apart = block(apart, Context(POS).at(depth))
    assert torch.equal(stack(x, Context(POS)), apart)


def test_encoders_and_decoders_place_their_own_tokens() -> None:
    """T5: one table a stack, none in cross-attention."""
    model = lively(regard.system("t5", vocab=13, width=16, heads=4, layers=3, length=40))
    tables = [m for m in model.modules() if isinstance(m, T5Bias)]
    assert len(tables) == 2
    assert [t.causal for t in tables] == [False, True]
    tape: dict[str, Tensor] = {}
    model(torch.randint(1, 13, (1, 6)), torch.randint(1, 13, (1, 5)), tape=tape)
    assert tape["decoder/0/cross"].shape == (1, 4, 5, 6) and tape["encoder/2/self"].shape == (1, 4, 6, 6)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Sinusoidal(Dims(width=15)), "dims.width must be even, but is 15"),
        (lambda: Rotary(Dims(width=15, heads=5)), "the width of one head must be even, but is 3"),
        (lambda: Concatenated(DIMS, place=7), "place must be even, but is 7"),
        (lambda: T5Bias(DIMS, buckets=2), "at least 4 buckets"),
        (lambda: T5Bias(DIMS, buckets=32, distance=16), "distance 16"),
    ],
)
def test_what_cannot_be_is_refused_when_built(make: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        make()


def test_a_scheme_overrides_only_the_moments_it_needs() -> None:
    plain, x, q = Position(), torch.randn(2, 9, 16), torch.randn(2, 4, 9, 4)
    assert plain.add(x, POS) is x and plain.turn(q, q, POS) == (q, q)
    assert not plain.biased and not plain.shared and plain.limit is None
    with pytest.raises(NotImplementedError):
        plain.bias(q, POS, POS)
