"""Dotted paths: changing one place deep inside a recipe written as data.

`encoder.block.sublayers.ffn.hidden` names a place; `*` stands for any one step that leads on. The same paths
work under `change:` in a file and as `key=value` on the command line.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from typing import Any

from regard.errors import UsageError
from regard.strict_yaml import FormError, parse


class PathError(UsageError):
    """A path that leads nowhere: says at which step, and what is there instead."""


def parse_override(text: str, number: int) -> tuple[str, Any]:
    """`train.lr=3e-4` -> ('train.lr', 0.0003). Values are read as in a file."""
    path, equals, value = text.partition("=")
    path = path.strip()
    if not equals or not all(path.split(".")):
        raise PathError(f"must be key=value, as in train.steps=100, but {text!r} was given.")
    try:
        return path, parse(value, f"override {number}").data
    except FormError as error:
        raise PathError(f"{error.reason} Put the value in quotes if it is a text.") from None


def put(data: dict[str, Any], steps: list[str], value: Any) -> None:
    """Set one place; mappings on the way are made where nothing is, and a bare kind becomes a mapping."""
    for step in steps[:-1]:
        inside = data.get(step)
        if inside is None:
            inside = {}
        elif isinstance(inside, str):
            inside = {"kind": inside}
        elif not isinstance(inside, dict):
            raise PathError(f"{step!r} is {inside!r}, which has nothing inside.")
        data[step] = dict(inside)
        data = data[step]
    data[steps[-1]] = value


def change(data: Any, path: str, value: Any) -> list[str]:
    """Change what stands at a path, in place; returns the paths changed (more than one where there is a `*`).

    A mapping without `kind` is merged into the one that is there; anything else replaces it.
    """
    found = list(_places(data, path.split("."), ""))
    if not found:
        raise PathError(f"no part has a place {path!r}.")
    for _, inside, last in found:
        old = inside[last] if isinstance(inside, list) or last in inside else None
        if isinstance(value, dict) and "kind" not in value and isinstance(old, dict):
            old.update(value)
        else:
            inside[last] = value
    return [at for at, _, _ in found]


def near(word: str, known: Iterable[str]) -> str:
    """' Did you mean ...?' if a known word is close, else what there is to choose from."""
    known = sorted(known)
    close = difflib.get_close_matches(word, known, n=1)
    return f" Did you mean {close[0]!r}?" if close else f" Known: {', '.join(known) or 'nothing'}."


def _places(inside: Any, steps: list[str], at: str) -> Iterator[tuple[str, Any, Any]]:
    """Every (path, container, key) that the steps lead to."""
    step, rest = steps[0], steps[1:]
    if step == "*" and isinstance(inside, dict | list):
        for one in _steps(inside):
            if _leads_on(inside, [one, *rest]):
                yield from _places(inside, [one, *rest], at)
        return
    here = f"{at}.{step}" if at else step
    key = _key(inside, step, at, last=not rest)
    if not rest:
        yield here, inside, key
        return
    if isinstance(inside, dict) and key not in inside:
        inside[key] = {}  # dims: the numbers that differ from the parent's
    yield from _places(inside[key], rest, here)


def _key(inside: Any, step: str, at: str, last: bool) -> Any:
    where = f"{at!r}" if at else "the model"
    if isinstance(inside, list):
        if step.isdigit() and int(step) < len(inside):
            return int(step)
        raise PathError(
            f"{where} is a list of {len(inside)}, so the next step must be 0 to {len(inside) - 1}."
        )
    if not isinstance(inside, dict):
        raise PathError(f"{where} is {inside!r}, which has nothing inside; set it as a whole.")
    # An option that is not there may still be set: the part itself says whether it has it.
    open_to_more = last and ("kind" in inside or at.rpartition(".")[2] == "dims")
    if step not in inside and step != "dims" and not open_to_more:
        raise PathError(f"{where} has no {step!r}.{near(step, inside)}")
    return step


def _steps(inside: Any) -> list[str]:
    """What `*` may stand for: the options of a part but not its kind and its numbers, or places of a list."""
    if isinstance(inside, list):
        return [str(n) for n in range(len(inside))]
    return [name for name in inside if name not in ("kind", "dims")]


def _leads_on(inside: Any, steps: list[str]) -> bool:
    """Whether the steps lead somewhere that is there already."""
    step, rest = steps[0], steps[1:]
    if step == "*" and isinstance(inside, dict | list):
        return any(_leads_on(inside, [one, *rest]) for one in _steps(inside))
    if isinstance(inside, list):
        inside = dict(enumerate(inside))
        key: Any = int(step) if step.isdigit() else None
    else:
        key = step
    if not isinstance(inside, dict) or (key not in inside and not (step == "dims" and "kind" in inside)):
        return False
    return not rest or step == "dims" or _leads_on(inside[key], rest)
