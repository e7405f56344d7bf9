"""Longformer: an encoder for long documents: a window around each token, and a few tokens that see all.

What it changes in RoBERTa (BERT without segments): a token sees those near it, before and after; the first
`count` tokens ([CLS], or a question) see everybody and are seen by everybody, so that two layers carry
anything anywhere. `head="pooled"` or `"each"` classifies sequences or tokens instead.

Differs from the paper: global tokens share the projections of the others.

Beltagy, Peters and Cohan 2020, https://arxiv.org/abs/2004.05150.
"""

from __future__ import annotations

from typing import Literal

from regard.dims import Dims
from regard.model import Model
from regard.nn.block import Order
from regard.nn.embed import Tokens
from regard.nn.ffn import Activation, Dense
from regard.nn.mixer import Attention
from regard.nn.norm import Layer
from regard.nn.pattern import AnyOf, GlobalTokens, Window
from regard.spec import Recipe, of
from regard.systems import Sizes, system_of
from regard.systems.bert import Answers, answers, reader

_ROBERTA = {"vocab": 50265, "length": 4096, "window": 256, "dropout": 0.1}
SIZES: Sizes = {
    "base": {"width": 768, "heads": 12, "layers": 12, **_ROBERTA},
    "large": {"width": 1024, "heads": 16, "layers": 24, **_ROBERTA},
}


@system_of(SIZES)
def longformer(
    dims: Dims,
    vocab: int,
    window: int = 256,
    count: int = 1,
    hidden: int | None = None,
    dropout: float = 0.1,
    activation: Activation = "gelu",
    order: Order = "post",
    head: Answers = "masked",
    classes: int | None = None,
    take: Literal["first", "mean"] = "first",
) -> Recipe[Model]:
    """`window` keys on each side, `count` global tokens; `classes` are those of the heads pooled and each."""
    near, all_ = of(Window, width=window + 1, both=True), of(GlobalTokens, count=count, both=True)
    attention = of(Attention, pattern=of(AnyOf, patterns=[near, all_]), dropout=dropout)
    asked = answers("Longformer", vocab, head, classes, take, dropout, activation)
    ffn = of(Dense, hidden=hidden, activation=activation)
    return reader(attention, ffn, of(Tokens, vocab=vocab), asked, of(Layer), order, dropout)
