"""Who sees whom, as a picture: in the terminal, and as a PNG file.

A row is a query, a column a key; a filled cell says that the query sees the key. Heads that differ stand side
by side.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from regard.dims import Dims
from regard.look.draw import picture
from regard.nn.pattern import Pattern
from regard.spec import read
from regard.strict_yaml import parse

Cells = npt.NDArray[np.bool_]


def seen(pattern: Pattern, length: int) -> Cells:
    """(heads, queries, keys): one head where all see alike."""
    at = torch.arange(length)
    cells: Cells = pattern(at[None, None, :, None], at[None, None, None, :])[0].numpy()
    return np.broadcast_to(cells, (len(cells), length, length))


def read_pattern(said: str, length: int) -> Pattern:
    """A pattern by its name or as a run file would say it, for four heads and sequences of that length."""
    data = parse(said, "--picture").data
    return read(Pattern, data, "pattern").build(Dims(width=4, heads=4, length=length))


def text_pattern(pattern: Pattern, length: int = 32, plain: bool | None = None) -> str:
    """The picture as text, a line for each query.

    Options:
        plain: only ASCII characters; None looks at what the terminal can show.
    """
    if plain is None:
        plain = not (sys.stdout.encoding or "").lower().startswith("utf")
    no, yes = (".", "#") if plain else ("\u00b7", "\u2588")
    rows = zip(*seen(pattern, length), strict=True)
    return "\n".join(
        "   ".join("".join(yes if cell else no for cell in head) for head in row) for row in rows
    )


def draw_pattern(pattern: Pattern, path: str | Path, length: int = 32, title: str = "") -> Path:
    """The picture as a PNG file."""
    heads = [np.pad(head, ((0, 0), (0, 1))) for head in seen(pattern, length).astype(float)]
    labels = [str(n) for n in range(length)]
    whole = np.concatenate(heads, 1)[:, :-1]
    return picture(whole, labels, ([*labels, " "] * len(heads))[:-1], path, title)
