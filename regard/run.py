"""A run written down: one file says which model, which task and how to train.

    model: {system: vanilla, size: tiny, dims: {width: 128}, dropout: 0.1, change: {encoder.dims.layers: 3}}
    task:  {kind: translate, source: train.en, target: train.de}
    train: {steps: 8000, lr: 5e-3}

Every mistake in it is told at once, with its place. What the task needs of the model (the size of its
vocabulary, say) is filled in where the file does not give it.
`config.yaml` in a run folder is the same file resolved: every default written out, every path absolute.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.dotted import PathError, near, parse_override, put
from regard.errors import UsageError
from regard.run_model import DIMS, check_model, read_model
from regard.spec import Problem, Recipe, SpecError, kinds, of, read, takes, write
from regard.strict_yaml import Document, read_document

if TYPE_CHECKING:
    from regard.model import Model
    from regard.tasks import Task
    from regard.train import Training

SECTIONS = ("model", "task", "train")


class RunError(SpecError):
    """All that is wrong with a run file and its overrides: the path, what must hold, where it was written."""

    def __init__(self, name: str, problems: Sequence[Problem], places: Mapping[str, str]) -> None:
        self.name = name
        order = {section: number for number, section in enumerate(SECTIONS)}
        problems = sorted(problems, key=lambda problem: order.get(problem[0].split(".")[0], -1))
        self.places = [_place(path, places) for path, _ in problems]
        super().__init__(problems)

    def __str__(self) -> str:
        count = len(self.problems)
        wide = max(len(path) for path, _ in self.problems)
        lines = [f"{self.name}: {count} problem{'s' if count > 1 else ''}"]
        for (path, text), place in zip(self.problems, self.places, strict=True):
            lines.append(f"  {path.ljust(wide)}   {text}{f'   ({place})' if place else ''}")
        return "\n".join(lines)


@dataclass(frozen=True)
class Run:
    """A run file with its overrides, read and checked.

    model     the model section as data; `recipe` turns it into a recipe once the task's needs are known
    task      recipe of the task, None where a file describes a model alone
    train     recipe of the training
    """

    name: str
    model: dict[str, Any]
    task: Recipe[Task] | None = None
    train: Recipe[Training] | None = None
    places: dict[str, str] = field(default_factory=dict)

    @property
    def training(self) -> Recipe[Training]:
        """How to train; the defaults where the file says nothing."""
        from regard.train import Training

        return self.train or of(Training)

    def recipe(self, needs: Mapping[str, Any] | None = None) -> Recipe[Model]:
        """The model's recipe, with what the task needs filled in where it was not given."""
        problems: list[Problem] = []
        places = dict(self.places)
        recipe = read_model(self.model, dict(needs or {}), problems, places)
        if problems or recipe is None:
            raise RunError(self.name, problems, places)
        return recipe

    def resolved(self, recipe: Recipe[Model]) -> dict[str, Any]:
        """The whole run with every default written out: later changes of defaults cannot rewrite history."""
        parts = {"model": recipe, "task": self.task, "train": self.training}
        return {name: write(part, resolved=True) for name, part in parts.items() if part is not None}


def read_run(source: str | Path | Mapping[str, Any], overrides: Sequence[str] = ()) -> Run:
    """Read a run from a file (or a mapping) and `key.path=value` overrides; all problems come together."""
    document = _document(source)
    name = document.name + (" + overrides" if overrides else "")
    places = {path: f"line {line}" for path, line in document.lines.items()}
    problems: list[Problem] = []
    data = _sections(document.data, problems)
    for number, text in enumerate(overrides, 1):
        try:
            _apply(data, text, number, places)
        except PathError as error:
            path = text.partition("=")[0].strip()
            places[path] = f"override {number}"
            problems.append((path, str(error)))
    if not data and not problems:
        problems.append(("model", f"must be given: a run file has the sections {', '.join(SECTIONS)}."))
    if any(not isinstance(section, dict) for section in data.values()):
        raise RunError(name, problems, places)  # what is no mapping cannot be read any further
    folder = Path(document.name).parent if document.lines or not isinstance(source, Mapping) else None
    task = _read_section("task", data, problems, folder)
    train = _read_section("train", data, problems, None)
    if "model" in data:
        check_model(data["model"], task is not None or "task" in data, problems, places)
    elif "task" in data:
        problems.append(("model", "must be given: which system, as in model: {system: gpt}."))
    if problems:
        raise RunError(name, problems, places)
    return Run(name, data.get("model", {}), task, train, places)


