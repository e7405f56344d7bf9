"""Beam search finds what it says it finds."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from regard.decode import Hypothesis, Rules
from regard.decode.beam import largest, penalty, search
from regard.decode.engine import Session
from regard.decode.generate import generate
from regard.decode.quick import step
from regard.model import Decoder, EncoderDecoder
from regard.nn.cache import Cache
from regard.nn.slots import Kept
from tests.decode.asked import EOS, Asked, Make


def lp(length: int, alpha: float) -> float:
    return ((5 + length) ** alpha) / ((5 + 1) ** alpha)


def test_length_penalty_is_gnmts() -> None:
    assert penalty(1, 0.6) == 1.0
    assert penalty(7, 1.0) == pytest.approx(2.0)
    assert penalty(20, 0.6) == pytest.approx(lp(20, 0.6))
    assert penalty(13, 0.6) == pytest.approx(3**0.6)
    assert penalty(50, 0.0) == 1.0


def everything(asked: Asked, number: int, longest: int, alpha: float) -> list[tuple[float, float, list[int]]]:
    """Every answer that ends within the limit, ranked: (score, log p, ids)."""
    vocab = len(asked.logits(number, []))
    words = [token for token in range(vocab) if token != EOS]
    answers = []
    for length in range(longest):
        for ids in itertools.product(words, repeat=length):
            logp = 0.0
            for n, token in enumerate([*ids, EOS]):
                logp += float(asked.logits(number, ids[:n]).log_softmax(-1)[token])
            answers.append((logp / lp(length + 1, alpha), logp, list(ids)))
    return sorted(answers, key=lambda answer: -answer[0])


# 27 prefixes of 3 tokens have 108 continuations: half as many beams let every one of them compete.
@pytest.mark.parametrize("alpha", [0.0, 1.5])
def test_a_wide_beam_finds_the_best_of_all_answers(make: Make, alpha: float) -> None:
    asked = make(count=3, vocab=4, strength=1.5)
    rules = Rules(length=4, method="beam", beam=54, alpha=alpha, nbest=20)
    for number, found in enumerate(asked.answers(rules)):
        best = everything(asked, number, 4, alpha)[:20]
        assert [h.ids for h in found] == [ids for _, _, ids in best]
        assert [h.score for h in found] == pytest.approx([score for score, _, _ in best], abs=1e-4)
        assert [h.logp for h in found] == pytest.approx([logp for _, logp, _ in best], abs=1e-4)
        assert all(h.end == "eos" for h in found)


def slow_beam(asked: Asked, number: int, rules: Rules, longest: int) -> list[Hypothesis]:
    """The same search with lists, without cache, without batch, and never stopping early."""
    alive: list[tuple[float, list[int]]] = [(0.0, [])]
    done: list[tuple[float, float, list[int]]] = []
    ended_well = 0
    for length in range(1, longest + 1):
        every = []
        for logp, ids in alive:
            steps = asked.logits(number, ids).log_softmax(-1).tolist()
            if length <= rules.min_length:
                steps[EOS] = -math.inf
            every += [(logp + step, [*ids, token]) for token, step in enumerate(steps)]
        every = sorted(every, key=lambda item: -item[0])[: 2 * rules.beam]
        ended = [(logp, ids) for logp, ids in every if ids[-1] == EOS and logp > -math.inf]
        done += [(logp / lp(length, rules.alpha), logp, ids[:-1]) for logp, ids in ended]
        alive = [item for item in every if item[1][-1] != EOS][: rules.beam]
        ended_well += sum(ids[-1] == EOS and logp > -math.inf for logp, ids in every[: rules.beam])
        if rules.patience is not None and ended_well >= max(rules.patience * rules.beam, rules.nbest):
            break
    done = sorted(done, key=lambda item: -item[0])[: rules.nbest]
    found = [Hypothesis(ids, logp, score, None, "eos") for score, logp, ids in done]
    cut = [Hypothesis(ids, logp, logp / lp(length, rules.alpha)) for logp, ids in alive]
    return found + cut[: rules.nbest - len(found)]


def same(one: list[Hypothesis], other: list[Hypothesis]) -> None:
    assert [(h.ids, h.end) for h in one] == [(h.ids, h.end) for h in other]
    assert [h.logp for h in one] == pytest.approx([h.logp for h in other], abs=1e-4)
    assert [h.score for h in one] == pytest.approx([h.score for h in other], abs=1e-4)


SEARCHES = {
    "usual": Rules(length=9, method="beam", beam=4),
    "flat": Rules(length=9, method="beam", beam=3, alpha=0, nbest=3),
    "long": Rules(length=9, method="beam", beam=5, alpha=2.0, nbest=5),
    "late": Rules(length=9, method="beam", beam=2, nbest=2, min_length=4),
    "patient": Rules(length=9, method="beam", beam=4, alpha=2.0, patience=1.0),
    "hasty": Rules(length=9, method="beam", beam=4, alpha=2.0, nbest=3, patience=0.25),
}


@pytest.mark.parametrize("name", SEARCHES)
def test_equals_a_slow_search_without_cache(make: Make, name: str) -> None:
    rules, asked = SEARCHES[name], make(count=5, seed=1)
    for number, found in enumerate(asked.answers(rules)):
        same(found, slow_beam(asked, number, rules, 9))


@pytest.mark.parametrize("name", SEARCHES)
def test_batched_is_alone(make: Make, name: str) -> None:
    rules, asked = SEARCHES[name], make(count=5, seed=2)
    for number, found in enumerate(asked.answers(rules)):
        same(asked.part([number]).answers(rules)[0], found)


@pytest.mark.parametrize("name", [*SEARCHES, "in bytes"])
def test_sentences_come_in_where_others_are_done(
    make: Make, system: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few places for many: they join those that are there, and find what they find alone."""
    joined: list[tuple[int, int]] = []
    join = Cache.join

    def watched(self: Cache, other: Cache) -> None:
        joined.append((self.length, other.length))
        join(self, other)

    monkeypatch.setattr(Cache, "join", watched)
    monkeypatch.setattr("regard.decode.workers.SMALL", 0)  # one worker
    rules = SEARCHES.get(name) or Rules(length=9, method="beam", beam=4, cache="int8")
    asked = make(count=9, seed=3)
    for eos in range(0, 11, 2):  # ends that come sooner and later
        given = asked.model, asked.prompts, asked.sources, rules, eos
        for ours, wanted in zip(generate(*given, budget=150), asked.answers(rules, eos), strict=True):
            same(ours, wanted)
    if system == "window":
        assert not joined, "a ring of keys is not joined"
    elif name in ("usual", "hasty", "in bytes"):  # in others all may have the same length
        assert any(mine != theirs for mine, theirs in joined)


