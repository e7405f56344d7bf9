"""What two runs left behind, bit by bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from regard.train import checkpoint


def contents(run: Path) -> dict[str, Any]:
    """Everything that must be the same after a kill: tensors of the last checkpoint, metrics, the model."""
    step = checkpoint.steps(run / "checkpoints")[-1]
    found = checkpoint.verify(checkpoint.place(run / "checkpoints", step))
    state = {k: v for k, v in found.state["run"].items() if k != "seconds"}
    tensors = {
        f"{path.stem}/{name}": tensor
        for path in sorted(found.folder.glob("*.safetensors"))
        for name, tensor in load_file(path).items()
    }
    model = {f"final/{k}": t for k, t in load_file(run / "model" / "model.safetensors").items()}
    return {
        "step": step,
        "state": state,
        "metrics": (run / "metrics.jsonl").read_text(),
        "tensors": {**tensors, **model},
    }


def assert_same(one: Path, other: Path) -> None:
    """Bit-identical, or fail naming what is not."""
    a, b = contents(one), contents(other)
    assert a["step"] == b["step"]
    assert a["metrics"] == b["metrics"]
    assert a["state"] == b["state"]
    assert a["tensors"].keys() == b["tensors"].keys()
    different = [name for name, tensor in a["tensors"].items() if not torch.equal(tensor, b["tensors"][name])]
    assert not different


def losses(run: Path) -> list[float]:
    """The training losses in metrics.jsonl."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if "lr" in line]


def final(run: Path) -> dict[str, torch.Tensor]:
    """The weights of the saved model."""
    return load_file(run / "model" / "model.safetensors")
