"""Parts and recipes: how any model, task or run is written down as data and built from it.

A *part* is a plain class; its constructor's signature is its schema, declared once and nowhere else. A part
of a network takes `dims` first and gets it from its parent; its other arguments are its options.
A *recipe* is a part together with options, not yet built: `of(Rotary, base=500_000)`.
"""

from __future__ import annotations

import difflib
import inspect
import re
import types
from collections.abc import Callable, Iterable
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass
from functools import cache
from typing import (
    Any,
    Concatenate,
    Generic,
    Literal,
    ParamSpec,
    TypeVar,
    Union,
    get_args,
    get_origin,
    overload,
)

from regard.dims import Dims
from regard.errors import UsageError

P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

PARTS: list[type] = []
Problem = tuple[str, str]


class SpecError(UsageError):
    """All that is wrong with a recipe, each with the dotted path where it stands."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = list(problems)
        super().__init__("\n".join(f"{path}: {text}" if path else text for path, text in self.problems))


@dataclass(frozen=True)
class Recipe(Generic[T_co]):
    """A part and its options, ready to be built as often as there are layers."""

    make: Callable[..., T_co]
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if isinstance(dims := self.options.get("dims"), Dims):  # one form, so that equal recipes are equal
            object.__setattr__(self, "options", {**self.options, "dims": asdict(dims)})

    def build(self, dims: Dims | None = None) -> T_co:
        """The part itself; numbers under `dims` in the options replace its parent's from here down."""
        options = dict(self.options)
        if not takes_dims(self.make):
            return self.make(**options)
        own = options.pop("dims", None) or {}
        if dims is None and "width" not in own:
            raise UsageError(
                f"{_name(self.make)} must be given dims: build(Dims(width=...)) or dims in its options."
            )
        return self.make(dims.but(**own) if dims else Dims(**own), **options)

    def but(self, **options: Any) -> Recipe[T_co]:
        """The same recipe with some options changed."""
        return Recipe(self.make, {**self.options, **options})


@overload
def of(make: Callable[Concatenate[Dims, P], T], *args: P.args, **options: P.kwargs) -> Recipe[T]: ...
@overload
def of(make: Callable[P, T], *args: P.args, **options: P.kwargs) -> Recipe[T]: ...
def of(make: Callable[..., T], *args: Any, **options: Any) -> Recipe[T]:
    """`of(Dense, hidden=64)`: a recipe whose options the type checker can see."""
    if args:
        raise TypeError(f"{_name(make)}: name every option, as in of({_name(make)}, option=value).")
    for name in options:
        if name not in takes(make) and name != "dims":
            raise SpecError([("", _unknown(f"{_name(make)} has no option", name, takes(make), "It takes"))])
    return Recipe(make, dict(options))


def part(cls: type[T]) -> type[T]:
    """Enter a class in the catalogue. Its base class is its family, its name in snake case its kind."""
    PARTS.append(cls)
    return cls


def kind_of(cls: Any) -> str:
    """TransformerXL -> 'transformer_xl', Local2D -> 'local_2d', which is also the name of its file."""
    return re.sub(r"(?<=[a-z])(?=[A-Z]|\dD)|(?<=\d)(?=[A-Z][a-z])", "_", _name(cls)).lower()


def kinds(family: type[T]) -> dict[str, type[T]]:
    """The parts of one family: kinds(Position) -> {'rotary': Rotary, ...}."""
    return {kind_of(cls): cls for cls in PARTS if issubclass(cls, family)}


