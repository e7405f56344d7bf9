"""Token by token: with a cache as without, in company as alone."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

from regard.decode import Hypothesis, Rules, engine, generate
from regard.decode.sample import draw, key, penalise
from regard.errors import UsageError
from tests.decode.asked import EOS, START, Asked, Make

METHODS = {
    "greedy": Rules(length=12),
    "repetition": Rules(length=12, repetition=1.7),
    "min_length": Rules(length=12, min_length=3),
    "sample": Rules(length=12, method="sample", temperature=0.8, seed=3),
    "filters": Rules(length=12, method="sample", top_k=6, top_p=0.9, min_p=0.05, repetition=1.2, seed=4),
}


def slow(asked: Asked, number: int, rules: Rules, eos: int | None = EOS) -> Hypothesis:
    """The same answer with the whole sequence read again for every token."""
    prompt, source = asked.prompts[number], asked.sources[number] if asked.sources else None
    ids: list[int] = []
    logp = 0.0
    for place in range(rules.length or 0):
        logits = asked.logits(number, ids)
        x = logits.clone()
        if rules.repetition != 1:
            seen = torch.zeros_like(x, dtype=torch.bool)
            seen[[*prompt, *ids]] = True
            x = penalise(x, seen, rules.repetition)
        if eos is not None and place < rules.min_length:
            x[eos] = -torch.inf
        if rules.method == "sample":
            token = int(draw(x[None].float(), rules, torch.tensor([key(rules.seed, prompt, source)]), place))
        else:
            token = int(x.argmax())
        logp += float(logits.log_softmax(-1)[token])
        if token == eos:
            return Hypothesis(ids, logp, logp, None, "eos")
        ids.append(token)
    return Hypothesis(ids, logp, logp, None, "length")


def busy_end(asked: Asked, rules: Rules) -> int:
    """The token that, as the end token, makes rows end at as many different places as can be."""
    free = [found[0].ids for found in asked.answers(replace(rules, min_length=0), eos=None)]
    return max(range(11), key=lambda token: len({ids.index(token) if token in ids else -1 for ids in free}))


def same(one: Hypothesis, other: Hypothesis) -> None:
    assert (one.ids, one.end) == (other.ids, other.end)
    assert one.logp == pytest.approx(other.logp, abs=1e-4)
    assert one.score == pytest.approx(other.score, abs=1e-4)


@pytest.mark.parametrize("method", METHODS)
def test_cached_and_batched_equals_one_pass_a_token(make: Make, method: str) -> None:
    asked = make(count=6)
    eos = busy_end(asked, METHODS[method])
    ends = set()
    for number, found in enumerate(asked.answers(METHODS[method], eos)):
        assert len(found) == 1
        same(found[0], slow(asked, number, METHODS[method], eos))
        ends.add((found[0].end, len(found[0].ids)))
    assert len(ends) > 1, "a test in which all rows end together shows nothing"


@pytest.mark.parametrize("method", METHODS)
def test_order_and_company_change_nothing(make: Make, method: str) -> None:
    asked = make(count=6)
    eos = busy_end(asked, METHODS[method])
    together = asked.answers(METHODS[method], eos)
    order = list(range(6))
    random.Random(0).shuffle(order)
    for number, found in zip(order, asked.part(order).answers(METHODS[method], eos), strict=True):
        same(found[0], together[number][0])
    for number in order:
        same(asked.part([number]).answers(METHODS[method], eos)[0][0], together[number][0])


def test_the_same_prompt_twice_gets_the_same_draws_and_nbest_different_ones(make: Make) -> None:
    asked = make(count=2).part([1, 0, 1])
    rules = Rules(length=8, method="sample", temperature=3.0, nbest=4)
    found = asked.answers(rules, eos=None)
    assert [h.ids for h in found[0]] == [h.ids for h in found[2]]
    assert len({tuple(h.ids) for h in found[0]}) == 4
    single = asked.answers(Rules(length=8, method="sample", temperature=3.0), eos=None)
    assert single[0][0].ids == found[0][0].ids
    other = asked.answers(Rules(length=8, method="sample", temperature=3.0, seed=1), eos=None)
    assert other[0][0].ids != single[0][0].ids


def test_temperature_zero_is_greedy(make: Make) -> None:
    asked = make()
    cold = asked.answers(Rules(length=9, method="sample", temperature=0))
    assert [h[0].ids for h in cold] == [h[0].ids for h in asked.answers(Rules(length=9))]


def test_an_answer_may_end_at_once_and_others_go_on(make: Make) -> None:
    asked = make(count=5)
    first = [h[0].ids[0] for h in asked.answers(Rules(length=1), eos=None)]
    eos = first[2]
    found = asked.answers(Rules(length=6), eos=eos)
    assert (found[2][0].ids, found[2][0].end) == ([], "eos")
    assert found[2][0].logp == pytest.approx(float(asked.logits(2, []).log_softmax(-1)[eos]), abs=1e-4)
    for number, answer in enumerate(found):
        same(answer[0], slow(asked, number, Rules(length=6), eos))


def test_no_room_gives_an_empty_answer(make: Make) -> None:
    for method in ("greedy", "sample", "beam"):
        found = make(count=2).answers(Rules(length=0, method=method))  # type: ignore[arg-type]
        assert found == [[Hypothesis([], 0.0, 0.0, None, "length")]] * 2


@pytest.mark.parametrize("system", ["gpt"])
def test_generation_goes_to_the_limit_of_the_model_and_not_beyond(make: Make) -> None:
    asked = make(count=8, length=8)
    found = asked.answers(Rules(), eos=None)
    # the last token is written but not read, so one more than there are places left
    assert [len(h[0].ids) for h in found] == [8 - n for n in range(8)]
    for number, answer in enumerate(found):
        same(answer[0], slow(asked, number, Rules(length=8 - number), None))
    assert [len(h[0].ids) for h in asked.answers(Rules(length=100), eos=None)] == [8 - n for n in range(8)]


@pytest.mark.parametrize("system", ["gpt"])
def test_a_prompt_beyond_the_limit_is_refused(make: Make) -> None:
    model = make(count=1, length=8).model
    with pytest.raises(UsageError) as caught:
        generate(model, [[3], [3] * 9])
    assert "Prompt 1 has 9 tokens, but the model holds 8" in str(caught.value)


@pytest.mark.parametrize("system", ["llama"])
def test_without_learned_positions_there_is_no_limit(make: Make) -> None:
    asked = make(count=3, length=8)
    asked.prompts[2] = [3, 4, 5] * 4
    found = asked.answers(Rules(length=5), eos=None)
    for number, answer in enumerate(found):
        same(answer[0], slow(asked, number, Rules(length=5), None))
    with pytest.raises(UsageError, match="Prompt 2 has 12 tokens, more than the model's length 8"):
        asked.answers(Rules(), eos=None)


@pytest.mark.parametrize("system", ["vanilla", "t5"])
def test_encoder_decoders_write_up_to_source_plus_50(make: Make) -> None:
    asked = make(count=3)
    assert [len(h[0].ids) for h in asked.answers(Rules(), eos=None)] == [51, 52, 53]


def test_what_cannot_be_asked_is_refused(make: Make) -> None:
    asked = make(count=2)
    with pytest.raises(UsageError, match="Prompt 1 is empty"):
        generate(asked.model, [[START], []], asked.sources, Rules(length=3))
    with pytest.raises(UsageError, match=r"Prompt 0 must hold token ids of at least 0, but holds -1"):
        generate(asked.model, [[-1], [3]], asked.sources, Rules(length=3))
    if asked.sources is None:
        with pytest.raises(UsageError, match="sources were given"):
            generate(asked.model, asked.prompts, [[3], [4]])
    else:
        with pytest.raises(UsageError, match="none were given"):
            generate(asked.model, asked.prompts)
        with pytest.raises(UsageError, match="2 prompts and 1 sources"):
            generate(asked.model, asked.prompts, [[3]])
        with pytest.raises(UsageError, match="Source 1 is empty"):
            generate(asked.model, asked.prompts, [[3], []])


def test_dropout_is_off_while_writing_and_back_on_afterwards(make: Make) -> None:
    asked = make(count=3)
    calm = asked.answers(Rules(length=6))
    asked.model.train()
    for module in asked.model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.5
    for one, other in zip(asked.answers(Rules(length=6)), calm, strict=True):
        same(one[0], other[0])
    assert all(module.training for module in asked.model.modules())


@pytest.mark.parametrize("system", ["vanilla", "t5"])
def test_an_encoder_decoder_may_be_given_a_beginning(make: Make) -> None:
    asked = make(count=4)
    asked.prompts = [[START, *[4 + number] * number] for number in range(4)]
    for number, found in enumerate(asked.answers(Rules(length=7))):
        same(found[0], slow(asked, number, Rules(length=7)))


@pytest.mark.parametrize("piece", [1, 4])
def test_a_long_prompt_read_in_pieces_gives_the_same(
    make: Make, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of different lengths: some pieces of some rows are padding alone."""
    asked = make(count=11)
    wanted = asked.answers(METHODS["greedy"])
    monkeypatch.setattr(engine, "PIECE", piece)
    for one, other in zip(asked.answers(METHODS["greedy"]), wanted, strict=True):
        same(one[0], other[0])
