"""GPT-2: a decoder alone, that says what comes next.

What it changes in the Transformer: no encoder, pre-norm with a norm at the end, learned positions, GELU (in
its tanh form), and weights that are born smaller the deeper the stack.

Radford, Wu, Child, Luan, Amodei and Sutskever 2019, Language models are unsupervised multitask learners
(openai/gpt-2); GPT: Radford, Narasimhan, Salimans and Sutskever 2018.
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
from regard.nn.norm import Layer
from regard.nn.pattern import Causal, Pattern
from regard.nn.position import Learned, Position
from regard.nn.stack import Sequential
from regard.spec import Recipe, of
from regard.systems import Sizes, system_of

_GPT2 = {"length": 1024, "vocab": 50257, "dropout": 0.1}
SIZES: Sizes = {
    "small": {"width": 768, "heads": 12, "layers": 12, **_GPT2},
    "medium": {"width": 1024, "heads": 16, "layers": 24, **_GPT2},
    "large": {"width": 1280, "heads": 20, "layers": 36, **_GPT2},
    "xl": {"width": 1600, "heads": 25, "layers": 48, **_GPT2},
    "gpt1": {
        "width": 768,
        "heads": 12,
        "layers": 12,
        "length": 512,
        "vocab": 40478,
        "order": "post",
        "dropout": 0.1,
    },
}


@system_of(SIZES)
def gpt(
    dims: Dims,
    vocab: int,
    hidden: int | None = None,
    dropout: float = 0.0,
    groups: int | None = None,
    bias: bool = True,
    activation: Activation = "gelu_tanh",
    order: Order = "pre",
    pattern: Recipe[Pattern] = of(Causal),
    position: Recipe[Position] | None = of(Learned),
) -> Recipe[Model]:
    """`dropout` is on embeddings, attention weights and what each sublayer says."""
    attention = of(Attention, pattern=pattern, groups=groups, bias=bias, dropout=dropout)
    ffn = of(Dense, hidden=hidden, activation=activation, bias=bias)
    block = of(
        Serial,
        sublayers={"self": attention, "ffn": ffn},
        norm=of(Layer, bias=bias),
        order=order,
        dropout=dropout,
    )
    return of(
        Decoder,
        embed=of(Tokens, vocab=vocab),
        stack=of(Sequential, block=block, position=position, dropout=dropout),
        head=of(Linear, vocab=vocab),
        init=of(Normal, std=0.02, position=0.01, depth=True),
    )
