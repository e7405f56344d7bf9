"""The cache beyond the grid of the catalogue: growth, rings, refusals, rows that stop, what is kept."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

import regard
from regard.errors import UsageError
from regard.laws import beams_equal_forward, decode_equals_forward, lively, rollback_equals_forward
from regard.laws.asking import begin, source, tokens
from regard.model import Decoder, EncoderDecoder, Model
from regard.nn.cache import Cache
from regard.nn.context import Memory, places
from regard.nn.pattern import AllOf, AnyOf, Causal, PerHead, Prefix, Window
from regard.nn.position import Alibi, Rotary
from regard.nn.slots import Every, Ring
from regard.spec import of

WINDOW = of(Window, width=5)


def gpt(**options: Any) -> Decoder:
    chosen: dict[str, Any] = {"position": of(Rotary), **options}
    model = lively(regard.system("gpt", vocab=13, width=16, heads=4, layers=2, **{"length": 48, **chosen}))
    assert isinstance(model, Decoder)
    return model


def fed(model: Model, ids: Tensor, cache: Cache, cuts: list[int]) -> Tensor:
    with torch.no_grad():
        pieces = [model(ids[:, a:b], cache=cache) for a, b in itertools.pairwise([0, *cuts, ids.shape[1]])]
    return torch.cat(pieces, 1)


def whole(model: Model, ids: Tensor) -> Tensor:
    with torch.no_grad():
        return model(ids)  # type: ignore[no-any-return]


# ---- token by token, where the grid does not reach


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize(
    "pattern",
    [
        of(AllOf, patterns=[of(Causal), of(Window, width=4, both=True)]),
        of(AnyOf, patterns=[of(Window, width=2), of(Window, width=6)]),
        of(PerHead, patterns=[of(Window, width=2), of(Window, width=6)]),
        of(PerHead, patterns=[of(Window, width=3), of(Causal)]),
        of(Window, width=1),
    ],
    ids=["all_of", "any_of", "per_head", "per_head mixed", "itself only"],
)
def test_joined_patterns_step_as_in_one_pass(pattern: Any, static: bool) -> None:
    model = gpt(pattern=pattern, groups=2)
    assert decode_equals_forward(model, static, 1) < 1e-4
    assert decode_equals_forward(model, static, 5) < 1e-4
    assert beams_equal_forward(model, static) < 1e-4
    assert rollback_equals_forward(model, static) < 1e-4


@pytest.mark.parametrize("pattern", [of(Causal), of(Window, width=70)], ids=["causal", "window"])
def test_a_growing_cache_grows_past_its_first_buffer(pattern: Any) -> None:
    """150 columns: the buffers of 64 are outgrown twice, in the middle of a piece and between two."""
    model = gpt(pattern=pattern, length=200)
    ids = tokens(3, 150)
    for cuts in ([63, 64, 65, 128, 129], [50, 100], list(range(1, 150))):
        assert (fed(model, ids, model.cache(3), cuts) - whole(model, ids))[ids >= 0].abs().max() < 1e-4


@pytest.mark.parametrize("pattern", [of(Causal), WINDOW], ids=["causal", "window"])
@pytest.mark.parametrize("static", [False, True])
def test_rows_may_stop_while_others_go_on(pattern: Any, static: bool) -> None:
    """Padding in a later call: the row stands still, and may go on afterwards from where it was."""
    model, ids = gpt(pattern=pattern), tokens(3, 16)
    ids[0, 5:9] = -1
    ids[1, 8] = ids[1, 12] = -1
    ids[2, 10:] = -1
    for cuts in (list(range(1, 16)), [4, 6, 11], [7]):
        got = fed(model, ids, model.cache(3, 16 if static else None), cuts)
        assert (got - whole(model, ids))[ids >= 0].abs().max() < 1e-4
        assert bool(got.isfinite().all())


def test_a_row_of_padding_may_begin_later() -> None:
    model, ids = gpt(pattern=WINDOW), tokens(2, 12, "plain")
    ids[1, :7] = -1
    cache = model.cache(2)
    got = fed(model, ids, cache, [3, 4, 5, 8])
    assert (got[1, 7:] - whole(model, ids[1:, 7:])[0]).abs().max() < 1e-4
    assert cache.next_B.tolist() == [12, 5]


@pytest.mark.parametrize("static", [False, True])
def test_each_row_may_have_a_prefix_of_its_own(static: bool) -> None:
    model, ids, prefix = gpt(pattern=of(Prefix)), tokens(3, 18, "left"), torch.tensor([6, 0, 4])
    with torch.no_grad():
        at_once = model.states(ids, places(ids), prefix_B=prefix)
        cache = model.cache(3, 20 if static else None)
        first = model.states(ids[:, :12], places(ids[:, :12]), cache, prefix_B=prefix)
        rest = [model.states(ids[:, n : n + 1], None, cache, prefix_B=prefix) for n in range(12, 18)]
        longer = model.states(ids, places(ids), prefix_B=torch.tensor([6, 1, 5]))
    assert (torch.cat([first, *rest], 1) - at_once)[ids >= 0].abs().max() < 1e-4
    assert (longer[0] - at_once[0]).abs().max() == 0
    assert (longer[2] - at_once[2]).abs().max() > 1e-3


@pytest.mark.parametrize("name", ["vanilla", "t5"])
def test_sources_of_an_encoder_decoder_follow_their_rows(name: str) -> None:
    """After a reorder the keys of cross-attention, the memory and its padding are those of the right row."""
    model = lively(regard.system(name, vocab=13, width=16, heads=4, layers=2, length=48))
    assert isinstance(model, EncoderDecoder)
    ids, read = tokens(3, 8, "plain"), source(tokens(3))
    index = torch.tensor([2, 0, 2, 1])
    cache = begin(model, ids)
    with torch.no_grad():
        model(None, ids[:, :5], cache=cache)
        cache.reorder(index)
        got = model(None, ids[index, 5:], cache=cache)
        assert (got - model(read[index], ids[index])[:, 5:]).abs().max() < 1e-4
    assert isinstance(cache.memory, Memory) and torch.equal(cache.memory.pos_BM, places(read)[index])


# ---- what it holds


def test_bytes_by_hand() -> None:
    """2 (keys and values) x batch x columns x groups x head x layers x bytes: the dossier's error 14."""
    model = lively(regard.system("llama", vocab=13, width=24, heads=6, head=8, layers=3, length=64, groups=2))
    ids = tokens(5, 10, "plain")
    grown, fixed = model.cache(5), model.cache(5, 40)
    for cache in (grown, fixed):
        fed(model, ids, cache, [7])
    assert grown.nbytes == 2 * 5 * 10 * 2 * 8 * 3 * 4
    assert fixed.nbytes == 2 * 5 * 40 * 2 * 8 * 3 * 4
    grown.reorder(torch.tensor([1, 1, 4]))
    assert grown.nbytes == 2 * 3 * 10 * 2 * 8 * 3 * 4
    grown.rollback(4)
    assert grown.nbytes == 2 * 3 * 6 * 2 * 8 * 3 * 4
    model.bfloat16()
    half = model.cache(5)
    fed(model, ids, half, [7])
    assert half.nbytes == 2 * 5 * 10 * 2 * 8 * 3 * 2


