"""Where a run stands besides its tensors, what a checkpoint must agree on, and what remains at the end."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from regard.errors import CheckFailed, UsageError
from regard.train.checkpoint import Checkpoint
from regard.train.precision import Precision

if TYPE_CHECKING:
    from regard.tasks.task import Task


class NonFinite(CheckFailed):
    """A loss, a gradient or a weight was not finite; it was kept out of the weights and off the disk."""


@dataclass
class State:
    """Saved with each checkpoint, so that a resumed run goes on with the same figures.

    step, tokens, seconds   updates done, targets learned from, time spent (over all resumed runs)
    evaluated, figures      the last step that was evaluated, and what came out
    best, waits             the best evaluation so far, and how many came after it
    window_loss, _tokens    sums since the last line of metrics; `loss` is the mean on that line
    skipped                 steps in a row that were not finite
    precision, compiled     what `precision: auto` and `compile: auto` chose
    """

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    evaluated: int = 0
    figures: dict[str, Any] = field(default_factory=dict)
    best: dict[str, Any] | None = None
    waits: int = 0
    window_loss: float = 0.0
    window_tokens: int = 0
    loss: float = 0.0
    skipped: int = 0
    precision: Precision | None = None
    compiled: bool | None = None


@dataclass(frozen=True)
class Summary:
    """What came out of a run; also in `summary.json`.

    reason   why it ended: steps, patience or minutes
    chosen   the step whose weights are in `folder/model` (of an average, the last)
    figures  the evaluation of those weights
    """

    step: int
    reason: str
    chosen: int
    loss: float
    figures: dict[str, Any]
    tokens: int
    seconds: float
    parameters: int
    folder: str

    @staticmethod
    def read(path: Path) -> Summary | None:
        """The summary in a file, or None if there is none that is whole."""
        try:
            return Summary(**json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None


def clean(figures: dict[str, Any]) -> dict[str, Any]:
    """Figures that JSON can hold: what is not finite becomes None."""
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in figures.items()}


def facts(config: dict[str, Any], task: Task, threads: int, world: int) -> dict[str, Any]:
    """What decides the bits of a run: kept in the manifest of each checkpoint."""
    try:
        own = version("regard")
    except PackageNotFoundError:
        own = "unknown"
    text = json.dumps(config, sort_keys=True, default=str)
    return {
        "config_hash": hashlib.sha256(text.encode()).hexdigest(),
        "data_hash": task.data_digest(),
        "tokenizer_hash": task.tokens.digest(),
        "threads": threads,
        "world": world,
        "torch": torch.__version__,
        "regard": own,
    }


def changes(
    found: Checkpoint, config: dict[str, Any], now: dict[str, Any], allowed: Sequence[str]
) -> Iterator[str]:
    """Warnings about what has changed since a checkpoint; a change that would spoil the run is refused."""
    model = [d for d in differ(found.state["config"], config) if d.startswith("model.")]
    refused = {
        "data": "" if found.facts["data_hash"] == now["data_hash"] else "its data was different",
        "tokens": ""
        if found.facts["tokenizer_hash"] == now["tokenizer_hash"]
        else "its tokens were different",
        "model": f"its model was different ({'; '.join(model[:5])})" if model else "",
    }
    for name, text in refused.items():
        if text and name not in allowed:
            raise UsageError(
                f"{found.folder} must be resumed with what it was trained with, but {text}: restore that, or "
                f"allow it with --allow-changed {name}."
            )
        if text:
            yield f"{text} at step {found.step}; going on, as allowed."
    for name in ("threads", "world", "torch", "regard"):
        if found.facts[name] != now[name]:
            yield f"{name} was {found.facts[name]} and is {now[name]}: the result will be not bit-identical."
    other = [d for d in differ(found.state["config"], config) if not d.startswith("model.")]
    if other:
        yield f"the config has changed since step {found.step}: {'; '.join(other[:8])}."


def differ(before: Any, after: Any, path: str = "") -> list[str]:
    """Where two trees of data differ: 'model.dims.width was 64 and is 128'."""
    if isinstance(before, dict) and isinstance(after, dict):
        names = [*before, *(name for name in after if name not in before)]
        found = [differ(before.get(n), after.get(n), f"{path}.{n}" if path else str(n)) for n in names]
        return [text for texts in found for text in texts]
    same = json.dumps(before, sort_keys=True, default=str) == json.dumps(after, sort_keys=True, default=str)
    return [] if same else [f"{path} was {before} and is {after}"]
