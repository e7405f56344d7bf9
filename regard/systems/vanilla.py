"""The Transformer: attention is all you need.

An encoder reads, a decoder writes while it looks at what was read; both are attention and feed-forward layers
with post-norm, sinusoidal positions, and one matrix for source, target and softmax. `order="pre"` gives the
modern form.

Vaswani, Shazeer, Parmar, Uszkoreit, Jones, Gomez, Kaiser and Polosukhin 2017, https://arxiv.org/abs/1706.03762.
"""

from __future__ import annotations

from typing import Literal

from regard.dims import Dims
from regard.model import EncoderDecoder, Model
from regard.nn.block import Body, Order, Serial
from regard.nn.embed import Tokens
from regard.nn.ffn import Activation, Dense
from regard.nn.head import Linear
from regard.nn.init import Xavier
from regard.nn.mixer import Attention
from regard.nn.pattern import Causal
from regard.nn.position import Position, Sinusoidal
from regard.nn.stack import Sequential
from regard.spec import Recipe, of
from regard.systems import Sizes, system_of

SIZES: Sizes = {
    "base": {"width": 512, "heads": 8, "layers": 6, "hidden": 2048, "dropout": 0.1, "vocab": 37000},
    "big": {"width": 1024, "heads": 16, "layers": 6, "hidden": 4096, "dropout": 0.3, "vocab": 37000},
}


@system_of(SIZES)
def vanilla(
    dims: Dims,
    vocab: int,
    hidden: int | None = None,
    dropout: float = 0.1,
    attention_dropout: float = 0.0,
    activation: Activation = "relu",
    order: Order = "post",
    position: Recipe[Position] | None = of(Sinusoidal),
    tied: Literal["all", "inputs", "output", "none"] = "all",
) -> Recipe[Model]:
    """Rows of the paper's Table 3: change heads, head, layers, width, hidden, dropout, position."""
    look = of(Attention, dropout=attention_dropout)
    ffn = of(Dense, hidden=hidden, activation=activation)
    reads: dict[str, Body] = {"self": look, "ffn": ffn}
    writes: dict[str, Body] = {
        "self": look.but(pattern=of(Causal)),
        "cross": look.but(cross=True),
        "ffn": ffn,
    }
    encoder, decoder = (
        of(
            Sequential,
            block=of(Serial, sublayers=s, order=order, dropout=dropout),
            position=position,
            dropout=dropout,
        )
        for s in (reads, writes)
    )
    return of(
        EncoderDecoder,
        embed=of(Tokens, vocab=vocab, scaled=True),
        encoder=encoder,
        decoder=decoder,
        head=of(Linear, vocab=vocab),
        tied=tied,
        init=of(Xavier),
    )
