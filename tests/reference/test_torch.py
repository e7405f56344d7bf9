"""The Transformer against torch.nn.Transformer, post-norm and pre-norm.

torch.nn.Transformer ends each stack with a norm whatever its order, and Vaswani et al. 2017 do so in neither:
ours gets it for post-norm by leave=of(Layer); for pre-norm it is there by itself.
"""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import regard
from regard.model import EncoderDecoder
from regard.nn.block import Order
from regard.nn.norm import Layer
from regard.spec import of
from tests.reference.compare import (
    Piece,
    Table,
    check_gradients,
    check_logits,
    check_loss,
    chunk,
    copy,
    filled,
    layer,
    place,
    ragged,
    shake,
)

WIDTH, HEADS, HIDDEN, LAYERS, VOCAB = 32, 4, 48, 2, 61


def sinusoids(length: int, width: int) -> Tensor:
    """The formula of the paper, number by number."""
    rows = []
    for pos in range(length):
        angles = [pos / 10_000 ** (2 * i / width) for i in range(width // 2)]
        rows.append([wave(angle) for angle in angles for wave in (math.sin, math.cos)])
    return torch.tensor(rows)


class Theirs(nn.Module):
    """torch.nn.Transformer between an embedding and the softmax that shares its matrix."""

    def __init__(self, order: Order) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.body = nn.Transformer(
            WIDTH, HEADS, LAYERS, LAYERS, HIDDEN, norm_first=order == "pre", batch_first=True
        )

    def read(self, ids_BL: Tensor) -> Tensor:
        return self.embed(filled(ids_BL, 5)) * math.sqrt(WIDTH) + sinusoids(ids_BL.shape[1], WIDTH)

    def forward(self, source_BM: Tensor, target_BL: Tensor) -> Tensor:
        length = target_BL.shape[1]
        x_BLD = self.body(
            self.read(source_BM),
            self.read(target_BL),
            tgt_mask=torch.ones(length, length, dtype=torch.bool).triu(1),
            src_key_padding_mask=source_BM < 0,
            tgt_key_padding_mask=target_BL < 0,
            memory_key_padding_mask=source_BM < 0,
        )
        return F.linear(x_BLD, self.embed.weight)


def table() -> Table:
    """Theirs holds q, k and v of any attention in one matrix, with names of its own for weight and bias."""
    names: Table = {"embed.weight": [Piece("embed.weight")]}
    for stack, thinks in {"encoder": "norm2", "decoder": "norm3"}.items():
        names |= layer(f"{stack}.leave", f"body.{stack}.norm")
        for n in range(LAYERS):
            theirs, think = f"body.{stack}.layers.{n}", place(stack, n, "ffn")
            names |= layer(f"{place(stack, n, 'self')}.norm", f"{theirs}.norm1")
            names |= look(f"{place(stack, n, 'self')}.body", f"{theirs}.self_attn", {"qkv": [0, 1, 2]})
            names |= layer(f"{think}.norm", f"{theirs}.{thinks}")
            names |= layer(f"{think}.body.up", f"{theirs}.linear1")
            names |= layer(f"{think}.body.down", f"{theirs}.linear2")
            if stack == "decoder":
                cross, parts = place(stack, n, "cross"), {"q": [0], "kv": [1, 2]}
                names |= layer(f"{cross}.norm", f"{theirs}.norm2")
                names |= look(f"{cross}.body", f"{theirs}.multihead_attn", parts)
    return names


def look(ours: str, theirs: str, parts: dict[str, list[int]]) -> Table:
    """One attention: which thirds of their matrix are which of ours."""
    names = layer(f"{ours}.out", f"{theirs}.out_proj")
    for name, thirds in parts.items():
        for end in ("weight", "bias"):
            names[f"{ours}.{name}.{end}"] = [Piece(f"{theirs}.in_proj_{end}", chunk(n)) for n in thirds]
    return names


@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True:UserWarning")
@pytest.mark.parametrize("order", ["post", "pre"])
@pytest.mark.parametrize("padded", [False, True])
def test_torch(order: Order, padded: bool) -> None:
    theirs = Theirs(order).eval()
    shake(theirs)
    recipe = regard.system(
        "vanilla", vocab=VOCAB, width=WIDTH, heads=HEADS, layers=LAYERS, hidden=HIDDEN, order=order
    )
    stacks = {name: recipe.options[name].but(leave=of(Layer)) for name in ("encoder", "decoder")}
    ours = regard.build(recipe.but(**stacks) if order == "post" else recipe).eval()
    assert isinstance(ours, EncoderDecoder)
    copy(ours, theirs, table())

    source_BM = ragged((20, 13, 3) if padded else (20, 20), VOCAB)
    given_BL = ragged((17, 6, 11) if padded else (17, 17), VOCAB, seed=1)
    real_BL = given_BL >= 0
    target_BL = ragged((17, 6, 11) if padded else (17, 17), VOCAB, seed=2)
    logits = theirs(source_BM, given_BL)
    check_logits(ours(source_BM, given_BL), logits, real_BL)
    pos_BL = (real_BL.cumsum(1) - 1).masked_fill(~real_BL, -1) if padded else None
    states_BLD = ours.states(given_BL, pos_BL, ours.encode(source_BM))
    loss = ours.head.loss(states_BLD, target_BL) / (target_BL >= 0).sum()
    theirs_loss = F.cross_entropy(logits[real_BL], target_BL[real_BL])
    check_loss(loss, theirs_loss)
    loss.backward()
    theirs_loss.backward()
    check_gradients(ours, theirs, table())
