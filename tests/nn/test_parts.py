"""The other parts by their formulas, and how blocks and stacks join them."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import regard
import regard.nn.head.head
from regard.dims import Dims
from regard.errors import UsageError
from regard.laws import lively
from regard.laws.subjects import attentions, enlivened
from regard.model import build
from regard.nn.block import Serial
from regard.nn.context import Context, Memory, places
from regard.nn.embed import Tokens
from regard.nn.ffn import ACTIVATIONS, Chunked, Dense, Gated
from regard.nn.head import Linear, Masked, Pooled, nll
from regard.nn.init import Normal, Xavier
from regard.nn.mixer import Attention
from regard.nn.norm import Layer, Rms
from regard.nn.pattern import Causal
from regard.nn.position import Learned, T5Bias
from regard.nn.residual import Add, Scaled
from regard.nn.score import Dot
from regard.nn.stack import Sequential
from regard.spec import of

DIMS = Dims(width=16, heads=4, layers=3, length=24)
IDS = torch.tensor([[1] * 9, [-1, -1, 1, 1, -1, 1, 1, 1, -1]])
POS = places(IDS)


def ctx(**more: Any) -> Context:
    return Context(POS, **more)


# ---- multi-head attention, from its own weights, one head at a time


@pytest.mark.parametrize("groups", [4, 2, 1])
@pytest.mark.parametrize("bias", [True, False])
def test_attention_is_projections_heads_and_one_more_projection(groups: int, bias: bool) -> None:
    part = enlivened(Attention(DIMS, pattern=of(Causal), groups=groups, bias=bias)).double()
    x = torch.randn(2, 9, 16, dtype=torch.float64)
    K, wide, narrow = 4, 16, groups * 4
    rows = part.qkv.weight.split([wide, narrow, narrow])
    shifts = part.qkv.bias.split([wide, narrow, narrow]) if bias else (0.0, 0.0, 0.0)
    q, k, v = (x @ w.mT + b for w, b in zip(rows, shifts, strict=True))
    heads = []
    for h in range(4):
        g = h * groups // 4
        mine, theirs = slice(h * K, h * K + K), slice(g * K, g * K + K)
        s = q[..., mine] @ k[..., theirs].mT / math.sqrt(K)
        may = (POS[:, None, :] <= POS[:, :, None]) & (POS[:, None, :] >= 0)
        e = s.exp() * may
        heads.append(e / e.sum(-1, keepdim=True).clamp(min=1e-30) @ v[..., theirs])
    wanted = torch.cat(heads, -1) @ part.out.weight.mT + (part.out.bias if bias else 0.0)
    assert (part(x, ctx()) - wanted)[IDS >= 0].abs().max() < 1e-10


def test_cross_attention_reads_the_memory_and_not_the_stream() -> None:
    part = enlivened(Attention(DIMS, cross=True, groups=2))
    x, y = torch.randn(2, 9, 16), torch.randn(2, 5, 16)
    pos = torch.tensor([[0, 1, 2, 3, 4], [-1, 0, 1, 2, -1]])
    out = part(x, ctx(memory=Memory(y, pos)))
    other = y.clone()
    other[1, [0, 4]] = 99.0
    assert torch.equal(part(x, ctx(memory=Memory(other, pos))), out), "padding of the memory is never read"
    other[1, 1] = 0.0
    assert (part(x, ctx(memory=Memory(other, pos))) - out)[1].abs().max() > 1e-2
    later = x.clone()
    later[:, 1:] = 0.0
    assert torch.equal(part(later, ctx(memory=Memory(y, pos)))[:, 0], out[:, 0])
    with pytest.raises(UsageError, match="needs an encoder's memory, but none was given"):
        part(x, ctx(path="decoder/0/cross"))


def test_attention_refuses_what_cannot_be() -> None:
    with pytest.raises(UsageError, match="4 heads do not split into 3 groups"):
        Attention(DIMS, groups=3)
    with pytest.raises(UsageError, match="takes no position"):
        Attention(DIMS, cross=True, position=of(Learned))
    with pytest.raises(UsageError, match="5 heads do not divide 16"):
        Dims(width=16, heads=5)
    assert Attention(Dims(width=16, heads=5, head=2)).out.in_features == 10


@pytest.mark.parametrize("scale", [None, 1.0, 0.3])
def test_scores_are_dot_products_over_the_root_of_the_head(scale: float | None) -> None:
    q, k = torch.randn(2, 4, 3, 9), torch.randn(2, 4, 5, 9)
    part = Dot(DIMS, scale=scale)
    wanted = torch.einsum("bhlk,bhmk->bhlm", q, k) * (1 / 3 if scale is None else scale)
    assert torch.allclose(part(q, k), wanted, atol=1e-6)


# ---- feed-forward layers, residuals, embeddings


@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
def test_dense_is_up_bend_down(activation: Any) -> None:
    part, x = enlivened(Dense(DIMS, hidden=7, activation=activation)), torch.randn(2, 9, 16)
    bend = ACTIVATIONS[activation]
    wanted = bend(x @ part.up.weight.mT + part.up.bias) @ part.down.weight.mT + part.down.bias
    assert torch.allclose(part(x, ctx()), wanted, atol=1e-5)


@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
def test_the_gate_is_the_first_half(activation: Any) -> None:
    """W2 (f(W x) * V x): the bend is on the first rows of `up`, not on the second."""
    part, x = enlivened(Gated(DIMS, hidden=7, activation=activation, bias=True)), torch.randn(2, 9, 16)
    w, v = part.up.weight.split(7)
    b, c = part.up.bias.split(7)
    wanted = (ACTIVATIONS[activation](x @ w.mT + b) * (x @ v.mT + c)) @ part.down.weight.mT + part.down.bias
    assert torch.allclose(part(x, ctx()), wanted, atol=1e-5)


def test_sizes_that_are_not_given() -> None:
    assert Dense(DIMS).up.out_features == 64
    for width in (8, 16, 96, 100, 512, 4096):
        with torch.device("meta"):
            hidden = Gated(Dims(width=width)).down.in_features
        assert hidden % 8 == 0 and 8 * width / 3 <= hidden < 8 * width / 3 + 8


@pytest.mark.parametrize("size", [1, 4, 9, 100])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_pieces_say_what_the_whole_says(size: int, dropout: float) -> None:
    """With dropout too, where the pieces draw in the same order; and in their gradients."""
    body = of(Gated, hidden=12, dropout=dropout)
    whole, pieces = body.build(DIMS), Chunked(DIMS, body=body, size=size)
    pieces.body.load_state_dict(whole.state_dict())
    x = torch.randn(2, 9, 16, requires_grad=True)
    answers = []
    for part in (whole.eval(), pieces.eval()):
        y = part(x, ctx())
        answers.append([y, *torch.autograd.grad(y.square().sum(), [x, *part.parameters()])])
    for a, b in zip(*answers, strict=True):
        assert torch.allclose(a, b, atol=1e-4)
    pieces.train()
    y = pieces(x, ctx())
    (slope,) = torch.autograd.grad(y.sum(), x)
    torch.manual_seed(7)
    first = pieces(x, ctx())
    torch.manual_seed(7)
    with torch.no_grad():
        assert torch.equal(first, pieces(x, ctx())), (
            "computed again in the backward pass or not: the same drops"
        )
    assert bool(slope.isfinite().all())


def test_pieces_of_nothing_are_refused() -> None:
    with pytest.raises(UsageError, match="at least 1 token, but size is 0"):
        Chunked(DIMS, size=0)


def test_residuals() -> None:
    x, y = torch.randn(2, 3, 16), torch.randn(2, 3, 16)
    assert torch.equal(Add(DIMS)(x, y), x + y)
    assert torch.equal(Scaled(DIMS, stream=3.0, body=0.5)(x, y), 3 * x + y / 2)
    assert torch.equal(Scaled(DIMS)(x, y), x + y)


def test_embeddings_are_rows_times_the_root_of_the_width() -> None:
    ids, segments = torch.tensor([[3, 0, -1]]), torch.tensor([[0, 1, -1]])
    part = enlivened(Tokens(DIMS, vocab=5, scaled=True, segments=2))
    assert part.segments is not None
    second = part.segments.weight
    y = part(ids, segments)
    assert torch.allclose(y[0, 0], part.weight[3] * 4 + second[0])
    assert torch.allclose(y[0, 1], part.weight[0] * 4 + second[1])
    assert torch.allclose(part(ids)[0, 1], part.weight[0] * 4 + second[0]), (
        "no segments given: all are the first"
    )
    plain = Tokens(DIMS, vocab=5)
    assert torch.equal(plain(ids)[0, 0], plain.weight[3])


# ---- norms


def test_norms_one_number_at_a_time() -> None:
    """Mean with 1/D, variance with 1/D and inside the root with eps; RMS takes no mean away."""
    x = torch.randn(3, 16, dtype=torch.float64)
    layer, rms = enlivened(Layer(DIMS, eps=0.1)).double(), enlivened(Rms(DIMS, eps=0.1)).double()
    assert layer.bias is not None
    for row, a, b in zip(x.tolist(), layer(x).tolist(), rms(x).tolist(), strict=True):
        mean = sum(row) / 16
        var = sum((v - mean) ** 2 for v in row) / 16
        power = sum(v * v for v in row) / 16
        for n, v in enumerate(row):
            g, s = float(layer.weight[n].detach()), float(layer.bias[n].detach())
            assert abs(a[n] - ((v - mean) / math.sqrt(var + 0.1) * g + s)) < 1e-12
            assert abs(b[n] - v / math.sqrt(power + 0.1) * float(rms.weight[n].detach())) < 1e-12


# ---- blocks and stacks


class Constant(nn.Module):
    """A body that always says the same."""

    def __init__(self, dims: Dims, value: float = 0.0) -> None:
        super().__init__()
        self.value = value

    def forward(self, x_BLD: Tensor, ctx: Context) -> Tensor:
        return torch.full_like(x_BLD, self.value)


def stack(order: str, **more: Any) -> Sequential:
    bodies: Any = {"one": of(Constant), "two": of(Constant)}
    block = of(Serial, sublayers=bodies, order=order)  # type: ignore[arg-type]
    return enlivened(Sequential(DIMS, block=block, **more))


def test_zeroed_sublayers_leave_a_pre_norm_stream_as_it_is() -> None:
    """x before the final norm; norm(x) after it."""
    x, pre = torch.randn(2, 9, 16), stack("pre")
    assert pre.leave is not None
    assert torch.equal(pre(x, ctx()), pre.leave(x))
    assert torch.equal(stack("pre", leave=None)(x, ctx()), x)


def test_zeroed_sublayers_leave_a_chain_of_norms_in_a_post_norm_stack() -> None:
    x, post = torch.randn(2, 9, 16), stack("post")
    assert post.leave is None
    wanted = x
    for block in post.blocks:
        for sublayer in block.sublayers.values():  # type: ignore[union-attr, operator]
            wanted = sublayer.norm(wanted)
    assert torch.allclose(post(x, ctx()), wanted, atol=1e-6) and not torch.allclose(wanted, x, atol=0.1)


def test_pre_and_post_put_the_norm_where_they_say() -> None:
    """post: norm(x + F(x)); pre: x + F(norm(x)), with F a real layer."""
    x = torch.randn(2, 9, 16)
    for order in ("pre", "post"):
        block = enlivened(Serial(DIMS, sublayers={"ffn": of(Dense)}, order=order))  # type: ignore[arg-type]
        sublayer = block.sublayers["ffn"]
        body, norm = sublayer.body, sublayer.norm
        wanted = x + body(norm(x), ctx()) if order == "pre" else norm(x + body(x, ctx()))  # type: ignore[operator]
        assert torch.equal(block(x, ctx()), wanted)


@pytest.mark.parametrize("name", ["gpt", "llama", "t5", "vanilla", "bert"])
def test_pre_norm_stacks_end_with_a_norm_and_post_norm_stacks_do_not(name: str) -> None:
    for order in ("pre", "post"):
        takes = {"order": order} if name in ("gpt", "vanilla", "bert") else {}
        if not takes and order == "post":
            continue
        model = build(regard.system(name, vocab=13, width=16, heads=4, layers=2, **takes))
        stacks = [m for m in model.modules() if isinstance(m, Sequential)]
        assert stacks and all((s.leave is not None) == (order == "pre") for s in stacks)
        inner = {type(m) for s in stacks for b in s.blocks for m in b.modules() if isinstance(m, Layer | Rms)}
        assert all(type(s.leave) in inner for s in stacks if s.leave is not None), "the same kind of norm"


def test_enter_leave_and_a_cycle_of_blocks() -> None:
    bodies: Any = [{"a": of(Constant, value=1.0)}, {"b": of(Constant, value=10.0)}]
    blocks = [of(Serial, sublayers=s) for s in bodies]
    deep = Sequential(DIMS, block=blocks, leave=None)  # type: ignore[arg-type]
    assert [next(iter(b.sublayers)) for b in deep.blocks] == ["a", "b", "a"]  # type: ignore[union-attr, arg-type]
    x = torch.randn(2, 9, 16)
    assert torch.allclose(deep(x, ctx()), x + 12)
    normed = Sequential(DIMS, block=blocks, position=of(Learned), enter=of(Layer), leave=of(Rms))  # type: ignore[arg-type]
    assert normed.enter is not None and normed.leave is not None and normed.position is not None
    wanted = normed.leave(normed.enter(normed.position.add(x, POS)) + 12)
    assert torch.allclose(normed(x, ctx()), wanted, atol=1e-6)
    with pytest.raises(UsageError, match="at least one block"):
        Sequential(DIMS, block=[])


def test_dropout_is_for_training_only() -> None:
    recipe = regard.system("gpt", vocab=13, width=16, heads=4, layers=2, length=24, dropout=0.4)
    model, ids = build(recipe), torch.randint(0, 13, (2, 9))
    assert not torch.equal(model.train()(ids), model(ids))
    assert torch.equal(model.eval()(ids), model(ids))
    rates = {m.p for m in model.modules() if isinstance(m, nn.Dropout)}
    assert 0.4 in rates and attentions(model)[0].dropout == 0.4


def test_what_a_sublayer_says_is_dropped_before_it_joins() -> None:
    """post: norm(x + dropout(F(x))): the stream itself is never dropped."""
    bodies: Any = {"one": of(Constant, value=1.0)}
    block = Serial(DIMS, sublayers=bodies, order="pre", dropout=0.5).train()
    said = block(torch.full((2, 9, 16), 5.0), ctx())
    assert set(said.unique().tolist()) == {5.0, 7.0}


def test_the_path_names_layer_and_sublayer() -> None:
    model = lively(regard.system("vanilla", vocab=13, width=16, heads=4, layers=2))
    tape: dict[str, Tensor] = {}
    model(torch.ones(1, 3, dtype=torch.long), torch.ones(1, 4, dtype=torch.long), tape=tape)
    assert sorted(tape) == [
        "decoder/0/cross",
        "decoder/0/self",
        "decoder/1/cross",
        "decoder/1/self",
        "encoder/0/self",
        "encoder/1/self",
    ]


# ---- heads and losses


def test_linear_heads() -> None:
    x = torch.randn(2, 3, 16)
    part = enlivened(Linear(DIMS, vocab=5, bias=True, scaled=True))
    assert torch.allclose(part(x), x / 4 @ part.weight.mT + part.bias, atol=1e-6)
    assert torch.allclose(part.log_prob(x).exp().sum(-1), torch.ones(2, 3), atol=1e-6)
    other = Tokens(DIMS, vocab=5)
    part.tie(other.weight)
    assert part.weight is other.weight
    with pytest.raises(UsageError, match=r"needs the embedding's shape \(6, 16\), but its own is \(5, 16\)"):
        part.tie(Tokens(DIMS, vocab=6).weight)


def test_the_masked_head() -> None:
    x, part = torch.randn(2, 3, 16), enlivened(Masked(DIMS, vocab=5))
    inner = nn.functional.gelu(x @ part.turn.weight.mT + part.turn.bias)
    wanted = part.norm(inner) @ part.weight.mT + part.bias
    assert torch.allclose(part(x), wanted, atol=1e-5)


@pytest.mark.parametrize("largest", [2**25, 12, 5, 1])
def test_losses_count_only_targets_and_may_be_cut_in_pieces(
    largest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (regard.nn.head.head, regard.nn.head.cost):
        monkeypatch.setattr(module, "LARGEST", largest)
    part, x = enlivened(Linear(DIMS, vocab=5)), torch.randn(2, 9, 16, requires_grad=True)
    target = torch.randint(0, 5, (2, 9)).masked_fill(IDS < 0, -1)
    target[0, 4] = -100
    loss = part.loss(x, target)
    wanted = torch.zeros(())
    for b, n in (target >= 0).nonzero().tolist():
        logits = part(x[b, n])
        wanted = wanted + logits.exp().sum().log() - logits[target[b, n]]
    assert torch.allclose(loss, wanted, atol=1e-4)
    with torch.no_grad():
        assert torch.allclose(part.loss(x, target), wanted, atol=1e-4)
    for a, b in zip(*(torch.autograd.grad(t, [x, part.weight]) for t in (loss, wanted)), strict=True):
        assert torch.allclose(a, b, atol=1e-5)
    nothing = part.loss(x, torch.full((2, 9), -1))
    assert float(nothing.detach()) == 0.0
    assert not torch.autograd.grad(nothing, x)[0].any()


def test_another_cost() -> None:
    part, x, target = Linear(DIMS, vocab=5), torch.randn(2, 3, 16), torch.tensor([[1, -1, 2], [-1, -1, 0]])
    rows = []

    def cost(logits: Tensor, wanted: Tensor) -> Tensor:
        rows.append((tuple(logits.shape), wanted.tolist()))
        return 2 * nll(logits, wanted)

    assert torch.allclose(part.loss(x, target, cost), 2 * part.loss(x, target))
    assert rows == [((3, 5), [1, 2, 0])]


class Capped(Linear):
    """Makes its logits in a way of its own."""

    def forward(self, x_BLD: Tensor) -> Tensor:
        return 2 * super().forward(x_BLD).tanh()


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize(
    "part", [Linear(DIMS, 5, bias=True, scaled=True), Masked(DIMS, 5), Capped(DIMS, 5, bias=True)], ids=repr
)
def test_the_loss_is_that_of_the_heads_own_logits(part: Any, half: bool) -> None:
    part, x = enlivened(part), torch.randn(2, 3, 16, requires_grad=True)
    target, given = torch.tensor([[1, -1, 2], [-1, -1, 0]]), [x, *part.parameters()]
    with torch.autocast("cpu", torch.bfloat16, enabled=half):
        loss, wanted = part.loss(x, target), nll(part(x)[target >= 0], target[target >= 0])
    assert float(loss.detach()) == pytest.approx(float(wanted.detach()), rel=1e-2 if half else 1e-6)
    for a, b in zip(*(torch.autograd.grad(t, given) for t in (loss, wanted)), strict=True):
        assert (a - b).norm() <= (0.05 if half else 1e-5) * (1e-3 + b.norm())


def test_a_cost_may_learn_too() -> None:
    part, heat = Linear(DIMS, vocab=5), torch.ones((), requires_grad=True)
    loss = part.loss(torch.randn(2, 3, 16), torch.ones(2, 3).long(), lambda s, t: nll(s / heat, t))
    assert torch.autograd.grad(loss, heat)[0] != 0


@pytest.mark.parametrize("take", ["first", "mean"])
@pytest.mark.parametrize("turn", [True, False])
def test_pooling_passes_over_padding(take: Any, turn: bool) -> None:
    part, x = enlivened(Pooled(DIMS, classes=3, take=take, turn=turn)), torch.randn(2, 9, 16)
    rows = [x[0, 0], x[1, 2]] if take == "first" else [x[0].mean(0), x[1, [2, 3, 5, 6, 7]].mean(0)]
    pool = torch.stack(rows)
    if part.turn is not None:
        pool = (pool @ part.turn.weight.mT + part.turn.bias).tanh()
    wanted = pool @ part.weight.mT + part.bias
    assert torch.allclose(part(x, POS), wanted, atol=1e-5)
    target = torch.tensor([-1, 2])
    loss = part.loss(x, target, pos_BL=POS)
    assert torch.allclose(loss, -wanted[1].log_softmax(-1)[2], atol=1e-5)
    plain = x[:, 0] if take == "first" else x.mean(1)
    assert torch.allclose(part(x)[0], part(x, torch.arange(9)[None])[0], atol=1e-6) and plain.shape == (2, 16)
    assert bool(part(x, torch.full((2, 9), -1)).isfinite().all()), (
        "a row of padding pools to nothing, not to NaN"
    )


# ---- the weights a model is born with


def born(init: Any, **more: Any) -> regard.Model:
    gpt = regard.system("gpt", vocab=400, width=64, heads=4, layers=4, length=100, groups=2, **more)
    return build(gpt.but(init=init))


def test_normal_weights() -> None:
    model = born(of(Normal, std=0.05, position=0.01, depth=True))
    for name, p in model.named_parameters():
        if p.ndim < 2:
            assert not p.any() if name.endswith("bias") else bool((p == 1).all()), name
            continue
        last = name.endswith(("out.weight", "down.weight"))
        wanted = 0.01 if "position" in name else 0.05 / math.sqrt(8) if last else 0.05
        assert abs(float(p.detach().std()) / wanted - 1) < 0.06, name
    flat = born(of(Normal, std=0.05))
    stds = [float(p.detach().std()) for p in flat.parameters() if p.ndim > 1]
    assert all(abs(s / 0.05 - 1) < 0.06 for s in stds)


def test_xavier_takes_queries_keys_and_values_apart() -> None:
    model = born(of(Xavier))
    for a in attentions(model):
        for rows, outs in zip(a.qkv.weight.split([64, 32, 32]), (64, 32, 32), strict=True):
            bound = math.sqrt(6 / (64 + outs))
            assert 0.97 * bound < float(rows.detach().abs().max()) <= bound
    cross = build(regard.system("vanilla", vocab=40, width=64, heads=4, layers=1))
    for a in attentions(cross):
        if a.cross:
            assert all(
                float(r.detach().abs().max()) > 0.97 * math.sqrt(6 / 128) for r in a.kv.weight.split(64)
            )
    assert abs(float(model.embed.weight.detach().std()) * 8 - 1) < 0.05  # type: ignore[union-attr, operator]


def test_t5_folds_the_scale_into_the_queries() -> None:
    model = build(regard.system("t5", vocab=400, width=64, heads=4, head=32, layers=2, version="1.1"))
    for a in attentions(model):
        q = a.q.weight if a.cross else a.qkv.weight[:128]
        kv = a.kv.weight if a.cross else a.qkv.weight[128:]
        for w, std in ((q, (64 * 32) ** -0.5), (kv, 64**-0.5), (a.out.weight, 128**-0.5)):
            assert abs(float(w.detach().std()) / std - 1) < 0.06
    assert abs(float(model.embed.weight.detach().std()) - 1) < 0.05  # type: ignore[union-attr, operator]
    assert abs(float(model.head.weight.detach().std()) * 8 - 1) < 0.05
    for m in model.modules():
        if isinstance(m, T5Bias):
            assert abs(float(m.table.weight.detach().std()) * 8 - 1) < 0.3
        if isinstance(m, Gated):
            assert abs(float(m.down.weight.detach().std()) / m.down.in_features**-0.5 - 1) < 0.06
