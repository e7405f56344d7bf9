"""`regard predict` and `regard score`: lines in, as many lines out."""

from __future__ import annotations

import json
import sys
from collections.abc import Generator, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.data.text import LONGEST, Lines, read_lines, write_lines
from regard.errors import DataError, UsageError
from regard.loaded import InputError, Loaded, Side, load

if TYPE_CHECKING:
    from regard.packed import Precision

CHUNK = 512  # lines answered together; the first answers appear before a long file is read


def answer(
    run: Path,
    inputs: Sequence[str] | None,
    file: Path | None,
    out: Path | None,
    rules: dict[str, Any],
    truncate: Side | None,
    as_json: bool,
    precision: Precision | None = None,
    compile: bool = False,
) -> None:
    """Answer inputs from the command line, a file or standard input; print, or write the file at once."""
    if inputs and file:
        raise UsageError("inputs and --file cannot both be given.")
    if rules.get("nbest", 1) > 1 and not as_json:
        raise UsageError("--nbest gives several answers for each line, so it needs --json.")
    loaded = load(run, precision, compile)
    loaded.rules(rules)  # wrong options are refused before anything is read
    limit, length = loaded.model.limit, rules.get("length") or 0
    if limit is not None and length > limit:
        print(f"regard: the model holds {limit} tokens, so answers end before {length}.", file=sys.stderr)
    where = str(file) if file else "input" if inputs else "standard input"
    given: Iterable[str] = inputs or (read_lines(file) if file else StandardInput())
    lines = answers(loaded, given, rules, truncate, as_json, where, one_line=not inputs)
    if out:
        write_lines(out, lines)
    else:
        for line in lines:
            print(line, flush=True)
    if loaded.cut:
        print(f"regard: {loaded.cut} inputs were too long and were cut ({truncate}).", file=sys.stderr)


def answers(
    loaded: Loaded,
    inputs: Iterable[str],
    rules: dict[str, Any],
    truncate: Side | None,
    as_json: bool,
    where: str,
    one_line: bool,
) -> Iterator[str]:
    """One line for each input. A line break inside an answer is written as \\n, so that lines stay lines."""
    source, done = iter(inputs), 0
    while some := list(islice(source, CHUNK)):
        try:
            found = answer_some(loaded, some, rules, truncate, as_json)
        except InputError as error:
            raise DataError(f"{where}:{done + error.number}: {error.said}") from None
        done += len(some)
        for line in found:
            yield line.replace("\r", "\\r").replace("\n", "\\n") if one_line or as_json else line


def answer_some(
    loaded: Loaded, inputs: list[str], rules: dict[str, Any], truncate: Side | None, as_json: bool
) -> list[str]:
    """The answers to a few inputs, as lines of text or of JSON."""
    if rules.get("nbest", 1) > 1:
        several = loaded.hypotheses(inputs, truncate, **rules)
        pairs = zip(inputs, several, strict=True)
        return [
            _json(
                {"input": text, "outputs": [{"output": h.text, "logp": h.logp, "score": h.score} for h in hs]}
            )
            for text, hs in pairs
        ]
    found = loaded.predict(inputs, truncate, **rules)
    if len(found) != len(inputs):
        raise AssertionError(f"{len(inputs)} inputs got {len(found)} answers")
    if as_json:
        return [_json({"input": a, "output": b}) for a, b in zip(inputs, found, strict=True)]
    return found


def score_files(run: Path, inputs: Path, outputs: Path) -> list[float]:
    """log p of each line of one file given the same line of another."""
    asked, answered = list(read_lines(inputs)), list(read_lines(outputs))
    if len(asked) != len(answered):
        raise DataError(f"{inputs} has {len(asked)} lines, but {outputs} has {len(answered)}.")
    return load(run).score(asked, answered)


class StandardInput(Lines):
    """Lines of standard input by the same rules as those of a file."""

    def __init__(self) -> None:
        super().__init__("standard input")

    def _read(self) -> Generator[str]:
        while line := sys.stdin.buffer.readline(LONGEST + 2):
            self.number += 1
            yield self._text(line)


def _json(data: Any) -> str:
    return json.dumps(data, ensure_ascii=False)