def test_stopping_early_is_exact_and_saves_steps(make: Make) -> None:
    saved = 0
    for seed in range(6):
        asked = make(count=4, seed=seed)
        for rules in (SEARCHES["usual"], SEARCHES["flat"], SEARCHES["long"]):
            limits = [9, 12, 7, 10]
            steps = []
            answers = []
            for early in (True, False):
                session = Session(asked.model, asked.prompts, asked.sources)  # type: ignore[arg-type]
                answers.append(search(session, limits, rules, EOS, early=early))
                steps.append(session.cache.length)
            for one, other in zip(*answers, strict=True):
                same(one, other)
            saved += steps[1] - steps[0]
    assert saved > 0


def test_a_beam_of_one_is_greedy(make: Make) -> None:
    asked = make(count=6)
    for alpha in (0.0, 0.6):
        beam = asked.answers(Rules(length=10, method="beam", beam=1, alpha=alpha))
        for one, other in zip(beam, asked.answers(Rules(length=10)), strict=True):
            assert (one[0].ids, one[0].end, one[0].logp) == (other[0].ids, other[0].end, other[0].logp)
            length = len(one[0].ids) + (one[0].end == "eos")
            assert one[0].score == pytest.approx(one[0].logp / lp(length, alpha))


def test_without_an_end_token_all_answers_have_full_length(make: Make) -> None:
    asked = make(count=3, vocab=4)
    rules = Rules(length=3, method="beam", beam=64, nbest=5, alpha=0.6)
    for number, found in enumerate(asked.answers(rules, eos=None)):
        every = []
        for ids in itertools.product(range(4), repeat=3):
            steps = [float(asked.logits(number, ids[:n]).log_softmax(-1)[ids[n]]) for n in range(3)]
            every.append((sum(steps), list(ids)))
        best = sorted(every, key=lambda item: -item[0])[:5]
        assert [h.ids for h in found] == [ids for _, ids in best]
        assert [h.score for h in found] == pytest.approx([logp / lp(3, 0.6) for logp, _ in best], abs=1e-4)
        assert all(h.end == "length" for h in found)


def test_fewer_answers_than_asked_for_if_there_are_no_more(make: Make) -> None:
    """With one word and the end, only two answers of at most one word end, and one is cut off."""
    asked = make(count=1, vocab=3)
    with torch.no_grad():
        found = asked.answers(Rules(length=1, method="beam", beam=8, nbest=8))[0]
    assert sorted((h.ids, h.end) for h in found) == [([], "eos"), ([0], "length"), ([2], "length")]
    assert found[0].end == "eos", "whole answers stand before those that were cut off"


