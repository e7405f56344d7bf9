"""`regard parts --matrix`: which positions and patterns work together, found by running each pair."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from regard.errors import UsageError
from regard.laws.attention import PATTERNS, SPARSE
from regard.laws.subjects import positions
from regard.model import Decoder, build
from regard.nn.block import Serial
from regard.nn.embed import Tokens
from regard.nn.ffn import Dense
from regard.nn.head import Linear
from regard.nn.mixer import Attention
from regard.nn.pattern import Pattern
from regard.nn.position import Position
from regard.nn.stack import Sequential
from regard.spec import Recipe, of

DIMS = {"width": 16, "heads": 4, "layers": 1, "length": 24}


@dataclass(frozen=True)
class Cell:
    """One pair: `works` is write (token by token), read (in both directions), or no, with the reason."""

    position: str
    pattern: str
    works: str
    reason: str = ""


def matrix() -> list[Cell]:
    """Every position with every pattern."""
    return [
        tried(position, position_recipe, pattern, pattern_recipe)
        for position, position_recipe in positions().items()
        for pattern, pattern_recipe in (PATTERNS | SPARSE).items()
    ]


def tried(
    position: str, position_recipe: Recipe[Position] | None, pattern: str, pattern_recipe: Recipe[Pattern]
) -> Cell:
    """Build the smallest model of the pair; it writes if token by token it says the same."""
    attention = of(Attention, pattern=pattern_recipe)
    block = of(Serial, sublayers={"self": attention, "ffn": of(Dense, hidden=16)})
    stack = of(Sequential, block=block, position=position_recipe)
    parts = {"dims": dict(DIMS), "embed": of(Tokens, vocab=9), "stack": stack, "head": of(Linear, vocab=9)}
    ids_BL = torch.arange(18)[None] % 9
    try:
        with torch.no_grad():
            model = build(Recipe(Decoder, parts)).eval()
            whole_BLV, cache = model(ids_BL), model.cache(1)
            steps = [model(part, cache=cache) for part in ids_BL.split([6, *[1] * 12], 1)]
            writes = bool((torch.cat(steps, 1) - whole_BLV).abs().max() < 1e-4)
    except UsageError as error:
        return Cell(position, pattern, "no", str(error))
    return Cell(position, pattern, "write" if writes else "read")


def table(cells: Sequence[Cell]) -> str:
    """Rows are positions, columns patterns; below, why what does not work does not."""
    columns = list(dict.fromkeys(c.pattern for c in cells))
    rows = list(dict.fromkeys(c.position for c in cells))
    found = {(c.position, c.pattern): c for c in cells}
    left = max(map(len, rows))
    lines = [" " * left + "   " + "  ".join(columns)]
    for row in rows:
        words = "  ".join(found[row, column].works.ljust(len(column)) for column in columns)
        lines.append(f"{row:{left}}   {words}".rstrip())
    lines += ["", "write: token by token too; read: in both directions only; no: see below"]
    lines += [f"{c.position} with {c.pattern}: {c.reason}" for c in cells if c.works == "no"]
    return "\n".join(lines)
