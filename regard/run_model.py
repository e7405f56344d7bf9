"""The model section of a run file: a system with options and changes, or the whole model written out."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from regard.dims import Dims
from regard.dotted import PathError, change, near
from regard.errors import UsageError
from regard.spec import Problem, Recipe, SpecError, read, takes, write

if TYPE_CHECKING:
    from regard.model import Model
    from regard.systems import System

MODEL = ("system", "size", "dims", "change")
DIMS = tuple(f.name for f in fields(Dims))
# Numbers beyond these cannot be meant, and building what they ask for would never end.
LARGEST = {
    "width": 10**6, "heads": 10**5, "head": 10**6, "layers": 10**4, "length": 10**8, "vocab": 10**8,
    "hidden": 10**8, "classes": 10**7, "groups": 10**5,
}  # fmt: skip


def check_model(data: Any, has_task: bool, problems: list[Problem], places: dict[str, str]) -> None:
    """Build the model without weights, with stand-ins for what the task will say: mistakes show at once."""
    from regard.blank import blank

    before = len(problems)
    recipe = read_model(data, None if has_task else {}, problems, places)
    if recipe is None or len(problems) > before:
        return
    try:
        with blank():
            recipe.build()
    except SpecError as error:
        problems.extend((f"model.{path}" if path else "model", text) for path, text in error.problems)
    except UsageError as error:
        problems.append(("model", str(error)))


def read_model(
    data: dict[str, Any], needs: dict[str, Any] | None, problems: list[Problem], places: dict[str, str]
) -> Recipe[Model] | None:
    """The recipe of a model section. `needs` None: the task is not prepared yet, so stand-ins are used."""
    data = dict(data)
    changes = data.pop("change", None) or {}
    if not isinstance(changes, dict):
        problems.append(("model.change", f"must be a mapping of dotted paths, but {changes!r} was given."))
        return None
    before = len(problems)
    _check_sizes(data, "model", problems)
    _check_sizes(changes, "model.change", problems)
    if len(problems) > before:
        return None
    from regard.model import Model

    if "system" in data:
        recipe = _read_system(data, needs, problems)
    else:
        recipe = _try_read(Model, data, problems)
        _check_needs(data, needs or {}, problems)
    if recipe is None or not changes or len(problems) > before:
        return recipe
    plain = write(recipe, resolved=True)
    for path, value in changes.items():
        try:
            for at in change(plain, path, copy.deepcopy(value)):
                places[f"model.{at}"] = places.get(f"model.change.{path}", "")
        except PathError as error:
            problems.append((f"model.change.{path}", str(error)))
    if len(problems) > before:
        return None
    return _try_read(Model, plain, problems)


def _try_read(family: type[Any], data: Any, problems: list[Problem]) -> Recipe[Any] | None:
    try:
        return read(family, data, "model")
    except SpecError as error:
        problems.extend(error.problems)
        return None


def _read_system(
    data: dict[str, Any], needs: dict[str, Any] | None, problems: list[Problem]
) -> Recipe[Model] | None:
    from regard.systems import SYSTEMS, find
    from regard.systems import recipe as system

    name, size, dims = data.pop("system"), data.pop("size", None), data.pop("dims", None) or {}
    if not isinstance(name, str) or name not in SYSTEMS:
        problems.append(("model.system", f"no system is called {name!r}.{near(str(name), SYSTEMS)}"))
        return None
    if not isinstance(dims, dict):
        problems.append(("model.dims", f"must be a mapping of {', '.join(DIMS)}, but {dims!r} was given."))
        return None
    before = len(problems)
    for key in dims:
        if key not in DIMS:
            problems.append((f"model.dims.{key}", f"dims has no number {str(key)!r}.{near(str(key), DIMS)}"))
        elif key in data:
            problems.append((f"model.{key}", "is given twice: here and under dims."))
    known = takes(SYSTEMS[name].make)
    for key in [key for key in data if key not in known and key not in DIMS]:
        hint = near(str(key), [*known, *DIMS, *MODEL])
        problems.append((f"model.{key}", f"system {name!r} has no option {str(key)!r}.{hint}"))
        del data[key]
    options = {**dims, **data}
    for key, value in (needs or {}).items():
        if key in options and options[key] != value:
            problems.append(
                (f"model.{key}", f"the task needs {value!r}, but {options[key]!r} was given; leave it out.")
            )
        options[key] = value
    if len(problems) > before:
        return None
    if needs is None:
        options = {**_stand_ins(find(name), size, options), **options}
    try:
        recipe: Recipe[Model] = system(name, size=size, **options)
    except SpecError as error:
        problems.extend(error.problems)
        return None
    except UsageError as error:
        problems.append(("model", str(error)))
        return None
    return recipe


def _check_needs(data: dict[str, Any], needs: Mapping[str, Any], problems: list[Problem]) -> None:
    """A model that is written out must have what the task needs, where it is known to stand."""
    answers = "classes" if "classes" in needs else "vocab"
    for part, option, need in (("embed", "vocab", "vocab"), ("head", answers, answers)):
        inside = data.get(part)
        given = inside.get(option) if isinstance(inside, dict) else None
        if given is not None and need in needs and given != needs[need]:
            said = f"the task needs {needs[need]!r}, but {given!r} was given."
            problems.append((f"model.{part}.{option}", said))


def _stand_ins(system: System, size: str | None, given: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers in place of those that only the prepared task knows, so that the rest can be checked before."""
    preset = system.sizes.get(size, {}) if size else {}
    known = takes(system.make)
    asked = [name for name, p in known.items() if p.default is inspect.Parameter.empty and name not in preset]
    if "head" in given and "classes" in known:
        asked.append("classes")
    return dict.fromkeys(asked, 8)


def _check_sizes(data: Any, path: str, problems: list[Problem]) -> None:
    """Refuse numbers that cannot be meant, wherever they stand."""
    for key, value in data.items() if isinstance(data, dict) else enumerate(data):
        at, most = f"{path}.{key}", LARGEST.get(str(key).rpartition(".")[2])
        if isinstance(value, dict | list):
            _check_sizes(value, at, problems)
        elif most is not None and isinstance(value, int | float) and not 1 <= value <= most:
            problems.append((at, f"must be from 1 to {most:,}, but {value:,} was given."))
