"""Al-Rfou's auxiliary losses: their schedule, their sum, and that nothing of them stays in the model."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import regard
from regard.blank import blank
from regard.cost import cost_of
from regard.data.tokens import Chars
from regard.dims import Dims
from regard.errors import UsageError
from regard.model import Decoder
from regard.spec import of, read
from regard.tasks import Language
from regard.tasks.auxiliary import Auxiliary, weight
from regard.train import Training, train
from tests.train.compare import final


def test_the_weights_of_the_layers() -> None:
    """Layer l of n counts until l / 2n: of four layers, none but the last after half of the training."""
    table = {
        0.0: [1, 1, 1, 1],
        0.12: [1, 1, 1, 1],
        0.125: [0, 1, 1, 1],
        0.24: [0, 1, 1, 1],
        0.25: [0, 0, 1, 1],
        0.37: [0, 0, 1, 1],
        0.375: [0, 0, 0, 1],
        0.5: [0, 0, 0, 1],
        0.999: [0, 0, 0, 1],
    }
    for done, wanted in table.items():
        assert [weight(layer, 4, done) for layer in (1, 2, 3, 4)] == wanted, done
    # the paper's 64 layers and 4 million steps: the first layer leaves after 31,250
    assert weight(1, 64, 31_249 / 4e6) == 1 and weight(1, 64, 31_250 / 4e6) == 0


def test_heads_are_counted_apart_from_the_model() -> None:
    """219 million weights; with a head for each of 64 layers and each of two targets, the paper's 235."""
    model = cost_of("al_rfou", ["size=t64"]).parameters.total
    with blank():
        beside = sum(p.numel() for p in Auxiliary(Dims(width=512, layers=64), 256, True, 2).parameters())
    assert beside == (64 * 2 - 1) * 512 * 256
    assert round(model / 1e6) == 219 and round((model + beside) / 1e6) == 235
    assert cost_of("al_rfou", ["size=t12"]).parameters.total // 10**6 == 41


def prepared(text: Path, **options: Any) -> Language:
    task = Language(str(text), tokens=of(Chars), window=8, **options)
    task.prepare()
    return task


def al_rfou(task: Language, **options: Any) -> Decoder:
    sizes = {"width": 16, "heads": 2, "layers": 3, "length": 8, **task.needs()}
    model = regard.build(regard.system("al_rfou", **{**sizes, **options}))
    assert isinstance(model, Decoder)
    return model


def entropy(logits_BLV: Tensor, target_BL: Tensor) -> Tensor:
    return -logits_BLV.log_softmax(-1).gather(-1, target_BL[..., None]).sum()


@pytest.mark.parametrize("done", [0.0, 0.2, 0.4, 0.9])
def test_the_sum_of_all_that_is_asked(text: Path, done: float) -> None:
    task = prepared(text, layer_losses=True, targets=2)
    model = al_rfou(task)
    extra = task.extra(model)
    assert isinstance(extra, Auxiliary) and sorted(extra.heads) == ["1-1", "1-2", "2-1", "2-2", "3-2"]
    batch = next(b for b in map(task.batches("train", size=4).at, range(99)) if "pos" not in b)
    loss = task.learn(model, batch, None, extra, done)
    got = loss.sum + loss.count * sum(loss.aux.values())
    streams: list[Tensor] = []
    model.states(batch["ids"], layers=streams)
    assert len(streams) == 3
    target, want = batch["target"], entropy(model(batch["ids"]), batch["target"])
    for name, head in extra.heads.items():
        layer, ahead = map(int, name.split("-"))
        counts = (done < layer / 6 or layer == 3) * (0.5 if ahead == 2 else 1.0)
        logits = head(streams[layer - 1])[:, : 8 - ahead + 1]
        want = want + counts * entropy(logits, target[:, ahead - 1 :])
    assert float(got.detach()) == pytest.approx(float(want.detach()), rel=1e-5)
    found = torch.autograd.grad(got, list(extra.parameters()))
    assert all(g is not None for g in found), "several processes wait for every gradient"
    assert task.loss(model, batch).aux == {}, "evaluation asks the model alone"


def test_only_the_last_position(text: Path) -> None:
    task = prepared(text, positions="last")
    model, batches = al_rfou(task), task.batches("train", size=2000)
    batch = batches.at(0)
    loss = task.learn(model, batch, None, None, 0.0)
    assert loss.count == len(batch) and "pos" in batch
    want = 0.0
    with torch.no_grad():
        for ids, target in list(zip(batch["ids"], batch["target"], strict=True))[:40]:
            real = int((ids >= 0).sum())
            want += float(entropy(model(ids[None, :real])[:, -1:], target[None, real - 1 : real]))
        few = type(batch)(batch.ids[:40], {n: t[:40] for n, t in batch.tensors.items()}, 0)
        assert float(task.learn(model, few, None, None, 0.0).sum) == pytest.approx(want, rel=1e-5)
    assert task.loss(model, batch).count > 5 * len(batch)


def test_heads_are_saved_to_go_on_and_left_out_at_the_end(text: Path, tmp_path: Path) -> None:
    """Resumed bit by bit, while layers still predict; the model that is kept has no trace of the heads."""
    task = prepared(text, layer_losses=True, targets=2)
    recipe = regard.system("al_rfou", width=16, heads=2, layers=3, length=8, dropout=0.1, **task.needs())

    options = {"steps": 12, "size": 8, "save_every": 3, "log_every": 2, "threads": 1, "lr": 1e-2}
    made, whole, stopped = read(Training, options).build(), tmp_path / "whole", tmp_path / "stopped"
    for out in (whole, stopped):
        train(recipe, task, made, out)
    shutil.rmtree(stopped / "checkpoints" / "step-000012")
    (stopped / "summary.json").unlink()
    train(recipe, task, made, stopped, resume=True)
    one, other = final(whole), final(stopped)
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert not any("heads" in name for name in one)
    assert (whole / "checkpoints" / "step-000012" / "extra.safetensors").is_file()


def test_what_cannot_be_is_refused(text: Path) -> None:
    with pytest.raises(UsageError, match="targets must be at least 1"):
        prepared(text, targets=0)
    heads = Auxiliary(Dims(width=8, layers=3), 5)
    with pytest.raises(UsageError, match="0 of 3 did; choose a sequential stack"):
        heads([], torch.zeros(1, 2, dtype=torch.long), 0.0, 1)
