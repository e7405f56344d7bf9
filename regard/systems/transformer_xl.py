"""Transformer-XL: a text is read segment by segment, and each one remembers those before it.

What it changes in a decoder: layers also look at what they read of the tokens before this segment, without
gradient (`memory` of the language task), so that N layers reach N times as far; and positions are distances,
because a place within a segment says nothing across segments. Post-norm, ReLU, embeddings times sqrt(D).

same_length of the authors' code, by which all tokens see equally far, is `pattern: {kind: window, width: M}`:
it also bounds what is kept while writing. The adaptive softmax of its word models is not part of it here.

Dai, Yang, Yang, Carbonell, Le and Salakhutdinov 2019, https://arxiv.org/abs/1901.02860.
"""

from __future__ import annotations

from regard.dims import Dims
from regard.model import Decoder, Model
from regard.nn.block import Order, Serial
from regard.nn.embed import Tokens
from regard.nn.ffn import Activation, Dense
from regard.nn.head import Linear
from regard.nn.init import Normal
from regard.nn.mixer import Attention
from regard.nn.pattern import Causal, Pattern
from regard.nn.position import TransformerXL
from regard.nn.stack import Sequential
from regard.spec import Recipe, of
from regard.systems import Sizes, system_of

_BYTES = {"vocab": 204, "dropout": 0.1}
_WORDS = {"vocab": 267735, "dropout": 0.1}
SIZES: Sizes = {
    "enwik8_base": {"width": 512, "heads": 8, "layers": 12, "hidden": 2048, "length": 512, **_BYTES},
    "enwik8_large": {"width": 1024, "heads": 8, "layers": 24, "hidden": 3072, "length": 768, **_BYTES},
    "wt103_base": {"width": 410, "heads": 10, "layers": 16, "hidden": 2100, "length": 150, **_WORDS},
}


@system_of(SIZES)
def transformer_xl(
    dims: Dims,
    vocab: int,
    hidden: int | None = None,
    dropout: float = 0.0,
    attention_dropout: float = 0.0,
    activation: Activation = "relu",
    order: Order = "post",
    pattern: Recipe[Pattern] = of(Causal),
    clamp: int | None = None,
) -> Recipe[Model]:
    """`dropout` is on embeddings, distances, what sublayers say, and the output; `clamp` caps distances."""
    look = of(Attention, pattern=pattern, bias=False, dropout=attention_dropout)
    ffn = of(Dense, hidden=hidden, activation=activation)
    block = of(Serial, sublayers={"self": look, "ffn": ffn}, order=order, dropout=dropout)
    return of(
        Decoder,
        embed=of(Tokens, vocab=vocab, scaled=True),
        stack=of(
            Sequential,
            block=block,
            position=of(TransformerXL, clamp=clamp, dropout=dropout),
            dropout=dropout,
            leave_dropout=True,
        ),
        head=of(Linear, vocab=vocab, bias=True),
        init=of(Normal, std=0.02),
    )
