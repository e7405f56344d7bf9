"""Experiments with images, run by `make prove`: what a pattern may leave out, and what it may not.

Digits of MNIST and scenes of CIFAR-10, made grey, 8 x 8, with 16 levels. Bits per pixel, on images that were
never seen; in a test, all learn for as many steps.
"""

from __future__ import annotations

import gzip
import math
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from pathlib import Path
from statistics import mean
from typing import Any, Literal

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

import regard
from regard.dims import Dims
from regard.nn.pattern import Causal, Fixed, Local2D
from regard.spec import Recipe, of

pytestmark = pytest.mark.prove
FOLDER = Path(__file__).parents[3] / "shared" / "data"
Split = Literal["train", "test"]
Images = Callable[[Split], Tensor]
SIDE, LEVELS = 8, 16
SIZES: dict[str, Any] = {"width": 64, "heads": 4, "length": SIDE * SIDE, "vocab": LEVELS + 1, "hidden": 128}
LINE = {"across": SIDE}
SEEDS = range(3)
AUTHORS = {"line": (2.5781, 2.5725, 2.5629), "plane": (2.6879, 2.6923, 2.7008)}
"""Bits of tensor2tensor 1.15.7 (its decoder, on TensorFlow 2.15.1), 700 steps, seeds 0, 1, 2; see `image`."""


@cache
def digits(split: Split) -> Tensor:
    """(20,000 or 2,000 images, 64), levels 0 .. 15, line by line."""
    path = FOLDER / "mnist" / f"{'train' if split == 'train' else 't10k'}-images-idx3-ubyte.gz"
    if not path.exists():
        pytest.skip(f"no such file: {path}")
    pixels = np.frombuffer(gzip.decompress(path.read_bytes()), np.uint8, offset=16).reshape(-1, 28, 28)
    return levels(torch.from_numpy(pixels[: {"train": 20000, "test": 2000}[split]].copy()).float())


@cache
def scenes(split: Split) -> Tensor:
    """(10,000 or 1,000 images, 64); those to learn from are there once more as in a mirror."""
    path = FOLDER / "cifar10_subset" / {"train": "train_5000.png", "test": "test_1000.png"}[split]
    if not path.exists():
        pytest.skip(f"no such file: {path}")
    colours = torch.from_numpy(np.array(Image.open(path)).reshape(-1, 32, 32, 3))
    grey = colours.float().mean(-1)
    return levels(torch.cat([grey, grey.flip(-1)]) if split == "train" else grey)


def levels(images: Tensor) -> Tensor:
    """Small, with few levels, each image a line."""
    small = F.adaptive_avg_pool2d(images, SIDE)
    return (small * LEVELS / 256).long().clamp(max=LEVELS - 1).flatten(1)


def bits(
    recipe: Recipe[Any],
    steps: int = 500,
    batch: int = 48,
    rate: float = 3e-3,
    order: Tensor | None = None,
    seed: int = 0,
    images: Images = digits,
) -> float:
    """Bits per pixel of a model of that recipe, taught for so many steps."""
    order = torch.arange(SIDE * SIDE) if order is None else order
    model, random = regard.build(recipe, seed), torch.Generator().manual_seed(seed)
    optim = torch.optim.AdamW(model.parameters(), rate, betas=(0.9, 0.98))
    train, test = images("train")[:, order], images("test")[:, order]

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


def marginal(images: Images) -> float:
    """Bits per pixel of the best that knows each pixel's own frequencies and nothing else."""
    train, test = images("train"), images("test")
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


def image(seed: int, steps: int, layers: int = 4, **options: Any) -> float:
    """Bits per pixel of scenes, of an Image Transformer.

    AUTHORS were made with the same images in the same batches, sizes, first weights (Xavier), rates and
    AdamW, pre-norm; positions (timing), the shift (within each block in 2-D) and attention are theirs.
    """
    order = None
    if options.get("local") == "2d":
        order = Local2D(Dims(width=1), SIDE, options["tile"], options["flange"]).order(SIDE)
    recipe = regard.system("image_transformer", layers=layers, order="pre", **LINE, **SIZES, **options)
    return bits(recipe, steps, 16, 4e-3, order, seed, scenes)


