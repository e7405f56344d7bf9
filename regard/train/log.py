"""What a run says: metrics.jsonl (exact), events.jsonl and log.txt (with times), and the terminal.

metrics.jsonl holds only what the computation gave, no clock: a run that was killed and resumed ends with the
same bytes as one that was not. Times, saves and warnings go into events.jsonl, readable lines into log.txt.
"""

from __future__ import annotations

import json
import math
import os
import time
from datetime import datetime
from io import FileIO
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from regard.errors import UsageError
from regard.train.disk import writing

EVERY = 10.0  # seconds between plain lines


class Log:
    """Where one process writes; with no folder it is silent (every process but the first)."""

    def __init__(self, folder: Path | None, steps: int, tensorboard: bool = False) -> None:
        self.folder, self.steps = folder, steps
        self._console = Console(stderr=True, highlight=False, soft_wrap=True)
        self._live = Live(self._console, steps) if folder and self._console.is_terminal else None
        self._board = Board(folder / "tensorboard") if folder and tensorboard else None
        self._files: dict[str, FileIO] = {}
        self._shown = self._written = (-math.inf, 0)

    def __enter__(self) -> Log:
        if self.folder:
            with writing(self.folder):
                self.folder.mkdir(parents=True, exist_ok=True)
                for name in ("metrics.jsonl", "events.jsonl", "log.txt"):
                    self._files[name] = (self.folder / name).open("ab", buffering=0)
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()
        if self._board:
            self._board.close()
        for file in self._files.values():
            file.close()

    def _write(self, name: str, text: str) -> None:
        if self.folder:
            with writing(self.folder / name):
                rest = text.encode() + b"\n"
                while rest:  # a disk that fills up takes a part first and refuses then
                    rest = rest[self._files[name].write(rest) or 0 :]

    def metrics(self, figures: dict[str, Any]) -> None:
        """One line of exact figures; they must hold no time."""
        self._write("metrics.jsonl", json.dumps(figures))
        if self._board:
            self._board.write(figures)

    def event(self, what: str, **facts: Any) -> None:
        """One line about what happened when."""
        self._write("events.jsonl", json.dumps({"time": _now(), "event": what, **facts}))

    def say(self, text: str) -> None:
        """A line for the reader, on the terminal and in log.txt."""
        self._write("log.txt", f"{_now()} {text}")
        if self.folder:
            self._console.print(text, markup=False)

    def warn(self, text: str) -> None:
        """A line that asks for attention."""
        self.event("warning", text=text)
        self.say(f"warning: {text}")

    def begin(self, tokens: int) -> None:
        """The run starts, or goes on, having learned from this many tokens."""
        self._shown = self._written = (time.monotonic(), tokens)

    def wants_progress(self) -> bool:
        """Is it time to show something? A bar moves twice a second, a plain line comes every 10 seconds."""
        return self.folder is not None and time.monotonic() - self._shown[0] >= (0.5 if self._live else EVERY)

    def progress(self, step: int, loss: float, lr: float, norm: float, tokens: int, left: float) -> None:
        """Where the run stands, on the terminal; every 10 seconds also as a line in log.txt."""
        now = time.monotonic()
        rate = (tokens - self._shown[1]) / max(now - self._shown[0], 1e-9)
        self._shown = (now, tokens)
        if self._live:
            self._live.show(step, loss, lr, rate, left)
        if now - self._written[0] >= EVERY:
            rate = (tokens - self._written[1]) / (now - self._written[0])
            self._written = (now, tokens)
            line = (
                f"{_now()} step={step} loss={loss:.4g} ppl={perplexity(loss):.4g} lr={lr:.3g} "
                f"tok/s={rate:.0f} gnorm={norm:.3g} eta={clock(left)}"
            )
            self._write("log.txt", line)
            if not self._live:
                self._console.print(line, markup=False)

    def settle(self) -> int:
        """Make metrics.jsonl safe on the disk; returns its length, which a checkpoint remembers."""
        if not self.folder:
            return 0
        with writing(self.folder / "metrics.jsonl"):
            os.fsync(self._files["metrics.jsonl"].fileno())
            return os.fstat(self._files["metrics.jsonl"].fileno()).st_size

    def cut(self, length: int, step: int) -> None:
        """Forget the metrics after a checkpoint: their steps will be done again, with the same figures."""
        if self.folder:
            with writing(self.folder / "metrics.jsonl"):
                file = self._files["metrics.jsonl"]
                if os.fstat(file.fileno()).st_size < length:
                    self.warn(f"metrics.jsonl has lost lines that the checkpoint of step {step} knew.")
                else:
                    os.ftruncate(file.fileno(), length)


class Live:
    """The bar on a terminal."""

    def __init__(self, console: Console, steps: int) -> None:
        columns = [TextColumn("step {task.completed:>6.0f}/{task.total:.0f}"), BarColumn(10)]
        self._bar = Progress(*columns, TextColumn("{task.description}"), console=console, transient=True)
        self._task = self._bar.add_task("starting", total=steps)
        self._bar.start()

    def show(self, step: int, loss: float, lr: float, rate: float, left: float) -> None:
        """Move the bar and its figures."""
        text = f"loss {loss:.3f}  lr {lr:.1e}  {rate / 1000:.1f}k tok/s  ETA {clock(left)}"
        self._bar.update(self._task, completed=step, description=text)

    def stop(self) -> None:
        """Take it away."""
        self._bar.stop()


class Board:
    """The same figures for TensorBoard."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise UsageError(
                "train.tensorboard needs tensorboard: pip install 'regard[track]', or set it to false."
            ) from None
        self._writer = SummaryWriter(str(folder))

    def write(self, figures: dict[str, Any]) -> None:
        """Every number under its name, evaluations under the name of their split."""
        split = figures.get("split", "train")
        for name, value in figures.items():
            if isinstance(value, int | float) and name != "step":
                self._writer.add_scalar(f"{split}/{name}", value, figures["step"])

    def close(self) -> None:
        """Flush and close."""
        self._writer.close()


def perplexity(loss: float) -> float:
    """exp(loss), infinite where that is too large for a number."""
    return math.exp(loss) if loss < 700 else math.inf


def clock(seconds: float) -> str:
    """3725 -> 1:02:05."""
    whole = int(max(0.0, min(seconds, 359_999_999.0)))
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def _now() -> str:
    return datetime.now().isoformat(timespec="seconds")