def test_a_window_keeps_no_more_than_it_can_see() -> None:
    model = gpt(pattern=WINDOW, groups=1)
    one_column = 2 * 3 * 1 * 4 * 2 * 4
    for length, spare, columns in ((3, 0, 3), (30, 0, 5), (30, 4, 9)):
        cache = model.cache(3, spare=spare)
        fed(model, tokens(3, length, "plain"), cache, [2])
        assert cache.nbytes == columns * one_column
        held = [t for slot in cache.slots.values() for t in slot.state]
        assert all(t.shape[2] <= 5 + spare + 1 for t in held)
    static = model.cache(3, 48)
    fed(model, tokens(3, 30, "plain"), static, [2])
    assert static.nbytes == 5 * one_column


def test_a_static_cache_never_changes_its_buffers() -> None:
    model = gpt()
    cache = model.cache(3, 20)
    ids = tokens(3, 20)
    fed(model, ids[:, :4], cache, [])
    before = [t.data_ptr() for slot in cache.slots.values() for t in slot.state]
    fed(model, ids[:, 4:], cache, [1, 2, 5])
    assert [t.data_ptr() for slot in cache.slots.values() for t in slot.state] == before
    assert all(t.shape[2] == 20 for slot in cache.slots.values() for t in slot.state)


def test_keys_of_the_source_are_computed_once() -> None:
    model = lively(regard.system("vanilla", vocab=13, width=16, heads=4, layers=2, length=48))
    counts = []
    for name, module in model.named_modules():
        if name.endswith("cross.body.kv"):
            module.register_forward_hook(lambda *given: counts.append(1))
    ids = tokens(3, 6, "plain")
    cache = begin(model, ids)
    with torch.no_grad():
        for n in range(6):
            model(None, ids[:, n : n + 1], cache=cache)
    assert len(counts) == 2


