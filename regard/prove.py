"""`regard prove`: which law holds for which part and system, with the largest difference found."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from regard.data.text import write_lines
from regard.errors import CheckFailed, UsageError

if TYPE_CHECKING:
    from regard.laws import Row


def prove(names: Sequence[str] = (), out: Path | None = None, as_json: bool = False) -> list[Row]:
    """Try the laws (all, or those whose law or subject has one of these names), print and keep the table.

    Options:
        names: systems, parts or laws
        out: also write the table there, as docs/PROOFS.md
    """
    from regard.laws import prove as try_all
    from regard.laws import table

    rows = try_all(names)
    if not rows:
        raise UsageError(f"no law, part or system has the name {', '.join(names)}; see `regard parts`.")
    if out is not None:
        write_lines(out, table(rows).splitlines())
    print(json.dumps([plain(row) for row in rows], indent=1, allow_nan=False) if as_json else summary(rows))
    broken = [row for row in rows if not row.ok]
    if broken:
        told = "; ".join(f"{row.law}, {row.subject} ({row.worst})" for row in broken[:10])
        raise CheckFailed(f"{len(broken)} of {len(rows)} claims do not hold: {told}.")
    return rows


def plain(row: Row) -> dict[str, object]:
    """A row as JSON has it: a difference that is no number is null."""
    return {**vars(row), "difference": row.difference if math.isfinite(row.difference) else None}


def summary(rows: Sequence[Row]) -> str:
    """One line a law: of how many subjects it is claimed, in how many cases, and the largest difference."""
    lines = []
    laws = list(dict.fromkeys(row.law for row in rows))
    wide = max(map(len, laws))
    for law in laws:
        claimed = [row for row in rows if row.law == law]
        hold, cases = sum(row.ok for row in claimed), sum(row.cases for row in claimed)
        worst, bound = max(row.difference for row in claimed), max(row.bound for row in claimed)
        figure = f"largest {worst:.1e} of at most {bound:.0e}" if bound else f"largest {worst:.1e}, must be 0"
        lines.append(f"  {law:{wide}}   {hold:>3} of {len(claimed):>3} hold   {cases:>5} cases   {figure}")
    return "\n".join(lines)
