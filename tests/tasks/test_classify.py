"""Labels for texts and for words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from regard.data.tokens import Chars, Words
from regard.decode import Rules
from regard.errors import DataError, UsageError
from regard.spec import of
from regard.tasks import Classify
from tests.tasks.conftest import small

GOOD = ["a fine film", "fine acting and a fine plot", "so fine"]
BAD = ["a dull film", "dull acting and a dull plot , so dull it hurts", "dull"]


@pytest.fixture
def tables(tmp_path: Path) -> dict[str, str]:
    """A .tsv file without names for the columns, and a .jsonl file."""
    rows = [(text, "good") for text in GOOD] + [(text, "bad") for text in BAD]
    (tmp_path / "train.tsv").write_text("".join(f"{t}\t{l}\n" for t, l in rows * 4))
    (tmp_path / "valid.jsonl").write_text(
        "".join(json.dumps({"text": t, "label": l}) + "\n" for t, l in rows)
    )
    return {"train": str(tmp_path / "train.tsv"), "valid": str(tmp_path / "valid.jsonl")}


def prepared(tables: dict[str, str], folder: Path | None = None, **options: object) -> Classify:
    task = Classify(**tables, fields=["text", "label"], tokens=of(Words), **options)  # type: ignore[arg-type]
    task.prepare(folder)
    return task


def learn(task: Classify, steps: int = 40) -> torch.nn.Module:
    model = small(task, "bert", dropout=0.0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    batches = task.batches("train", tokens=120)
    for step in range(steps):
        loss = task.loss(model, batches.at(step))
        optimizer.zero_grad()
        (loss.sum / loss.count).backward()
        optimizer.step()
    return model


def test_samples_and_needs(tables: dict[str, str]) -> None:
    task = prepared(tables)
    assert task.labels == ["bad", "good"]
    assert task.needs() == {"vocab": task.tokens.vocab, "classes": 2, "head": "pooled"}
    batch = task.batches("valid", size=6).at(0)
    assert batch["target"].tolist() == [1, 1, 1, 0, 0, 0] and batch.tokens == 6
    assert (batch["ids"][:, 0] == task.tokens.id("[CLS]")).all()
    assert torch.equal(batch["pos"] < 0, batch["ids"] < 0)


def test_it_learns_and_answers(tables: dict[str, str], tmp_path: Path) -> None:
    task = prepared(tables, tmp_path / "run")
    model = learn(task)
    figures = task.evaluate(model)  # type: ignore[arg-type]
    assert figures["accuracy"] == figures["macro_f1"] == 1.0 and float(figures["loss"]) < 0.3
    fresh = Classify(**tables, tokens=of(Words))
    fresh.open(tmp_path / "run")
    assert fresh.predict(model, ["so fine", "", "a dull plot"], Rules())[::2] == ["good", "bad"]  # type: ignore[arg-type]
    good, bad = fresh.score(model, ["so fine"] * 2, ["good", "bad"])  # type: ignore[arg-type]
    assert good > bad and torch.tensor([good, bad]).exp().sum() == pytest.approx(1, abs=1e-5)


def test_padding_changes_no_loss(tables: dict[str, str]) -> None:
    task = prepared(tables)
    model = small(task, "bert").eval()
    together = task.loss(model, task.batches("valid", size=6).at(0))
    alone = [task.loss(model, task.batches("valid", size=1).at(n)) for n in range(6)]
    assert float(together.sum.detach()) == pytest.approx(sum(float(l.sum.detach()) for l in alone), rel=1e-4)


def test_an_unknown_label_is_refused_with_its_line(tables: dict[str, str]) -> None:
    with Path(tables["valid"]).open("a") as file:
        file.write(json.dumps({"text": "so so", "label": "mixed"}) + "\n")
    with pytest.raises(DataError, match=r"valid\.jsonl:7: the label 'mixed'"):
        prepared(tables)


def test_one_label_is_no_choice(tmp_path: Path) -> None:
    path = tmp_path / "t.tsv"
    path.write_text("text\tlabel\na\tx\nb\tx\n")
    with pytest.raises(DataError, match="two labels"):
        Classify(str(path), tokens=of(Words)).prepare()


def test_texts_too_long_are_refused_or_cut(tables: dict[str, str]) -> None:
    task = prepared(tables)
    with pytest.raises(DataError, match=r"holds dims.length = 8"):
        small(task, "bert", length=8)
    task = prepared(tables, longest=8)
    small(task, "bert", length=8)
    assert max(len(ids) for ids, _ in task.samples["valid"]) == 8
    with pytest.raises(UsageError, match="at most 6 tokens"):
        prepared(tables).predict(small(task, "bert", length=8), [BAD[1]], Rules())


@pytest.fixture
def tagged(tmp_path: Path) -> dict[str, str]:
    path = tmp_path / "tags.tsv"
    rows = [("a dog runs", "D N V"), ("dogs run", "N V"), ("the old dog sleeps", "D A N V")]
    path.write_text("text\tlabel\n" + "".join(f"{t}\t{l}\n" for t, l in rows * 6))
    return {"train": str(path), "valid": str(path)}


def test_a_label_for_each_word_stands_at_its_first_token(tagged: dict[str, str]) -> None:
    task = Classify(**tagged, each=True, tokens=of(Chars))
    task.prepare()
    assert task.needs()["head"] == "each" and task.labels == ["A", "D", "N", "V"]
    ids, targets = task.samples["train"][0]
    assert len(ids) == len(targets) == 2 + len("adogruns")
    assert [(n, task.labels[t]) for n, t in enumerate(targets) if t >= 0] == [(1, "D"), (2, "N"), (5, "V")]


def test_words_are_labelled(tagged: dict[str, str]) -> None:
    task = Classify(**tagged, each=True, tokens=of(Words))
    task.prepare()
    model = learn(task)
    assert task.evaluate(model)["accuracy"] == 1.0  # type: ignore[arg-type]
    assert task.predict(model, ["the dog runs", "", "dogs sleeps"], Rules()) == ["D N V", "", "N V"]  # type: ignore[arg-type]
    assert task.score(model, ["dogs run"], ["N V"])[0] > task.score(model, ["dogs run"], ["V N"])[0]  # type: ignore[arg-type]


def test_a_word_without_a_label_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.tsv"
    path.write_text("text\tlabel\na dog\tD N\na b c\tD N\n")
    with pytest.raises(DataError, match=r"t\.tsv:3: .* 3 words and 2 labels"):
        Classify(str(path), each=True, tokens=of(Words)).prepare()
