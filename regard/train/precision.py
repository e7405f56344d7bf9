"""How the same sums are computed: number format, compiled blocks, recomputation, threads, seeds."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from regard.model import Model
from regard.nn.context import Context

Precision = Literal["fp32", "bf16"]
_MASK = (1 << 64) - 1


def autocast(device: torch.device, precision: Precision) -> torch.autocast:
    """Inside, products are computed in bfloat16 if asked for; sums, norms and weights stay in float32."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision == "bf16")


def quicker(step: Callable[[Precision], None], rounds: int = 3) -> dict[Precision, float]:
    """Seconds of a step in each format: the best of a few in which they take turns, the first left out.

    A processor that knows no bf16 may take minutes for such a step: who is that slow the first time is not
    asked again.
    """
    formats: list[Precision] = ["fp32", "bf16"]
    taken: dict[Precision, list[float]] = {each: [] for each in formats}
    for _ in range(rounds + 1):
        for each in formats:
            start = time.perf_counter()
            step(each)
            taken[each].append(time.perf_counter() - start)
        enough = max(1.0, 4 * min(seconds[-1] for seconds in taken.values()))
        formats = [each for each in formats if taken[each][-1] <= enough]
    return {each: min(seconds[1:] or seconds) for each, seconds in taken.items()}


def seed(*numbers: int) -> None:
    """Seed torch from several numbers, such as (seed, step, part), so that a step depends on nothing before.

    The numbers are mixed with the finalizer of splitmix64, so that neighbours give unrelated streams.
    """
    mixed = 0
    for number in numbers:
        mixed = (mixed + number + 0x9E3779B97F4A7C15) & _MASK
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
        mixed ^= mixed >> 31
    torch.manual_seed(mixed >> 1)


@contextmanager
def threads(count: int | None) -> Iterator[int]:
    """Compute with this many threads for a while: by default OMP_NUM_THREADS, else the physical cores."""
    before = torch.get_num_threads()
    chosen = count or int(os.environ.get("OMP_NUM_THREADS") or 0) or cores()
    torch.set_num_threads(chosen)
    try:
        yield chosen
    finally:
        torch.set_num_threads(before)


def cores() -> int:
    """Physical cores this process may use; two hardware threads of a core share its arithmetic units."""
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    places = set()
    for number in usable:
        siblings = Path(f"/sys/devices/system/cpu/cpu{number}/topology/thread_siblings_list")
        try:
            places.add(siblings.read_text(encoding="ascii").strip())
        except OSError:
            places.add(str(number))
    return max(1, len(places))


def recompute(blocks: Iterable[nn.Module]) -> None:
    """Make each block keep only its input and compute the rest a second time during the backward pass.

    Memory for activations falls from all sublayers to one vector a block; time rises by about a third.
    Chen et al. 2016 (arXiv:1604.06174).
    """
    for block in blocks:
        block.forward = _twice(block.forward)


def _twice(forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def call(x_BLD: Tensor, ctx: Context) -> Tensor:
        if not torch.is_grad_enabled():
            return forward(x_BLD, ctx)
        # What layers share is made by the first that asks. The second time it must be made again by the same
        # block, else the two passes would not save the same tensors: so remember what was there before.
        known, losses = dict(ctx.known), None if ctx.losses is None else dict(ctx.losses)
        contexts = iter((ctx,))

        def run(x_BLD: Tensor) -> Tensor:
            again = replace(ctx, known=dict(known), losses=None if losses is None else dict(losses))
            return forward(x_BLD, next(contexts, again))

        done: Tensor = checkpoint(run, x_BLD, use_reentrant=False)
        return done

    return call


def compile_model(model: Model) -> None:
    """Compile the way from ids to states in place: the whole of it, because a context made outside a compiled
    block would be checked, and found new, in every call."""
    _ = model.limit  # computed once, before: its lock cannot be compiled
    for name in ("encode", "states"):
        if hasattr(model, name):
            setattr(model, name, torch.compile(getattr(model, name)))


def uncompile_model(model: Model) -> None:
    """Take that back."""
    for name in ("encode", "states"):
        model.__dict__.pop(name, None)
