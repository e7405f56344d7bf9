"""GPT-2 against transformers.GPT2LMHeadModel, and GPT (2018, post-norm) against OpenAIGPTLMHeadModel."""

from __future__ import annotations

import pytest
from transformers import GPT2Config, GPT2LMHeadModel, OpenAIGPTConfig, OpenAIGPTLMHeadModel

import regard
from regard.model import Decoder
from regard.nn.block import Order
from tests.reference.compare import (
    Piece,
    Table,
    check_decoder,
    chunk,
    copy,
    layer,
    place,
    ragged,
    shake,
    transposed,
)

WIDTH, HEADS, LAYERS, LENGTH, VOCAB = 32, 4, 2, 24, 61


def table(order: Order) -> Table:
    """Their matrices are (in, out), q, k and v side by side."""
    tokens, positions = ("wte", "wpe") if order == "pre" else ("tokens_embed", "positions_embed")
    names: Table = {
        "embed.weight": [Piece(f"transformer.{tokens}.weight")],
        "decoder.position.table.weight": [Piece(f"transformer.{positions}.weight")],
        **(layer("decoder.leave", "transformer.ln_f") if order == "pre" else {}),
    }
    thirds = [chunk(n, turn=transposed) for n in range(3)]
    for n in range(LAYERS):
        theirs, look, think = f"transformer.h.{n}", place("decoder", n, "self"), place("decoder", n, "ffn")
        names |= layer(f"{look}.norm", f"{theirs}.ln_1")
        names |= layer(f"{look}.body.qkv", *[f"{theirs}.attn.c_attn"] * 3, turns=thirds)
        names |= layer(f"{look}.body.out", f"{theirs}.attn.c_proj", turns=[transposed])
        names |= layer(f"{think}.norm", f"{theirs}.ln_2")
        names |= layer(f"{think}.body.up", f"{theirs}.mlp.c_fc", turns=[transposed])
        names |= layer(f"{think}.body.down", f"{theirs}.mlp.c_proj", turns=[transposed])
    return names


@pytest.mark.parametrize("order", ["pre", "post"])
@pytest.mark.parametrize("side", ["none", "left", "right"])
def test_gpt(order: Order, side: str) -> None:
    config, model = (
        (GPT2Config, GPT2LMHeadModel) if order == "pre" else (OpenAIGPTConfig, OpenAIGPTLMHeadModel)
    )
    theirs = model(
        config(
            vocab_size=VOCAB,
            n_positions=LENGTH,
            n_embd=WIDTH,
            n_layer=LAYERS,
            n_head=HEADS,
            bos_token_id=0,
            eos_token_id=0,
            attn_implementation="eager",
        )
    ).eval()
    shake(theirs)
    recipe = regard.system(
        "gpt", vocab=VOCAB, width=WIDTH, heads=HEADS, layers=LAYERS, length=LENGTH, order=order
    )
    ours = regard.build(recipe).eval()
    assert isinstance(ours, Decoder)
    copy(ours, theirs, table(order))
    lengths = (LENGTH, LENGTH, LENGTH) if side == "none" else (LENGTH, 17, 5)
    check_decoder(ours, theirs, table(order), ragged(lengths, VOCAB, side))
