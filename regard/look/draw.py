"""Attention weights as a picture: in the terminal, and as a PNG file.

A row is what was written, a column what was read; the darker a cell, the more of that source token went into
the target token. Weights are (targets, sources), numbers from 0 to 1, each row summing to 1.
"""

from __future__ import annotations

import struct
import sys
import unicodedata
import warnings
import zlib
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import numpy.typing as npt

Weights = npt.NDArray[np.floating]

BLOCKS = "\u00b7\u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588"  # a dot, then eighths of a block
PLAIN = ".-~=+*#%@"  # the same nine steps where the terminal knows no blocks


def text_map(
    weights_LM: Weights, targets: Sequence[str], sources: Sequence[str], plain: bool | None = None
) -> str:
    """The picture as text: one line a target token, one cell a source token, nine steps of grey.

    Options:
        plain: only ASCII characters; None looks at what the terminal can show.
    """
    _check(weights_LM, targets, sources)
    if plain is None:
        plain = not (sys.stdout.encoding or "").lower().startswith("utf")
    ramp = PLAIN if plain else BLOCKS
    heads = [_cell(s) for s in sources]
    cell = max((wide(h) for h in heads), default=1)
    left = max((wide(_cell(t)) for t in targets), default=1)
    lines = [" " * left + "   " + " ".join(fill(h, cell) for h in heads).rstrip()]
    for token, row in zip(targets, weights_LM, strict=True):
        steps = np.clip(np.round(row * (len(ramp) - 1)), 0, len(ramp) - 1).astype(int)
        lines.append(fill(_cell(token), left) + "   " + " ".join(fill(ramp[s], cell) for s in steps).rstrip())
    return "\n".join(lines)


def picture(
    weights_LM: Weights, targets: Sequence[str], sources: Sequence[str], path: str | Path, title: str = ""
) -> Path:
    """The picture as a PNG file: with labels if matplotlib is installed, else the bare map."""
    _check(weights_LM, targets, sources)
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    if find_spec("matplotlib") is not None:
        _plot(weights_LM, targets, sources, path, title)
    else:
        path.write_bytes(bare_png(weights_LM))
    return path


def bare_png(weights_LM: Weights, cell: int = 16) -> bytes:
    """A grey PNG without any library: `cell` pixels a weight, 0 white, 1 black, light lines between."""
    shade = (255 - np.clip(weights_LM, 0, 1) * 255).astype(np.uint8)
    image = np.kron(shade, np.ones((cell, cell), dtype=np.uint8))
    image[::cell, :] = np.minimum(image[::cell, :], 224)
    image[:, ::cell] = np.minimum(image[:, ::cell], 224)
    height, width = image.shape
    rows = b"".join(b"\x00" + line.tobytes() for line in image)  # filter 0 before each row

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(rows, 9))
        + chunk(b"IEND", b"")
    )


def _plot(
    weights_LM: Weights, targets: Sequence[str], sources: Sequence[str], path: Path, title: str
) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows, columns = weights_LM.shape
    figure = Figure(figsize=(1.2 + 0.28 * columns, 1.2 + 0.28 * rows), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.imshow(weights_LM, cmap="Blues", vmin=0, vmax=1, aspect="equal")
    axes.set_xticks(range(columns), [_cell(s) for s in sources])
    axes.set_yticks(range(rows), [_cell(t) for t in targets])
    axes.tick_params(top=True, labeltop=True, bottom=False, labelbottom=False, length=0)
    axes.set_xticks(np.arange(columns + 1) - 0.5, minor=True)
    axes.set_yticks(np.arange(rows + 1) - 0.5, minor=True)
    axes.grid(which="minor", color="0.9", linewidth=0.5)
    axes.tick_params(which="minor", length=0)
    if title:
        axes.set_xlabel(title)
    with warnings.catch_warnings():  # a letter that the font does not have is drawn as a box
        warnings.filterwarnings("ignore", message="Glyph")
        figure.savefig(path)


def _check(weights_LM: Weights, targets: Sequence[str], sources: Sequence[str]) -> None:
    if weights_LM.shape != (len(targets), len(sources)):
        raise ValueError(
            f"weights must have a row for each target token and a column for each source token, "
            f"but {len(targets)} x {len(sources)} tokens meet weights of {tuple(weights_LM.shape)}."
        )


def _cell(token: str) -> str:
    """A token as a label: a visible mark for a space, nothing that moves the cursor."""
    token = token.replace(" ", "_")
    return "".join(c if c.isprintable() else "?" for c in token) or "?"


def wide(text: str) -> int:
    """Columns a text takes in a terminal: wide letters take two, combining marks none."""
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text
    )


def fill(text: str, width: int) -> str:
    """The text with spaces behind it, so that it takes so many columns in a terminal."""
    return text + " " * (width - wide(text))
