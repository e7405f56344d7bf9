"""Pictures of who sees whom."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from regard.cli import app
from regard.dims import Dims
from regard.errors import UsageError
from regard.look.pattern import draw_pattern, read_pattern, seen, text_pattern
from regard.nn.pattern import Fixed, Strided, Window

DIMS = Dims(width=2, heads=2, length=6)


def test_text_shows_the_sets() -> None:
    assert text_pattern(Window(DIMS, width=2), 4, plain=True) == "#...\n##..\n.##.\n..##"
    assert text_pattern(Strided(DIMS, 3, "second"), 5, plain=True).split("\n")[4] == ".#..#"
    assert text_pattern(Window(DIMS, width=1), 2, plain=False) == "\u2588\u00b7\n\u00b7\u2588"


def test_heads_that_differ_stand_side_by_side() -> None:
    pattern = Fixed(DIMS, 2, 1, "second")
    assert seen(pattern, 4).shape == (2, 4, 4)
    assert text_pattern(pattern, 4, plain=True).split("\n")[3] == ".#.#   #.#."


def test_a_png_and_the_command(tmp_path: Path) -> None:
    assert draw_pattern(Fixed(DIMS, 3, 1), tmp_path / "a.png", 6).read_bytes().startswith(b"\x89PNG")
    out = tmp_path / "b.png"
    told = CliRunner().invoke(
        app, ["parts", "--picture", "{kind: strided, stride: 4}", "--length", "9", "--out", str(out)]
    )
    assert told.exit_code == 0 and out.read_bytes().startswith(b"\x89PNG")
    assert told.stdout == text_pattern(Strided(DIMS, 4), 9) + "\n"
    assert CliRunner().invoke(app, ["parts", "--picture", "causal", "--length", "3"]).exit_code == 0


def test_a_wrong_name_is_a_sentence() -> None:
    with pytest.raises(UsageError, match="Did you mean 'strided'"):
        read_pattern("stridd", 8)
