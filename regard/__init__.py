"""regard: the whole Transformer family in one small, fast, honest library.

    import regard

    recipe = regard.system("gpt", vocab=65, width=128, heads=4, layers=4, length=64)
    model = regard.build(recipe, seed=0)
    logits = model(ids)                              # (batch, length, vocab); a negative id is padding
    cache = model.cache(batch=1)
    logits = model(ids, cache=cache)                 # token by token equals one pass

Names are looked up when they are first used, so that `import regard` does not wait for torch.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing is ever downloaded

__version__ = "0.1.0"

if TYPE_CHECKING:
    from regard.loaded import load
    from regard.model import Model, build
    from regard.save import save
    from regard.spec import Recipe, of, read, write
    from regard.systems import recipe as system

_WHERE = {
    "Model": ("regard.model", "Model"),
    "Recipe": ("regard.spec", "Recipe"),
    "build": ("regard.model", "build"),
    "load": ("regard.loaded", "load"),
    "of": ("regard.spec", "of"),
    "read": ("regard.spec", "read"),
    "save": ("regard.save", "save"),
    "system": ("regard.systems", "recipe"),
    "write": ("regard.spec", "write"),
}

__all__ = ["Model", "Recipe", "build", "load", "of", "read", "save", "system", "systems", "write"]


def systems() -> list[str]:
    """The names of all systems."""
    from importlib import import_module

    return sorted(import_module("regard.systems").SYSTEMS)


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name not in _WHERE:
        raise AttributeError(f"regard has no {name!r}; it has {', '.join(__all__)}.")
    module, attribute = _WHERE[name]
    return getattr(import_module(module), attribute)
