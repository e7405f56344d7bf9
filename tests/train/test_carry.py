"""Memory carried from step to step: by epoch, by row, by process, through checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from regard.errors import UsageError
from regard.nn.position import T5Bias
from regard.spec import of
from regard.train import checkpoint
from tests.train.compare import final, losses
from tests.train.test_parallel import torchrun
from tests.train.toy import Streaming, go, recipe

PLAIN = recipe(dropout=0.0, position=of(T5Bias))
OPTIONS: dict[str, Any] = {"steps": 16, "log_every": 1, "save_every": 4, "size": 5}


class Watched(Streaming):
    """Notes what was remembered when a batch came."""

    def learn(self, model: Any, batch: Any, memory: Any, extra: Any, done: float) -> Any:
        self.seen.append((batch.ids[0] // 5, memory.length))
        return super().learn(model, batch, memory, extra, done)


def test_rows_go_on_within_an_epoch_and_begin_anew_with_the_next(tmp_path: Path) -> None:
    task = Watched()
    go(tmp_path / "run", task, PLAIN, **OPTIONS)
    steps = task.batches("train", size=5).steps_in(0)
    assert steps == 11  # 60 tokens of each stream, in segments of 6, and one more because of the shift
    assert [position for position, _ in task.seen] == [*range(steps), *range(16 - steps)]
    assert [length == 0 for _, length in task.seen] == [position == 0 for position, _ in task.seen]


def test_parts_of_a_batch_carry_their_own_rows(tmp_path: Path) -> None:
    go(tmp_path / "one", Streaming(), PLAIN, **OPTIONS)
    go(tmp_path / "two", Streaming(), PLAIN, **OPTIONS, accumulate=2)
    assert losses(tmp_path / "one") == pytest.approx(losses(tmp_path / "two"), abs=1e-5)
    forgetful = Streaming()
    forgetful.memory = 0
    go(tmp_path / "none", forgetful, PLAIN, **OPTIONS)
    assert losses(tmp_path / "one") != pytest.approx(losses(tmp_path / "none"), abs=1e-4)


def test_resumed_in_the_middle_of_an_epoch(tmp_path: Path) -> None:
    """Bit by bit as if never stopped, also when the parts are others than before (then nearly)."""
    go(tmp_path / "whole", Streaming(), PLAIN, **OPTIONS)
    go(tmp_path / "half", Streaming(), PLAIN, **{**OPTIONS, "steps": 8})
    found = checkpoint.verify(checkpoint.place(tmp_path / "half" / "checkpoints", 8))
    assert found.tensors("memory")["next"].shape == (5,)
    (tmp_path / "half" / "summary.json").unlink()
    go(tmp_path / "half", Streaming(), PLAIN, **OPTIONS, resume=True)
    one, other = final(tmp_path / "whole"), final(tmp_path / "half")
    assert all(torch.equal(one[name], other[name]) for name in one)
    go(tmp_path / "parts", Streaming(), PLAIN, **{**OPTIONS, "steps": 8, "accumulate": 2})
    (tmp_path / "parts" / "summary.json").unlink()
    go(tmp_path / "parts", Streaming(), PLAIN, **{**OPTIONS, "accumulate": 3}, resume=True)
    assert losses(tmp_path / "parts") == pytest.approx(losses(tmp_path / "whole"), abs=1e-4)


@pytest.mark.prove
def test_two_processes_carry_what_one_does(tmp_path: Path) -> None:
    """Started by two, continued by one, in the middle of an epoch."""
    torchrun(tmp_path / "two", {**OPTIONS, "steps": 8}, "--dropout", "0", "--streams")
    (tmp_path / "two" / "summary.json").unlink()
    go(tmp_path / "two", Streaming(), PLAIN, **OPTIONS, resume=True)
    go(tmp_path / "one", Streaming(), PLAIN, **OPTIONS)
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), abs=1e-4)


@pytest.mark.prove
@pytest.mark.parametrize("shard", [False, True])
def test_two_processes_repeat_themselves_bit_by_bit(tmp_path: Path, shard: bool) -> None:
    options = {**OPTIONS, "shard": shard}
    torchrun(tmp_path / "whole", options, "--streams")
    torchrun(tmp_path / "parts", {**options, "steps": 8}, "--streams")
    (tmp_path / "parts" / "summary.json").unlink()
    torchrun(tmp_path / "parts", options, "--streams", "--resume")
    one, other = final(tmp_path / "whole"), final(tmp_path / "parts")
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_what_is_not_finite_is_not_remembered(tmp_path: Path) -> None:
    task = Watched(poison=lambda call: call == 5)
    go(tmp_path / "run", task, PLAIN, **OPTIONS, nonfinite="skip")
    assert task.seen[5] == (5, 0) and task.seen[6][1] == 6, "the next step begins with an empty memory"
    assert all(bool(t.isfinite().all()) for t in final(tmp_path / "run").values())


def test_recomputed_activations_remember_the_same(tmp_path: Path) -> None:
    go(tmp_path / "kept", Streaming(), recipe(position=of(T5Bias)), **OPTIONS)
    go(tmp_path / "again", Streaming(), recipe(position=of(T5Bias)), **OPTIONS, recompute=True)
    assert losses(tmp_path / "kept") == pytest.approx(losses(tmp_path / "again"), abs=1e-5)


def test_what_cannot_be_carried_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"each of the 6 parts of a batch .* but there are only 5 rows"):
        go(tmp_path / "a", Streaming(), PLAIN, **OPTIONS, accumulate=6)
    with pytest.raises(UsageError, match=r"train\.compile cannot carry a memory"):
        go(tmp_path / "b", Streaming(), PLAIN, **OPTIONS, compile=True)
