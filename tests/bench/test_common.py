"""The stop-watch itself: turns, ratios, and peers that are not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.common import LIMIT, Case, Result, race, show


def test_contenders_take_turns_and_a_missing_one_is_said(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def note(name: str) -> None:
        with (tmp_path / "log").open("a") as log:  # they run in processes of their own
            log.write(f"{name}\n")

    def runs(name: str):  # type: ignore[no-untyped-def]
        return lambda: lambda: note(name)

    def missing():  # type: ignore[no-untyped-def]
        raise ImportError("No module named 'gone'")

    contenders = {"regard": runs("regard"), "gone": missing, "peer": runs("peer")}
    result = race(Case("case", "things/s", 10, contenders), rounds=4)
    # once each to warm up, then alternating who begins
    log = (tmp_path / "log").read_text().split()
    assert log == ["regard", "peer", *["regard", "peer", "peer", "regard"] * 2]
    assert result.absent == {"gone": "ImportError: No module named 'gone'"}
    assert len(result.rates["regard"]) == len(result.rates["peer"]) == 4
    show(result)
    shown = capsys.readouterr().out
    assert "gone" in shown and "not measured: ImportError" in shown


def test_our_own_failure_is_not_hidden() -> None:
    def broken():  # type: ignore[no-untyped-def]
        raise RuntimeError("ours")

    with pytest.raises(RuntimeError, match="ours"):
        race(Case("case", "things/s", 1, {"regard": broken}), rounds=1)


def test_ratios_are_made_within_rounds() -> None:
    result = Result(
        "case", "things/s", {"regard": [10.0, 2.0, 8.0], "a": [5.0, 1.0, 4.0], "b": [20.0, 2.0, 8.0]}
    )
    facts = result.summary()
    assert facts["regard_over"]["a"] == {"median": 2.0, "min": 2.0, "max": 2.0}
    assert facts["regard_over"]["b"] == {"median": 1.0, "min": 0.5, "max": 1.0}
    assert facts["rates"]["regard"]["median"] == 8.0
    assert facts["slowest_peer"] == "a"


def test_a_library_is_judged_by_its_best_variant() -> None:
    rates = {"regard": [1.0, 1.0], "regard, bf16": [3.0, 6.0], "a": [2.0, 2.0], "a, bf16": [1.0, 1.0]}
    facts = Result("case", "things/s", rates | {LIMIT: [6.0, 9.0]}).summary()
    assert facts["best"] == {"regard": "regard, bf16", "a": "a", LIMIT: LIMIT}
    assert facts["regard_over"] == {"a": {"median": 2.25, "min": 1.5, "max": 3.0}}
    assert facts["of_limit"]["min"] == 0.5 and facts["best_peer"] == "a", "the limit is no peer"


def test_a_run_may_say_its_seconds() -> None:
    contenders = {"regard": lambda: lambda: None, LIMIT: lambda: lambda: 0.5}
    assert race(Case("case", "things/s", 10, contenders), rounds=2).rates[LIMIT] == [20.0, 20.0]