@cache
def takes(make: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The options of a part: its constructor's arguments, `dims` left out."""
    found = dict(inspect.signature(make, eval_str=True).parameters)
    return {name: p for name, p in found.items() if name != "dims"}


@cache
def takes_dims(make: Callable[..., Any]) -> bool:
    """True for parts of a network, which get their numbers from their parent."""
    return next(iter(inspect.signature(make).parameters), None) == "dims"


def read(family: type[T], data: Any, path: str = "") -> Recipe[T]:
    """Recipe from data: 'rotary' or {'kind': 'rotary', 'base': 500000}. All problems are raised together."""
    problems: list[Problem] = []
    recipe = _read_recipe(family, data, path, problems)
    if problems or recipe is None:
        raise SpecError(problems)
    return recipe


def read_options(
    make: Callable[..., Any],
    data: dict[str, Any],
    path: str,
    problems: list[Problem],
    more: Iterable[str] = (),
) -> dict[str, Any]:
    """Options of a callable from data, checked against its signature; faults go into `problems`.

    `more` are names that the caller has taken already, for suggestions.
    """
    known, read_so_far = takes(make), {}
    who = f"{_family(make)} {kind_of(make)!r}" if inspect.isclass(make) else _name(make)
    for name, value in data.items():
        at = _join(path, name)
        if name == "dims" and takes_dims(make):
            read_so_far[name] = _read_dims(value, at, problems)
        elif name not in known:
            problems.append((at, _unknown(f"{who} has no option", str(name), [*known, *more], "It takes")))
        else:
            read_so_far[name] = _read_value(known[name].annotation, value, at, problems)
    for name, parameter in known.items():
        if name not in data and parameter.default is inspect.Parameter.empty:
            problems.append((_join(path, name), f"must be given: {_name(make)} cannot do without {name!r}."))
    return read_so_far


def write(recipe: Recipe[Any], resolved: bool = False) -> dict[str, Any]:
    """Data from a recipe: `read(family, write(r)) == r`. With `resolved`, defaults are written too."""
    options = dict(recipe.options)
    if resolved:
        options = {
            name: options.get(name, parameter.default)
            for name, parameter in takes(recipe.make).items()
            if name in options or parameter.default is not inspect.Parameter.empty
        } | ({"dims": options["dims"]} if "dims" in options else {})
    return {"kind": kind_of(recipe.make), **{name: _write_value(v, resolved) for name, v in options.items()}}


def _read_recipe(family: type[T], data: Any, path: str, problems: list[Problem]) -> Recipe[T] | None:
    known, what = kinds(family), family.__name__.lower()
    if isinstance(data, Recipe):
        if not _belongs(data, family):
            problems.append((path, _unknown(f"no {what} is called", kind_of(data.make), known, "Known")))
        return data
    if isinstance(data, str):
        data = {"kind": data}
    if not isinstance(data, dict):
        problems.append((path, f"a {what} is a name or a mapping with a kind, but {data!r} was given."))
        return None
    options = dict(data)
    kind = options.pop("kind", None)
    if kind is None:
        kind = next(iter(known)) if len(known) == 1 else getattr(family, "usual", None)
    if str(kind) not in known:
        said = (
            "must be given" if kind is None else _unknown(f"no {what} is called", str(kind), known, "Known")
        )
        problems.append((_join(path, "kind") if kind is None else path, said))
        return None
    return Recipe(known[kind], read_options(known[kind], options, path, problems))


def _read_value(hint: Any, value: Any, path: str, problems: list[Problem]) -> Any:
    """Follow the annotation: Recipe[Score] reads a score, dict[str, Recipe[Mixer]] a set of named mixers."""
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Any or hint is inspect.Parameter.empty:
        return value
    if origin in (Union, types.UnionType):
        return _read_union(inner, value, path, problems)
    if origin is Recipe:
        family = inner[0]
        families = get_args(family) if get_origin(family) in (Union, types.UnionType) else (family,)
        return _read_either(families, value, path, problems)
    if origin is dict and isinstance(value, dict):
        return {k: _read_value(inner[1], v, _join(path, k), problems) for k, v in value.items()}
    if origin in (list, tuple) and isinstance(value, list | tuple):
        hints = inner if origin is tuple and Ellipsis not in inner else (inner[0],) * len(value)
        if len(hints) == len(value):
            pairs = enumerate(zip(hints, value, strict=True))
            return origin(_read_value(h, v, _join(path, n), problems) for n, (h, v) in pairs)
    if hint is Dims:
        return _read_dims(value, path, problems)
    if is_dataclass(hint) and isinstance(value, dict):
        return _read_dataclass(hint, value, path, problems)
    if _fits(hint, value):
        return float(value) if hint is float else value
    problems.append((path, f"must be {_spell(hint)}, but {value!r} was given."))
    return value


def _read_either(families: tuple[type, ...], value: Any, path: str, problems: list[Problem]) -> Any:
    """A recipe of the first family that knows the kind."""
    kind = value.get("kind") if isinstance(value, dict) else value
    for family in families:
        if _belongs(value, family) if isinstance(value, Recipe) else str(kind) in kinds(family):
            return _read_recipe(family, value, path, problems)
    if len(families) == 1:
        return _read_recipe(families[0], value, path, problems)
    known = [name for family in families for name in kinds(family)]
    what = " or ".join(family.__name__.lower() for family in families)
    word = kind_of(value.make) if isinstance(value, Recipe) else str(kind)
    problems.append((path, _unknown(f"no {what} is called", word, known, "Known")))
    return None


def _read_union(hints: tuple[Any, ...], value: Any, path: str, problems: list[Problem]) -> Any:
    if value is None and type(None) in hints:
        return None
    hints = tuple(h for h in hints if h is not type(None))
    tries: list[tuple[Any, list[Problem]]] = []
    for hint in hints:
        found: list[Problem] = []
        tries.append((_read_value(hint, value, path, found), found))
        if not found:
            return tries[-1][0]
    forms = (list, tuple) if isinstance(value, list | tuple) else (Recipe, dict)
    meant = [n for n, h in enumerate(hints) if get_origin(h) in forms]
    if len(hints) == 1 or (meant and isinstance(value, dict | list | tuple)):
        value, found = tries[meant[0] if meant else 0]
        problems.extend(found)  # the one that was meant: its own words say most
    else:
        problems.append((path, f"must be {' or '.join(map(_spell, hints))}, but {value!r} was given."))
    return value


def _read_dims(value: Any, path: str, problems: list[Problem]) -> Any:
    if isinstance(value, Dims):
        return value
    names = [f.name for f in fields(Dims)]
    if not isinstance(value, dict):
        problems.append((path, f"must be a mapping of {', '.join(names)}, but {value!r} was given."))
        return value
    for name, number in value.items():
        if name not in names:
            problems.append((_join(path, name), _unknown("dims has no number", str(name), names, "It takes")))
        elif not (name == "head" and number is None) and (not _fits(int, number) or number < 1):
            problems.append(
                (_join(path, name), f"must be a whole number of at least 1, but {number!r} was given.")
            )
    return dict(value)


def _read_dataclass(cls: Any, value: dict[str, Any], path: str, problems: list[Problem]) -> Any:
    before = len(problems)
    options = read_options(cls, value, path, problems)
    return cls(**options) if len(problems) == before else value


def _fits(hint: Any, value: Any) -> bool:
    if get_origin(hint) is Literal:
        return any(value == choice and type(value) is type(choice) for choice in get_args(hint))
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, hint) if isinstance(hint, type) else False


