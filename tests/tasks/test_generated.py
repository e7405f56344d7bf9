"""Tasks made on the fly: algorithms and dates."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from regard.data import dates
from regard.decode import Rules
from regard.errors import UsageError
from regard.spec import read, write
from regard.tasks import Algorithms, Dates, Task
from tests.tasks.conftest import small


def learn(task: Task, model: torch.nn.Module, steps: int, lr: float = 5e-3) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    batches = task.batches("train", size=64, seed=0)
    for step in range(steps):
        loss = task.loss(model, batches.at(step))  # type: ignore[arg-type]
        optimizer.zero_grad()
        (loss.sum / loss.count).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


@pytest.mark.parametrize("system", ["vanilla", "gpt"])
def test_copying_is_learned_by_encoder_decoder_and_by_decoder(system: str) -> None:
    task = Algorithms("copy", symbols=4, shortest=1, longest=2, tests=40)
    task.prepare()
    model = small(task, system, dropout=0.0)
    before = task.evaluate(model)
    learn(task, model, 150, 1e-2)
    figures = task.evaluate(model)
    assert float(before["exact"]) < 0.5 < 0.95 <= float(figures["exact"])
    assert float(figures["exact"]) <= float(figures["token"]) <= 1
    assert task.predict(model, ["ab", "", "c"], Rules()) == ["ab", "", "c"]
    right, wrong = task.score(model, ["ab", "ab"], ["ab", "ba"])
    assert right > wrong


def test_a_decoder_is_asked_for_the_answer_only() -> None:
    task = Algorithms("reverse", symbols=10, shortest=3, longest=6)
    task.prepare()
    model = small(task, "gpt").eval()
    batch = task.batches("train", size=5).at(0)
    by_hand = 0.0
    for n in range(5):
        source, target, answer = (
            [i for i in batch[k][n].tolist() if i >= 0] for k in ("source", "target", "answer")
        )
        logp = model(torch.tensor([source + target])).log_softmax(-1)[0, len(source) :]
        by_hand -= float(logp.gather(1, torch.tensor(answer)[:, None]).sum().detach())
    loss = task.loss(model, batch)
    assert float(loss.sum.detach()) == pytest.approx(by_hand, rel=1e-5)
    assert loss.count == batch.tokens == int((batch["answer"] >= 0).sum())


def test_epochs_go_on_and_splits_stay() -> None:
    task = Algorithms("reverse", samples=100, tests=10)
    task.prepare()
    train = task.batches("train", size=100, shuffle=False)
    assert not torch.equal(train.at(0)["source"], train.at(1)["source"])
    assert task.rows("train", [3], 1, 0) == task.rows("train", [103], 0, 0)
    assert task.rows("valid", [3], 0, 7) == task.rows("valid", [3], 5, 0)


def test_longer_tests_than_training() -> None:
    task = Algorithms("copy", longest=5, test_longest=12, tests=200)
    task.prepare()
    assert max(len(s) for s, _ in task.rows("test", range(200), 0, 0)) == 12
    assert max(len(s) for s, _ in task.rows("valid", range(200), 0, 0)) == 5
    with pytest.raises(UsageError, match="at least 13"):
        small(task, "vanilla", length=10)


def test_numbers_that_cannot_be_are_refused() -> None:
    with pytest.raises(UsageError, match="shortest"):
        Algorithms(shortest=5, longest=4)
    with pytest.raises(UsageError, match="as many symbols"):
        Algorithms("lookup", symbols=5, longest=6)
    with pytest.raises(UsageError, match="between 1 and 62"):
        Algorithms(symbols=63)


@pytest.mark.parametrize("name", ["copy", "reverse", "sort", "addition", "parity", "lookup"])
def test_every_algorithm_fits_the_length_it_says(name: str) -> None:
    task = Algorithms(name, symbols=20, longest=8)  # type: ignore[arg-type]
    task.prepare()
    question, answer = task.longest_pair()
    rows = task.rows("train", range(500), 0, 0)
    assert max(len(s) for s, _ in rows) <= question and max(len(t) for _, t in rows) <= answer
    unknown = task.tokens.id("<unk>")
    assert all(unknown not in source + target for source, target in rows)


def test_the_recipe_reads_back() -> None:
    data = {"kind": "algorithms", "name": "sort", "symbols": 12}
    assert write(read(Task, data)) == data


def test_dates_batches_and_tokens() -> None:
    task = Dates()
    task.prepare()
    batch = task.batches("train", size=16, seed=4).at(1000)
    unknown = task.tokens.id("<unk>")
    for source, answer in zip(batch["source"].tolist(), batch["answer"].tolist(), strict=True):
        text, iso = task.tokens.decode(source), task.tokens.decode(answer)
        assert unknown not in source and len(iso) == 10 and iso[4] == iso[7] == "-"
        assert iso[:4] in text
    texts = {tuple(row) for row in batch["source"].tolist()}
    assert texts.isdisjoint(map(tuple, task.batches("train", size=16, seed=4).at(1001)["source"].tolist()))
    assert max(len(dates.sample(0, "train", n)[0]) for n in range(3000)) + 1 <= 48


def test_dates_answers_in_order_and_digest(tmp_path: Path) -> None:
    task = Dates(tests=20)
    task.prepare(tmp_path)
    model = small(task, "vanilla", length=64)
    figures = task.evaluate(model, "test")
    assert set(figures) == {"loss", "exact", "token"} and figures["exact"] == 0
    assert len(task.predict(model, ["3 March 2021", "", "\u0e01\u0e02"], Rules(length=4))) == 3
    assert task.data_digest() == Dates().data_digest()
    with pytest.raises(UsageError, match="at least 48"):
        small(task, "vanilla", length=20)
