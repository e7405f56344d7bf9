"""Image Transformer: a decoder that writes pictures, number by number, looking only at what lies near.

What it changes in the Transformer's decoder: queries are cut into blocks, and a block sees itself so far and
a memory before it. `local="1d"`: the picture is one line after the other, and the memory the numbers just
before. `local="2d"`: blocks are rectangles, written one after the other (`Local2D.order` says which pixel
comes when), and the memory is what lies above and to the left.

Differs from the paper: the three colours share one table of intensities, and the place says which it is;
answers are a softmax over intensities (its categorical form); and inputs are moved by one over the whole
sequence, not within each block: a key stands where the pixel after the one it holds is written.

Parmar, Vaswani, Uszkoreit, Kaiser, Shazeer, Ku and Tran 2018, https://arxiv.org/abs/1802.05751.
"""

from __future__ import annotations

from typing import Literal

from regard.dims import Dims
from regard.model import Decoder, Model
from regard.nn.block import Body, Order, Serial
from regard.nn.embed import Tokens
from regard.nn.ffn import Activation, Dense
from regard.nn.head import Linear
from regard.nn.init import Xavier
from regard.nn.mixer import Attention
from regard.nn.pattern import Local, Local2D, Pattern
from regard.nn.position import Grid
from regard.nn.stack import Sequential
from regard.spec import Recipe, of
from regard.systems import Sizes, system_of

_CIFAR = {"width": 512, "heads": 4, "layers": 12, "hidden": 2048, "length": 3072, "across": 96} | {
    "vocab": 256,
    "dropout": 0.3,
}
SIZES: Sizes = {
    "cifar10_1d": {"local": "1d", "block": 256, **_CIFAR},
    "cifar10_2d": {"local": "2d", "tile": (16, 16), "flange": (16, 32), **_CIFAR},
}


@system_of(SIZES)
def image_transformer(
    dims: Dims,
    vocab: int,
    local: Literal["1d", "2d"] = "1d",
    across: int = 32,
    block: int = 256,
    memory: int | None = None,
    tile: tuple[int, int] = (8, 8),
    flange: tuple[int, int] = (8, 8),
    hidden: int | None = None,
    dropout: float = 0.0,
    activation: Activation = "relu",
    order: Order = "post",
) -> Recipe[Model]:
    """`across` are the numbers in a line; `block` and `memory` are of 1d, `tile` and `flange` of 2d."""
    seen: Recipe[Pattern] = of(Local, width=block, memory=memory)
    place = of(Grid, across=across, form="sinusoidal")
    if local == "2d":
        seen = of(Local2D, across=across, block=tile, flange=flange)
        place = place.but(block=tile)
    sublayers: dict[str, Body] = {
        "self": of(Attention, pattern=seen, dropout=dropout),
        "ffn": of(Dense, hidden=hidden, activation=activation, dropout=dropout),
    }
    layer = of(Serial, sublayers=sublayers, order=order, dropout=dropout)
    return of(
        Decoder,
        embed=of(Tokens, vocab=vocab, scaled=True),
        stack=of(Sequential, block=layer, position=place, dropout=dropout),
        head=of(Linear, vocab=vocab),
        tied=False,
        init=of(Xavier),
    )
