"""Signals inside one process: what asks, what interrupts."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from regard.train import Stopped, checkpoint
from regard.train.signals import Interrupted, Signals
from tests.train.compare import assert_same
from tests.train.toy import Counting, go


def test_the_first_asks_the_second_interrupts() -> None:
    before = signal.getsignal(signal.SIGINT)
    with Signals() as signals:
        os.kill(os.getpid(), signal.SIGHUP)
        assert signals.asked == signal.SIGHUP
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_work_that_can_be_done_again_is_interrupted_at_once() -> None:
    with Signals() as signals:
        with pytest.raises(Interrupted), signals.hurrying():
            os.kill(os.getpid(), signal.SIGTERM)
        assert signals.asked == signal.SIGTERM
        with pytest.raises(Interrupted), signals.hurrying():
            pass


def test_interrupted_in_an_evaluation_it_is_done_again(tmp_path: Path) -> None:
    """The signal comes while step 6 is evaluated: saved without it, evaluated after resuming."""

    class Interruptible(Counting):
        def evaluate(self, model: Any, split: str, limit: int | None = None) -> dict[str, Any]:
            if len(self.seen) == 6:
                os.kill(os.getpid(), signal.SIGTERM)
            return super().evaluate(model, split, limit)

    options: dict[str, Any] = {"steps": 9, "evaluate_every": 3, "save_every": 100}
    with pytest.raises(Stopped) as raised:
        go(tmp_path / "run", Interruptible(), **options)
    assert raised.value.code == 143
    assert checkpoint.steps(tmp_path / "run" / "checkpoints")[-1] == 6
    go(tmp_path / "run", resume=True, **options)
    go(tmp_path / "whole", **options)
    assert_same(tmp_path / "whole", tmp_path / "run")