def _spell(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return "one of " + ", ".join(map(str, get_args(hint)))
    names = {
        int: "a whole number",
        float: "a number",
        bool: "true or false",
        str: "a text",
        type(None): "null",
    }
    if hint in names:
        return names[hint]
    if get_origin(hint) in (Recipe, list, tuple, dict):
        inner = get_args(hint)
        return {Recipe: "a {0}", list: "a list", tuple: "a list of {1}", dict: "a mapping"}[
            get_origin(hint)
        ].format(getattr(inner[0], "__name__", str(inner[0])).lower(), len(inner))
    return _name(hint)


def _write_value(value: Any, resolved: bool) -> Any:
    if isinstance(value, Recipe):
        return write(value, resolved)
    if is_dataclass(value) and not isinstance(value, type):
        given = {f.name: getattr(value, f.name) for f in fields(value)}
        defaults = {f.name: f.default for f in fields(value) if f.default is not MISSING}
        kept = (
            given if resolved else {k: v for k, v in given.items() if k not in defaults or v != defaults[k]}
        )
        return {k: _write_value(v, resolved) for k, v in kept.items()}
    if isinstance(value, dict):
        return {k: _write_value(v, resolved) for k, v in value.items()}
    return [_write_value(v, resolved) for v in value] if isinstance(value, list | tuple) else value


def _belongs(recipe: Recipe[Any], family: type) -> bool:
    return not inspect.isclass(recipe.make) or issubclass(recipe.make, family)


def _join(path: str, name: object) -> str:
    return f"{path}.{name}" if path else str(name)


def _name(make: Any) -> str:
    return getattr(make, "__name__", str(make))


def _family(cls: type) -> str:
    """The family a part belongs to: the highest class above it that is ours."""
    ours = [c for c in cls.__mro__[1:] if c is not object and not c.__module__.startswith("torch")]
    return ours[-1].__name__ if ours else "Part"


def _unknown(problem: str, word: str, known: Iterable[str], label: str) -> str:
    known = sorted(known)
    near = difflib.get_close_matches(word, known, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return f"{problem} {word!r}.{hint} {label}: {', '.join(known) or 'nothing'}."
