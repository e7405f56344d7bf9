"""BERT: an encoder alone, trained to fill in hidden words.

What it changes in the Transformer: no decoder, learned positions, segments, GELU, a norm after the
embeddings, and a head with a layer of its own. `head="pooled"` or `"each"` classifies sequences or tokens
instead.

Devlin, Chang, Lee and Toutanova 2019, https://arxiv.org/abs/1810.04805.
"""

from __future__ import annotations

from typing import Literal

from regard.dims import Dims
from regard.errors import UsageError
from regard.model import Encoder, Model
from regard.nn.block import Body, Order, Serial
from regard.nn.embed import Tokens
from regard.nn.ffn import Activation, Dense
from regard.nn.head import Head, Linear, Masked, Pooled
from regard.nn.init import Normal
from regard.nn.mixer import Attention
from regard.nn.norm import Layer
from regard.nn.position import Learned
from regard.nn.stack import Sequential
from regard.spec import Recipe, of
from regard.systems import Sizes, system_of

Answers = Literal["masked", "pooled", "each"]
_BERT = {"length": 512, "vocab": 30522, "dropout": 0.1}
SIZES: Sizes = {
    "tiny": {"width": 128, "heads": 2, "layers": 2, **_BERT},
    "mini": {"width": 256, "heads": 4, "layers": 4, **_BERT},
    "base": {"width": 768, "heads": 12, "layers": 12, **_BERT},
    "large": {"width": 1024, "heads": 16, "layers": 24, **_BERT},
}


@system_of(SIZES)
def bert(
    dims: Dims,
    vocab: int,
    hidden: int | None = None,
    dropout: float = 0.1,
    activation: Activation = "gelu",
    order: Order = "post",
    segments: int = 2,
    head: Answers = "masked",
    classes: int | None = None,
    take: Literal["first", "mean"] = "first",
) -> Recipe[Model]:
    """`classes` is needed for the heads pooled (one answer a sequence) and each (one a token)."""
    attention, norm = of(Attention, dropout=dropout), of(Layer, eps=1e-12)
    asked = answers("BERT", vocab, head, classes, take, dropout, activation)
    ffn = of(Dense, hidden=hidden, activation=activation)
    return reader(attention, ffn, of(Tokens, vocab=vocab, segments=segments), asked, norm, order, dropout)


def answers(
    name: str,
    vocab: int,
    head: Answers,
    classes: int | None,
    take: Literal["first", "mean"],
    dropout: float,
    activation: Activation,
) -> Recipe[Head]:
    """What an encoder is asked for: hidden words, one class for the sequence, or one for each token."""
    if head == "masked":
        return of(Masked, vocab=vocab, activation=activation)
    if not classes:
        raise UsageError(f"{name} with head {head!r} must be given `classes`, the number of answers.")
    if head == "pooled":
        return of(Pooled, classes=classes, take=take, dropout=dropout)
    return of(Linear, vocab=classes, bias=True)


def reader(
    attention: Recipe[Attention],
    ffn: Recipe[Dense],
    embed: Recipe[Tokens],
    head: Recipe[Head],
    norm: Recipe[Layer],
    order: Order,
    dropout: float,
) -> Recipe[Model]:
    """What BERT and the encoders that change its attention have in common."""
    sublayers: dict[str, Body] = {"self": attention, "ffn": ffn}
    block = of(Serial, sublayers=sublayers, norm=norm, order=order, dropout=dropout)
    return of(
        Encoder,
        embed=embed,
        stack=of(Sequential, block=block, position=of(Learned), enter=norm, dropout=dropout),
        head=head,
        tied=head.make is Masked,
        init=of(Normal, std=0.02),
    )
