"""The parts. Folder = key in a config; file = kind; class = kind in CamelCase."""

from regard.nn import block, embed, ffn, head, init, mixer, norm, pattern, position, residual, score, stack
from regard.nn.cache import Cache
from regard.nn.context import Context, Memory, places
from regard.nn.recent import Recent

__all__ = [
    "Cache",
    "Context",
    "Memory",
    "Recent",
    "block",
    "embed",
    "ffn",
    "head",
    "init",
    "mixer",
    "norm",
    "pattern",
    "places",
    "position",
    "residual",
    "score",
    "stack",
]
