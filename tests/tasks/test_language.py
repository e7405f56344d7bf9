"""Language modelling: every token once, windows that move, figures by their definitions."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.data.segments import shifted_edges, still_edges
from regard.data.tokens import Bpe, Bytes, Chars, Words
from regard.decode import Rules
from regard.errors import DataError, UsageError
from regard.spec import of
from regard.tasks import Language
from tests.tasks.conftest import small


@given(st.integers(2, 400), st.integers(2, 50), st.data())
def test_windows_cover_every_place_once_whatever_the_shift(
    total: int, length: int, data: st.DataObject
) -> None:
    edges = shifted_edges(total, length, data.draw(st.integers(1, length)))
    sizes = np.diff(edges)
    assert edges[0] == 0 and edges[-1] == total and sizes.min() >= 1 and sizes.max() <= length
    assert len(sizes) == len(still_edges(total, length))  # as many as without a shift, plus one
    assert np.diff(still_edges(total, length)).sum() == total


def test_edges_by_eye() -> None:
    assert still_edges(10, 4).tolist() == [0, 4, 8, 10]
    assert shifted_edges(10, 4, 1).tolist() == [0, 1, 5, 9, 10]
    assert shifted_edges(10, 4, 3).tolist() == [0, 3, 5, 7, 10]  # one fewer otherwise: one is halved


def prepared(text: Path, tmp_path: Path, **options: object) -> Language:
    task = Language(str(text), tokens=of(Chars), **options)  # type: ignore[arg-type]
    task.prepare(tmp_path / "run")
    return task


def test_every_token_is_asked_once_in_every_epoch(text: Path, tmp_path: Path) -> None:
    task = prepared(text, tmp_path, window=16)
    stream = task.stream("train")
    batches = task.batches("train", size=8, seed=3)
    expected = np.bincount(stream[1 : len(stream)])
    orders = []
    for epoch in range(3):
        asked: list[int] = []
        first: list[int] = []
        for step in range(batches.steps_in(epoch)):
            batch = batches.at(epoch * batches.steps_in(epoch) + step)
            kept = batch["target"] >= 0
            assert int(kept.sum()) == batch.tokens
            assert torch.equal(batch["ids"] >= 0, kept)
            asked += batch["target"][kept].tolist()
            first += batch.ids
        assert np.array_equal(np.bincount(asked), expected)
        assert sorted(first) == list(range(len(first)))
        orders.append(first)
    assert orders[0] != orders[1]


def test_targets_are_the_next_tokens_and_epochs_cut_elsewhere(text: Path, tmp_path: Path) -> None:
    task = prepared(text, tmp_path, window=16)
    whole = task.tokens.decode(task.stream("train")[0 : len(task.stream("train"))].tolist())
    batches = task.batches("train", size=4, seed=0)
    starts = set()
    for epoch in (0, 1):
        batch = batches.at(epoch * batches.steps_in(0))
        for ids, target in zip(batch["ids"].tolist(), batch["target"].tolist(), strict=True):
            read, asked = task.tokens.decode(ids), task.tokens.decode(target)
            assert read[1:] == asked[:-1] and read + asked[-1] in whole
        starts.add(tuple(batch["ids"][0].tolist()))
    assert len(starts) == 2


def test_windows_that_begin_anywhere(text: Path, tmp_path: Path) -> None:
    task = prepared(text, tmp_path, window=16, cut="anywhere")
    stream = task.stream("train")
    whole = stream[0 : len(stream)]
    batches, again = (task.batches("train", size=8, seed=3) for _ in range(2))
    every = {tuple(whole[n : n + 17].tolist()) for n in range(len(whole) - 16)}
    seen = set()
    for step in range(2 * batches.steps_in(0)):
        batch, same = batches.at(step), again.at(step)
        assert torch.equal(batch["ids"], same["ids"]) and batch["ids"].shape[1] == 16
        for ids, target in zip(batch["ids"].tolist(), batch["target"].tolist(), strict=True):
            assert (*ids, target[-1]) in every and target[:-1] == ids[1:]
            seen.add(tuple(ids))
    assert len(seen) > 1.2 * batches.steps_in(0) * 8  # two epochs meet other windows, at any offset
    valid = task.batches("valid", size=64)
    total = sum(valid.at(step).tokens for step in range(valid.steps_in(0)))
    assert total == len(task.stream("valid")) - 1  # evaluation still asks for each token once


def test_batches_are_a_pure_function_of_seed_and_step(text: Path, tmp_path: Path) -> None:
    task = prepared(text, tmp_path, window=16)
    one, two = (task.batches("train", tokens=64, seed=5) for _ in range(2))
    later = one.at(150)["ids"]
    one.at(3)
    assert torch.equal(two.at(150)["ids"], later)
    assert not torch.equal(task.batches("train", tokens=64, seed=6).at(150)["ids"], later)
    assert one.at(0)["ids"].shape[0] == 4  # 64 tokens of windows of 16


def test_a_share_is_the_last_part_of_the_text_in_characters(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("abcdefghi\nklmnopqrs\n" * 5, encoding="utf-8")  # 100 characters
    task = Language(str(path), valid=0.25, tokens=of(Bytes), window=4)
    task.prepare()
    assert bytes(task.tokens.decode(task.stream("train")[0:75].tolist()), "utf-8") == path.read_bytes()[:75]
    assert len(task.stream("train")) == 75 and len(task.stream("valid")) == 25
    assert task.bytes == {"train": 75, "valid": 25}


def test_figures_by_their_definitions(text: Path, tmp_path: Path) -> None:
    task = prepared(text, tmp_path)
    model = small(task, "gpt", length=16)
    model.train()
    figures = task.evaluate(model)
    assert model.training  # the mode is restored
    model.eval()
    ids = torch.from_numpy(task.stream("valid")[0 : len(task.stream("valid"))])
    total = count = 0.0
    for start in range(0, len(ids) - 1, 16):
        window = ids[start : start + 17]
        logp = model(window[None, :-1]).log_softmax(-1)[0]
        total -= float(logp.gather(1, window[1:, None]).sum().detach())
        count += len(window) - 1
    loss = total / count
    assert count == len(ids) - 1
    assert figures["loss"] == pytest.approx(loss, rel=1e-5)
    assert figures["ppl"] == pytest.approx(math.exp(loss), rel=1e-4)
    assert figures["bits_per_byte"] == pytest.approx(
        loss / math.log(2), rel=1e-5
    )  # a character is a byte here


def test_bits_per_byte_counts_bytes_and_not_tokens(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text(
        "\u00e4\u00f6\u00fc \u4e00\u4e8c\n" * 40, encoding="utf-8"
    )  # 7 characters, 14 bytes a line
    task = Language(str(path), tokens=of(Chars))
    task.prepare()
    figures = task.evaluate(small(task, "gpt", length=8))
    ratio = float(figures["bits_per_byte"]) / (float(figures["loss"]) / math.log(2))
    assert ratio == pytest.approx(len(task.stream("valid")) / task.bytes["valid"])
    assert ratio == pytest.approx(0.5, abs=0.05)


def test_loss_with_padding_equals_loss_of_each_row(text: Path, tmp_path: Path) -> None:
    task = prepared(text, tmp_path, window=16)
    model = small(task, "gpt", length=16).eval()
    batches = task.batches(
        "train", size=len(task.stream("train")), seed=1
    )  # all windows at once: some are short
    batch = batches.at(0)
    assert "pos" in batch
    alone = 0.0
    for ids, target in zip(batch["ids"], batch["target"], strict=True):
        kept = ids >= 0
        logp = model(ids[kept][None]).log_softmax(-1)[0]
        alone -= float(logp.gather(1, target[kept][:, None]).sum().detach())
    loss = task.loss(model, batch)
    assert float(loss.sum.detach()) == pytest.approx(alone, rel=1e-5)
    assert loss.count == len(task.stream("train")) - 1


def test_shards_and_tokens_are_used_again(text: Path, tmp_path: Path) -> None:
    one = prepared(text, tmp_path)
    shard = next((tmp_path / "run" / "data" / "train").glob("*.bin"))
    before = shard.stat().st_mtime_ns
    two, digest = prepared(text, tmp_path), one.data_digest()
    assert shard.stat().st_mtime_ns == before and one.tokens.digest() == two.tokens.digest()
    assert two.bytes == one.bytes
    text.write_text(text.read_text() + "a cat\n" * 50)
    three = prepared(text, tmp_path)
    assert len(three.stream("train")) > len(one.stream("train")) and three.data_digest() != digest


def test_a_character_without_a_token_is_refused_with_its_line(text: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.txt"
    other.write_text("the cat\nthe z cat\n")
    with pytest.raises(DataError, match=r"valid split, line 2: .*'z'"):
        Language(str(text), valid=str(other), tokens=of(Chars)).prepare()


def test_lines_as_documents_end_with_eos(text: Path) -> None:
    task = Language(str(text), tokens=of(Words), document="line", window=8)
    task.prepare()
    stream = task.stream("train")[0 : len(task.stream("train"))]
    ends = int((stream == task.tokens.id("</s>")).sum())
    ends += int((task.stream("valid")[0 : len(task.stream("valid"))] == task.tokens.id("</s>")).sum())
    assert ends == 200


def test_tokens_that_lose_line_ends_are_refused(text: Path) -> None:
    with pytest.raises(UsageError, match="document: line"):
        Language(str(text), tokens=of(Words)).prepare()


def test_several_files_are_several_documents(text: Path) -> None:
    task = Language([str(text), str(text)], valid=str(text), tokens=of(Bpe, vocab=300), window=8)
    task.prepare()
    stream = task.stream("train")[0 : len(task.stream("train"))].tolist()
    assert stream.count(task.tokens.id("</s>")) == 2 and stream[-1] == task.tokens.id("</s>")


def test_predict_and_score(text: Path, tmp_path: Path) -> None:
    task = prepared(text, tmp_path)
    model = small(task, "gpt", length=32)
    inputs = ["the cat", "", "a mat and"]
    found = task.predict(model, inputs, Rules(length=5))
    assert len(found) == 3 and all(len(answer) == 5 for answer in found)
    score = task.score(model, ["the c"], ["at"])[0]
    model.eval()
    logp = model(torch.tensor([task.tokens.encode("the cat")])).log_softmax(-1)[0]
    by_hand = logp[4, task.tokens.encode("a")[0]] + logp[5, task.tokens.encode("t")[0]]
    assert score == pytest.approx(float(by_hand.detach()), abs=1e-5)


def test_what_cannot_be_is_refused(text: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="between 0 and 1"):
        Language(str(text), valid=1.5)
    task = prepared(text, tmp_path)
    with pytest.raises(UsageError, match="window"):
        task.batches("train", size=2)
    with pytest.raises(UsageError, match="test"):
        task.fit_to(small(task, "gpt").dims)
        task.batches("test", size=2)
    with pytest.raises(UsageError, match="needs a decoder"):
        model = small(task, "vanilla")
        task.loss(model, task.batches("train", size=2).at(0))
    empty = tmp_path / "empty.txt"
    empty.touch()
    with pytest.raises(DataError, match="empty"):
        Language(str(empty), tokens=of(Chars)).prepare()
