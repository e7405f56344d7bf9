"""Long experiments, run by `make prove`: the recipes reach what they say, and ablated twins do not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from regard.launch import evaluate, train

RECIPES = Path(__file__).parents[2] / "recipes"
pytestmark = pytest.mark.prove


def figures(name: str, out: Path, *overrides: str, split: str = "test") -> dict[str, Any]:
    """Train a recipe and measure it, or skip if its data is not there."""
    from regard.errors import DataError

    try:
        train(RECIPES / f"{name}.yaml", list(overrides), out)
    except DataError as error:
        if "no such file" in str(error):
            pytest.skip(str(error))
        raise
    return evaluate(out, split)  # type: ignore[arg-type]


def test_dates_that_were_never_seen(tmp_path: Path) -> None:
    assert figures("dates", tmp_path)["exact"] >= 0.98


def test_reversal(tmp_path: Path) -> None:
    assert figures("reverse", tmp_path)["exact"] >= 0.95


def test_reversal_is_impossible_without_positions(tmp_path: Path) -> None:
    assert figures("reverse", tmp_path, "model.position=null")["exact"] <= 0.05


def test_shakespeare_by_letters(tmp_path: Path) -> None:
    """nanoGPT: 1.88. Below 1.70 the future would be visible."""
    assert 1.70 <= figures("shakespeare_char", tmp_path, split="valid")["loss"] <= 1.90


def test_sentiment_from_scratch(tmp_path: Path) -> None:
    assert figures("sst2_scratch", tmp_path)["accuracy"] >= 0.78


def test_captions_from_english_to_german(tmp_path: Path) -> None:
    assert figures("multi30k_tiny", tmp_path)["bleu"] >= 37.0


def test_label_smoothing_costs_likelihood(tmp_path: Path) -> None:
    """Vaswani et al. 2017, table 3 (D): with smoothing, perplexity is worse (4.92 against 4.67)."""
    measured = {}
    for epsilon in ("0.0", "0.1"):
        out = tmp_path / epsilon
        figures("multi30k_tiny", out, "train.steps=300", f"task.smoothing={epsilon}", "task.limit=8")
        # the same measure for both: no smoothing when measuring
        measured[epsilon] = evaluate(out, "valid", 500, ["task.smoothing=0.0"])["loss"]
    assert measured["0.1"] > measured["0.0"]
