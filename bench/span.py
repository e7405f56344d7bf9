"""What learned spans cost: each head pays for its own, not for the longest of its layer.

    python bench/span.py [--rounds 3] [--quick] [--json]

Adaptive span, forward and backward, 8 heads x 64, batch 1, 8,192 tokens, fp32, between the projections. Spans
are set by hand: all heads as long, or one that is long among short ones. Where the mean span (with its ramp)
is x times shorter than that of the first row, time should be at least x / 1.3 times shorter. That is said
twice: of the spans as they were set, and of what is seen of them, because the beginning of the text cuts long
ones short.
"""

from __future__ import annotations

import json
import statistics
import time

import torch
from common import BUSY, Load, arguments, machine

from regard.dims import Dims
from regard.heap import keep_memory
from regard.nn.attend import attend
from regard.nn.context import Context, plain_places
from regard.nn.pattern import Causal
from regard.nn.position import AdaptiveSpan
from regard.nn.score import Dot

HEADS, SIZE, RAMP = 8, 64, 32
DIMS = Dims(width=HEADS * SIZE, heads=HEADS, layers=1, length=8192)


def once(length: int, spans: list[int]) -> float:
    """Seconds of one forward and backward pass."""
    place = AdaptiveSpan(DIMS, ramp=RAMP, longest=length)
    with torch.no_grad():
        place.span.copy_(torch.tensor(spans) / length)
    q, k, v = (torch.randn(1, HEADS, length, SIZE, requires_grad=True) for _ in range(3))
    ctx = Context(plain_places(0, length, q.device), True)
    start = time.perf_counter()
    pattern = place.narrow(Causal(DIMS))
    y = attend(q, k, v, ctx.pos_BL, ctx, score=Dot(DIMS), pattern=pattern, position=place, raw_BHLK=q)
    y.sum().backward()
    return time.perf_counter() - start


def seen(length: int, spans: list[int]) -> float:
    """Keys that a query has within its span, the mean of all queries and heads."""
    most = [min(z + RAMP, length) for z in spans]
    return statistics.fmean(z - z * (z - 1) / 2 / length for z in most)


def main() -> None:
    """Rows take turns."""
    options = arguments(__doc__ or "", 3)
    keep_memory()  # as regard's trainer does
    length = 2048 if options.quick else 8192
    some = [length // 2, length // 4, length // 8, length // 16]
    rows = {f"all heads {z:,}": [z] * HEADS for z in some}
    rows[f"one head {some[0]:,}, seven {some[3]:,}"] = [some[0]] + [some[3]] * (HEADS - 1)
    rows[f"one head {some[0]:,}, seven 0"] = [some[0]] + [0] * (HEADS - 1)
    seconds: dict[str, list[float]] = {name: [] for name in rows}
    with Load() as load:
        for turn in range(-2, options.rounds):  # two to warm up
            for name, spans in rows.items():
                took = once(length, spans)
                if turn >= 0:
                    seconds[name].append(took)
    found, first = [], next(iter(rows))
    whole = statistics.median(seconds[first]), statistics.fmean(rows[first]) + RAMP
    most = seen(length, rows[first])
    for name, spans in rows.items():
        took, mean = statistics.median(seconds[name]), statistics.fmean(spans) + RAMP
        found.append(
            {
                "row": name,
                "ms": 1000 * took,
                "least": 1000 * min(seconds[name]),
                "most": 1000 * max(seconds[name]),
                "mean_span": mean,
                "shorter": whole[1] / mean,
                "faster": whole[0] / took,
                "short_of": whole[1] / mean / (whole[0] / took),
                "seen": seen(length, spans),
                "short_of_seen": most / seen(length, spans) / (whole[0] / took),
            }
        )
    if options.json:
        print(json.dumps({"bench": "span", "machine": machine(options.threads), "rows": found}, indent=1))
        return
    print(f"\nadaptive span, forward + backward, 8 heads x 64, {length:,} tokens, {options.rounds} rounds")
    print(
        f"  {'':32}{'ms':>8}{'spread':>18}{'mean span':>12}{'shorter':>10}{'faster':>9}{'short of':>10}"
        f"{'seen':>9}{'short of':>10}"
    )
    for row in found:
        spread = f"{row['least']:,.0f} -{row['most']:,.0f}"
        line = f"  {row['row']:32}{row['ms']:8,.0f}{spread:>18}{row['mean_span']:12,.0f}"
        line += f"{row['shorter']:9.2f}x{row['faster']:8.2f}x{row['short_of']:9.2f}x"
        print(f"{line}{row['seen']:9,.0f}{row['short_of_seen']:9.2f}x")
    if load.foreign > BUSY:
        print(f"  other programs took {load.foreign:.2f} cores meanwhile: times are uncertain")


if __name__ == "__main__":
    main()
