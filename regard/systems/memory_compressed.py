"""Transformer with memory-compressed attention: a decoder for very long sequences.

What it changes in the Transformer: no encoder (input and output are one sequence), and layers alternate
between two cheap attentions: local, where a token sees only its own block of 256, and memory-compressed,
where it sees all of the past, three tokens at a time.

Differs from the paper: no mixture of experts. Norms stand before the sublayers; the paper does not say.

Liu, Saleh, Pot, Goodrich, Sepassi, Kaiser and Shazeer 2018, Generating Wikipedia by summarizing long
sequences (T-DMCA), https://arxiv.org/abs/1801.10198.
"""

from __future__ import annotations

from regard.dims import Dims
from regard.model import Decoder, Model
from regard.nn.block import Block, Order, Serial
from regard.nn.compress import Convolution
from regard.nn.embed import Tokens
from regard.nn.ffn import Activation, Dense
from regard.nn.head import Linear
from regard.nn.init import Xavier
from regard.nn.mixer import Attention
from regard.nn.pattern import Causal, Local
from regard.nn.position import Sinusoidal
from regard.nn.stack import Sequential
from regard.spec import Recipe, of
from regard.systems import Sizes, system_of

SIZES: Sizes = {
    "base": {"width": 512, "heads": 8, "layers": 5, "hidden": 2048, "length": 11_000, "vocab": 32_000},
}


@system_of(SIZES)
def memory_compressed(
    dims: Dims,
    vocab: int,
    hidden: int | None = None,
    dropout: float = 0.1,
    groups: int | None = None,
    activation: Activation = "relu",
    order: Order = "pre",
    local: int = 256,
    fold: int = 3,
) -> Recipe[Model]:
    """Layers in turn see their block of `local` tokens, and all tokens with `fold` of them made one."""

    def block(attention: Recipe[Attention]) -> Recipe[Block]:
        ffn = of(Dense, hidden=hidden, activation=activation)
        return of(Serial, sublayers={"self": attention, "ffn": ffn}, order=order, dropout=dropout)

    near = of(Attention, pattern=of(Local, width=local, memory=0), groups=groups, dropout=dropout)
    far = of(
        Attention,
        pattern=of(Causal),
        compress=of(Convolution, width=fold),
        groups=groups,
        dropout=dropout,
    )
    return of(
        Decoder,
        embed=of(Tokens, vocab=vocab, scaled=True),
        stack=of(Sequential, block=[block(near), block(far)], position=of(Sinusoidal), dropout=dropout),
        head=of(Linear, vocab=vocab),
        init=of(Xavier),
    )
