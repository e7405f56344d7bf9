"""What a run says, and where."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from regard.train import log
from regard.train.log import Log, clock, perplexity
from tests.train.toy import go

LINE = re.compile(
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d step=(\d+) loss=[\d.]+ ppl=[\d.]+ lr=[\d.e-]+ tok/s=\d+ gnorm=[\d.]+ "
    r"eta=\d+:\d\d:\d\d"
)


def test_plain_lines_off_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(log, "EVERY", 0.0)
    go(tmp_path / "run", steps=5)
    said = [line for line in capsys.readouterr().err.splitlines() if "step=" in line]
    assert [int(found[1]) for line in said if (found := LINE.fullmatch(line))] == [1, 2, 3, 4, 5]
    written = (tmp_path / "run" / "log.txt").read_text().splitlines()
    assert [line for line in written if "step=" in line] == said


def test_nothing_is_printed_between_two_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    go(tmp_path / "run", steps=40)
    assert len(capsys.readouterr().err.splitlines()) <= 4


def test_a_bar_on_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    with Log(tmp_path, steps=100) as told:
        told.begin(0)
        told.progress(50, 1.5, 1e-3, 0.7, 1000, 61.0)
        told.say("[in brackets]")
    said = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", capsys.readouterr().err)
    assert "step     50/100" in said and "loss 1.500  lr 1.0e-03" in said and "ETA 0:01:01" in said
    assert "[in brackets]" in said


def test_metrics_hold_no_clock_and_events_do(tmp_path: Path) -> None:
    go(tmp_path / "run", steps=4, log_every=2)
    metrics = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [list(line) for line in metrics] == [
        ["step", "loss", "lr", "grad_norm", "tokens", "epoch"],
        ["step", "loss", "lr", "grad_norm", "tokens", "epoch"],
        ["step", "split", "loss"],
    ]
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    assert [line["event"] for line in events] == ["start", "evaluate", "save", "finish"]
    assert all("time" in line for line in events)


def test_a_silent_log_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Log(None, steps=3) as silent:
        silent.metrics({"step": 1})
        silent.warn("nobody hears this")
        assert silent.settle() == 0 and not silent.wants_progress()
    assert capsys.readouterr() == ("", "")


def test_words_for_numbers() -> None:
    assert clock(3725.9) == "1:02:05" and clock(-3) == "0:00:00"
    assert perplexity(0.0) == 1.0 and perplexity(1e6) == float("inf")
