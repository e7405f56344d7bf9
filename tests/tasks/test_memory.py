"""Language modelling with a memory: streams in order, evaluation that slides, figures by their definition."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from regard.data.segments import Segments
from regard.data.tokens import Chars
from regard.errors import UsageError
from regard.model import Model
from regard.nn.pattern import Window
from regard.nn.position import Rotary
from regard.spec import of
from regard.tasks import Language
from tests.tasks.conftest import small


def prepared(text: Path, **options: Any) -> Language:
    task = Language(str(text), tokens=of(Chars), **options)
    task.prepare()
    return task


def by_hand(model: Model, task: Language, window: int, memory: int) -> float:
    """Each token from the window it is in and the `memory` tokens before that window, one layer, no cache."""
    stream = task.stream("valid")
    ids, total = torch.from_numpy(stream[0 : len(stream)]), 0.0
    model.eval()
    with torch.no_grad():
        for start in range(0, len(ids) - 1, window):
            stop, first = min(start + window, len(ids) - 1), max(0, start - memory)
            logp = model(ids[None, first:stop]).log_softmax(-1)[0, start - first :]
            total -= float(logp.gather(1, ids[start + 1 : stop + 1, None]).sum())
    return total / (len(ids) - 1)


@pytest.mark.parametrize("memory", [0, 5, 40])
def test_evaluation_slides_over_the_split(text: Path, memory: int) -> None:
    """With one layer, what is remembered of a token does not depend on what was before it."""
    task = prepared(text, memory=memory, window=16)
    model = small(task, "gpt", position=of(Rotary))
    assert task.evaluate(model)["loss"] == pytest.approx(by_hand(model, task, 16, memory), rel=1e-5)


def test_the_window_of_evaluation_does_not_matter_where_all_see_equally_far(text: Path) -> None:
    """`same_length`: a banded pattern and enough memory give one figure, whatever is fed at once."""
    whole = prepared(text, memory=400, window=32)
    model = small(whole, "gpt", position=of(Rotary), pattern=of(Window, width=8))
    want = whole.evaluate(model)["loss"]
    for window, memory in ((4, 7), (16, 7), (16, 30)):
        task = prepared(text, memory=memory, window=window)
        task.fit_to(model.dims)
        assert task.evaluate(model)["loss"] == pytest.approx(want, rel=1e-5)
    short = prepared(text, memory=3, window=4)
    assert short.evaluate(model)["loss"] != pytest.approx(want, rel=1e-5)


def test_training_reads_streams_in_order(text: Path) -> None:
    task = prepared(text, memory=8, window=16)
    model = small(task, "gpt", position=of(Rotary))
    batches = task.batches("train", tokens=64, seed=1)
    assert isinstance(batches, Segments) and batches.streams == 4 and batches.carried
    steps, asked = batches.steps_in(0), [list[int]() for _ in range(4)]
    memory, total = task.remember(model, 4), 0
    for step in range(steps):
        batch = batches.at(step)
        loss = task.learn(model, batch, memory, None, 0.0)
        total += loss.count
        for row, target in zip(asked, batch["target"].tolist(), strict=True):
            row += [t for t in target if t >= 0]
    stream = task.stream("train")
    assert [t for row in asked for t in row] == stream[1 : len(stream)].tolist()
    assert total == len(stream) - 1 and memory.next_B.tolist() == [len(row) for row in asked]


def test_what_cannot_be_is_refused(text: Path) -> None:
    with pytest.raises(UsageError, match="memory must be a number of tokens, but is -1"):
        prepared(text, memory=-1)
    with pytest.raises(UsageError, match="leave cut at once"):
        prepared(text, memory=4, cut="anywhere")
    task = prepared(text, memory=4)
    model = small(task, "gpt")
    for ask in (lambda: task.evaluate(model), lambda: task.remember(model, 2)):
        with pytest.raises(UsageError, match="holds only 32 positions; choose relative positions"):
            ask()
    with pytest.raises(UsageError, match=r"train\.size or train\.tokens"):
        task.batches("train")
