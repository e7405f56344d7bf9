"""One file per paper, one screen each: which parts, which sizes, what it changed."""

from __future__ import annotations

import difflib
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields
from types import ModuleType
from typing import Any

from regard.dims import Dims
from regard.errors import UsageError
from regard.model import Model
from regard.spec import Problem, Recipe, SpecError, read_options, takes

Make = Callable[..., Recipe[Model]]
Sizes = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class System:
    """A named recipe: a function from dims and a few options to a model."""

    name: str
    make: Make
    sizes: Sizes

    @property
    def about(self) -> str:
        """The first line of its file."""
        return self._doc().splitlines()[0]

    @property
    def paper(self) -> str:
        """The paragraph of its file that names authors, year and address."""
        return self._doc().strip().split("\n\n")[-1].replace("\n", " ")

    @property
    def file(self) -> str:
        """Where it is, from the root of the repository."""
        return "/".join(self.make.__module__.split(".")) + ".py"

    def _doc(self) -> str:
        return inspect.cleandoc(inspect.getmodule(self.make).__doc__ or "")


SYSTEMS: dict[str, System] = {}


def system_of(sizes: Sizes) -> Callable[[Make], Make]:
    """Enter a function in the list of systems; the sizes of the paper are named presets of its options."""

    def enter(make: Make) -> Make:
        SYSTEMS[make.__name__] = System(make.__name__, make, sizes)
        return make

    return enter


def find(name: str) -> System:
    """The system of that name."""
    if name not in SYSTEMS:
        near = difflib.get_close_matches(name, SYSTEMS, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise UsageError(f"No system is called {name!r}.{hint} Known: {', '.join(sorted(SYSTEMS))}.")
    return SYSTEMS[name]


def recipe(name: str, size: str | None = None, path: str = "model", **options: Any) -> Recipe[Model]:
    """The recipe of a system: a preset size, changed by options; the numbers of Dims are options too."""
    system, problems = find(name), list[Problem]()
    if size is not None and size not in system.sizes:
        raise SpecError(
            [(f"{path}.size", f"{name} has no size {size!r}. It has: {', '.join(system.sizes) or 'none'}.")]
        )
    given = {**(system.sizes[size] if size else {}), **options}
    own = takes(system.make)  # where a system has a word of its own for it (BERT's head), that is meant
    numbers = {f.name: given.pop(f.name) for f in fields(Dims) if f.name in given and f.name not in own}
    if "width" not in numbers:
        problems.append((f"{path}.dims.width", "must be given, or a size chosen with `size`."))
    checked = read_options(system.make, given, path, problems, [f.name for f in fields(Dims)])
    try:
        dims = Dims(**numbers) if "width" in numbers else None
    except UsageError as error:
        problems.append((f"{path}.dims", str(error)))
    if problems:
        raise SpecError(problems)
    assert dims is not None
    return system.make(dims, **checked).but(dims=numbers)


def options_of(name: str) -> list[str]:
    """What a system takes besides the numbers of Dims."""
    return list(takes(find(name).make))


class _Systems(ModuleType):
    """`regard.systems()` gives the names, although `regard.systems` is also the name of this package."""

    def __call__(self) -> list[str]:
        return sorted(SYSTEMS)


sys.modules[__name__].__class__ = _Systems

from regard.systems import (  # noqa: E402, F401
    adaptive_span,
    al_rfou,
    bert,
    gpt,
    image_transformer,
    linformer,
    llama,
    longformer,
    memory_compressed,
    reformer,
    sparse_transformer,
    t5,
    transformer_xl,
    vanilla,
)