def test_next_positions() -> None:
    model, ids = gpt(), tokens(3, 9, "left")
    cache = model.cache(3)
    assert cache.next_B.tolist() == [0, 0, 0]
    fed(model, ids, cache, [4])
    assert cache.length == 9 and cache.next_B.tolist() == [9, 6, 2]
    cache.reorder(torch.tensor([2, 0]))
    assert cache.batch == 2 and cache.next_B.tolist() == [2, 9]
    cache.rollback(1)
    assert cache.next_B.tolist() == [1, 8]


def test_one_padded_row_becomes_many() -> None:
    """A prompt of one row, padded, is repeated for its beams: all go on from the same place."""
    model, ids = gpt(), tokens(2, 12)[1:]
    cache = model.cache(1)
    with torch.no_grad():
        model(ids, cache=cache)
        cache.reorder(torch.tensor([0, 0, 0]))
        new = tokens(3, 2, "plain", seed=4)
        got = torch.cat([model(new[:, :1], cache=cache), model(new[:, 1:], cache=cache)], 1)
        wanted = model(torch.cat([ids.expand(3, -1), new], 1))[:, -2:]
    assert (got - wanted).abs().max() < 1e-4


def test_plain_rows_may_be_joined_by_padded_tokens() -> None:
    """The first call had no padding and one row of positions for all; the second has padding in one row."""
    for pattern in (of(Causal), WINDOW):
        model, ids = gpt(pattern=pattern), tokens(3, 12, "plain")
        ids[1, 7] = -1
        got = fed(model, ids, model.cache(3), [5, 9])
        assert (got - whole(model, ids))[ids >= 0].abs().max() < 1e-4


# ---- taking back


@pytest.mark.parametrize("pads", ["plain", "left"])
@pytest.mark.parametrize("pattern", [of(Causal), WINDOW], ids=["causal", "window"])
def test_everything_may_be_taken_back(pads: str, pattern: Any) -> None:
    model, ids = gpt(pattern=pattern), tokens(3, 8, pads)
    cache = model.cache(3, spare=8)
    first = fed(model, tokens(3, 8, pads, seed=8), cache, [])
    cache.rollback(8)
    assert cache.length == 0 and cache.next_B.tolist() == [0, 0, 0]
    again = fed(model, ids, cache, [])
    assert (again - whole(model, ids))[ids >= 0].abs().max() < 1e-4 and not torch.equal(first, again)


@pytest.mark.parametrize("moves", [(3,), (2, 1), (4,), (1, 1, 1, 1)])
def test_a_window_gives_back_what_it_still_holds(moves: tuple[int, ...]) -> None:
    """With three to spare, four can go: the window needs one key less than it is wide for the next token."""
    model, ids = gpt(pattern=WINDOW), tokens(3, 20, "left")
    cache = model.cache(3, spare=3)
    fed(model, ids, cache, [9])
    for count in moves:
        cache.rollback(count)
    at = 20 - sum(moves)
    got = fed(model, ids[:, at : at + 1], cache, [])
    assert (got - whole(model, ids[:, : at + 1])[:, -1:]).abs().max() < 1e-4


