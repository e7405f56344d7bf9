"""Linformer: an encoder whose cost grows with length, not with its square.

What it changes in RoBERTa (BERT without segments): before a head looks, its keys and values are mixed into a
fixed number of them. The longest input is fixed when the model is built. `head="pooled"` or `"each"`
classifies sequences or tokens instead.

Wang, Li, Khabsa, Fang and Ma 2020, https://arxiv.org/abs/2006.04768.
"""

from __future__ import annotations

from typing import Literal

from regard.dims import Dims
from regard.errors import UsageError
from regard.model import Encoder, Model
from regard.nn.block import Body, Order, Serial
from regard.nn.compress import Linformer
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

_ROBERTA = {"width": 768, "heads": 12, "layers": 12, "vocab": 50265, "dropout": 0.1}
SIZES: Sizes = {
    "k128": {"length": 512, "keys": 128, **_ROBERTA},
    "k256": {"length": 512, "keys": 256, **_ROBERTA},
    "long": {"length": 1024, "keys": 256, **_ROBERTA},
}


@system_of(SIZES)
def linformer(
    dims: Dims,
    vocab: int,
    keys: int = 128,
    sharing: Literal["none", "headwise", "kv", "layerwise"] = "headwise",
    hidden: int | None = None,
    dropout: float = 0.1,
    activation: Activation = "gelu",
    order: Order = "post",
    head: Literal["masked", "pooled", "each"] = "masked",
    classes: int | None = None,
    take: Literal["first", "mean"] = "first",
) -> Recipe[Model]:
    """`keys` are left of `length`; `classes` is needed for the heads pooled and each."""
    if head != "masked" and not classes:
        raise UsageError(f"Linformer with head {head!r} must be given `classes`, the number of answers.")
    sublayers: dict[str, Body] = {
        "self": of(Attention, compress=of(Linformer, keys=keys, sharing=sharing), dropout=dropout),
        "ffn": of(Dense, hidden=hidden, activation=activation),
    }
    block = of(Serial, sublayers=sublayers, order=order, dropout=dropout)
    heads: dict[str, Recipe[Head]] = {"masked": of(Masked, vocab=vocab, activation=activation)}
    if classes:
        heads["pooled"] = of(Pooled, classes=classes, take=take, dropout=dropout)
        heads["each"] = of(Linear, vocab=classes, bias=True)
    return of(
        Encoder,
        embed=of(Tokens, vocab=vocab),
        stack=of(Sequential, block=block, position=of(Learned), enter=of(Layer), dropout=dropout),
        head=heads[head],
        tied=head == "masked",
        init=of(Normal, std=0.02),
    )
