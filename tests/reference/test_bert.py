"""BERT against transformers: hidden words, one answer a sequence, one answer a token."""

from __future__ import annotations

from typing import Literal

import pytest
import torch
from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertForTokenClassification,
)

import regard
from regard.model import Encoder
from tests.reference.compare import (
    Piece,
    Table,
    check_gradients,
    check_logits,
    check_loss,
    copy,
    filled,
    layer,
    place,
    ragged,
    shake,
)

WIDTH, HEADS, HIDDEN, LAYERS, LENGTH, VOCAB, CLASSES = 32, 4, 48, 2, 24, 61, 3
Head = Literal["masked", "pooled", "each"]
THEIRS: dict[str, type[nn.Module]] = {
    "masked": BertForMaskedLM,
    "pooled": BertForSequenceClassification,
    "each": BertForTokenClassification,
}


def table(head: Head) -> Table:
    """One table for the body, one for each head."""
    outside = "bert.embeddings"
    names: Table = {
        "embed.weight": [Piece(f"{outside}.word_embeddings.weight")],
        "embed.segments.weight": [Piece(f"{outside}.token_type_embeddings.weight")],
        "encoder.position.table.weight": [Piece(f"{outside}.position_embeddings.weight")],
        **layer("encoder.enter", f"{outside}.LayerNorm"),
    }
    for n in range(LAYERS):
        theirs = f"bert.encoder.layer.{n}"
        look, think = place("encoder", n, "self"), place("encoder", n, "ffn")
        qkv = [f"{theirs}.attention.self.{name}" for name in ("query", "key", "value")]
        names |= layer(f"{look}.body.qkv", *qkv)
        names |= layer(f"{look}.body.out", f"{theirs}.attention.output.dense")
        names |= layer(f"{look}.norm", f"{theirs}.attention.output.LayerNorm")
        names |= layer(f"{think}.body.up", f"{theirs}.intermediate.dense")
        names |= layer(f"{think}.body.down", f"{theirs}.output.dense")
        names |= layer(f"{think}.norm", f"{theirs}.output.LayerNorm")
    if head == "masked":
        names |= layer("head.turn", "cls.predictions.transform.dense")
        names |= layer("head.norm", "cls.predictions.transform.LayerNorm")
        names["head.bias"] = [Piece("cls.predictions.bias")]
    else:
        names |= layer("head", "classifier")
    return names | (layer("head.turn", "bert.pooler.dense") if head == "pooled" else {})


def targets(head: Head, ids_BL: Tensor) -> Tensor:
    """A target for some of the real tokens (-1 elsewhere), or for each sequence."""
    draw = torch.Generator().manual_seed(2)
    if head == "pooled":
        return torch.randint(CLASSES, (len(ids_BL),), generator=draw)
    answers = VOCAB if head == "masked" else CLASSES
    asked_BL = (torch.rand(ids_BL.shape, generator=draw) < 0.4) & (ids_BL >= 0)
    return torch.randint(answers, ids_BL.shape, generator=draw).masked_fill(~asked_BL, -1)


@pytest.mark.parametrize("head", ["masked", "pooled", "each"])
@pytest.mark.parametrize("padded", [False, True])
def test_bert(head: Head, padded: bool) -> None:
    config = BertConfig(
        vocab_size=VOCAB,
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=HIDDEN,
        max_position_embeddings=LENGTH,
        num_labels=CLASSES,
        problem_type="single_label_classification",
        attn_implementation="eager",
    )
    theirs = THEIRS[head](config).eval()
    shake(theirs)
    recipe = regard.system(
        "bert",
        vocab=VOCAB,
        width=WIDTH,
        heads=HEADS,
        layers=LAYERS,
        length=LENGTH,
        hidden=HIDDEN,
        head=head,
        classes=None if head == "masked" else CLASSES,
    )
    ours = regard.build(recipe).eval()
    assert isinstance(ours, Encoder)
    copy(ours, theirs, table(head))

    ids_BL = ragged((LENGTH, 17, 5) if padded else (LENGTH,) * 3, VOCAB)
    real_BL, target = ids_BL >= 0, targets(head, ids_BL)
    segments_BL = (torch.arange(LENGTH)[None] > torch.tensor([[9], [4], [2]])).long()
    answer = theirs(
        filled(ids_BL, 0),
        attention_mask=real_BL.long(),
        token_type_ids=segments_BL,
        labels=filled(target, -100),
    )
    check_logits(ours(ids_BL, segments_BL), answer.logits, None if head == "pooled" else real_BL)
    pos_BL = (real_BL.cumsum(1) - 1).masked_fill(~real_BL, -1) if padded else None
    states_BLD = ours.states(ids_BL, pos_BL, segments_BL)
    places = {"pos_BL": pos_BL} if head == "pooled" else {}
    loss = ours.head.loss(states_BLD, target, **places) / (target >= 0).sum()
    check_loss(loss, answer.loss)
    loss.backward()
    answer.loss.backward()
    check_gradients(ours, theirs, table(head))
