"""T5: every task is text to text.

What it changes in the Transformer: pre-norm with RMS norms, no biases anywhere, scores not scaled, and
positions that are a learned bias on the scores, one table a stack, none in cross-attention. Version 1.1 gates
its feed-forward layers (GeGLU) and unties the softmax.

Raffel, Shazeer, Roberts, Lee, Narang, Matena, Zhou, Li and Liu 2020, https://arxiv.org/abs/1910.10683.
"""

from __future__ import annotations

from typing import Literal

from regard.dims import Dims
from regard.model import EncoderDecoder, Model
from regard.nn.block import Body, Serial
from regard.nn.embed import Tokens
from regard.nn.ffn import Dense, Gated
from regard.nn.head import Linear
from regard.nn.init import T5
from regard.nn.mixer import Attention
from regard.nn.norm import Rms
from regard.nn.pattern import Causal
from regard.nn.position import T5Bias
from regard.nn.score import Dot
from regard.nn.stack import Sequential
from regard.spec import Recipe, of
from regard.systems import Sizes, system_of

_T5 = {"length": 512, "vocab": 32128, "dropout": 0.1}
SIZES: Sizes = {
    "small": {"width": 512, "heads": 8, "layers": 6, "hidden": 2048, **_T5},
    "base": {"width": 768, "heads": 12, "layers": 12, "hidden": 3072, **_T5},
    "large": {"width": 1024, "heads": 16, "layers": 24, "hidden": 4096, **_T5},
    "small-1.1": {"width": 512, "heads": 6, "head": 64, "layers": 8, "hidden": 1024, "version": "1.1", **_T5},
    "base-1.1": {"width": 768, "heads": 12, "layers": 12, "hidden": 2048, "version": "1.1", **_T5},
    "large-1.1": {"width": 1024, "heads": 16, "layers": 24, "hidden": 2816, "version": "1.1", **_T5},
}


@system_of(SIZES)
def t5(
    dims: Dims,
    vocab: int,
    hidden: int | None = None,
    dropout: float = 0.1,
    version: Literal["1.0", "1.1"] = "1.0",
    buckets: int = 32,
    distance: int = 128,
) -> Recipe[Model]:
    """`version` 1.0: ReLU, softmax tied and scaled by D^-1/2; 1.1: GeGLU, softmax of its own."""
    look = of(Attention, score=of(Dot, scale=1.0), bias=False, dropout=dropout)
    dense = of(Dense, hidden=hidden, bias=False, dropout=dropout)
    gated = of(Gated, hidden=hidden, activation="gelu_tanh", dropout=dropout)
    ffn: Body = gated if version == "1.1" else dense
    reads: dict[str, Body] = {"self": look, "ffn": ffn}
    writes: dict[str, Body] = {
        "self": look.but(pattern=of(Causal)),
        "cross": look.but(cross=True),
        "ffn": ffn,
    }
    encoder, decoder = (
        of(
            Sequential,
            block=of(Serial, sublayers=sublayers, norm=of(Rms), dropout=dropout),
            position=of(T5Bias, buckets=buckets, distance=distance, causal=causal),
            dropout=dropout,
            leave_dropout=True,
        )
        for sublayers, causal in [(reads, False), (writes, True)]
    )
    return of(
        EncoderDecoder,
        embed=of(Tokens, vocab=vocab),
        encoder=encoder,
        decoder=decoder,
        head=of(Linear, vocab=vocab, scaled=version == "1.0"),
        tied="all" if version == "1.0" else "inputs",
        init=of(T5),
    )
