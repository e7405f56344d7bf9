"""Al-Rfou's character model: a deep decoder that is helped to learn by predicting in every layer.

What it changes in a decoder: each layer adds positions of its own before it looks, and training asks more
than the model will be asked: every layer predicts, the lower the less long, and two tokens ahead. That is
asked by the task (`task: {kind: language, layer_losses: true, targets: 2}`); the heads for it are not part of
the model. Post-norm, ReLU, momentum in the paper.

Al-Rfou, Choe, Constant, Guo and Jones 2018, https://arxiv.org/abs/1808.04444.
"""

from __future__ import annotations

from regard.dims import Dims
from regard.model import Decoder, Model
from regard.nn.block import Order, Serial
from regard.nn.embed import Tokens
from regard.nn.ffn import Activation, Dense
from regard.nn.head import Linear
from regard.nn.init import Xavier
from regard.nn.mixer import Attention
from regard.nn.pattern import Causal
from regard.nn.position import Learned
from regard.nn.stack import Sequential
from regard.spec import Recipe, of
from regard.systems import Sizes, system_of

_BOTH = {"width": 512, "heads": 2, "hidden": 2048, "length": 512, "vocab": 256, "dropout": 0.55}
SIZES: Sizes = {"t12": {"layers": 12, **_BOTH}, "t64": {"layers": 64, **_BOTH}}


@system_of(SIZES)
def al_rfou(
    dims: Dims,
    vocab: int,
    hidden: int | None = None,
    dropout: float = 0.0,
    activation: Activation = "relu",
    order: Order = "post",
    every: bool = True,
) -> Recipe[Model]:
    """`every` gives each layer positions of its own; `dropout` is on embeddings, weights and sublayers."""
    look = of(Attention, pattern=of(Causal), dropout=dropout)
    block = of(
        Serial,
        sublayers={"self": look, "ffn": of(Dense, hidden=hidden, activation=activation)},
        order=order,
        dropout=dropout,
    )
    return of(
        Decoder,
        embed=of(Tokens, vocab=vocab, scaled=True),
        stack=of(Sequential, block=block, position=of(Learned, every=every), dropout=dropout),
        head=of(Linear, vocab=vocab),
        tied=False,
        init=of(Xavier),
    )
