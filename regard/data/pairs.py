"""Parallel files: line n of each file says the same thing.

Nothing may ever shift one side against the other. Files of different length are refused with their counts,
and a line that is empty on one side is dropped on all sides together and counted. (Dropping empty lines per
file after comparing the counts keeps the counts equal and misaligns the corpus in silence.)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import overload

from regard.data.text import Name, count_lines, read_lines
from regard.errors import DataError, UsageError


@dataclass(frozen=True)
class Pairs(Sequence[tuple[str, ...]]):
    """Aligned lines: `rows[i]` is (source, target), or one text per file, all from line `lines[i]` (from 1).

    `dropped` counts the lines left out because at least one side was empty or only white space.
    """

    rows: list[tuple[str, ...]]
    dropped: int
    lines: list[int]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[tuple[str, ...]]:
        return iter(self.rows)

    @overload
    def __getitem__(self, index: int) -> tuple[str, ...]: ...
    @overload
    def __getitem__(self, index: slice) -> list[tuple[str, ...]]: ...
    def __getitem__(self, index: int | slice) -> tuple[str, ...] | list[tuple[str, ...]]:
        return self.rows[index]

    def side(self, number: int) -> list[str]:
        """All texts of one side: 0 is the source, 1 the target."""
        return [row[number] for row in self.rows]


def read_pairs(source: Name, target: Name) -> Pairs:
    """Two parallel files as (source, target) pairs; see `read_parallel`."""
    return read_parallel(source, target)


def read_parallel(*paths: Name) -> Pairs:
    """Two or more parallel files, aligned by line.

    Files of different length raise DataError with all counts; so does a corpus of which no line is left.
    """
    if len(paths) < 2:
        raise UsageError(f"parallel files are at least two, but {len(paths)} was given.")
    files = [read_lines(path, need=True) for path in paths]
    rows: list[tuple[str, ...]] = []
    lines: list[int] = []
    number = 0
    for number, row in enumerate(zip_longest(*files), 1):
        if None in row:
            counts = ", ".join(f"{path} has {count_lines(path)}" for path in paths)
            raise DataError(f"parallel files must have the same number of lines, but {counts}.")
        if all(text and not text.isspace() for text in row):
            rows.append(row)
            lines.append(number)
    if not rows:
        names = " and ".join(map(str, paths))
        raise DataError(f"{names}: at least one line must have text in every file, but none of {number} has.")
    return Pairs(rows, number - len(rows), lines)
