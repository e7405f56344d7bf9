"""Adaptive span: a character model whose heads learn how far back they look, and pay for it.

What it changes in the Transformer: a decoder alone, relative positions as vectors added to the keys, the same
for all layers and heads; no token sees itself; weights fade out behind a span that each head learns.

Sukhbaatar, Grave, Bojanowski and Joulin 2019, Adaptive attention span in Transformers,
https://arxiv.org/abs/1905.07799
"""

from __future__ import annotations

from regard.dims import Dims
from regard.model import Decoder, Model
from regard.nn.block import Order, Serial
from regard.nn.embed import Tokens
from regard.nn.ffn import Activation, Dense
from regard.nn.head import Linear
from regard.nn.mixer import Attention
from regard.nn.pattern import Window
from regard.nn.position import AdaptiveSpan
from regard.nn.stack import Sequential
from regard.spec import Recipe, of
from regard.systems import Sizes, system_of

_ENWIK8 = {"vocab": 205, "length": 8192, "penalty": 5e-7}
SIZES: Sizes = {
    "tiny": {"width": 256, "heads": 4, "layers": 8, "vocab": 205, "length": 1024, "penalty": 2e-6},
    "small": {"width": 512, "heads": 8, "layers": 12, "dropout": 0.3, **_ENWIK8},
    "large": {"width": 768, "heads": 8, "layers": 24, "hidden": 4096, "dropout": 0.4, **_ENWIK8},
}


@system_of(SIZES)
def adaptive_span(
    dims: Dims,
    vocab: int,
    hidden: int | None = None,
    dropout: float = 0.0,
    ramp: int = 32,
    penalty: float = 2e-6,
    start: float = 0.0,
    dynamic: bool = False,
    activation: Activation = "relu",
    order: Order = "post",
) -> Recipe[Model]:
    """`length` is S, the longest span: what lies farther back is forgotten; there is no longest sequence.

    `ramp`, `penalty`, `start` and `dynamic` are those of the position; `dropout` is on the attention weights
    and in the feed-forward layer, as in the authors' code.
    """
    attention = of(
        Attention, pattern=of(Window, width=dims.length + 1, itself=False), bias=False, dropout=dropout
    )
    ffn = of(Dense, hidden=hidden, activation=activation, dropout=dropout)
    block = of(Serial, sublayers={"self": attention, "ffn": ffn}, order=order)
    position = of(AdaptiveSpan, ramp=ramp, penalty=penalty, start=start, dynamic=dynamic)
    return of(
        Decoder,
        embed=of(Tokens, vocab=vocab),
        stack=of(Sequential, block=block, position=position),
        head=of(Linear, vocab=vocab, bias=True),
        tied=False,
    )
