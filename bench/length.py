"""How time and memory grow with length: attention that sees less, against dense attention and the peers'.

    python bench/length.py [--rounds 3] [--quick] [--json] [--only strided --only dense]

Forward and backward, 8 heads x 64, batch 1, fp32; between the projections, for everybody. Growth is the slope
of log(cost) over log(length), least squares over all lengths: 1 is linear, 2 quadratic. Memory is the highest
resident size above what was held before (Linux). Strides are near the root of the length, as in the paper.
`--only` takes the rows whose name holds the word. bench/context.py measures one more token after a long text.
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
from torch import Tensor, nn

from regard.dims import Dims
from regard.nn.attend import attend
from regard.nn.context import Context, plain_places
from regard.nn.pattern import Causal, Fixed, Full, Local, Pattern, Strided, Window
from regard.nn.score import Dot

HEADS, SIZE, ROUNDS, KEYS, SEGMENT = 8, 64, 4, 256, 512
DENSE = "dense causal (SDPA)"
Attention = Callable[[Tensor, Tensor, Tensor], Tensor]
Make = Callable[[int], Attention]


def dims(length: int) -> Dims:
    """Of an attention for sequences that long."""
    return Dims(width=HEADS * SIZE, heads=HEADS, length=length)


def ours(pattern: Callable[[Dims], Pattern]) -> Make:
    """regard's attend with a pattern: it goes blockwise by itself."""

    def make(length: int) -> Attention:
        seen, score = pattern(dims(length)), Dot(dims(length))

        def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            ctx = Context(plain_places(0, q.shape[2], q.device), plain=True)
            return attend(q, k, v, ctx.pos_BL, ctx, score=score, pattern=seen)

        return run

    return make


def root(length: int, of: int = 1) -> int:
    """The multiple of `of` next to the root of the length."""
    return of * round(math.sqrt(length) / of)


def linformer(length: int) -> Attention:
    """Keys and values mixed into a few."""
    from regard.nn.compress import Linformer

    few, score = Linformer(dims(length), keys=KEYS), Dot(dims(length))

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        ctx = Context(plain_places(0, q.shape[2], q.device), plain=True)
        k, v, j = few(k, v, ctx)
        return attend(q, k, v, j, ctx, score=score, pattern=Full())

    return run


def lsh(length: int) -> Attention:
    """Queries that are keys, met in the same buckets."""
    from regard.nn.mixer import Lsh

    mixer = Lsh(dims(length), rounds=ROUNDS, chunk=64)

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return mixer.look(q, v, Context(plain_places(0, q.shape[2], q.device), plain=True))

    return run


def transformer_xl(length: int) -> Attention:
    """Segments, each with the one before as its memory, without gradient; distances as positions."""
    from regard.nn.position import TransformerXL

    position, score, pattern = TransformerXL(dims(length)), Dot(dims(length)), Causal()

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        found, at = [], plain_places(0, q.shape[2], q.device)
        for start in range(0, q.shape[2], SEGMENT):
            old, new = slice(max(0, start - SEGMENT), start), slice(start, start + SEGMENT)
            both = [torch.cat([t[:, :, old].detach(), t[:, :, new]], 2) for t in (k, v)]
            ctx, j = Context(at[:, new], plain=True), at[:, old.start : new.stop]
            found.append(attend(q[:, :, new], *both, j, ctx, score=score, pattern=pattern, position=position))
        return torch.cat(found, 2)

    return run


def dense(length: int) -> Attention:
    """Every key before each query, by torch's fused kernel."""
    return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True)


def their_window(window: int) -> Make:
    """The local-attention package with the same window."""

    def make(length: int) -> Attention:
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

    return make


def their_local(block: int) -> Make:
    """The local-attention package as it comes: a block and the one before it."""

    def make(length: int) -> Attention:
        from local_attention import LocalAttention

        module = LocalAttention(block, causal=True, look_backward=1, autopad=True, use_rotary_pos_emb=False)
        return lambda q, k, v: module(q, k, v)

    return make


def their_lsh(length: int) -> Attention:
    """The reformer-pytorch package: buckets of 64, as many rounds."""
    from reformer_pytorch import LSHAttention

    module = LSHAttention(bucket_size=64, n_hashes=ROUNDS, causal=True)
    return lambda q, k, v: module(q[0], v[0])[0][None]


def their_linformer(length: int) -> Attention:
    """The linformer package without its projections."""
    from linformer import LinformerSelfAttention

    module = LinformerSelfAttention(HEADS * SIZE, length, k=KEYS, heads=HEADS)
    module.to_q = module.to_k = module.to_out = nn.Identity()

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (t.transpose(1, 2).flatten(2) for t in (q, k, v))
        module.to_v = _Given(v)
        return module(q, context=k).unflatten(-1, (HEADS, SIZE)).transpose(1, 2)  # type: ignore[no-any-return]

    return run


