"""Llama: a decoder with rotary positions, RMS norm, SwiGLU and grouped queries.

What it changes in GPT: positions turn queries and keys instead of being added, norms have no mean and no
shift, the feed-forward layer is gated, nothing has a bias, and several query heads may share keys and values.

Touvron et al. 2023, https://arxiv.org/abs/2302.13971; Llama 2 (grouped queries) https://arxiv.org/abs/2307.09288.
"""

from __future__ import annotations

from regard.dims import Dims
from regard.model import Decoder, Model
from regard.nn.block import Serial
from regard.nn.embed import Tokens
from regard.nn.ffn import Activation, Gated
from regard.nn.head import Linear
from regard.nn.init import Normal
from regard.nn.mixer import Attention
from regard.nn.norm import Rms
from regard.nn.pattern import Causal, Pattern
from regard.nn.position import Rotary
from regard.nn.stack import Sequential
from regard.spec import Recipe, of
from regard.systems import Sizes, system_of

SIZES: Sizes = {
    "7b": {"width": 4096, "heads": 32, "layers": 32, "hidden": 11008, "length": 2048, "vocab": 32000},
    "13b": {"width": 5120, "heads": 40, "layers": 40, "hidden": 13824, "length": 2048, "vocab": 32000},
    "llama2-70b": {
        "width": 8192,
        "heads": 64,
        "layers": 80,
        "hidden": 28672,
        "length": 4096,
        "vocab": 32000,
        "groups": 8,
        "eps": 1e-5,
    },
    "llama3-8b": {
        "width": 4096,
        "heads": 32,
        "layers": 32,
        "hidden": 14336,
        "length": 8192,
        "vocab": 128256,
        "groups": 8,
        "eps": 1e-5,
        "base": 500_000.0,
    },
    # Gemma 2's numbers in Llama's form (its soft-capping and extra norms are not here): for `regard cost`
    "gemma2-9b": {
        "width": 3584,
        "heads": 16,
        "head": 256,
        "layers": 42,
        "hidden": 14336,
        "length": 8192,
        "vocab": 256000,
        "groups": 8,
        "tied": True,
        "activation": "gelu_tanh",
    },
}


@system_of(SIZES)
def llama(
    dims: Dims,
    vocab: int,
    hidden: int | None = None,
    groups: int | None = None,
    dropout: float = 0.0,
    base: float = 10_000.0,
    eps: float = 1e-6,
    activation: Activation = "silu",
    pattern: Recipe[Pattern] = of(Causal),
    tied: bool = False,
) -> Recipe[Model]:
    """`groups` < heads gives grouped queries; `base` is that of the rotary positions."""
    attention = of(Attention, pattern=pattern, groups=groups, bias=False, dropout=dropout)
    ffn = of(Gated, hidden=hidden, activation=activation)
    block = of(Serial, sublayers={"self": attention, "ffn": ffn}, norm=of(Rms, eps=eps), dropout=dropout)
    return of(
        Decoder,
        embed=of(Tokens, vocab=vocab),
        stack=of(Sequential, block=block, position=of(Rotary, base=base), dropout=dropout),
        head=of(Linear, vocab=vocab),
        tied=tied,
        init=of(Normal, std=0.02),
    )
