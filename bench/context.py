"""What one more token costs after a long text: caches of a window, of a stride, of a memory over segments.

    python bench/context.py [--rounds 3] [--quick] [--json]

2 layers, 8 heads x 64, batch 1, fp32. A text is read in pieces, then tokens are written one by one; the cost
is the median over tokens. Bytes are what the cache says it holds, beside what the formula says it must:

    2 (keys and values) x layers x columns x groups x head x 4,   columns = all, or at most reach, or memory
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from common import BUSY, Load, arguments, machine

import regard
from regard.nn.cache import Cache
from regard.nn.pattern import Causal, Strided, Window
from regard.nn.recent import Recent
from regard.spec import of

WIDTH, HEADS, LAYERS, STEPS, REACH, LONGEST = 512, 8, 2, 24, 256, 16384
SIZES = {"vocab": 256, "width": WIDTH, "heads": HEADS, "layers": LAYERS, "length": LONGEST + STEPS}


def gpt(pattern: Any) -> Callable[[], tuple[Any, Cache]]:
    """A decoder without positions, so that any length can be placed."""

    def make() -> tuple[Any, Cache]:
        model = regard.build(regard.system("gpt", pattern=pattern, position=None, **SIZES)).eval()
        return model, model.cache(1)

    return make


def xl() -> tuple[Any, Cache]:
    """Transformer-XL with a memory of as many tokens."""
    return regard.build(regard.system("transformer_xl", **SIZES)).eval(), Recent(1, memory=REACH)


ROWS: dict[str, tuple[Callable[[], tuple[Any, Cache]], Callable[[int], int]]] = {
    f"window {REACH}": (gpt(of(Window, width=REACH)), lambda n: min(n, REACH)),
    f"transformer_xl {REACH}": (xl, lambda n: min(n, REACH)),
    "strided 128": (gpt(of(Strided, stride=128)), lambda n: n),
    "causal": (gpt(of(Causal)), lambda n: n),
}


def after(make: Callable[[], tuple[Any, Cache]], length: int) -> tuple[float, int]:
    """Seconds a token after so many, and bytes held then."""
    model, cache = make()
    ids = torch.randint(0, 256, (1, length + STEPS), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        for piece in ids[:, :length].split(512, 1):
            model.states(piece, cache=cache)
        held, taken = cache.nbytes, []
        for n in range(length, length + STEPS):
            start = time.perf_counter()
            model(ids[:, n : n + 1], cache=cache)
            taken.append(time.perf_counter() - start)
    return statistics.median(taken), held


def measure(lengths: list[int], rounds: int) -> dict[str, Any]:
    """All rows, all lengths; lengths take turns, so that a busy moment hits all alike."""
    rows, foreign = {}, []
    for name, (make, columns) in ROWS.items():
        taken: dict[int, list[float]] = {n: [] for n in lengths}
        held = {}
        for _ in range(rounds):
            for n in lengths:
                with Load() as load:
                    seconds, held[n] = after(make, n)
                taken[n].append(seconds)
                foreign.append(load.foreign)
        rows[name] = [
            {
                "length": n,
                "ms": 1000 * statistics.median(taken[n]),
                "bytes": held[n],
                "formula": 2 * LAYERS * columns(n) * WIDTH * 4,
            }
            for n in lengths
        ]
    flat = {name: row[-1]["ms"] / row[0]["ms"] for name, row in rows.items()}
    return {"rows": rows, "longest_over_shortest": flat, "foreign_cores": statistics.median(foreign)}


def show(found: dict[str, Any], lengths: list[int]) -> None:
    """A table for people."""
    print(f"\none token after a text, {LAYERS} layers, {HEADS} heads: ms (MB held)")
    print("  " + " " * 24 + "".join(f"{length:>18,}" for length in lengths) + "   last / first   bytes")
    for name, row in found["rows"].items():
        cells = "".join(f"{one['ms']:,.2f} ({one['bytes'] / 2**20:,.1f})".rjust(18) for one in row)
        exact = "as the formula" if all(one["bytes"] == one["formula"] for one in row) else "OTHER"
        print(f"  {name:24}{cells}   {found['longest_over_shortest'][name]:12.2f}   {exact}")
    if found["foreign_cores"] > BUSY:
        print(f"  other programs took {found['foreign_cores']:.2f} cores meanwhile: times are uncertain")
    sys.stdout.flush()


def main() -> None:
    """Run all lengths."""
    options = arguments(__doc__ or "", 3)
    lengths = [1024, 4096] if options.quick else [1024, 2048, 4096, 8192, LONGEST]
    found = measure(lengths, options.rounds)
    if options.json:
        print(json.dumps({"bench": "context", "machine": machine(options.threads), **found}, indent=1))
    else:
        show(found, lengths)


if __name__ == "__main__":
    main()
