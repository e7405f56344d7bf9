"""Tables: one sample a line, with named fields, as tab-separated text (.tsv) or JSON objects (.jsonl)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from regard.data.text import Name, read_lines
from regard.errors import DataError, UsageError

Row = dict[str, str]


def read_table(path: Name, fields: Sequence[str] | None = None) -> list[Row]:
    """The rows of a .tsv or .jsonl file, plain or .gz, as dictionaries of texts, in the order of the file.

    Tab-separated text is taken as it stands: a quotation mark is one more character, a tab always separates.
    Numbers and booleans of JSON become the text they are written as. Errors name the file and the line.

    Options:
      fields  .tsv: the names of the columns, when the first line does not name them.
              .jsonl: the fields to keep, each of which every line must have; None keeps all.
    """
    path = Path(path)
    kind = path.with_suffix("").suffix if path.suffix == ".gz" else path.suffix
    if fields is not None and (not fields or len(set(fields)) < len(fields) or not all(fields)):
        raise UsageError(f"fields must be different names, but {list(fields)!r} was given.")
    if kind == ".tsv":
        rows = list(_read_tsv(path, fields))
    elif kind in (".jsonl", ".ndjson"):
        rows = list(_read_jsonl(path, fields))
    else:
        raise UsageError(
            f"{path}: a table is a .tsv or a .jsonl file, plain or .gz, but this is {kind or 'neither'}."
        )
    if not rows:
        raise DataError(f"{path}: there is a header but no row under it.")
    return rows


def _read_tsv(path: Path, fields: Sequence[str] | None) -> Iterator[Row]:
    lines = read_lines(path, need=True)
    names = list(fields) if fields else next(lines).split("\t")
    if not fields and (len(set(names)) < len(names) or not all(names)):
        raise DataError(
            f"{path}:1: the first line must name the columns, each once, but is {names!r}; or give fields."
        )
    for line in lines:
        cells = line.split("\t")
        if len(cells) != len(names):
            _refuse(
                path,
                lines.number,
                f"{len(names)} fields ({', '.join(names)}) are expected, {len(cells)} found",
            )
        yield dict(zip(names, cells, strict=True))


def _read_jsonl(path: Path, fields: Sequence[str] | None) -> Iterator[Row]:
    lines = read_lines(path, need=True)
    for line in lines:
        at = (path, lines.number)
        try:
            row = json.loads(
                line, object_pairs_hook=_once, parse_constant=_no_constant, parse_float=str, parse_int=str
            )
        except json.JSONDecodeError as error:
            _refuse(
                *at, f"one JSON object is expected on each line, but {error.msg} at character {error.colno}"
            )
        except (ValueError, RecursionError) as error:
            _refuse(*at, str(error))
        if not isinstance(row, dict):
            _refuse(*at, f"one JSON object is expected on each line, but {line[:60]!r} was found")
        for name in fields or ():
            if name not in row:
                _refuse(*at, f"the field {name!r} is missing; there are {', '.join(row) or 'none'}")
        yield {name: _text(row[name], name, *at) for name in (fields or row)}


def _text(value: Any, name: str, path: Path, number: int) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str):
        _refuse(
            path, number, f"the field {name!r} must be a text or a number, but is {json.dumps(value)[:60]}"
        )
    if "\0" in value or any("\ud800" <= c <= "\udfff" for c in value):
        _refuse(path, number, f"the field {name!r} has a NUL or half a character in it, which no text has")
    return value


def _once(items: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(items)
    if len(row) < len(items):
        names = [name for name, _ in items]
        raise ValueError(f"the field {next(n for n in names if names.count(n) > 1)!r} is there twice")
    return row


def _no_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is no JSON")


def _refuse(path: Path, number: int, why: str) -> NoReturn:
    raise DataError(f"{path}:{number}: {why}.")
