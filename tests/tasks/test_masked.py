"""The masked task: samples, losses, answers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from regard.data.tokens import Chars, Wordpiece, Words
from regard.decode import Rules
from regard.errors import UsageError
from regard.spec import of
from regard.tasks import Masked
from regard.tasks.cloze import how_many
from tests.tasks.conftest import small


def prepared(text: Path, **options: object) -> Masked:
    task = Masked(str(text), tokens=of(Words), **options)  # type: ignore[arg-type]
    task.prepare()
    return task


def test_samples_are_cls_text_sep_with_the_exact_number_of_holes(text: Path) -> None:
    task = prepared(text)
    small(task, "bert", length=32)
    batches = task.batches("train", size=4, seed=1)
    cls, sep = task.tokens.id("[CLS]"), task.tokens.id("[SEP]")
    for step in range(batches.steps_in(0)):
        batch = batches.at(step)
        for ids, target in zip(batch["ids"], batch["target"], strict=True):
            row, asked = ids[ids >= 0].tolist(), (target >= 0).nonzero()[:, 0].tolist()
            assert row[0] == cls and row[-1] == sep
            assert len(asked) == min(how_many(len(row)), len(row) - 2 - row[1:-1].count(sep))
            assert all(target[n] not in (cls, sep) for n in asked) and 0 not in asked
        assert batch.tokens == int((batch["target"] >= 0).sum())


def test_holes_are_a_pure_function_of_seed_epoch_and_sample(text: Path) -> None:
    task = prepared(text)
    ids = list(range(4, 24))
    assert task.holes(ids, 1, 2, 3) == task.holes(ids, 1, 2, 3)
    others = [task.holes(ids, *address) for address in ((0, 2, 3), (1, 0, 3), (1, 2, 0))]
    assert all(other != task.holes(ids, 1, 2, 3) for other in others)
    small(task, "bert")
    first, again = (task.batches("valid", size=3, seed=s, shuffle=False).at(0) for s in (0, 9))
    assert torch.equal(first["ids"], again["ids"])  # valid is the same in every run


def test_what_is_not_hidden_stays(text: Path) -> None:
    task = prepared(text)
    ids = list(range(4, 19))
    inputs, targets = task.holes(ids, 0, 0, 0)
    for place, token in enumerate([task.tokens.id("[CLS]"), *ids, task.tokens.id("[SEP]")]):
        assert inputs[place] == token if targets[place] < 0 else targets[place] == token


def test_loss_is_over_the_hidden_tokens_only(text: Path) -> None:
    task = prepared(text)
    model = small(task, "bert", length=16).eval()
    batch = task.batches("train", size=4, seed=0).at(0)
    loss = task.loss(model, batch)
    logp = model(batch["ids"]).log_softmax(-1)
    hidden = batch["target"] >= 0
    by_hand = -logp[hidden].gather(1, batch["target"][hidden][:, None]).sum()
    assert float(loss.sum.detach()) == pytest.approx(float(by_hand.detach()), rel=1e-5)
    assert loss.count == int(hidden.sum())
    figures = task.evaluate(model)
    assert 0 <= float(figures["accuracy"]) <= 1 and float(figures["loss"]) > 0


def test_whole_words_keep_pieces_together(text: Path) -> None:
    task = Masked(str(text), tokens=of(Wordpiece, vocab=40), whole_words=True)
    task.prepare()
    ids = [task.tokens.id("[CLS]"), *task.tokens.encode("some old dogs saw light"), task.tokens.id("[SEP]")]
    groups = task.groups(ids)
    assert [n for group in groups for n in group] == list(range(1, len(ids) - 1))
    assert len(groups) == 5
    assert [task.tokens.decode([ids[n] for n in group]) for group in groups] == [
        "some",
        "old",
        "dogs",
        "saw",
        "light",
    ]


def test_predict_fills_masks_and_nothing_else(text: Path) -> None:
    task = prepared(text)
    model = small(task, "bert", length=16)
    inputs = ["the [MASK] sat on", "no holes  here", "", "[MASK]"]
    found = task.predict(model, inputs, Rules())
    assert len(found) == 4 and found[1] == inputs[1] and found[2] == ""
    words = found[0].split()
    assert len(words) == 4 and words[0] == "the" and words[2:] == ["sat", "on"] and words[1] != "[MASK]"
    scores = task.score(model, ["the [MASK] sat"] * 2, ["the cat sat", "the mat sat"])
    assert len(scores) == 2 and scores[0] != scores[1] and max(scores) < 0
    with pytest.raises(UsageError, match="at most 14 tokens"):
        task.predict(model, ["[MASK] " * 20], Rules())


def test_an_encoder_is_needed(text: Path) -> None:
    task = prepared(text)
    model = small(task, "gpt")
    with pytest.raises(UsageError, match="needs an encoder"):
        task.loss(model, task.batches("train", size=2).at(0))


def test_letters_need_both_sides(tmp_path: Path) -> None:
    """A hidden letter between two equal ones is that letter: an encoder learns it, from left and right."""
    path = tmp_path / "t.txt"
    path.write_text("\n".join(c * 9 for c in "abcdefgh" * 30) + "\n")
    task = Masked(str(path), tokens=of(Chars), rate=0.2)
    task.prepare()
    model = small(task, "bert", length=12, dropout=0.0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    batches = task.batches("train", size=32, seed=0)
    for step in range(60):
        loss = task.loss(model, batches.at(step))
        optimizer.zero_grad()
        (loss.sum / loss.count).backward()
        optimizer.step()
    assert float(task.evaluate(model)["accuracy"]) > 0.8
