"""Small models for tasks, and texts to learn from."""

from __future__ import annotations

from pathlib import Path

import pytest

import regard
from regard.model import Model
from regard.tasks import Task


def small(task: Task, system: str, length: int = 32, **options: object) -> Model:
    """A small model that fits a prepared task."""
    recipe = regard.system(system, width=16, heads=2, layers=1, length=length, **{**task.needs(), **options})
    model = regard.build(recipe, seed=0)
    task.fit_to(model.dims)
    return model


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """200 lines of plain words."""
    words = [
        "the",
        "cat",
        "sat",
        "on",
        "a",
        "mat",
        "and",
        "saw",
        "some",
        "old",
        "dogs",
        "run",
        "by",
        "pale",
        "light",
    ]
    lines = [" ".join(words[(n * k) % 15] for k in range(1, 4 + n % 7)) for n in range(200)]
    path = tmp_path / "text.txt"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path