@pytest.mark.parametrize("moves", [(5,), (3, 2), (2, 2, 1)])
def test_a_window_refuses_to_go_back_to_what_it_has_forgotten(moves: tuple[int, ...]) -> None:
    """All at once or bit by bit: never a wrong answer. And a refusal leaves everything as it was."""
    model, ids = gpt(pattern=WINDOW), tokens(3, 20, "plain")
    cache = model.cache(3, spare=3)
    fed(model, ids, cache, [9])
    for count in moves[:-1]:
        cache.rollback(count)
    at = 20 - sum(moves[:-1])
    with pytest.raises(
        UsageError, match=r"The window at 'decoder/0/self' has let go of keys .* `spare`.* is 3;"
    ):
        cache.rollback(moves[-1])
    assert cache.length == at and cache.next_B.tolist() == [at] * 3
    extended = torch.cat([ids[:, :at], tokens(3, 1, "plain", seed=7)], 1)
    got = fed(model, extended[:, at:], cache, [])
    assert (got - whole(model, extended)[:, -1:]).abs().max() < 1e-4


def test_speculation_again_and_again_behind_a_window() -> None:
    """Guess four, keep some: the ring must hold however often it goes back."""
    model, ids = gpt(pattern=WINDOW), tokens(3, 30, "plain")
    cache = model.cache(3, spare=4)
    fed(model, ids[:, :10], cache, [])
    at = 10
    for keep in (1, 0, 3, 2, 4, 0, 1):
        guess = torch.cat([ids[:, at : at + keep], tokens(3, 4 - keep, "plain", seed=at)], 1)
        got = fed(model, guess, cache, [])
        wanted = whole(model, torch.cat([ids[:, :at], guess], 1))[:, at:]
        assert (got - wanted).abs().max() < 1e-4
        cache.rollback(4 - keep)
        at += keep


def test_a_state_without_history_cannot_be_taken_back() -> None:
    cache = Cache(2)
    cache.begin(torch.arange(3)[None], True)
    cache.swap("decoder/0/conv", (torch.zeros(2, 3),))
    with pytest.raises(UsageError, match="'decoder/0/conv' cannot be taken back"):
        cache.rollback(1)
    assert cache.length == 3, "a refusal changes nothing"
    with pytest.raises(UsageError, match="At most 3 columns can be taken back, but 4"):
        cache.rollback(4)
    with pytest.raises(UsageError, match="At most 3 columns can be taken back, but -1"):
        cache.rollback(-1)
    cache.rollback(0)


# ---- the verbs that attention does not use


def test_swap_gives_the_state_before_and_moves_with_the_rows() -> None:
    cache = Cache(2)
    one, two = torch.tensor([[1.0], [2.0]]), torch.tensor([[3.0], [4.0]])
    assert cache.swap("a", (one,)) is None
    assert cache.swap("a", (two,)) == (one,)
    cache.reorder(torch.tensor([1, 1, 0]))
    (held,) = cache.swap("a", (one,)) or ()
    assert held.tolist() == [[4.0], [4.0], [3.0]]
    assert cache.swap("b", (one,)) is None, "an address is its own"


def test_once_makes_once() -> None:
    cache, made = Cache(2), []

    def make() -> tuple[Tensor, ...]:
        made.append(1)
        return (torch.arange(2.0),)

    assert cache.once("x", make)[0] is cache.once("x", make)[0]
    cache.reorder(torch.tensor([1, 0, 1]))
    assert cache.once("x", make)[0].tolist() == [1, 0, 1] and len(made) == 1


def test_shared_weights_keep_separate_memories() -> None:
    """A cache is addressed by path: the same attention at two depths remembers two things."""
    cache = Cache(1)
    cache.begin(torch.arange(2)[None], True)
    k = torch.randn(1, 1, 2, 4)
    cache.extend("decoder/0/self", k, k)
    cache.extend("decoder/1/self", 2 * k, 2 * k)
    cache.begin(torch.tensor([[2]]), True)
    new = torch.zeros(1, 1, 1, 4)
    first, _, pos = cache.extend("decoder/0/self", new, new)
    second, _, _ = cache.extend("decoder/1/self", new, new)
    assert torch.equal(2 * first, second) and pos.tolist() == [[0, 1, 2]]
    assert isinstance(cache.slots["decoder/0/self"], Every)


