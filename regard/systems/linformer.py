"""Linformer: an encoder whose cost grows with length, not with its square.

What it changes in RoBERTa (BERT without segments): before a head looks, its keys and values are mixed into a
fixed number of them. The longest input is fixed when the model is built. `head="pooled"` or `"each"`
classifies sequences or tokens instead.

Wang, Li, Khabsa, Fang and Ma 2020, https://arxiv.org/abs/2006.04768.
"""

from __future__ import annotations

from typing import Literal

from regard.dims import Dims
from regard.model import Model
from regard.nn.block import Order
from regard.nn.compress import Linformer
from regard.nn.embed import Tokens
from regard.nn.ffn import Activation, Dense
from regard.nn.mixer import Attention
from regard.nn.norm import Layer
from regard.spec import Recipe, of
from regard.systems import Sizes, system_of
from regard.systems.bert import Answers, answers, reader

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
    head: Answers = "masked",
    classes: int | None = None,
    take: Literal["first", "mean"] = "first",
) -> Recipe[Model]:
    """`keys` are left of `length`; `classes` is needed for the heads pooled and each."""
    fewer = of(Linformer, keys=keys, sharing=sharing)
    attention = of(Attention, compress=fewer, dropout=dropout)
    asked = answers("Linformer", vocab, head, classes, take, dropout, activation)
    ffn = of(Dense, hidden=hidden, activation=activation)
    return reader(attention, ffn, of(Tokens, vocab=vocab), asked, of(Layer), order, dropout)
