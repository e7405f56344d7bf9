"""The demo: the same run as the recipe, and the figure it promises."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from regard.demo import RUN, alignment, demo
from regard.launch import train
from regard.loaded import load
from regard.run import read_run

ROOT = Path(__file__).parent.parent


def test_the_demo_is_the_recipe() -> None:
    recipe, embedded = read_run(ROOT / "recipes/dates.yaml"), read_run(RUN)
    needs = {"vocab": 50}
    assert embedded.resolved(embedded.recipe(needs)) == recipe.resolved(recipe.recipe(needs))


def test_the_demo_shows_answers_and_pictures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    few = {**RUN, "train": {"steps": 2, "size": 4}, "task": {"kind": "dates", "tests": 4}}
    monkeypatch.setattr("regard.demo.RUN", few)
    demo(tmp_path / "run")
    said = capsys.readouterr().out
    assert "never seen in training" in said and "3 March 2021" in said and "1 2 _ O c t" in said
    assert (tmp_path / "run/alignment.png").read_bytes()[:4] == b"\x89PNG"
    demo(tmp_path / "run")
    assert "holds a trained model already" in capsys.readouterr().out


def test_alignment_rows_are_the_answer(tmp_path: Path) -> None:
    train({**RUN, "train": {"steps": 2, "size": 4}}, out=tmp_path / "run")
    loaded = load(tmp_path / "run")
    text, path = alignment(loaded, "3 March 2021", tmp_path / "a.png")
    assert text.split("\n")[0].split() == list("3_March_2021") and path.is_file()
    assert "".join(line[0] for line in text.split("\n")[1:]) == loaded.predict("3 March 2021").replace(
        " ", "_"
    )


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda p: p.name)
def test_examples_run(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(path), run_name="__main__")
    assert capsys.readouterr().out


@pytest.mark.prove
@pytest.mark.timeout(1200)
def test_the_demo_keeps_its_promise(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """At least 98 % of dates never seen are read right."""
    demo(tmp_path / "run")
    said = capsys.readouterr().out.split("never seen in training: ")[1]
    assert float(said.split(" ")[0]) >= 98.0
