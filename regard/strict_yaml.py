"""A strict reader of run files: YAML that means what it says, JSON and TOML too. Every value knows its line.

Common YAML readers take `1e-4` for a text, `no` for false, `12:30:00` for a number of seconds, keep the last
of two equal keys and expand anchors without limit. This one reads numbers and words as YAML 1.2 does, and
refuses what cannot be meant: a key given twice, anchors, aliases, tags, a second document, a number that is
not finite, a file of more than 1 MB, more than 50 levels. No value can name code: there is only text,
numbers, lists and mappings.
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from regard.errors import UsageError

LARGEST = 1_000_000
DEEPEST = 50

_NULL = {"", "~", "null", "Null", "NULL"}
_BOOL = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")


class FormError(UsageError):
    """A file that cannot be read as written: says the file, the line and the reason."""

    def __init__(self, name: str, line: int | None, reason: str) -> None:
        self.name, self.line, self.reason = name, line, reason
        super().__init__(f"{name}, line {line}: {reason}" if line else f"{name}: {reason}")


@dataclass(frozen=True)
class Document:
    """What a file says, and on which line each dotted path stands."""

    name: str
    data: Any
    lines: dict[str, int] = field(default_factory=dict)


def read_document(path: str | Path) -> Document:
    """Read a .yaml, .yml, .json or .toml file."""
    path = Path(path)
    name = str(path)
    try:
        with path.open("rb") as file:
            raw = file.read(LARGEST + 1)
    except OSError as error:
        raise FormError(name, None, f"cannot be read ({error.strerror or error}).") from None
    if len(raw) > LARGEST:
        raise FormError(name, None, f"must be at most {LARGEST:,} bytes, but is larger; is this a run file?")
    text = _decode(raw, name)
    if path.suffix == ".json":
        return Document(name, _parse_json(text, name))
    if path.suffix == ".toml":
        return Document(name, _parse_toml(text, name))
    return parse(text, name)


def parse(text: str, name: str = "text") -> Document:
    """Read YAML from a text."""
    builder = _Builder(name)
    # The C parser is quicker; it reads the same language, and we take only its events.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        for event in yaml.parse(text, Loader=loader):
            builder.take(event)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise FormError(
            name, mark.line + 1 if mark else None, f"is no valid YAML: {error.problem}."
        ) from None
    except yaml.YAMLError as error:
        raise FormError(name, None, f"is no valid YAML: {' '.join(str(error).split())}.") from None
    return Document(name, builder.root, builder.lines)


def dump(data: Any) -> str:
    """Data as YAML text: `parse(dump(data)).data == data`."""
    text: str = yaml.dump(data, Dumper=_Writer, sort_keys=False, allow_unicode=True, width=110)
    return text


def scalar(text: str, name: str = "text", line: int | None = None) -> str | int | float | bool | None:
    """One plain word as YAML 1.2 reads it: 1e-4 is a number, no is a text, 12:30:00 is a text."""
    if text in _NULL:
        return None
    if text in _BOOL:
        return _BOOL[text]
    if _INT.fullmatch(text):
        if len(text) > 30:
            raise FormError(name, line, f"a number of {len(text)} digits cannot be meant.")
        return int(text, 0 if text[:2] in ("0o", "0x") else 10)
    if _FLOAT.fullmatch(text):
        number = float(text)
        if math.isinf(number):
            raise FormError(name, line, f"numbers must be finite, but {text} was given.")
        return number
    if _NOT_FINITE.fullmatch(text):
        raise FormError(name, line, f"numbers must be finite, but {text} was given.")
    return text


class _Builder:
    """Makes data out of the parser's events. Its own stack counts the depth, never recursing."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.root: Any = None
        self.lines: dict[str, int] = {}
        self.stack: list[tuple[Any, str]] = []  # containers being filled, each with its dotted path
        self.keys: list[str | None] = []  # the key waiting for its value, one for each container
        self.documents = 0

    def take(self, event: yaml.Event) -> None:
        line = event.start_mark.line + 1 if event.start_mark else None
        if isinstance(event, yaml.DocumentStartEvent):
            self.documents += 1
            if self.documents > 1:
                raise FormError(self.name, line, "one document is expected, but a second one starts here.")
        elif isinstance(event, yaml.AliasEvent):
            raise FormError(
                self.name, line, f"aliases are not allowed (*{event.anchor}); write the value out."
            )
        elif isinstance(event, yaml.CollectionEndEvent):
            self.stack.pop()
            self.keys.pop()
        elif isinstance(event, yaml.NodeEvent):
            self.check(event, line)
            self.add(event, line)

    def check(self, event: Any, line: int | None) -> None:
        if event.anchor is not None:
            raise FormError(
                self.name, line, f"anchors are not allowed (&{event.anchor}); write the value out."
            )
        if event.tag is not None:
            raise FormError(self.name, line, f"tags are not allowed ({event.tag}); plain values only.")
        if len(self.stack) >= DEEPEST and not isinstance(event, yaml.ScalarEvent):
            raise FormError(
                self.name, line, f"at most {DEEPEST} levels are allowed, but here is a deeper one."
            )

    def add(self, event: Any, line: int | None) -> None:
        inside, path = self.stack[-1] if self.stack else (None, "")
        if isinstance(inside, dict) and self.keys[-1] is None:
            return self.take_key(event, line)
        step = self.keys[-1] if isinstance(inside, dict) else str(len(inside)) if inside is not None else ""
        path = f"{path}.{step}" if path else step or ""
        if line is not None:
            self.lines.setdefault(path, line)
        value: Any
        if isinstance(event, yaml.ScalarEvent):
            value = scalar(event.value, self.name, line) if event.implicit[0] else event.value
        else:
            value = {} if isinstance(event, yaml.MappingStartEvent) else []
        if isinstance(inside, dict):
            inside[self.keys[-1]] = value
            self.keys[-1] = None
        elif isinstance(inside, list):
            inside.append(value)
        else:
            self.root = value
        if not isinstance(event, yaml.ScalarEvent):
            self.stack.append((value, path))
            self.keys.append(None)
        return None

    def take_key(self, event: Any, line: int | None) -> None:
        inside, path = self.stack[-1]
        if not isinstance(event, yaml.ScalarEvent):
            raise FormError(self.name, line, "a key must be a word, but a list or mapping was given.")
        key = event.value
        if key in inside:
            first = self.lines.get(f"{path}.{key}" if path else key)
            raise FormError(self.name, line, f"the key {key!r} was already given on line {first}.")
        if line is not None:
            self.lines[f"{path}.{key}" if path else key] = line
        self.keys[-1] = key