def test_a_ring_puts_each_key_where_its_position_says() -> None:
    cache = Cache(1)
    k = torch.arange(7.0).view(1, 1, 7, 1)
    cache.begin(torch.arange(7)[None], True)
    got, _, pos = cache.extend("a", k, k, reach=4)
    assert got.shape[2] == 7 and pos.tolist() == [[0, 1, 2, 3, 4, 5, 6]], "a first piece sees all of itself"
    cache.begin(torch.tensor([[7]]), True)
    got, _, pos = cache.extend("a", k[:, :, :1] + 7, k[:, :, :1], reach=4)
    assert dict(zip(pos[0].tolist(), got[0, 0, :, 0].tolist(), strict=True)) == {
        4: 4.0,
        5: 5.0,
        6: 6.0,
        7: 7.0,
    }
    assert isinstance(cache.slots["a"], Ring)


# ---- refusals


def test_too_many_tokens_for_a_static_cache() -> None:
    model = gpt()
    cache = model.cache(3, 10)
    fed(model, tokens(3, 8), cache, [])
    with pytest.raises(UsageError, match=r"must hold every token, but 8 \+ 3 exceed its length 10"):
        fed(model, tokens(3, 3, "plain"), cache, [])
    fed(model, tokens(3, 2, "plain"), cache, [])


@pytest.mark.parametrize("pads", ["plain", "left"])
def test_rows_must_be_those_of_the_cache(pads: str) -> None:
    model = gpt()
    with pytest.raises(UsageError, match="The cache holds 2 rows, but 3 were given"):
        model(tokens(3, 8, pads), cache=model.cache(2))


@pytest.mark.parametrize("pads", ["plain", "left", "right", "middle"])
def test_more_positions_than_were_learned(pads: str) -> None:
    model = gpt(position=regard.of(regard.nn.position.Learned), length=12)
    cache = model.cache(3)
    with torch.no_grad():
        model(tokens(3, 12, pads), cache=cache)
        with pytest.raises(UsageError, match="The model holds 12 positions, but 13 are needed; shorten"):
            model(tokens(3, 1, "plain"), cache=cache)
        with pytest.raises(UsageError, match="The model holds 12 positions, but 14 are needed; shorten"):
            model(tokens(3, 14, pads))
        padding_only = torch.full((3, 20), -1)
        padding_only[:, 4:14] = 1
        assert bool(model(padding_only).isfinite().all()), "padding needs no position"


def test_alibi_goes_past_any_length() -> None:
    model = gpt(position=of(Alibi), length=12)
    ids = tokens(2, 40, "plain")
    assert (fed(model, ids, model.cache(2), [30]) - whole(model, ids)).abs().max() < 1e-4


def test_place_is_made_before_it_is_needed() -> None:
    """And nothing else changes: not what was written, nor how much there is."""
    cache = Cache(1)
    for token in range(64):
        cache.begin(torch.tensor([[token]]), plain=True)
        cache.extend("a", torch.full((1, 1, 1, 2), token), torch.zeros(1, 1, 1, 2))
    held, bytes_ = [t for t, _ in cache.buffers()], cache.nbytes
    assert cache.reserve(2) and not cache.reserve(2)
    assert all(new.shape[axis] >= 66 for new, axis in cache.buffers())
    assert all(
        torch.equal(new[..., :64, :] if axis == 2 else new[:, :64], old)
        for (new, axis), old in zip(cache.buffers(), held, strict=True)
    )
    assert cache.nbytes == bytes_ and cache.length == 64
    place = [t.data_ptr() for t, _ in cache.buffers()]
    cache.begin(torch.tensor([[64]]), plain=True)
    cache.extend("a", torch.full((1, 1, 1, 2), 64), torch.zeros(1, 1, 1, 2))
    assert [t.data_ptr() for t, _ in cache.buffers()] == place, "it grew again"
