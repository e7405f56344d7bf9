"""Reformer: a decoder for long texts; tokens look only where a hash says that something like them stands.

What it changes in a decoder: queries and keys are one, and attention is hashed (LSH), so that its time grows
with length and not with its square; layers are reversible, and feed-forward layers take the text a piece at a
time, so that memory grows neither with depth nor with the hidden width. Positions are axial: two short tables
instead of a long one. Some layers may look at what is near instead (`looks`), as in the authors' models of
enwik8.

`mode` is near, so that it can write from a cache; paper and trax are as in the paper and in its code, where
later tokens change which earlier ones are seen: they train, and refuse a cache.

Kitaev, Kaiser and Levskaya 2020, https://arxiv.org/abs/2001.04451; sizes as in google/trax.
"""

from __future__ import annotations

from typing import Literal

from regard.dims import Dims
from regard.model import Decoder, Model
from regard.nn.block import Block, Serial
from regard.nn.embed import Tokens
from regard.nn.ffn import Activation, Chunked, Dense
from regard.nn.head import Linear
from regard.nn.init import Xavier
from regard.nn.mixer import Attention, Lsh, Mixer
from regard.nn.mixer.lsh import Mode
from regard.nn.pattern import Local
from regard.nn.position import Axial, Position
from regard.nn.stack import Reversible
from regard.spec import Recipe, of
from regard.systems import Sizes, system_of

Look = Literal["lsh", "local"]

_WIDE = {"width": 1024, "heads": 8, "hidden": 4096, "vocab": 256}
SIZES: Sizes = {
    "enwik8_ablation": {**_WIDE, "layers": 3, "length": 65536, "chunk": 128, "rounds": 4},
    "enwik8": {
        **_WIDE,
        "layers": 12,
        "length": 65536,
        "looks": ["local", "local", "lsh", "local"],
        "chunk": 256,
        "buckets": 512,
        "rounds": 2,
        "dropout": 0.2,
    },
    "copy": {"width": 256, "heads": 4, "hidden": 512, "layers": 3, "length": 1024, "vocab": 128, "chunk": 16},
}


@system_of(SIZES)
def reformer(
    dims: Dims,
    vocab: int,
    hidden: int | None = None,
    dropout: float = 0.0,
    rounds: int = 2,
    chunk: int = 64,
    buckets: int | list[int] | None = None,
    mode: Mode = "near",
    looks: list[Look] | None = None,
    local: int = 128,
    pieces: int = 512,
    activation: Activation = "relu",
    position: Recipe[Position] | None = of(Axial),
    join: Literal["mean", "matrix"] = "mean",
) -> Recipe[Model]:
    """`looks` is cycled over depth, lsh if not given; local layers see blocks of `local` tokens and the block
    before. `pieces`: tokens that a feed-forward layer takes at a time. `dropout` is on embeddings and on what
    sublayers say.
    """
    ways: dict[Look, Recipe[Mixer]] = {
        "lsh": of(Lsh, rounds=rounds, chunk=chunk, buckets=buckets, mode=mode),
        "local": of(Attention, pattern=of(Local, width=local)),
    }
    ffn = of(Chunked, body=of(Dense, hidden=hidden, activation=activation), size=pieces)
    blocks: list[Recipe[Block]] = [
        of(Serial, sublayers={"self": ways[look], "ffn": ffn}, order="pre", dropout=dropout)
        for look in looks or ["lsh"]
    ]
    return of(
        Decoder,
        embed=of(Tokens, vocab=vocab),
        stack=of(Reversible, block=blocks, position=position, dropout=dropout, join=join),
        head=of(Linear, vocab=vocab),
        init=of(Xavier),
    )
