"""How time and memory grow with length: a sliding window against dense causal attention, forward and
backward.

    python bench/length.py [--rounds 3] [--quick] [--json] [--window 128]

8 heads x 64, batch 1, fp32. Growth is the slope of log(cost) over log(length), least squares over all
lengths: 1 is linear, 2 quadratic. Memory is the highest resident size above what was held before (Linux).
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import math
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from common import BUSY, Load, arguments, machine
from torch import Tensor

from regard.dims import Dims
from regard.nn.attend import attend
from regard.nn.context import Context, plain_places
from regard.nn.pattern import Window
from regard.nn.score import Dot

HEADS, SIZE = 8, 64
Attention = Callable[[Tensor, Tensor, Tensor], Tensor]


def ours(window: int) -> Attention:
    """regard's attend with a window: it goes blockwise by itself."""
    dims = Dims(width=HEADS * SIZE, heads=HEADS)
    pattern, score = Window(dims, width=window), Dot(dims)

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        ctx = Context(plain_places(0, q.shape[2], q.device), plain=True)
        return attend(q, k, v, ctx.pos_BL, ctx, score=score, pattern=pattern)

    return run


def dense(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Every key before each query, by torch's fused kernel."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def local(window: int) -> Attention:
    """The local-attention package with the same window."""
    from local_attention import LocalAttention

    module = LocalAttention(
        window - 1,
        causal=True,
        look_backward=1,
        autopad=True,
        exact_windowsize=True,
        use_rotary_pos_emb=False,
    )
    return lambda q, k, v: module(q, k, v)


def once(attention: Attention, length: int) -> tuple[float, float | None, float]:
    """Seconds, bytes at the peak, and cores taken by others, of one forward and backward pass."""
    random = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, HEADS, length, SIZE, generator=random).requires_grad_() for _ in range(3))
    grad = torch.randn(1, HEADS, length, SIZE, generator=random)
    gc.collect()
    before = _reset_peak()
    with Load() as load:
        start = time.perf_counter()
        attention(q, k, v).backward(grad)
        seconds = time.perf_counter() - start
    peak = None if before is None else _memory("VmHWM") - before
    return seconds, peak, load.foreign


def _memory(line: str) -> float:
    for text in Path("/proc/self/status").read_text().splitlines():
        if text.startswith(line + ":"):
            return float(text.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {line}")


def _reset_peak() -> float | None:
    """Give freed memory back, forget the old peak, say what is held now; None where that cannot be done."""
    try:
        ctypes.CDLL("libc.so.6").malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
        return _memory("VmRSS")
    except OSError:
        return None


def slope(lengths: list[int], costs: list[float]) -> float:
    """Of log(cost) over log(length)."""
    x, y = [math.log(n) for n in lengths], [math.log(max(c, 1e-12)) for c in costs]
    mx, my = statistics.fmean(x), statistics.fmean(y)
    return sum((a - mx) * (b - my) for a, b in zip(x, y, strict=True)) / sum((a - mx) ** 2 for a in x)


def measure(lengths: list[int], window: int, rounds: int) -> dict[str, Any]:
    """All ways, all lengths; at each length the ways take turns."""
    makes: dict[str, Callable[[], Attention]] = {
        f"regard window {window}": lambda: ours(window),
        "dense causal (SDPA)": lambda: dense,
        f"local-attention {window}": lambda: local(window),
    }
    ways: dict[str, Attention] = {}
    absent: dict[str, str] = {}
    for name, make in makes.items():
        try:
            ways[name] = make()
            once(ways[name], lengths[0])
        except Exception as problem:
            if name.startswith("regard"):
                raise
            ways.pop(name, None)
            absent[name] = f"{type(problem).__name__}: {problem}"
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in ways}
    foreign = []
    for length in lengths:
        taken: dict[str, list[tuple[float, float | None, float]]] = {name: [] for name in ways}
        for _ in range(rounds):
            for name, attention in ways.items():
                taken[name].append(once(attention, length))
        for name, each in taken.items():
            seconds = [one[0] for one in each]
            peaks = [one[1] for one in each if one[1] is not None]
            foreign += [one[2] for one in each]
            rows[name].append(
                {
                    "length": length,
                    "ms": 1000 * statistics.median(seconds),
                    "ms_min": 1000 * min(seconds),
                    "ms_max": 1000 * max(seconds),
                    "peak_mb": statistics.median(peaks) / 2**20 if peaks else None,
                }
            )
    growth = {}
    for name, row in rows.items():
        memory = [one["peak_mb"] for one in row]
        growth[name] = {
            "time": slope(lengths, [one["ms"] for one in row]),
            "memory": slope(lengths, memory) if None not in memory else None,
        }
    names = list(rows)
    faster = {name: rows[name][-1]["ms"] / rows[names[0]][-1]["ms"] for name in names[1:]}
    return {
        "rows": rows,
        "growth": growth,
        "regard_is_faster_at_longest": faster,
        "absent": absent,
        "foreign_cores": statistics.median(foreign),
    }


def show(found: dict[str, Any], lengths: list[int], rounds: int) -> None:
    """A table for people."""
    print(f"\nforward + backward, {HEADS} heads x {SIZE}, ms (peak MB), median of {rounds} rounds")
    print("  " + " " * 24 + "".join(f"{length:>18,}" for length in lengths) + "   growth: time  memory")
    for name, row in found["rows"].items():
        cells = ""
        for one in row:
            peak = "" if one["peak_mb"] is None else f" ({one['peak_mb']:,.0f})"
            cells += f"{one['ms']:,.1f}{peak}".rjust(18)
        growth = found["growth"][name]
        memory = "" if growth["memory"] is None else f"{growth['memory']:8.2f}"
        print(f"  {name:24}{cells}   {growth['time']:12.2f}{memory}")
    for name, ratio in found["regard_is_faster_at_longest"].items():
        print(f"  at {lengths[-1]:,} regard's window is {ratio:.2f} times as fast as {name}")
    for name, reason in found["absent"].items():
        print(f"  {name}: not measured: {reason}")
    if found["foreign_cores"] > BUSY:
        print(f"  other programs took {found['foreign_cores']:.2f} cores meanwhile: times are uncertain")
    sys.stdout.flush()


def main() -> None:
    """Run all lengths."""

    def add(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--window", type=int, default=128, help="keys that a query sees (128)")

    options = arguments(__doc__ or "", 3, add)
    lengths = [1024, 2048, 4096] if options.quick else [1024, 2048, 4096, 8192, 16384]
    found = measure(lengths, options.window, options.rounds)
    if options.json:
        print(json.dumps({"bench": "length", "machine": machine(options.threads), **found}, indent=1))
    else:
        show(found, lengths, options.rounds)


if __name__ == "__main__":
    main()