class _Given(nn.Module):
    def __init__(self, v: Tensor) -> None:
        super().__init__()
        self.v = v

    def forward(self, x: Tensor) -> Tensor:
        return self.v


ROWS: dict[str, Make] = {
    "window 128": ours(lambda d: Window(d, 128)),
    "window 256": ours(lambda d: Window(d, 256)),
    "local 128": ours(lambda d: Local(d, 128)),
    "local 256": ours(lambda d: Local(d, 256)),
    "strided": ours(lambda d: Strided(d, root(d.length))),
    "fixed, c = 8": ours(lambda d: Fixed(d, root(d.length, 8), 8)),
    f"linformer {KEYS}": linformer,
    f"lsh, {ROUNDS} rounds": lsh,
    f"transformer_xl {SEGMENT}+{SEGMENT}": transformer_xl,
    DENSE: dense,
    "local-attention 128, exact": their_window(128),
    "local-attention 256, exact": their_window(256),
    "local-attention 128": their_local(128),
    "local-attention 256": their_local(256),
    f"linformer package {KEYS}": their_linformer,
    f"reformer-pytorch, {ROUNDS}": their_lsh,
}
PEERS = {
    "window 128": "local-attention 128, exact",
    "window 256": "local-attention 256, exact",
    "local 128": "local-attention 128",
    "local 256": "local-attention 256",
    f"linformer {KEYS}": f"linformer package {KEYS}",
    f"lsh, {ROUNDS} rounds": f"reformer-pytorch, {ROUNDS}",
}


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


def measure(lengths: list[int], only: list[str], rounds: int) -> dict[str, Any]:
    """All ways, all lengths; at each length the ways take turns."""
    ways: list[str] = []
    absent: dict[str, str] = {}
    for name, make in ROWS.items():
        if only and not any(word in name for word in only):
            continue
        try:
            once(make(lengths[0]), lengths[0])
            ways.append(name)
        except Exception as problem:  # a part or a package that is missing is said, and the others go on
            absent[name] = f"{type(problem).__name__}: {str(problem).splitlines()[0] if str(problem) else ''}"
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in ways}
    foreign = []
    for length in lengths:
        made = {name: ROWS[name](length) for name in ways}
        taken: dict[str, list[tuple[float, float | None, float]]] = {name: [] for name in ways}
        for _ in range(rounds):
            for name, attention in made.items():
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
    return {
        "rows": rows,
        "growth": growth,
        "at_longest": {name: _against(name, rows) for name in rows if name not in (DENSE, *PEERS.values())},
        "absent": absent,
        "foreign_cores": statistics.median(foreign) if foreign else 0.0,
    }


def _against(name: str, rows: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """At the longest length: times as fast as dense attention and the peer, and its part of their memory."""
    found = {}
    for key, other in (("dense", DENSE), ("peer", PEERS.get(name, ""))):
        if other in rows:
            mine, its = rows[name][-1], rows[other][-1]
            found[f"faster_than_{key}"] = its["ms"] / mine["ms"]
            if mine["peak_mb"] and its["peak_mb"]:
                found[f"memory_of_{key}"] = mine["peak_mb"] / its["peak_mb"]
    return found


def show(found: dict[str, Any], lengths: list[int], rounds: int) -> None:
    """A table for people."""
    print(f"\nforward + backward, {HEADS} heads x {SIZE}, ms (peak MB), median of {rounds} rounds")
    print("  " + " " * 26 + "".join(f"{length:>18,}" for length in lengths) + "   growth: time  memory")
    for name, row in found["rows"].items():
        cells = ""
        for one in row:
            peak = "" if one["peak_mb"] is None else f" ({one['peak_mb']:,.0f})"
            cells += f"{one['ms']:,.1f}{peak}".rjust(18)
        growth = found["growth"][name]
        memory = "" if growth["memory"] is None else f"{growth['memory']:8.2f}"
        print(f"  {name:26}{cells}   {growth['time']:12.2f}{memory}")
    for name, against in found["at_longest"].items():
        words = [f"{value:.2f} {key.replace('_', ' ')}" for key, value in against.items()]
        if words:
            print(f"  at {lengths[-1]:,} {name}: {', '.join(words)}")
    for name, reason in found["absent"].items():
        print(f"  {name}: not measured: {reason}")
    if found["foreign_cores"] > BUSY:
        print(f"  other programs took {found['foreign_cores']:.2f} cores meanwhile: times are uncertain")
    sys.stdout.flush()


def main() -> None:
    """Run all lengths."""

    def add(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--only", action="append", default=[], help="rows whose name holds this word")

    options = arguments(__doc__ or "", 3, add)
    lengths = [1024, 2048, 4096] if options.quick else [1024, 2048, 4096, 8192, 16384]
    found = measure(lengths, options.only, options.rounds)
    if options.json:
        print(json.dumps({"bench": "length", "machine": machine(options.threads), **found}, indent=1))
    else:
        show(found, lengths, options.rounds)


if __name__ == "__main__":
    main()
