"""The Transformer (post-norm, sinusoids, one matrix three ways) against transformers.MarianMTModel."""

from __future__ import annotations

import pytest
from transformers import MarianConfig, MarianMTModel

import regard
from regard.model import EncoderDecoder
from regard.nn.position import Sinusoidal
from regard.spec import of
from tests.reference.compare import Piece, Table, check_encoder_decoder, copy, layer, place, ragged, shake

WIDTH, HEADS, HIDDEN, LAYERS, LENGTH, VOCAB = 32, 4, 48, 2, 32, 61
START, PAD = 0, VOCAB - 1  # theirs lets no gradient through to its pad: the target starts otherwise


def table() -> Table:
    names: Table = {"embed.weight": [Piece("model.shared.weight")]}
    for stack in ("encoder", "decoder"):
        for n in range(LAYERS):
            theirs, think = f"model.{stack}.layers.{n}", place(stack, n, "ffn")
            look, cross = place(stack, n, "self"), place(stack, n, "cross")
            qkv = [f"{theirs}.self_attn.{letter}_proj" for letter in "qkv"]
            names |= layer(f"{look}.body.qkv", *qkv)
            names |= layer(f"{look}.body.out", f"{theirs}.self_attn.out_proj")
            names |= layer(f"{look}.norm", f"{theirs}.self_attn_layer_norm")
            names |= layer(f"{think}.body.up", f"{theirs}.fc1")
            names |= layer(f"{think}.body.down", f"{theirs}.fc2")
            names |= layer(f"{think}.norm", f"{theirs}.final_layer_norm")
            if stack == "decoder":
                attn = f"{theirs}.encoder_attn"
                names |= layer(f"{cross}.body.q", f"{attn}.q_proj")
                names |= layer(f"{cross}.body.kv", f"{attn}.k_proj", f"{attn}.v_proj")
                names |= layer(f"{cross}.body.out", f"{attn}.out_proj")
                names |= layer(f"{cross}.norm", f"{theirs}.encoder_attn_layer_norm")
    return names


@pytest.mark.parametrize(("activation", "name"), [("silu", "swish"), ("relu", "relu")])
@pytest.mark.parametrize("padded", [False, True])
def test_marian(activation: str, name: str, padded: bool) -> None:
    config = MarianConfig(
        vocab_size=VOCAB,
        d_model=WIDTH,
        encoder_layers=LAYERS,
        decoder_layers=LAYERS,
        encoder_attention_heads=HEADS,
        decoder_attention_heads=HEADS,
        encoder_ffn_dim=HIDDEN,
        decoder_ffn_dim=HIDDEN,
        max_position_embeddings=LENGTH,
        activation_function=name,
        scale_embedding=True,
        pad_token_id=PAD,
        eos_token_id=START,
        decoder_start_token_id=START,
        forced_eos_token_id=None,
        attn_implementation="eager",
    )
    theirs = MarianMTModel(config).eval()
    shake(theirs)
    recipe = regard.system(
        "vanilla",
        vocab=VOCAB,
        width=WIDTH,
        heads=HEADS,
        layers=LAYERS,
        hidden=HIDDEN,
        activation=activation,
        position=of(Sinusoidal, form="halves"),
    )
    ours = regard.build(recipe).eval()
    assert isinstance(ours, EncoderDecoder)
    copy(ours, theirs, table())
    source_BM = ragged((LENGTH, 19, 3) if padded else (LENGTH, LENGTH), VOCAB)
    target_BL = ragged((LENGTH, 9, 21) if padded else (LENGTH, LENGTH), VOCAB, seed=1)
    check_encoder_decoder(ours, theirs, table(), source_BM, target_BL, START, PAD)
