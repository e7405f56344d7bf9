"""A reversible stack learns as the same sums would by autograd, and keeps nothing of its layers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from regard.dims import Dims
from regard.errors import UsageError
from regard.nn.block import Serial
from regard.nn.context import Context, Memory, places, plain_places
from regard.nn.ffn import Chunked, Dense
from regard.nn.mixer import Attention, Lsh
from regard.nn.pattern import Causal
from regard.nn.position import Learned, T5Bias
from regard.nn.residual import Scaled
from regard.nn.stack import Reversible
from regard.spec import Recipe, of

DIMS = {"width": 12, "heads": 2, "length": 32}
LOOK: Recipe[Any] = of(Attention, pattern=of(Causal), dropout=0.2)
THINK: Recipe[Any] = of(Dense, hidden=20, dropout=0.3)


def block(look: Recipe[Any] = LOOK, think: Recipe[Any] = THINK, **options: Any) -> Recipe[Any]:
    return of(Serial, sublayers={"self": look, "ffn": think}, **{"dropout": 0.1, **options})


def built(layers: int = 3, **options: Any) -> Reversible:
    torch.manual_seed(0)
    stack = Reversible(Dims(**DIMS, layers=layers), **{"block": block(), **options})
    return stack.double().train()


def drawn(length: int = 20) -> Tensor:
    return torch.randn(2, length, 12, generator=torch.Generator().manual_seed(1)).double().requires_grad_()


def plain(length: int = 20, **fields: Any) -> Context:
    return Context(plain_places(0, length, torch.device("cpu")), True, **fields)


def by_autograd(stack: Reversible, x_BLD: Tensor, ctx: Context) -> Tensor:
    """The two streams as plain sums."""
    position = stack.position
    x1 = x2 = stack.dropout(x_BLD if position is None else position.add(x_BLD, ctx.pos_BL))
    for depth, block in enumerate(stack.blocks):
        (first, f), (second, g) = block.sublayers.items()
        here = ctx.at(depth).but(position=position)
        x1 = x1 + f.say(x2, here.at(first))
        x2 = x2 + g.say(x1, here.at(second))
    y = (x1 + x2) / 2 if stack.matrix is None else torch.cat([x1, x2], -1)
    y = stack.leave(y) if stack.leave is not None else y
    return y if stack.matrix is None else stack.matrix(y)


CASES: dict[str, dict[str, Any]] = {
    "dropout": {},
    "hashes drawn in training": {"block": block(of(Lsh, chunk=3, buckets=4))},
    "lsh, trax": {"block": block(of(Lsh, chunk=2, rounds=1, mode="trax"), of(Chunked, body=THINK, size=6))},
    "chunked": {"block": block(think=of(Chunked, body=THINK, size=7))},
    "matrix": {"join": "matrix", "dropout": 0.2, "position": of(Learned)},
    "a bias that layers share": {"position": of(T5Bias)},
    "cross": {"block": block(of(Attention, cross=True, dropout=0.2))},
}


@pytest.mark.parametrize("case", CASES)
def test_gradients_of_autograd_with_dropout_on(case: str) -> None:
    stack, x_BLD = built(**CASES[case]), drawn()
    memory_BMD = torch.randn(2, 5, 12, generator=torch.Generator().manual_seed(2)).double().requires_grad_()
    memory = Memory(memory_BMD, torch.arange(5)[None], True)
    weight = torch.randn(2, 20, 12, generator=torch.Generator().manual_seed(3)).double()
    leaves = [x_BLD, memory_BMD, *stack.parameters()]
    answers = []
    for run in (stack, lambda x, ctx: by_autograd(stack, x, ctx)):
        torch.manual_seed(5)
        y_BLD = run(x_BLD, plain(memory=memory, path="decoder"))
        slopes = torch.autograd.grad((y_BLD * weight).sum(), leaves, allow_unused=True)
        answers.append([y_BLD, *(torch.zeros(1) if s is None else s for s in slopes)])
    for mine, theirs in zip(*answers, strict=True):
        assert (mine - theirs).abs().max() < 1e-9
    assert all(s.any() for (n, _), s in zip(stack.named_parameters(), answers[0][3:], strict=True) if n)
    torch.manual_seed(6)
    assert (stack(x_BLD, plain(memory=memory)) - answers[0][0]).abs().max() > 1e-3, "dropout is on"


def kept(layers: int, **options: Any) -> int:
    """Bytes that are saved for the backward pass, weights not counted."""
    stack, x_BLD = built(layers, **options), drawn()
    weights = {p.untyped_storage().data_ptr() for p in stack.parameters()}
    seen: dict[int, Tensor] = {}

    def keep(t: Tensor) -> Tensor:
        seen[t.untyped_storage().data_ptr()] = t
        return t

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        y_BLD = stack(x_BLD, plain())
    assert y_BLD.requires_grad
    return sum(t.untyped_storage().nbytes() for at, t in seen.items() if at not in weights)


def test_what_is_kept_does_not_grow_with_depth() -> None:
    few, many = kept(4), kept(24)
    assert 0 < many <= 1.1 * few
    assert kept(24, block=block(of(Lsh, chunk=4))) <= 1.1 * kept(4, block=block(of(Lsh, chunk=4)))


def test_padding_and_a_stack_that_does_not_learn() -> None:
    stack, x_BLD = built().eval(), drawn()
    ids_BL = torch.ones(2, 20, dtype=torch.long)
    ids_BL[1, :4] = -1
    ctx = Context(places(ids_BL))
    with torch.no_grad():
        quiet = stack(x_BLD, ctx)
    assert torch.equal(quiet, stack(x_BLD, ctx))
    tape: dict[str, Tensor] = {}
    y = stack(x_BLD, ctx.but(tape=tape, path="decoder"))
    y.sum().backward()
    assert sorted(tape) == [f"decoder/{n}/self" for n in range(3)]


def test_what_it_refuses() -> None:
    three = of(Serial, sublayers={"self": LOOK, "cross": of(Attention, cross=True), "ffn": THINK})
    with pytest.raises(UsageError, match="two sublayers, but Serial has 3; take stack sequential"):
        built(block=three)
    with pytest.raises(
        UsageError, match="'self' must be pre-norm with a plain sum, but is post-norm with Add"
    ):
        built(block=block(order="post"))
    with pytest.raises(UsageError, match="but is pre-norm with Scaled"):
        built(block=block(residual=of(Scaled)))
    stack = built()

    def charge(module: nn.Module, given: tuple[Any, ...]) -> None:
        given[1].losses[given[1].path] = given[0].mean()

    stack.blocks[1].sublayers["ffn"].body.register_forward_pre_hook(charge)
    with pytest.raises(UsageError, match="loss inside them could not be learned from, but '1/ffn' has one"):
        stack(drawn(), plain(losses={}))
    with pytest.raises(UsageError, match="none can be asked what it said; take stack sequential"):
        built()(drawn(), plain(layers=[]))
