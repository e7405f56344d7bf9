"""Any number of prompts, streams, and stop strings."""

from __future__ import annotations

import pytest
import torch

from regard.decode import Piece, Rules, generate, stream
from regard.decode.engine import Session
from regard.errors import UsageError
from tests.decode.asked import EOS, Asked, Make

LETTERS = "_|abcdefghijklmnopqrstuvwxyz"


def spell(ids: list[int]) -> str:
    return "".join(LETTERS[i] for i in ids)


def pieces(asked: Asked, number: int, rules: Rules, eos: int | None = EOS) -> list[Piece]:
    source = asked.sources[number] if asked.sources else None
    return list(stream(asked.model, asked.prompts[number], source, rules, eos, spell))


RULES = [
    Rules(length=12),
    Rules(length=12, method="sample", temperature=1.5, seed=5),
    Rules(length=12, method="beam", beam=3, nbest=2),
]


@pytest.mark.parametrize("rules", RULES, ids=lambda rules: rules.method)
def test_the_budget_splits_batches_and_the_order_stays(
    make: Make, rules: Rules, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = make(count=6).part([3, 0, 5, 1, 4, 2])
    whole = generate(asked.model, asked.prompts, asked.sources, rules, EOS)
    sizes: list[int] = []
    begin = Session.__init__

    def counted(self, model, prompts, *more):  # type: ignore[no-untyped-def]
        sizes.append(len(prompts))
        begin(self, model, prompts, *more)

    monkeypatch.setattr(Session, "__init__", counted)
    steps: list[tuple[int, int]] = []
    copies = rules.beam if rules.method == "beam" else 1
    found = generate(
        asked.model,
        asked.prompts,
        asked.sources,
        rules,
        EOS,
        budget=copies * 36,
        progress=lambda done, total: steps.append((done, total)),
    )
    for one, other in zip(found, whole, strict=True):
        assert [h.ids for h in one] == [h.ids for h in other]
    assert len(sizes) > 1 and sum(sizes) == 6 and max(sizes) > 1
    assert steps == [(n, 6) for n in range(1, 7)]


def test_no_prompts_no_answers(make: Make) -> None:
    asked = make(count=0)
    assert asked.answers(Rules()) == []


def test_a_prompt_alone_may_be_larger_than_the_budget(make: Make) -> None:
    asked = make(count=3)
    found = generate(asked.model, asked.prompts, asked.sources, Rules(length=4), EOS, budget=1)
    assert [h[0].ids for h in found] == [h[0].ids for h in asked.answers(Rules(length=4))]


@pytest.mark.parametrize("rules", RULES[:2], ids=lambda rules: rules.method)
def test_streamed_is_generated(make: Make, rules: Rules) -> None:
    asked = make(count=6)
    found = generate(asked.model, asked.prompts, asked.sources, rules, EOS, spell)
    for number, (answer,) in enumerate(found):
        parts = pieces(asked, number, rules)
        assert [piece.id for piece in parts if piece.id is not None] == answer.ids
        assert "".join(piece.text for piece in parts) == answer.text == spell(answer.ids)
        last = parts[-1].answer
        assert last is not None and (last.ids, last.text, last.end) == (answer.ids, answer.text, answer.end)
        assert all(piece.answer is None for piece in parts[:-1])
        assert (parts[-1].id is None) == (answer.end == "eos")


def test_stop_strings_end_each_row_at_its_own_place(make: Make) -> None:
    asked = make(count=6)
    free = [h[0].ids for h in asked.answers(Rules(length=12), eos=None)]
    stops = (spell(free[0][2:4]), spell(free[1][1:2]), spell(free[3][4:7]))
    rules = Rules(length=12, stop=stops)
    found = generate(asked.model, asked.prompts, asked.sources, rules, None, spell)
    stopped = 0
    for number, (answer,) in enumerate(found):
        text = spell(free[number])
        # the shortest beginning that has a stop string in it
        used = next((n for n in range(1, 13) if any(stop in text[:n] for stop in stops)), 12)
        assert answer.ids == free[number][:used]
        hit = any(stop in text[:used] for stop in stops)
        assert answer.end == ("stop" if hit else "length")
        before = min((text[:used].find(stop) for stop in stops if stop in text[:used]), default=used)
        assert answer.text == text[:before]
        stopped += hit
        parts = pieces(asked, number, rules, None)
        assert "".join(piece.text for piece in parts) == answer.text
        assert parts[-1].answer is not None and parts[-1].answer.end == answer.end
    assert stopped >= 3


def test_stop_strings_need_text(make: Make) -> None:
    asked = make(count=1)
    with pytest.raises(UsageError, match="give `decode`"):
        asked.answers(Rules(length=3, stop=("x",)))


def test_what_cannot_be_streamed_is_refused_at_once(make: Make) -> None:
    asked = make(count=1)
    source = asked.sources and asked.sources[0]
    with pytest.raises(UsageError, match="streamed"):
        stream(asked.model, asked.prompts[0], source, Rules(method="beam"))
    with pytest.raises(UsageError, match="Prompt 0 is empty"):
        stream(asked.model, [], source)


def test_a_stream_without_room_is_one_empty_piece(make: Make) -> None:
    (piece,) = pieces(make(count=1), 0, Rules(length=0))
    assert piece.id is None and piece.text == "" and piece.answer is not None and piece.answer.end == "length"


def test_a_stream_leaves_gradients_and_training_alone_between_its_pieces(make: Make) -> None:
    asked = make(count=1)
    asked.model.train()
    parts = stream(asked.model, asked.prompts[0], asked.sources and asked.sources[0], Rules(length=5), None)
    next(parts)
    assert torch.is_grad_enabled()
    parts.close()  # type: ignore[attr-defined]
    assert all(module.training for module in asked.model.modules())
