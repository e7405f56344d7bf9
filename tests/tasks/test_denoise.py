"""The denoise task: T5's samples from a text, and texts from T5's answers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from regard.data.tokens import Bytes, Words
from regard.decode import Rules
from regard.errors import UsageError
from regard.spec import of
from regard.tasks import Denoise
from regard.tasks.spans import reconstruct
from tests.tasks.conftest import small


def prepared(text: Path) -> Denoise:
    task = Denoise(str(text), tokens=of(Bytes), document="file", marks=40)
    task.prepare()
    return task


def test_batches_have_the_official_lengths_and_rebuild_the_text(text: Path) -> None:
    task = prepared(text)
    small(task, "t5", length=64)
    assert task.length == 70 and task.needs() == {"vocab": 3 + 256 + 40}
    stream = task.stream("train")
    whole = task.tokens.decode(stream[0 : len(stream)].tolist())
    batches = task.batches("train", size=8, seed=0)
    seen = 0
    for step in range(batches.steps_in(0)):
        batch = batches.at(step)
        for source, target, answer in zip(batch["source"], batch["target"], batch["answer"], strict=True):
            inputs, targets = source[source >= 0].tolist(), answer[answer >= 0].tolist()
            full = len(inputs) == 64
            assert not full or len(targets) == 14
            assert target[0] == 0 and target[target >= 0].tolist()[1:] == targets[:-1]
            ids = reconstruct(inputs, targets, task.first_mark)
            assert task.tokens.decode(ids) in whole
            seen += len(ids)
        assert batch.tokens == int((batch["answer"] >= 0).sum())
    assert seen == len(stream)  # every token once


def test_corruption_is_a_pure_function_of_seed_epoch_and_sample(text: Path) -> None:
    task = prepared(text)
    small(task, "t5", length=64)
    batches = task.batches("train", size=8, seed=0)
    again = task.batches("train", size=8, seed=0)
    again.at(7)
    assert torch.equal(batches.at(2)["source"], again.at(2)["source"])
    assert not torch.equal(batches.at(2)["answer"], task.batches("train", size=8, seed=1).at(2)["answer"])
    one, two = (task.batches("valid", size=4, seed=s).at(0) for s in (0, 5))
    assert torch.equal(one["source"], two["source"])


def test_loss_equals_log_p_of_the_targets(text: Path) -> None:
    task = prepared(text)
    model = small(task, "t5", length=24).eval()
    batch = task.batches("train", size=6, seed=0).at(1)
    loss = task.loss(model, batch)
    logp = model(batch["source"], batch["target"]).log_softmax(-1)
    kept = batch["answer"] >= 0
    by_hand = -logp[kept].gather(1, batch["answer"][kept][:, None]).sum()
    assert float(loss.sum.detach()) == pytest.approx(float(by_hand.detach()), rel=1e-4)
    assert loss.count == int(kept.sum())
    assert float(task.evaluate(model)["loss"]) > 0


def test_predict_fills_marks_in_their_place(text: Path) -> None:
    task = prepared(text)
    model = small(task, "t5", length=64)
    inputs = ["the <extra_id_0> sat on <extra_id_1> mat", "nothing to fill", ""]
    found = task.predict(model, inputs, Rules(length=6))
    assert found[1:] == inputs[1:]
    assert found[0].startswith("the ") and found[0].endswith(" mat") and "extra_id" not in found[0]
    with pytest.raises(UsageError, match="<extra_id_39>"):
        task.predict(model, ["a <extra_id_40>"], Rules())


def test_score_is_of_the_spans(text: Path) -> None:
    task = prepared(text)
    model = small(task, "t5", length=64)
    better, worse = task.score(
        model, ["the <extra_id_0> sat"] * 2, ["<extra_id_0> cat", "<extra_id_0> cat on a mat and a dog"]
    )
    assert worse < better < 0


def test_too_few_marks_are_refused(text: Path) -> None:
    task = Denoise(str(text), tokens=of(Words), marks=2)
    task.prepare()
    with pytest.raises(UsageError, match="raise marks"):
        small(task, "t5", length=64)