def test_what_lies_around_a_pixel_tells_more_than_a_quarter_of_it() -> None:
    """Parmar et al. 2018, section 3.3: blocks in lines and in the plane. Twins: short blocks, and blind ones.

    Both are 25 % below the bits of each pixel's own frequencies; a model that sees only the pixel before is
    not. Both are as good as the authors' code: no seed is more than 0.02 above its worst one.

    That 2-D is at least as good as 1-D was not found on images of 8 x 8, nor does the authors' code find it:
    2.694 against 2.571, mean of three seeds; 2.629 against 2.546 with first weights as small as in its own
    settings (a gain of 0.2; ours 2.610 against 2.540), 2.560 against 2.523 with learned positions; 2.549
    against 2.500 after 2000 steps, seed 0. Rectangles of 4 x 4 with a flange of 4 see all that is written of
    8 x 8: there the order differs, not what is seen. Ours after 2000 steps: 2.529 (rectangles of 4 x 4) and
    2.513 (8 x 4) against 2.499, where a block of 8 is a line and sees the one above. Nor on 16 x 16, after
    200 steps: 2.580 against 2.379, mean of three seeds. Telling keys the place of the pixel they hold gains
    0.03 on 8 x 8 (2.619 to 2.592 after 700 steps, seed 0; lines 2.571 to 2.557), not enough; moving inputs
    within each block, as the authors do, loses 0.004.
    """
    plane: dict[str, Any] = {"local": "2d", "tile": (4, 4), "flange": (4, 4)}
    kinds: dict[str, dict[str, Any]] = {"short": {"block": 4}, "line": {"block": 8}, "plane": plane}
    found = {kind: [image(seed, 700, **options) for seed in SEEDS] for kind, options in kinds.items()}
    alone = image(0, 700, **plane | {"flange": (0, 0)})
    blind = image(0, 700, block=1, memory=0)
    bar = 0.75 * marginal(scenes)
    print(f"bar {bar:.4f}", found, f"rectangles alone {alone:.4f}, the pixel before {blind:.4f}")
    assert max(found["line"] + found["plane"]) <= bar
    worst = {kind: max(theirs) + 0.02 for kind, theirs in AUTHORS.items()}
    assert all(max(found[kind]) <= most for kind, most in worst.items())
    assert min(found["short"]) > worst["line"] and alone > worst["plane"], "the twins are not as good"
    assert blind > bar
    assert mean(found["line"]) < mean(found["short"]) - 0.02
    assert found["plane"][0] < alone - 0.02


def test_the_longer_the_blocks_the_better() -> None:
    """Parmar et al. 2018, table 3: bits fall with the length of a block. Twin: short blocks that recall all.

    Blocks without a memory before them, so that layers do not hand on what lies outside: half a line, a line,
    two lines, all. With a memory as long as a block, as in tensor2tensor, only blocks of 4 were worse: four
    layers reach far in 64 pixels. After 2000 steps 2.545, 2.499, 2.499, 2.502 for 4, 8, 16, 64, seed 0. The
    authors' code finds the same: with a memory 2.616, 2.571, 2.598, 2.606 after 700 steps, mean of three
    seeds; without (local_block) 3.031, 2.868, 2.787, 2.699 after 500 steps, seed 0.
    """
    found = {block: [image(seed, 500, block=block, memory=0) for seed in SEEDS] for block in (4, 8, 16, 64)}
    recalling = image(0, 500, block=4, memory=64)
    means = [mean(each) for each in found.values()]
    print(found, f"recalling {recalling:.4f}")
    assert all(longer < shorter - 0.01 for shorter, longer in pairwise(means))
    assert recalling < found[16][0], "what is seen counts, not how it is cut"
