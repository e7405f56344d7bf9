"""Several processes against one: same global batches, same losses, checkpoints that change hands."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from regard.train import checkpoint
from tests.train.compare import assert_same, final, losses
from tests.train.toy import environment, go, recipe

ROOT = Path(__file__).parents[2]
PLAIN = recipe(dropout=0.0)


def torchrun(out: Path, options: dict[str, Any], *more: str, processes: int = 2, restarts: int = 0) -> str:
    """The toy training in several processes; what they said."""
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    run += [f"--max-restarts={restarts}", "-m", "tests.train.toy", str(out), json.dumps(options), *more]
    done = subprocess.run(
        run, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False, timeout=110
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


def close(one: Path, other: Path, steps: int) -> None:
    """Losses equal within 1e-4, and the weights with them."""
    assert len(losses(one)) == steps
    assert losses(one) == pytest.approx(losses(other), abs=1e-4)


def test_two_processes_train_as_one(tmp_path: Path) -> None:
    """DDP, with an epoch's last batch of 5 samples; saved by two, continued by one."""
    options: dict[str, Any] = {"steps": 8, "log_every": 1, "save_every": 8}
    torchrun(tmp_path / "two", options, "--dropout", "0")
    (tmp_path / "two" / "summary.json").unlink()
    more = {**options, "steps": 12}
    go(tmp_path / "two", model=PLAIN, resume=True, **more)
    go(tmp_path / "one", model=PLAIN, **more)
    close(tmp_path / "two", tmp_path / "one", 12)


@pytest.mark.prove
@pytest.mark.parametrize("shard", [False, True])
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_fifty_steps_of_two_are_those_of_one(tmp_path: Path, shard: bool, optimizer: str) -> None:
    options: dict[str, Any] = {"steps": 50, "log_every": 1, "evaluate_every": 20, "optimizer": optimizer}
    options |= {"schedule": {"kind": "cosine", "warmup": 10}, "accumulate": 2, "lr": 3e-3}
    torchrun(tmp_path / "two", {**options, "shard": shard, "recompute": shard}, "--dropout", "0")
    go(tmp_path / "one", model=PLAIN, **options)
    close(tmp_path / "two", tmp_path / "one", 50)


@pytest.mark.prove
@pytest.mark.parametrize("shard", [False, True])
def test_a_checkpoint_of_one_world_goes_on_in_another(tmp_path: Path, shard: bool) -> None:
    """1 -> 2 -> 1 and 2 -> 1 -> 2, EMA included."""
    options: dict[str, Any] = {"log_every": 1, "save_every": 10, "ema": 0.9}
    go(tmp_path / "one", model=PLAIN, steps=30, **options)
    for name, first in (("a", 1), ("b", 2)):
        world = first
        for steps in (10, 20, 30):
            told = {**options, "steps": steps}
            if world == 1:
                go(tmp_path / name, model=PLAIN, resume=True, **told)
            else:
                torchrun(tmp_path / name, {**told, "shard": shard}, "--dropout", "0", "--resume")
            world = 3 - world
        close(tmp_path / name, tmp_path / "one", 30)
        for key, weight in final(tmp_path / "one").items():
            if not key.endswith("bias"):  # a key's bias has no gradient but rounding
                torch.testing.assert_close(weight, final(tmp_path / name)[key], rtol=0, atol=1e-2)


@pytest.mark.prove
@pytest.mark.parametrize("shard", [False, True])
def test_dropout_and_resuming_are_exact_with_two(tmp_path: Path, shard: bool) -> None:
    """Two processes repeat themselves bit by bit, also through a resumed checkpoint."""
    options: dict[str, Any] = {"log_every": 1, "save_every": 10, "shard": shard, "evaluate_every": 7}
    torchrun(tmp_path / "whole", {**options, "steps": 20})
    torchrun(tmp_path / "parts", {**options, "steps": 10})
    (tmp_path / "parts" / "summary.json").unlink()
    # the first run's end was an evaluation that the second does not make there
    torchrun(tmp_path / "parts", {**options, "steps": 20}, "--resume")
    one, other = final(tmp_path / "whole"), final(tmp_path / "parts")
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.prove
def test_accumulation_and_processes_draw_the_same_dropout(tmp_path: Path) -> None:
    """Randomness belongs to the part of the batch, not to the process."""
    torchrun(tmp_path / "two", {"steps": 10, "log_every": 1})
    go(tmp_path / "one", steps=10, log_every=1, accumulate=2)
    close(tmp_path / "two", tmp_path / "one", 10)


@pytest.mark.prove
def test_more_processes_than_samples_do_not_hang(tmp_path: Path) -> None:
    """An epoch's last batch has 5 samples; 3 processes times 2 parts leave one part empty."""
    options: dict[str, Any] = {"steps": 10, "log_every": 1, "accumulate": 2}
    for shard in (False, True):
        out = tmp_path / str(shard)
        torchrun(out, {**options, "shard": shard}, "--dropout", "0", processes=3)
    go(tmp_path / "one", model=PLAIN, steps=10, log_every=1)
    close(tmp_path / "False", tmp_path / "one", 10)
    close(tmp_path / "True", tmp_path / "one", 10)


@pytest.mark.prove
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_lost_process_restarts_the_run_by_itself(tmp_path: Path, number: signal.Signals) -> None:
    """Rank 1 is killed, or hangs: torchrun starts both again, they resume, and end as if unhurt."""
    options: dict[str, Any] = {"steps": 40, "log_every": 1, "save_every": 5}
    torchrun(tmp_path / "whole", options)
    out = tmp_path / "lost"
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    run += ["--max-restarts=2", "-m", "tests.train.toy", str(out), json.dumps(options), "--resume"]
    environ = environment(REGARD_TIMEOUT="8")
    process = subprocess.Popen(
        [*run, "--slow", "0.05"], cwd=ROOT, env=environ, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and (
        not out.exists() or len(checkpoint.steps(out / "checkpoints")) < 2
    ):
        time.sleep(0.05)
    first = int((out / ".lock").read_text())
    ps = ["ps", "-o", "pid=", "--ppid", str(process.pid)]
    children = subprocess.run(ps, capture_output=True, text=True, check=True).stdout.split()
    (other,) = (int(pid) for pid in children if int(pid) != first)
    os.kill(other, number)
    _, said = process.communicate(timeout=110)
    assert process.returncode == 0, said
    assert re.search(r"resumed step (10|15)", said)
    if number == signal.SIGSTOP:
        assert re.search(r"TryAgain: process 0 of 2 got no answer from the others at step 1\d", said)
    assert_same(tmp_path / "whole", out)


@pytest.mark.prove
def test_not_finite_on_one_process_stops_all_before_the_weights(tmp_path: Path) -> None:
    run = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        "-m",
        "tests.train.toy",
    ]
    run += [str(tmp_path / "run"), '{"steps": 20, "save_every": 5}', "--poison", "7"]
    done = subprocess.run(
        run, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False, timeout=110
    )
    assert done.returncode != 0 and "NonFinite: step 7 is not finite" in done.stderr
    assert checkpoint.steps(tmp_path / "run" / "checkpoints") == [5]
