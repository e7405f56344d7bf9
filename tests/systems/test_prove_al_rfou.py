"""Al-Rfou's auxiliary losses at work, run by `make prove`: a deep model of letters with and without them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from regard.launch import train

TEXT = Path(__file__).parents[3] / "shared" / "data" / "tinyshakespeare" / "input.txt"
pytestmark = [
    pytest.mark.prove,
    pytest.mark.skipif(not TEXT.is_file(), reason="needs tinyshakespeare beside the repository"),
]
RUN: dict[str, Any] = {
    "model": {"system": "al_rfou", "dims": {"width": 64, "heads": 2, "layers": 12, "length": 64}},
    "task": {"kind": "language", "text": str(TEXT), "valid": 0.05, "tokens": "chars"},
    "train": {"steps": 600, "size": 16, "lr": 1.0e-3, "schedule": {"kind": "cosine", "warmup": 60}},
}


def loss(out: Path, *overrides: str) -> float:
    """Nats a letter on the valid split, after equally many steps."""
    return float(train(RUN, list(overrides), out).figures["loss"])


def test_every_layer_and_every_position_help(tmp_path: Path) -> None:
    """The paper, bits a character: 1.062; without losses of layers 1.158; last position alone 2.482."""
    full = loss(tmp_path / "full", "task.layer_losses=true", "task.targets=2")
    alone = loss(tmp_path / "alone", "task.targets=2")
    last = loss(tmp_path / "last", "task.layer_losses=true", "task.targets=2", "task.positions=last")
    print(full, alone, last)
    assert full <= alone - 0.05
    assert last >= full + 0.5
