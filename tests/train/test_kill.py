"""kill -9, signals, two processes at once: what is left is always a run that goes on."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from regard.errors import UsageError
from regard.train import checkpoint
from regard.train.disk import locked
from tests.train.compare import assert_same, contents
from tests.train.toy import environment, go, main

OPTIONS = {"steps": 60, "save_every": 5, "evaluate_every": 12, "log_every": 4, "ema": 0.9}
OPTIONS |= {"schedule": "cosine"}
FORKS = multiprocessing.get_context("forkserver")  # torch is imported once, not by every child
FORKS.set_forkserver_preload(["tests.train.toy"])


def child(arguments: list[str], said: Path) -> None:
    """What runs in a process of its own."""
    os.environ["OMP_NUM_THREADS"] = "1"
    handle = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    sys.exit(main(arguments))


class Child:
    """The toy training in a process of its own."""

    def __init__(self, out: Path, *more: str, options: dict[str, object] | None = None) -> None:
        self.file = out.with_suffix(f".{time.monotonic_ns()}")
        arguments = [str(out), json.dumps(options or OPTIONS), *more]
        self.process = FORKS.Process(target=child, args=(arguments, self.file))
        self.process.start()

    def alive(self) -> bool:
        """Is it still running?"""
        return self.process.is_alive()

    def end(self, number: int | None = None) -> tuple[int | None, str]:
        """Send a signal, if one is given, and wait: the exit code and what it said."""
        if number is not None and self.process.pid:
            os.kill(self.process.pid, number)
        self.process.join(60)
        return self.process.exitcode, self.file.read_text() if self.file.exists() else ""


def wait_for_step(out: Path, step: int, process: Child) -> None:
    """Until the metrics speak of a step (or the process has ended)."""
    deadline = time.monotonic() + 60
    while process.alive() and time.monotonic() < deadline:
        try:
            lines = (out / "metrics.jsonl").read_text().splitlines()
            if lines and json.loads(lines[-1])["step"] >= step:
                return
        except (OSError, ValueError):
            pass
        time.sleep(0.005)


def killed_run(out: Path, kills: int, seed: int, *more: str) -> int:
    """Train to the end through SIGKILLs at random moments; returns how many of them hit it alive."""
    chance, hits, position = random.Random(seed), 0, 0
    for _ in range(kills):
        process = Child(out, "--resume", "--slow", "0.02", *more)
        position = min(position + chance.randrange(0, 2 * 60 // kills), 52)
        wait_for_step(out, position, process)
        time.sleep(chance.random() * 0.2)
        hits += process.end(signal.SIGKILL)[0] == -signal.SIGKILL
    code, said = Child(out, "--resume", *more).end()
    assert code == 0, said
    return hits


def test_killed_three_times_and_bit_identical(tmp_path: Path) -> None:
    go(tmp_path / "whole", **OPTIONS)
    assert killed_run(tmp_path / "killed", kills=3, seed=1) == 3
    assert_same(tmp_path / "whole", tmp_path / "killed")
    assert not list((tmp_path / "killed" / "checkpoints").glob(".tmp-*"))


def test_killed_while_rows_remember_and_bit_identical(tmp_path: Path) -> None:
    """A memory that goes on from step to step is in the checkpoint, and goes on after the kill."""
    assert main([str(tmp_path / "whole"), json.dumps(OPTIONS), "--streams"]) == 0
    assert killed_run(tmp_path / "killed", 2, 4, "--streams") == 2
    assert_same(tmp_path / "whole", tmp_path / "killed")
    assert any(name.startswith("memory/decoder/1/self") for name in contents(tmp_path / "whole")["tensors"])


@pytest.mark.prove
@pytest.mark.parametrize("seed", [2, 3])
def test_killed_ten_times_and_bit_identical(tmp_path: Path, seed: int) -> None:
    go(tmp_path / "whole", **OPTIONS)
    assert killed_run(tmp_path / "killed", kills=10, seed=seed) >= 9
    assert_same(tmp_path / "whole", tmp_path / "killed")
    assert not list((tmp_path / "killed" / "checkpoints").glob(".tmp-*"))


@pytest.mark.prove
@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace to kill at a system call")
@pytest.mark.parametrize("call", ["fsync", "rename", "unlink,unlinkat,rmdir", "mkdir", "ftruncate"])
def test_killed_at_every_system_call_of_a_save(tmp_path: Path, call: str) -> None:
    """SIGKILL at the first, second, ... such call of the whole run, until it gets to its end unhurt."""
    options = {"steps": 6, "save_every": 2, "log_every": 1}
    go(tmp_path / "whole", **options)
    for number in range(1, 300):
        out = tmp_path / f"killed-{number}"
        done = strace(call, f"signal=KILL:when={number}", out, options)
        go(out, resume=True, **options)
        assert_same(tmp_path / "whole", out)
        assert not [p for p in out.rglob(".*") if p.name != ".lock"]
        if done.returncode == 0:
            break
    assert number > 1


@pytest.mark.prove
@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace to make a system call fail")
@pytest.mark.parametrize("error", ["EIO", "EDQUOT"])
def test_every_failing_fsync_is_a_disk_error(tmp_path: Path, error: str) -> None:
    """The first, second, ... fsync of the run fails: exit 74, and what was saved before is whole."""
    options = {"steps": 4, "save_every": 2, "log_every": 1}
    go(tmp_path / "whole", **options)
    for number in range(1, 300):
        out = tmp_path / f"failed-{number}"
        done = strace("fsync", f"error={error}:when={number}", out, options)
        for step in checkpoint.steps(out / "checkpoints"):
            checkpoint.verify(checkpoint.place(out / "checkpoints", step))
        if done.returncode == 0:
            break
        assert done.returncode == 74, done.stderr
        go(out, resume=True, **options)
        assert_same(tmp_path / "whole", out)
    assert number > 10


def strace(
    call: str, inject: str, out: Path, options: dict[str, object]
) -> subprocess.CompletedProcess[bytes]:
    """The toy training with something done to it at a system call."""
    command = [
        "strace",
        "-f",
        "-qq",
        "-o",
        "/dev/null",
        "-e",
        f"trace={call}",
        "-e",
        f"inject={call}:{inject}",
    ]
    command += [sys.executable, "-m", "tests.train.toy", str(out), json.dumps(options), "--resume"]
    root = Path(__file__).parents[2]
    return subprocess.run(command, cwd=root, env=environment(), capture_output=True, check=False)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_saves_and_leaves_with_its_code(tmp_path: Path, number: int, code: int) -> None:
    options = {**OPTIONS, "save_every": 1000, "evaluate_every": 1000}
    process = Child(tmp_path / "run", "--slow", "0.02", options=options)
    wait_for_step(tmp_path / "run", 8, process)
    left, said = process.end(number)
    assert left == code, said
    assert "Stopped: stopped at step" in said and "--resume" in said
    (step,) = checkpoint.steps(tmp_path / "run" / "checkpoints")
    assert 8 <= step < 60
    go(tmp_path / "run", resume=True, **options)
    go(tmp_path / "whole", **options)
    assert_same(tmp_path / "whole", tmp_path / "run")


def test_a_second_process_is_refused_and_a_dead_one_is_not_in_the_way(tmp_path: Path) -> None:
    first = Child(tmp_path / "run", "--slow", "0.1")
    wait_for_step(tmp_path / "run", 1, first)
    code, said = Child(tmp_path / "run", "--resume").end()
    assert code == 2
    assert f"is being written by another process (pid {first.process.pid})" in said
    assert first.alive()
    first.end(signal.SIGKILL)
    go(tmp_path / "run", resume=True, **{**OPTIONS, "steps": 10})


def test_the_lock_names_its_holder_even_in_one_process(tmp_path: Path) -> None:
    with locked(tmp_path), pytest.raises(UsageError, match=f"pid {os.getpid()}"), locked(tmp_path):
        pass
    with locked(tmp_path):
        pass
