"""`regard parts --matrix`: what each position works together with, found by running each pair."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from regard.errors import UsageError
from regard.laws.attention import PATTERNS, SPARSE
from regard.laws.subjects import example, positions, together
from regard.model import Model, build
from regard.nn.pattern import Causal
from regard.nn.position import Position
from regard.nn.score import Score
from regard.nn.stack import Stack
from regard.spec import Recipe, kinds, of


@dataclass(frozen=True)
class Cell:
    """One pair: `works` is write (token by token), read (in both directions), or no, with the reason."""

    position: str
    family: str
    name: str
    works: str
    reason: str = ""


def matrix() -> list[Cell]:
    """Every position with every pattern, every score, every stack and every cache."""
    return [cell for name, recipe in positions().items() if "=" not in name for cell in row(name, recipe)]


def row(name: str, position: Recipe[Position] | None) -> list[Cell]:
    """All that one position is tried with."""
    cells = [tried(name, "pattern", p, together(position, r)) for p, r in (PATTERNS | SPARSE).items()]
    for kind, score in kinds(Score).items():
        cells.append(tried(name, "score", kind, together(position, of(Causal), example(score))))
    for kind, stack in kinds(Stack).items():
        cells.append(tried(name, "stack", kind, together(position, stack=stack)))
    for cache in ("growing", "static", "int8"):
        cells.append(tried(name, "cache", cache, together(position), cache))
    return cells


def tried(position: str, family: str, name: str, recipe: Recipe[Model], cache: str = "growing") -> Cell:
    """Build the smallest model of the pair; it writes if token by token it says the same."""
    ids_BL, bound = torch.arange(18)[None] % 9, 0.05 if cache == "int8" else 1e-4
    try:
        with torch.no_grad():
            model = build(recipe).eval()
            whole_BLV = model(ids_BL)
            past = model.cache(
                1, 18 if cache == "static" else None, precision="int8" if cache == "int8" else "full"
            )
            steps = [model(part, cache=past) for part in ids_BL.split([6, *[1] * 12], 1)]
            writes = bool((torch.cat(steps, 1) - whole_BLV).abs().max() < bound)
    except UsageError as error:
        return Cell(position, family, name, "no", str(error))
    return Cell(position, family, name, "write" if writes else "read")


def table(cells: Sequence[Cell]) -> str:
    """A table for each family, a row for each position; below, why what does not work does not."""
    lines: list[str] = []
    rows = list(dict.fromkeys(c.position for c in cells))
    left = max(map(len, rows))
    for family in dict.fromkeys(c.family for c in cells):
        found = {(c.position, c.name): c for c in cells if c.family == family}
        columns = list(dict.fromkeys(name for _, name in found))
        lines.append(family.ljust(left) + "   " + "  ".join(columns))
        for row in rows:
            words = "  ".join(found[row, column].works.ljust(len(column)) for column in columns)
            lines.append(f"{row:{left}}   {words}".rstrip())
        lines.append("")
    lines.append("write: token by token too; read: in both directions only; no: see below")
    lines += [f"{c.position} with {c.name}: {c.reason}" for c in cells if c.works == "no"]
    return "\n".join(lines)
