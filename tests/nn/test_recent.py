"""Memory over segments: any segmentation is one pass, and nothing flows back into it."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

import regard
from regard.dims import Dims
from regard.errors import UsageError
from regard.laws import lively
from regard.laws.asking import gap, tokens
from regard.laws.subjects import systems
from regard.model import Decoder
from regard.nn.context import Context
from regard.nn.mixer import Attention
from regard.nn.pattern import Causal, Pattern, Window
from regard.nn.position import Alibi, Learned, Rotary, T5Bias, TransformerXL
from regard.spec import of
from regard.systems import SYSTEMS
from regard.train.precision import recompute

POSITIONS = {"rotary": of(Rotary), "t5_bias": of(T5Bias, buckets=8, distance=16), "alibi": of(Alibi)}
POSITIONS |= {"transformer_xl": of(TransformerXL)}
LENGTH = 32


def gpt(position: Any = POSITIONS["t5_bias"], **options: Any) -> Decoder:
    sizes = {"vocab": 13, "width": 16, "heads": 4, "layers": 3, "length": LENGTH}
    model = lively(regard.system("gpt", position=position, **{**sizes, **options}))
    assert isinstance(model, Decoder)
    return model


def fed(model: Decoder, ids_BL: Tensor, cuts: list[int], **how: Any) -> Tensor:
    """The text in segments."""
    cache, edges = model.recent(len(ids_BL), **how), [0, *cuts, ids_BL.shape[1]]
    with torch.no_grad():
        return torch.cat([model(ids_BL[:, a:b], cache=cache) for a, b in itertools.pairwise(edges)], 1)


@pytest.mark.parametrize("states", [False, True], ids=["keys", "states"])
@pytest.mark.parametrize("pads", ["plain", "left", "middle"])
@pytest.mark.parametrize("position", POSITIONS)
def test_any_segmentation_is_one_pass(position: str, pads: str, states: bool) -> None:
    model, ids_BL = gpt(POSITIONS[position], groups=2), tokens(3, LENGTH, pads)
    with torch.no_grad():
        whole = model(ids_BL)
    for cuts in ([*range(1, LENGTH)], [*range(7, LENGTH, 7)], [16], [1, 20, 21]):
        assert gap(fed(model, ids_BL, cuts, states=states), whole, ids_BL >= 0) <= 1e-5


@pytest.mark.parametrize("states", [False, True], ids=["keys", "states"])
@pytest.mark.parametrize("pads", ["plain", "left"])
def test_a_short_memory_with_a_window_is_one_banded_pass(pads: str, states: bool) -> None:
    """`same_length`: every query sees 6 keys, itself included, so that 5 tokens of memory are enough."""
    model, ids_BL = gpt(pattern=of(Window, width=6)), tokens(3, LENGTH, pads)
    with torch.no_grad():
        whole = model(ids_BL)
    for length in (1, 3, 16):
        got = fed(model, ids_BL, [*range(length, LENGTH, length)], memory=5, states=states)
        assert gap(got, whole, ids_BL >= 0) <= 1e-5
    short = fed(model, ids_BL, [*range(3, LENGTH, 3)], memory=4, states=states)
    assert gap(short, whole, ids_BL >= 0) > 1e-3


class Remembered(Pattern):
    """What segments of 8 with a memory of 5 can see, as a set for each position."""

    causal = True

    def __init__(self, dims: Dims, memory: int = 5) -> None:
        self.memory = memory

    def __call__(self, i: Tensor, j: Tensor) -> Tensor:
        return (j <= i) & (j >= i // 8 * 8 - self.memory)


@pytest.mark.parametrize("states", [False, True], ids=["keys", "states"])
@pytest.mark.parametrize("memory", [0, 5, 11])
def test_the_memory_is_as_long_as_it_says(memory: int, states: bool) -> None:
    """Also where the first rows began later: tokens are counted, not columns. 0: each segment is alone."""
    model, ids_BL = gpt(), tokens(3, LENGTH, "plain")
    oracle = gpt(pattern=of(Remembered, memory=memory))
    with torch.no_grad():
        whole = oracle(ids_BL)
    assert gap(fed(model, ids_BL, [8, 16, 24], memory=memory, states=states), whole) <= 1e-5
    if memory == 0:
        with torch.no_grad():
            alone = torch.cat([model(ids_BL[:, a : a + 8]) for a in range(0, LENGTH, 8)], 1)
        assert gap(alone, whole) <= 1e-5
    # a column of padding in the middle of a segment takes no place in the memory
    padded = torch.cat([ids_BL[:, :4], torch.full((3, 1), -1), ids_BL[:, 4:]], 1)
    padded[0] = torch.cat([ids_BL[0, :6], torch.tensor([-1]), ids_BL[0, 6:]])
    got = fed(model, padded, [9, 17, 25], memory=memory, states=states)
    assert gap(got[padded >= 0].view_as(whole), whole) <= 1e-5


@pytest.mark.parametrize("states", [False, True], ids=["keys", "states"])
@pytest.mark.parametrize("system", SYSTEMS)
def test_every_system_that_writes_goes_on_or_refuses_in_a_sentence(system: str, states: bool) -> None:
    model, ids_BL = lively(systems()[system][""]), tokens(3, 18, "plain")
    if not isinstance(model, Decoder):
        return
    try:
        got = fed(model, ids_BL, [7, 14], states=states)
    except UsageError as error:
        assert "carried" in str(error) or "recall" in str(error)
        return
    with torch.no_grad():
        assert gap(got, model(ids_BL)) <= 1e-5


def test_nothing_is_learned_from_what_the_memory_was_made_of() -> None:
    model = gpt()
    ids_BL = torch.cat([torch.arange(6), torch.arange(6, 12)])[None]
    cache = model.recent(1, states=True)
    model(ids_BL[:, :6], cache=cache)
    model(ids_BL[:, 6:], cache=cache)[..., 0].sum().backward()
    embed = model.embed.weight  # the head's own: what is asked of it reaches token 0 alone
    assert embed.grad is not None
    assert not embed.grad[1:6].any() and embed.grad[6:12].abs().sum(1).min() > 0


def test_formula_and_gradients_against_a_loop() -> None:
    """q of the segment, k and v of [SG(memory); segment], in fp64; W_K and W_V learn from the memory too."""
    torch.manual_seed(0)
    dims = Dims(width=6, heads=2)
    layer = Attention(dims, pattern=of(Causal)).double()
    model = gpt()
    old, new = torch.randn(2, 5, 6, dtype=torch.double), torch.randn(2, 3, 6, dtype=torch.double)
    old.requires_grad_()
    cache = model.recent(2, memory=4, states=True)
    ctx = Context(torch.arange(5)[None], True, "a", cache=cache)
    cache.begin(ctx.pos_BL, True)
    layer(old, ctx)
    later = torch.arange(5, 8)[None]
    cache.begin(later, True)
    got = layer(new, ctx.but(pos_BL=later, known={}))

    both = torch.cat([old.detach()[:, 1:], new], 1)
    W, b = layer.qkv.weight.double(), layer.qkv.bias.double()
    rows = []
    for r, i in itertools.product(range(2), range(3)):
        heads = []
        for h in range(2):
            at = slice(3 * h, 3 * h + 3)
            q = new[r, i] @ W[:6][at].T + b[:6][at]
            keys = [both[r, j] @ W[6:12][at].T + b[6:12][at] for j in range(5 + i)]
            values = [both[r, j] @ W[12:][at].T + b[12:][at] for j in range(5 + i)]
            weights = torch.stack([q @ k / 3**0.5 for k in keys]).softmax(0)
            heads.append(sum(w * v for w, v in zip(weights, values, strict=True)))
        rows.append(layer.out(torch.cat(heads)))
    want = torch.stack(rows).view(2, 3, 6)
    assert gap(got, want) <= 1e-9
    weight = torch.randn(2, 3, 6, dtype=torch.double)
    ours = torch.autograd.grad((got * weight).sum(), [*layer.parameters(), old], allow_unused=True)
    theirs = torch.autograd.grad((want * weight).sum(), list(layer.parameters()))
    assert ours[-1] is None
    assert max(map(gap, ours[:-1], theirs)) <= 1e-9


@pytest.mark.parametrize("states", [False, True], ids=["keys", "states"])
def test_rows_move_with_their_memory(states: bool) -> None:
    model, ids_BL = gpt(), tokens(3, 20, "left")
    cache = model.recent(3, memory=9, states=states)
    plain = model.recent(3, memory=9, states=states)
    index = torch.tensor([2, 0, 0, 1])
    with torch.no_grad():
        for each in (cache, plain):
            model(ids_BL[:, :12], cache=each)
        cache.reorder(index)
        got = model(ids_BL[index, 12:], cache=cache)
        assert gap(got, model(ids_BL[:, 12:], cache=plain)[index]) <= 1e-5


@pytest.mark.parametrize("pads", ["plain", "left"])
def test_rows_can_be_saved_and_shared_out_anew(pads: str) -> None:
    """What `take` gives is enough to go on, all rows or some."""
    model, ids_BL = gpt(), tokens(4, 20, pads)
    cache = model.recent(4, memory=9, states=True)
    with torch.no_grad():
        model(ids_BL[:, :12], cache=cache)
        taken = {name: t.clone() for name, t in cache.take().items()}
        want = model(ids_BL[:, 12:], cache=cache)
        for rows in (slice(None), slice(1, None, 2)):
            again = model.recent(len(ids_BL[rows]), memory=9, states=True)
            again.put({name: t[rows] for name, t in taken.items()})
            assert again.plain == (pads == "plain")
            assert torch.equal(model(ids_BL[rows, 12:], cache=again), want[rows])


def test_bytes_are_those_of_the_tokens_in_memory() -> None:
    model, ids_BL = gpt(groups=2), tokens(3, 20, "plain")
    for states, each in ((True, 16), (False, 2 * 2 * 4)):
        cache = model.recent(3, memory=9, states=states)
        for at in range(0, 20, 5):
            with torch.no_grad():
                model(ids_BL[:, at : at + 5], cache=cache)
            assert cache.nbytes == 3 * min(at + 5, 9) * each * 3 * 4


def test_a_call_that_is_computed_again_finds_the_same_memory() -> None:
    """Recomputed activations run each block twice: gradients stay, and the memory moves on once."""
    ids_BL, found = tokens(2, 18, "plain"), []
    for twice in (False, True):
        model = gpt().train()
        if twice:
            recompute(model.decoder.blocks)
        cache = model.recent(2, memory=7, states=True)
        for at in range(0, 18, 6):
            model.zero_grad()
            model(ids_BL[:, at : at + 6], cache=cache).square().mean().backward()
        found.append([p.grad for p in model.parameters()] + list(cache.take().values()))
    assert max(map(gap, *found)) <= 1e-6


def test_what_cannot_be_is_refused() -> None:
    model, ids_BL = gpt(), tokens(2, 6, "plain")
    cache = model.recent(2, memory=4)
    model(ids_BL, cache=cache)
    with pytest.raises(UsageError, match="cannot be taken back"):
        cache.rollback(1)
    cache.rollback(0)
    with pytest.raises(UsageError, match="memory must be a number of tokens, but is -1"):
        model.recent(2, memory=-1)
    with pytest.raises(UsageError, match="cannot be carried from segment to segment"):
        model.recent(2, states=True).swap("a", (ids_BL,))
    placed = gpt(of(Learned), length=8)
    cache = placed.recent(2, memory=4)
    placed(ids_BL, cache=cache)
    with pytest.raises(UsageError, match="holds 8 positions, but 12 are needed"):
        placed(ids_BL, cache=cache)
