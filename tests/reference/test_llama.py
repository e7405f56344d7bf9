"""Llama against transformers.LlamaForCausalLM, with as many keys as queries, with groups, with one.

With a window it is Mistral: long enough here that attention goes block by block.
"""

from __future__ import annotations

import pytest
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

import regard
from regard.model import Decoder
from regard.nn.pattern import Window
from regard.spec import of
from tests.reference.compare import Piece, Table, check_decoder, copy, layer, place, ragged, shake

WIDTH, HEADS, HIDDEN, LAYERS, LENGTH, VOCAB = 32, 4, 56, 2, 24, 61


def table() -> Table:
    """Gate and value are one matrix here, the gate first."""
    names: Table = {
        "embed.weight": [Piece("model.embed_tokens.weight")],
        "decoder.leave.weight": [Piece("model.norm.weight")],
        "head.weight": [Piece("lm_head.weight")],
    }
    for n in range(LAYERS):
        theirs, look, think = f"model.layers.{n}", place("decoder", n, "self"), place("decoder", n, "ffn")
        for ours, others in {
            f"{look}.norm": ["input_layernorm"],
            f"{look}.body.qkv": ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
            f"{look}.body.out": ["self_attn.o_proj"],
            f"{think}.norm": ["post_attention_layernorm"],
            f"{think}.body.up": ["mlp.gate_proj", "mlp.up_proj"],
            f"{think}.body.down": ["mlp.down_proj"],
        }.items():
            names |= layer(ours, *[f"{theirs}.{other}" for other in others], bias=False)
    return names


@pytest.mark.parametrize(
    ("side", "groups", "head", "base"),
    [
        ("none", 2, None, 10_000.0),
        ("left", 2, None, 10_000.0),
        ("right", 1, 12, 10_000.0),
        ("none", 4, None, 500_000.0),
    ],
)
def test_llama(side: str, groups: int, head: int | None, base: float) -> None:
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=WIDTH,
        intermediate_size=HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=groups,
        head_dim=head or WIDTH // HEADS,
        max_position_embeddings=LENGTH,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": base},
        attn_implementation="eager",
    )
    theirs = LlamaForCausalLM(config).eval()
    shake(theirs)
    recipe = regard.system(
        "llama",
        vocab=VOCAB,
        width=WIDTH,
        heads=HEADS,
        head=head,
        layers=LAYERS,
        length=LENGTH,
        hidden=HIDDEN,
        groups=groups,
        base=base,
        eps=1e-5,
    )
    ours = regard.build(recipe).eval()
    assert isinstance(ours, Decoder)
    copy(ours, theirs, table())
    lengths = (LENGTH, LENGTH, LENGTH) if side == "none" else (LENGTH, 17, 5)
    check_decoder(ours, theirs, table(), ragged(lengths, VOCAB, side))


@pytest.mark.parametrize("side", ["none", "left", "right"])
def test_mistral(side: str) -> None:
    length, window = 600, 100
    config = MistralConfig(
        vocab_size=VOCAB,
        hidden_size=WIDTH,
        intermediate_size=HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=2,
        max_position_embeddings=length,
        sliding_window=window,
        attn_implementation="eager",
    )
    theirs = MistralForCausalLM(config).eval()
    shake(theirs)
    recipe = regard.system(
        "llama",
        vocab=VOCAB,
        width=WIDTH,
        heads=HEADS,
        layers=LAYERS,
        length=length,
        hidden=HIDDEN,
        groups=2,
        pattern=of(Window, width=window),
    )
    ours = regard.build(recipe).eval()
    assert isinstance(ours, Decoder)
    copy(ours, theirs, table())
    lengths = (length, length) if side == "none" else (length, 317)
    check_decoder(ours, theirs, table(), ragged(lengths, VOCAB, side))