@pytest.mark.parametrize("system", ["vanilla"])
def test_finished_sentences_leave_the_batch(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = make(count=4)
    sizes: list[int] = []
    states = Session.states

    def counted(self: Session, ids_N: torch.Tensor) -> torch.Tensor:
        sizes.append(len(ids_N))
        return states(self, ids_N)

    monkeypatch.setattr(Session, "states", counted)
    generate(asked.model, asked.prompts, asked.sources, Rules(method="beam", beam=3))
    # sources of 1 to 4 tokens may have answers of 51 to 54; the last token of each is not read
    assert sizes == [12] * 50 + [9, 6, 3]


@pytest.mark.parametrize("vocab", [5, 640, 1000, 10007])
@pytest.mark.parametrize("count", [1, 4, 10])
def test_the_largest_are_found_piece_by_piece(vocab: int, count: int) -> None:
    random = torch.Generator().manual_seed(vocab + count)
    x_BNV = torch.randperm(12 * vocab, generator=random).view(4, 3, vocab).float() / 2  # no two alike
    x_BNV[0, 1, : vocab // 2] = -torch.inf
    x_BNV[1, 2] = torch.arange(vocab) + 7 * vocab  # all of the largest in the last pieces of one row
    more_BN = torch.rand(4, 3, generator=random, dtype=torch.float64) / 4
    more_BN[2, 0], more_BN[3, 1] = 9 * vocab, -torch.inf  # of one hypothesis all, of another none
    summed_BX = (x_BNV + more_BN[..., None]).flatten(1)
    for ours, wanted in zip(largest(x_BNV, more_BN, count), summed_BX.topk(count), strict=True):
        assert torch.equal(ours, wanted)


@pytest.mark.parametrize("near", [1, 70])
def test_logits_of_some_sentences_at_a_time(make: Make, near: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One sentence at a time, or two: the answers are those of all at once."""
    asked, rules = make(count=5), Rules(method="beam", beam=3, length=8, min_length=2, nbest=2)
    wanted = asked.answers(rules, EOS)
    monkeypatch.setattr("regard.decode.beam.NEAR", near)
    for ours, theirs in zip(asked.answers(rules, EOS), wanted, strict=True):
        same(ours, theirs)


def test_compiled_steps_are_taken_where_there_are_some(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, rules, rows = make(count=3), Rules(method="beam", beam=3, length=6), list[int]()
    wanted = asked.answers(rules, EOS)

    def quick(model: Decoder | EncoderDecoder, ids_N: torch.Tensor, cache: Cache) -> torch.Tensor:
        rows.append(len(ids_N))
        return step(model, ids_N, cache)

    monkeypatch.setattr(asked.model, "quick", quick)
    for ours, theirs in zip(asked.answers(rules, EOS), wanted, strict=True):
        same(ours, theirs)
    assert rows and rows[0] == 9


def test_beams_share_what_comes_from_their_source(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys and values of a source stand once in the cache, however many beams look at them."""
    asked = make(count=4)
    if asked.sources is None:
        return
    held: list[tuple[int, int, int]] = []
    states = Session.states

    def watched(self: Session, ids_N: torch.Tensor) -> torch.Tensor:
        x_N1D = states(self, ids_N)
        assert self.cache.memory is not None
        kept = [slot.state[0] for slot in self.cache.slots.values() if isinstance(slot, Kept)]
        held.append((len(ids_N), len(self.cache.memory.x_BMD), len(kept[0])))
        return x_N1D

    monkeypatch.setattr(Session, "states", watched)
    for eos in range(11):
        asked.answers(Rules(method="beam", beam=3, length=12), eos)
    assert held and all(rows == 3 * sources == 3 * kept for rows, sources, kept in held)
    assert len({sources for _, sources, _ in held}) > 1, "sentences that are over leave their keys behind"


def test_patience_ends_a_search_and_may_cost_an_answer(make: Make) -> None:
    """What would have come later is missed, and nothing else; endless patience misses nothing."""
    steps, scores = {}, {}
    for patience in (None, 0.25, 100.0):
        rules = Rules(length=12, method="beam", beam=4, alpha=4.0, patience=patience)
        steps[patience], scores[patience] = 0, []
        for seed in range(4):
            asked = make(count=5, seed=seed, strength=1.5)
            for number in range(5):
                one = asked.part([number])
                session = Session(one.model, one.prompts, one.sources)  # type: ignore[arg-type]
                scores[patience].append(search(session, [12], rules, EOS)[0][0].score)
                steps[patience] += session.cache.length
    exact = scores[None]
    assert scores[100.0] == pytest.approx(exact, abs=1e-5)
    lost = [best - found for best, found in zip(exact, scores[0.25], strict=True)]
    assert min(lost) > -1e-5 and max(lost) > 1e-3
    assert steps[0.25] < steps[None] == steps[100.0]
