"""Translation: pairs, teacher forcing, search, and scores with their signature."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from regard.data.tokens import Bpe, Words
from regard.decode import Rules
from regard.errors import DataError, UsageError
from regard.model import Model
from regard.nn.head import CrossEntropy
from regard.spec import Recipe, of, read, write
from regard.tasks import Task, Translate
from tests.tasks.conftest import small

EN = ["a man sleeps", "two dogs run", "A woman reads a book", "the cat", "dogs sleep", "a man reads the book"]
DE = [
    "ein mann schl\u00e4ft",
    "zwei hunde rennen",
    "Eine Frau liest ein Buch",
    "die katze",
    "hunde schlafen",
    "ein mann liest das buch",
]


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """Train is the pairs five times, valid and test are the pairs once."""
    paths = {}
    for name, times in (("", 5), ("valid_", 1), ("test_", 1)):
        for side, lines in (("source", EN), ("target", DE)):
            path = tmp_path / f"{name}{side}.txt"
            path.write_text("\n".join(lines * times) + "\n", encoding="utf-8")
            paths[f"{name}{side}"] = str(path)
    return paths


def prepared(files: dict[str, str], tokens: Recipe[object] = of(Words), **options: object) -> Translate:
    task = Translate(**files, tokens=tokens, **options)  # type: ignore[arg-type]
    task.prepare()
    return task


def model_of(task: Task, system: str = "vanilla", **options: object) -> Model:
    return small(task, system, length=48, dropout=0.0, **options)


def test_teacher_forcing(files: dict[str, str]) -> None:
    task = prepared(files, lower=True)
    model_of(task)
    batch = task.batches("valid", size=6).at(0)
    for n in range(6):
        source, target, answer = (
            [i for i in batch[name][n].tolist() if i >= 0] for name in ("source", "target", "answer")
        )
        assert target[0] == task.bos and answer[-1] == source[-1] == task.eos
        assert target[1:] == answer[:-1]
        assert task.tokens.decode(source) == EN[n].lower() and task.tokens.decode(answer) == DE[n].lower()
    assert batch.tokens == int((batch["answer"] >= 0).sum())
    assert torch.equal(batch["source_pos"] < 0, batch["source"] < 0)
    assert int(batch["source_pos"].max()) == batch["source"].shape[1] - 1
    alone = task.batches("valid", size=1).at(0)
    assert "source_pos" not in alone and "target_pos" not in alone  # nothing is padded


@pytest.mark.parametrize("system", ["vanilla", "t5", "gpt"])
def test_loss_of_a_padded_batch_is_the_sum_over_its_rows(files: dict[str, str], system: str) -> None:
    task = prepared(files)
    model = model_of(task, system).eval()
    together = task.loss(model, task.batches("valid", size=6).at(0))
    alone = [task.loss(model, task.batches("valid", size=1).at(n)) for n in range(6)]
    assert float(together.sum.detach()) == pytest.approx(sum(float(l.sum.detach()) for l in alone), rel=1e-4)
    assert together.count == sum(l.count for l in alone)


def test_loss_is_smoothed_and_by_hand(files: dict[str, str]) -> None:
    task = prepared(files, smoothing=0.2, convention="torch")
    model = model_of(task).eval()
    batch = task.batches("valid", size=6).at(0)
    logits = model(batch["source"], batch["target"])
    kept = batch["answer"] >= 0
    by_hand = CrossEntropy(0.2, "torch")(logits[kept], batch["answer"][kept])
    assert float(task.loss(model, batch).sum.detach()) == pytest.approx(float(by_hand.detach()), rel=1e-5)


def test_token_budgets_hold_every_pair_once(files: dict[str, str]) -> None:
    task = prepared(files)
    batches = task.batches("train", tokens=60, seed=2)
    seen = []
    for step in range(batches.steps_in(0)):
        batch = batches.at(step)
        seen += batch.ids
        assert batch["source"].numel() + batch["target"].numel() <= 60
    assert sorted(seen) == list(range(30))


def test_evaluate_whole_split_by_beam_and_a_limit_greedily(files: dict[str, str]) -> None:
    task = prepared(files, lower=True, beam=3, alpha=0.6)
    model = model_of(task)
    whole, some = task.evaluate(model, "test"), task.evaluate(model, "valid", limit=2)
    assert whole["search"] == "beam 3, alpha 0.6" and whole["sentences"] == 6
    assert some["search"] == "greedy" and some["sentences"] == 2
    assert "case:lc" in str(whole["signature"]) and "tok:13a" in str(whole["signature"])
    assert "chrF2" in str(whole["chrf_signature"]) or "nc:6" in str(whole["chrf_signature"])
    assert float(whole["loss"]) > 0 and 0 <= float(whole["bleu"]) <= 100
    assert task.limit == 200 and task.metric == "bleu" and task.better == "max"


def test_it_learns_and_scores_what_it_learned(files: dict[str, str]) -> None:
    """Six sentences by heart: BLEU 100, answers in the order asked, the truth more probable than others."""
    task = prepared(files, lower=True, smoothing=0.0)
    model = model_of(task)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    batches = task.batches("train", size=30)
    for step in range(80):
        loss = task.loss(model, batches.at(step))
        optimizer.zero_grad()
        (loss.sum / loss.count).backward()
        optimizer.step()
    figures = task.evaluate(model, "test")
    assert figures["bleu"] == pytest.approx(100) and float(figures["loss"]) < 0.2
    asked = [EN[2], "", EN[0], "   "]
    assert task.predict(model, asked, Rules()) == [DE[2].lower(), "", DE[0].lower(), ""]
    right, wrong = task.score(model, [EN[0]] * 2, [DE[0], DE[1]])
    assert right > -0.5 > wrong
    best, *others = task.hypotheses(model, [EN[0], ""], Rules(method="beam", beam=3, nbest=3))[0]
    assert best.text == DE[0].lower() and len(others) == 2
    assert best.logp == pytest.approx(right, abs=1e-4) and best.score > others[0].score > others[1].score


def test_ragged_and_empty_lines(files: dict[str, str]) -> None:
    Path(files["target"]).write_text("\n".join(DE * 5 + ["zu viel"]) + "\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"30.*31"):
        prepared(files)
    Path(files["target"]).write_text("\n".join([*DE * 4, *DE[:5], ""]) + "\n", encoding="utf-8")
    task = prepared(files)
    assert len(task.ids["train"]) == 29
    assert task.notes == ["1 pairs of the train split left out: one side is empty"]


def test_pairs_longer_than_the_model_are_refused_or_left_out_with_a_note(files: dict[str, str]) -> None:
    Path(files["source"]).write_text("\n".join(["a " * 60, *EN * 5][:30]) + "\n", encoding="utf-8")
    task = prepared(files)
    with pytest.raises(DataError, match="61 tokens"):
        model_of(task)
    task = prepared(files, longest=48)
    model_of(task)
    assert len(task.ids["train"]) == 29 and "1 pairs" in task.notes[0]


def test_a_table_gives_the_same_pairs(files: dict[str, str], tmp_path: Path) -> None:
    rows = [json.dumps({"en": a, "de": b, "id": n}) for n, (a, b) in enumerate(zip(EN, DE, strict=True))]
    (tmp_path / "t.jsonl").write_text("\n".join(rows * 5) + "\n")
    (tmp_path / "v.tsv").write_text(
        "de\ten\n" + "\n".join(f"{b}\t{a}" for a, b in zip(EN, DE, strict=True)) + "\n", encoding="utf-8"
    )
    table, valid = str(tmp_path / "t.jsonl"), str(tmp_path / "v.tsv")
    task = Translate("en", "de", table=table, valid_table=valid, tokens=of(Words))
    task.prepare()
    assert task.texts["train"] == prepared(files).texts["train"]
    assert task.texts["valid"] == list(zip(EN, DE, strict=True))
    with pytest.raises(UsageError, match="no test split"):
        task.batches("test", size=2)


def test_tokens_are_shared_saved_and_loaded(files: dict[str, str], tmp_path: Path) -> None:
    task = Translate(**files, tokens=of(Bpe, vocab=300))
    task.prepare(tmp_path / "run")
    fresh = Translate(**files, tokens=of(Bpe, vocab=300))
    fresh.open(tmp_path / "run")
    assert fresh.tokens.digest() == task.tokens.digest()
    assert [fresh.tokens.id(name) for name in ("<s>", "</s>", "<unk>")] == [0, 1, 2]
    model = model_of(task)
    assert len(fresh.predict(model, EN, Rules(length=3))) == len(EN)  # no data is needed to answer
    assert task.tokens.decode(task.tokens.encode(DE[0])) == DE[0]


def test_the_recipe_reads_back(files: dict[str, str]) -> None:
    data = {"kind": "translate", **files, "tokens": {"kind": "bpe", "vocab": 300}, "lower": True}
    recipe = read(Task, data)
    assert write(recipe) == data
    assert isinstance(recipe.build(), Translate)


def test_half_a_split_is_refused(files: dict[str, str]) -> None:
    del files["valid_target"]
    with pytest.raises(UsageError, match="together"):
        Translate(**files)


def test_the_digest_changes_with_the_data(files: dict[str, str]) -> None:
    before, lower = Translate(**files).data_digest(), Translate(**files, lower=True).data_digest()
    Path(files["valid_source"]).write_text("x\n" * 6)
    assert len({before, lower, Translate(**files).data_digest()}) == 3