def _decode(raw: bytes, name: str) -> str:
    raw = raw.removeprefix(b"\xef\xbb\xbf")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise FormError(
            name, line, f"must be UTF-8, but byte {error.start} is 0x{raw[error.start]:02x}."
        ) from None


def _parse_json(text: str, name: str) -> Any:
    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in items:
            if key in found:
                raise FormError(name, None, f"the key {key!r} is given twice.")
            found[key] = value
        return found

    def refuse(word: str) -> Any:
        raise FormError(name, None, f"numbers must be finite, but {word} was given.")

    try:
        data = json.loads(text, object_pairs_hook=pairs, parse_constant=refuse)
    except json.JSONDecodeError as error:
        raise FormError(name, error.lineno, f"is no valid JSON: {error.msg}.") from None
    except RecursionError:
        raise FormError(name, None, f"at most {DEEPEST} levels are allowed.") from None
    return _plain(data, name)


def _parse_toml(text: str, name: str) -> Any:
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise FormError(name, None, f"is no valid TOML: {error}.") from None
    except RecursionError:
        raise FormError(name, None, f"at most {DEEPEST} levels are allowed.") from None
    return _plain(data, name)


def _plain(data: Any, name: str, depth: int = 0) -> Any:
    """Only text, finite numbers, true, false, null, lists and mappings."""
    if depth > DEEPEST:
        raise FormError(name, None, f"at most {DEEPEST} levels are allowed.")
    if isinstance(data, dict):
        return {key: _plain(value, name, depth + 1) for key, value in data.items()}
    if isinstance(data, list):
        return [_plain(value, name, depth + 1) for value in data]
    if isinstance(data, float) and not math.isfinite(data):
        raise FormError(name, None, f"numbers must be finite, but {data} was given.")
    if data is None or isinstance(data, str | int | float):
        return data
    raise FormError(name, None, f"{data!r} is neither text nor number; put it in quotes.")


class _Writer(yaml.SafeDumper):
    """Writes so that `parse` reads the same back: no aliases, quotes where a word would become a number."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _write_text(writer: _Writer, text: str) -> yaml.ScalarNode:
    word = text in _NULL or text in _BOOL or any(p.fullmatch(text) for p in (_INT, _FLOAT, _NOT_FINITE))
    style = '"' if not text.isprintable() else "'" if word else None
    return writer.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Writer.add_representer(str, _write_text)
