"""Experiments with images of digits, run by `make prove`: what a pattern may leave out, and what it may not.

MNIST, made 8 x 8 with 16 levels. Bits per pixel, on images that were never seen; all learn for as many steps.
"""

from __future__ import annotations

import gzip
import math
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import regard
from regard.dims import Dims
from regard.nn.pattern import Causal, Fixed, Local2D
from regard.spec import Recipe, of

pytestmark = pytest.mark.prove
FOLDER = Path(__file__).parents[3] / "shared" / "data" / "mnist"
SIDE, LEVELS = 8, 16
SIZES: dict[str, Any] = {"width": 64, "heads": 4, "length": SIDE * SIDE, "vocab": LEVELS + 1, "hidden": 128}
LINE = {"across": SIDE}


@cache
def digits(name: str) -> Tensor:
    """(images, 64), levels 0 .. 15, line by line."""
    path = FOLDER / f"{name}-images-idx3-ubyte.gz"
    if not path.exists():
        pytest.skip(f"no such file: {path.name}")
    pixels = np.frombuffer(gzip.decompress(path.read_bytes()), np.uint8, offset=16).reshape(-1, 28, 28)
    small = F.adaptive_avg_pool2d(torch.from_numpy(pixels[:20000].copy()).float(), SIDE)
    return (small * LEVELS / 256).long().clamp(max=LEVELS - 1).flatten(1)


def bits(
    recipe: Recipe[Any],
    steps: int = 500,
    batch: int = 48,
    rate: float = 3e-3,
    order: Tensor | None = None,
    seed: int = 0,
) -> float:
    """Bits per pixel of a model of that recipe, taught for so many steps."""
    order = torch.arange(SIDE * SIDE) if order is None else order
    model, random = regard.build(recipe, seed), torch.Generator().manual_seed(seed)
    optim = torch.optim.AdamW(model.parameters(), rate, betas=(0.9, 0.98))
    train, test = digits("train")[:, order], digits("t10k")[:2000, order]

    def loss(images: Tensor) -> Tensor:
        begin = torch.full((len(images), 1), LEVELS)
        logits = model(torch.cat([begin, images[:, :-1]], 1))[..., :LEVELS]
        return F.cross_entropy(logits.flatten(0, 1), images.flatten()) / math.log(2)

    for step in range(steps):
        for group in optim.param_groups:
            group["lr"] = rate * min(1.0, (step + 1) / 50) * (1 - 0.95 * step / steps)
        optim.zero_grad()
        loss(train[torch.randint(len(train), (batch,), generator=random)]).backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optim.step()
    model.eval()
    with torch.no_grad():
        return float(torch.stack([loss(part) for part in test.split(500)]).mean())


def marginal() -> float:
    """Bits per pixel of the best that knows each pixel's own frequencies and nothing else."""
    train, test = digits("train"), digits("t10k")[:2000]
    share = F.one_hot(train, LEVELS).double().mean(0) + 1e-4
    share = share / share.sum(-1, keepdim=True)
    return float(-share.gather(1, test.T).log2().mean())


def sparse(**options: Any) -> Recipe[Any]:
    return regard.system("sparse_transformer", layers=2, stride=SIDE, **LINE, **SIZES, **options)


def seeing(pattern: Recipe[Any]) -> Recipe[Any]:
    """The same model with another pattern."""
    recipe = sparse()
    stack = recipe.options["stack"]
    block = stack.options["block"]
    own = block.options["sublayers"]
    changed = block.but(sublayers={**own, "self": own["self"].but(pattern=pattern)})
    return recipe.but(stack=stack.but(block=changed))


def test_a_stride_of_a_line_costs_nothing_on_images() -> None:
    """Child et al. 2019, table 2: strided is as good as dense on images. Seeing only the own line is not."""
    dense = bits(seeing(of(Causal)))
    found = {way: bits(sparse(way=way)) for way in ("merged", "layers", "heads")}
    blind = bits(seeing(of(Fixed, stride=SIDE, hop="first")))
    print(f"dense {dense:.4f}", {k: round(v, 4) for k, v in found.items()}, f"own line {blind:.4f}")
    assert found["merged"] <= dense + 0.03
    assert min(found["layers"], found["heads"]) <= dense + 0.08
    assert blind > dense + 0.05, "the bar of the others, with room"


def image(layers: int, **options: Any) -> Recipe[Any]:
    return regard.system("image_transformer", layers=layers, order="pre", **LINE, **SIZES, **options)


def test_blocks_must_see_far_enough_and_what_lies_around_them() -> None:
    """Parmar et al. 2018, table 3: short blocks cost bits. Twins: blocks of 4; rectangles that stand alone.

    What the paper's table also has, longer blocks better still and 2-D better than 1-D, was not found on
    images of 8 x 8; these are the parts of it that were.
    """
    tile, flange = (4, 4), (4, 4)
    order = Local2D(Dims(width=1), SIDE, tile, flange).order(SIDE)

    def taught(layers: int, steps: int, order: Tensor | None = None, **options: Any) -> float:
        return bits(image(layers, **options), steps, 16, 4e-3, order)

    short, line = (taught(1, 1200, block=block) for block in (4, 8))
    alone, plane = (taught(1, 1200, order, local="2d", tile=tile, flange=f) for f in ((0, 0), flange))
    deep = {
        "1d": taught(4, 1800, block=8),
        "2d": taught(4, 1800, order, local="2d", tile=tile, flange=flange),
    }
    print(f"marginal {marginal():.4f} blocks of 4 {short:.4f}, of 8 {line:.4f}", end=" ")
    print(f"rectangles alone {alone:.4f}, seeing around {plane:.4f}; four layers", deep)
    assert line < short - 0.03
    assert plane < alone - 0.02
    assert max(deep.values()) <= 0.8 * marginal()
