"""Parallel files stay aligned, whatever is empty where."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from regard.data.pairs import read_pairs, read_parallel
from regard.data.text import write_lines
from regard.errors import DataError, UsageError


def write(folder: Path, **files: list[str]) -> list[Path]:
    for name, lines in files.items():
        write_lines(folder / name, lines)
    return [folder / name for name in files]


def test_lines_empty_at_different_places_never_shift(tmp_path: Path) -> None:
    """As many empty lines in each file, at different places: dropping per side would misalign."""
    draw = random.Random(1)
    gaps = [draw.sample(range(200), 20) for _ in range(3)]
    files = write(
        tmp_path,
        **{
            name: ["" if n in gap else f"{name} {n}" for n in range(200)]
            for name, gap in zip("abc", gaps, strict=True)
        },
    )
    for count in (2, 3):
        pairs = read_parallel(*files[:count])
        kept = [n for n in range(200) if not any(n in gap for gap in gaps[:count])]
        assert [tuple(int(text.split()[1]) for text in row) for row in pairs] == [(n,) * count for n in kept]
        assert pairs.lines == [n + 1 for n in kept]
        assert pairs.dropped == 200 - len(kept)
        assert [row[0][0] + row[1][0] for row in pairs] == ["ab"] * len(kept)


def test_white_space_alone_is_empty_but_a_break_character_inside_is_text(tmp_path: Path) -> None:
    a, b = write(tmp_path, a=["x", " \t", "y\u2028z", "w"], b=["1", "2", "3", "\u3000"])
    pairs = read_pairs(a, b)
    assert pairs.rows == [("x", "1"), ("y\u2028z", "3")]
    assert pairs.dropped == 2
    assert (len(pairs), pairs[1], pairs.side(0), pairs.side(1)) == (
        2,
        ("y\u2028z", "3"),
        ["x", "y\u2028z"],
        ["1", "3"],
    )


@pytest.mark.parametrize(("left", "right"), [(3, 4), (4, 3), (1, 4)])
def test_ragged_files_are_refused_with_both_counts(left: int, right: int, tmp_path: Path) -> None:
    a, b = write(tmp_path, a=["x"] * left, b=["y"] * right)
    with pytest.raises(DataError) as caught:
        read_pairs(a, b)
    assert f"{a} has {left}" in str(caught.value)
    assert f"{b} has {right}" in str(caught.value)


def test_a_trailing_empty_line_on_one_side_is_ragged(tmp_path: Path) -> None:
    a, b = write(tmp_path, a=["x", "y"], b=["1", "2", ""])
    with pytest.raises(DataError, match=r"a has 2, .*b has 3"):
        read_pairs(a, b)


def test_nothing_left_and_nothing_there(tmp_path: Path) -> None:
    a, b, c = write(tmp_path, a=["", "y"], b=["1", ""], c=[])
    with pytest.raises(DataError, match="none of 2 has"):
        read_pairs(a, b)
    with pytest.raises(DataError, match="c: the file is empty"):
        read_pairs(a, c)
    with pytest.raises(UsageError, match="at least two"):
        read_parallel(a)


def test_bad_bytes_name_the_file(tmp_path: Path) -> None:
    a, b = write(tmp_path, a=["x", "y"], b=["1", "2"])
    b.write_bytes(b"1\n\xff\n")
    with pytest.raises(DataError, match="b:2:1"):
        read_pairs(a, b)
