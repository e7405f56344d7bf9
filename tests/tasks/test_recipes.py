"""Every recipe reads without a problem, says its command first, and fits its task."""

from __future__ import annotations

from pathlib import Path

import pytest

from regard.run import read_run

RECIPES = sorted((Path(__file__).parents[2] / "recipes").glob("*.yaml"))


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_reads_and_builds(path: Path) -> None:
    run = read_run(path)
    assert run.task is not None and run.task.build() is not None
    model = run.recipe({"vocab": 100} | ({"classes": 2, "head": "pooled"} if "sst2" in path.stem else {}))
    assert model.options["dims"]["length"] >= 1
    first, *rest = path.read_text(encoding="utf-8").splitlines()
    assert first.startswith(f"# regard train recipes/{path.name} ")
    assert any("2 cores" in line for line in rest[:12]), "the time it takes must be said"


def test_all_recipes_are_here() -> None:
    assert {path.stem for path in RECIPES} >= {
        "dates",
        "multi30k_tiny",
        "multi30k_tiny_full",
        "reverse",
        "shakespeare_char",
        "sst2_scratch",
    }
