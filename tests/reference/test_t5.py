"""T5 1.0 (ReLU, one matrix tied three ways) and 1.1 (GeGLU, untied) against T5ForConditionalGeneration.

The source is longer than 128 tokens, so that every bucket of distances is met.
"""

from __future__ import annotations

from typing import Literal

import pytest
from torch import nn
from transformers import T5Config, T5ForConditionalGeneration

import regard
from regard.model import EncoderDecoder
from tests.reference.compare import (
    Piece,
    Table,
    check_encoder_decoder,
    copy,
    layer,
    place,
    ragged,
    shake,
)

WIDTH, HEADS, HEAD, HIDDEN, LAYERS, VOCAB = 32, 4, 6, 40, 2, 61
Version = Literal["1.0", "1.1"]


def table(version: Version) -> Table:
    """Theirs keeps the one bias table of a stack in its first block."""
    names: Table = {"embed.weight": [Piece("shared.weight")]}
    if version == "1.1":
        names["head.weight"] = [Piece("lm_head.weight")]
    for stack, sublayers in {"encoder": ["self", "ffn"], "decoder": ["self", "cross", "ffn"]}.items():
        first = f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        names[f"{stack}.position.table.weight"] = [Piece(first)]
        names[f"{stack}.leave.weight"] = [Piece(f"{stack}.final_layer_norm.weight")]
        for n in range(LAYERS):
            for m, sublayer in enumerate(sublayers):
                names |= one(place(stack, n, sublayer), f"{stack}.block.{n}.layer.{m}", sublayer, version)
    return names


def one(ours: str, theirs: str, sublayer: str, version: Version) -> Table:
    """A sublayer with its norm."""
    other = {"self": "SelfAttention", "cross": "EncDecAttention", "ffn": "DenseReluDense"}[sublayer]
    parts: dict[str, list[str]] = {
        "self": {"qkv": ["q", "k", "v"], "out": ["o"]},
        "cross": {"q": ["q"], "kv": ["k", "v"], "out": ["o"]},
        "ffn": {"up": ["wi"] if version == "1.0" else ["wi_0", "wi_1"], "down": ["wo"]},
    }[sublayer]
    names = layer(f"{ours}.norm", f"{theirs}.layer_norm", bias=False)
    for mine, those in parts.items():
        names |= layer(f"{ours}.body.{mine}", *[f"{theirs}.{other}.{that}" for that in those], bias=False)
    return names


@pytest.mark.parametrize("version", ["1.0", "1.1"])
@pytest.mark.parametrize("padded", [False, True])
def test_t5(version: Version, padded: bool) -> None:
    config = T5Config(
        vocab_size=VOCAB,
        d_model=WIDTH,
        d_kv=HEAD,
        d_ff=HIDDEN,
        num_layers=LAYERS,
        num_heads=HEADS,
        feed_forward_proj="relu" if version == "1.0" else "gated-gelu",
        tie_word_embeddings=version == "1.0",
        attn_implementation="eager",
    )
    theirs = T5ForConditionalGeneration(config).eval()
    if version == "1.1":  # transformers 5 is born tied, 1.1 or not
        theirs.lm_head.weight = nn.Parameter(theirs.lm_head.weight.detach().clone())
    shake(theirs, embed=1.0)
    recipe = regard.system(
        "t5",
        vocab=VOCAB,
        width=WIDTH,
        heads=HEADS,
        head=HEAD,
        layers=LAYERS,
        hidden=HIDDEN,
        version=version,
    )
    ours = regard.build(recipe).eval()
    assert isinstance(ours, EncoderDecoder)
    copy(ours, theirs, table(version))
    source_BM = ragged((150, 131, 3) if padded else (150, 150), VOCAB)
    target_BL = ragged((30, 9, 21) if padded else (140, 140), VOCAB, seed=1)
    check_encoder_decoder(ours, theirs, table(version), source_BM, target_BL, start=0, pad=0)