def _document(source: str | Path | Mapping[str, Any]) -> Document:
    if isinstance(source, Mapping):
        return Document("run", copy.deepcopy(dict(source)))
    path = Path(source)
    if path.is_dir():
        if not (path / "config.yaml").is_file():
            raise UsageError(
                f"{path} is a folder without a config.yaml, so it is no run; give a run file or a run folder."
            )
        path = path / "config.yaml"
    return read_document(path)


def _sections(data: Any, problems: list[Problem]) -> dict[str, Any]:
    if data is None:
        return {}
    if not isinstance(data, dict):
        problems.append(("", f"a run file must be a mapping with the sections {', '.join(SECTIONS)}."))
        return {}
    for name, section in list(data.items()):
        if name not in SECTIONS:
            problems.append((str(name), f"unknown section.{near(str(name), SECTIONS)}"))
        elif isinstance(section, str):
            data[name] = {"system" if name == "model" else "kind": section}
        elif not isinstance(section, dict):
            problems.append((name, f"must be a mapping, but {section!r} was given."))
    return {name: section for name, section in data.items() if name in SECTIONS}


def _apply(data: dict[str, Any], text: str, number: int, places: dict[str, str]) -> None:
    """One override. Under `model`, a path of several steps is a change of the system's parts."""
    path, value = parse_override(text, number)
    steps = path.split(".")
    if steps[0] not in SECTIONS:
        raise PathError(f"unknown section.{near(steps[0], SECTIONS)}")
    if len(steps) == 1:
        if isinstance(value, str):
            value = {"system" if path == "model" else "kind": value}
        if not isinstance(value, dict):
            raise PathError(f"must be a mapping, but {value!r} was given.")
        data[path] = value
    elif steps[0] == "model":
        model = data.setdefault("model", {})
        if steps[1] in DIMS and len(steps) == 2:
            steps = ["model", "dims", steps[1]]
            model.pop(steps[2], None)
        if len(steps) > 2 and steps[1] != "dims":
            inner = ".".join(steps[2:] if steps[1] == "change" else steps[1:])
            model["change"] = {**(model.get("change") or {}), inner: value}
            places[f"model.change.{inner}"] = f"override {number}"
        else:
            put(data, steps, value)
    else:
        _put_default(data, steps)
        put(data, steps, value)
    for old in [p for p in places if p.startswith(path + ".")]:
        del places[old]
    places[path] = places[".".join(steps)] = f"override {number}"


def _put_default(data: dict[str, Any], steps: list[str]) -> None:
    """`task.tokens.vocab=500` where the file does not speak of tokens changes the default tokens."""
    section = data.get(steps[0])
    if len(steps) < 3 or not isinstance(section, dict) or section.get(steps[1]) is not None:
        return
    known: dict[str, Callable[..., Any]] = dict(kinds(_family(steps[0])))
    kind = section.get("kind") or (next(iter(known)) if len(known) == 1 else None)
    if kind in known and steps[1] in takes(known[kind]):
        default = takes(known[kind])[steps[1]].default
        if isinstance(default, Recipe):
            section[steps[1]] = write(default)


def _family(section: str) -> type[Any]:
    if section == "task":
        from regard.tasks import Task

        return Task
    from regard.train import Training

    return Training


def _read_section(
    name: str, data: dict[str, Any], problems: list[Problem], folder: Path | None
) -> Recipe[Any] | None:
    if name not in data:
        return None
    try:
        recipe = read(_family(name), data[name], name)
    except SpecError as error:
        problems.extend(error.problems)
        return None
    files = getattr(recipe.make, "files", ())
    recipe = recipe.but(**{k: _found(v, folder) for k, v in recipe.options.items() if k in files})
    try:
        recipe.build()
    except UsageError as error:
        problems.append((_named(name, str(error)), str(error)))
    return recipe


def _named(path: str, text: str) -> str:
    """The dotted path that an error speaks of, if it begins with one: 'train.steps must be ...'."""
    first = text.split(" ", 1)[0].rstrip(":")
    return first if first.startswith(f"{path}.") else path


def _found(value: Any, folder: Path | None) -> Any:
    """A data file as an absolute path: looked for from the current folder, then beside the run file.

    What is not there stays as it was written, so that the task can say what it misses.
    """
    if isinstance(value, list | tuple):
        return type(value)(_found(one, folder) for one in value)
    if isinstance(value, str):
        for home in (Path(), folder):
            if home is not None and (home / value).exists():
                return str((home / value).resolve())
    return value


def _place(path: str, places: Mapping[str, str]) -> str:
    """Where a path was written: its own line or override, or that of the nearest thing around it."""
    if places.get(f"{path}.kind", "").startswith("override"):
        return places[f"{path}.kind"]  # the kind is what makes a part what it is
    while path and path not in places:
        path = path.rpartition(".")[0]
    return places.get(path, "")
