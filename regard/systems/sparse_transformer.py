"""Sparse Transformer: very long sequences, of which each token sees about the root.

What it changes in a decoder: a head sees what is near and a few tokens of all that is far, so that two layers
reach everything (`pattern`); positions are the row and the column of the sequence folded into lines; weights
are born by the width they read, and the answers at zero. The two sets of a pattern can be merged in one head,
take turns over layers, or be given to different heads (`way`).

Differs from the paper: queries and keys are as wide as values (its CIFAR model halves them), and activations
are not computed twice (the stack `reversible` needs not keep them either).

Child, Gray, Radford and Sutskever 2019, https://arxiv.org/abs/1904.10509.
"""

from __future__ import annotations

import math
from typing import Literal

from regard.dims import Dims
from regard.model import Decoder, Model
from regard.nn.block import Block, Body, Serial
from regard.nn.embed import Tokens
from regard.nn.ffn import Activation, Dense
from regard.nn.head import Linear
from regard.nn.init import FanIn
from regard.nn.mixer import Attention
from regard.nn.pattern import Fixed, Pattern, PerHead, Strided
from regard.nn.position import Grid
from regard.nn.stack import Sequential
from regard.spec import Recipe, of
from regard.systems import Sizes, system_of

_BYTES = {"vocab": 256}
SIZES: Sizes = {
    "cifar10": {"width": 256, "heads": 2, "layers": 128, "hidden": 512, "length": 3072, "dropout": 0.25}
    | {"pattern": "strided", "stride": 96, "colours": 3, **_BYTES},
    "imagenet64": {"width": 512, "heads": 16, "layers": 48, "length": 12288, "dropout": 0.01}
    | {"pattern": "strided", "stride": 128, "across": 192, "colours": 3, **_BYTES},
    "enwik8": {"width": 512, "heads": 8, "layers": 30, "length": 12288, "dropout": 0.4}
    | {"pattern": "fixed", "stride": 128, "summaries": 32, **_BYTES},
}


@system_of(SIZES)
def sparse_transformer(
    dims: Dims,
    vocab: int,
    pattern: Literal["strided", "fixed"] = "strided",
    way: Literal["merged", "layers", "heads"] = "merged",
    stride: int | None = None,
    summaries: int = 1,
    across: int | None = None,
    colours: int = 1,
    hidden: int | None = None,
    dropout: float = 0.0,
    activation: Activation = "gelu_sigmoid",
) -> Recipe[Model]:
    """`summaries` are of `fixed`; `across` is the length of a line, the stride if not given."""
    stride = round(math.sqrt(dims.length)) if stride is None else stride
    merged: Recipe[Pattern] = of(Strided, stride=stride)
    if pattern == "fixed":
        merged = of(Fixed, stride=stride, summaries=summaries)
    first, second = (merged.but(hop=hop) for hop in ("first", "second"))

    def block(seen: Recipe[Pattern]) -> Recipe[Block]:
        look, ffn = of(Attention, pattern=seen), of(Dense, hidden=hidden, activation=activation)
        sublayers: dict[str, Body] = {"self": look, "ffn": ffn}
        return of(Serial, sublayers=sublayers, order="pre", dropout=dropout)

    blocks: dict[str, Recipe[Block] | list[Recipe[Block]]] = {
        "merged": block(merged),
        "layers": [block(first), block(second)],
        "heads": block(of(PerHead, patterns=[first, second])),
    }
    return of(
        Decoder,
        embed=of(Tokens, vocab=vocab),
        stack=of(
            Sequential,
            block=blocks[way],
            position=of(Grid, across=stride if across is None else across, colours=colours),
            dropout=dropout,
        ),
        head=of(Linear, vocab=vocab),
        tied=False,
        init=of(FanIn),
    )
