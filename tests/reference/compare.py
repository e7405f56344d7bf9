"""Copies the weights of another implementation into ours by a table of names, then compares the two.

A table says for each of our weights which of the other's tensors are its rows, in order:

    {"...qkv.weight": [Piece("query.weight"), Piece("key.weight"), Piece("value.weight")], ...}

What turns a weight of theirs into rows of ours is linear, so the same table turns their gradients into ours.
Rows of one matrix are compared piece by piece: an error in the keys cannot hide behind large values.
`pytest tests/reference -rP` prints the largest differences.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.model import Decoder, EncoderDecoder

LOGITS = 1e-4  # absolute, on logits of order 1
LOSS = 1e-4
GRADIENTS = 1e-3  # relative to the largest gradient of the same piece
FLOOR = 1e-3  # a piece whose gradients vanish (the bias of keys) is held to this part of the largest of all


def same(tensor: Tensor) -> Tensor:
    """As it is."""
    return tensor


def transposed(tensor: Tensor) -> Tensor:
    """Matrices of the other are (in, out); biases are as ours."""
    return tensor.mT if tensor.ndim == 2 else tensor


def chunk(index: int, count: int = 3, turn: Callable[[Tensor], Tensor] = same) -> Callable[[Tensor], Tensor]:
    """One of `count` equal parts of the rows, after `turn`."""
    return lambda tensor: turn(tensor).chunk(count)[index]


@dataclass(frozen=True)
class Piece:
    """A tensor of the other implementation, as rows of one of ours."""

    name: str
    turn: Callable[[Tensor], Tensor] = same


Table = dict[str, list[Piece]]


def layer(
    ours: str, *theirs: str, bias: bool = True, turns: Sequence[Callable[[Tensor], Tensor]] | None = None
) -> Table:
    """Weight, and bias, of one layer of ours, which may be several of theirs on top of each other."""
    turns = turns or [same] * len(theirs)
    return {
        f"{ours}.{end}": [Piece(f"{name}.{end}", turn) for name, turn in zip(theirs, turns, strict=True)]
        for end in (["weight", "bias"] if bias else ["weight"])
    }


def place(stack: str, depth: int, sublayer: str) -> str:
    """The name of one of our sublayers."""
    return f"{stack}.blocks.{depth}.sublayers.{sublayer}"


def shake(model: nn.Module, seed: int = 0, embed: float | None = None) -> None:
    """Weights under which every tensor matters: no bias is zero, no norm is one.

    `embed` is the std of embeddings, where it is not that of every other matrix.
    """
    draw = torch.Generator().manual_seed(seed)
    tables = {module.weight for module in model.modules() if isinstance(module, nn.Embedding)}
    with torch.no_grad():
        for weight in (w for w in model.parameters() if w.requires_grad):
            noise = torch.randn(weight.shape, generator=draw)
            if weight.ndim == 1:
                weight.add_(noise, alpha=0.3)
            elif embed is not None and weight in tables:
                weight.copy_(noise * embed)
            else:
                weight.copy_(noise * weight.shape[-1] ** -0.5)


def copy(ours: nn.Module, theirs: nn.Module, table: Table) -> None:
    """Their weights into ours; the table must name every trainable weight of both, whole."""
    mine = dict(ours.named_parameters())
    others = {name: w for name, w in theirs.named_parameters() if w.requires_grad}
    assert set(table) == set(mine), set(table) ^ set(mine)
    named = {piece.name for pieces in table.values() for piece in pieces}
    assert named == set(others), named ^ set(others)
    assert sum(w.numel() for w in mine.values()) == sum(w.numel() for w in others.values())
    with torch.no_grad():
        for name, pieces in table.items():
            rows = torch.cat([piece.turn(others[piece.name]) for piece in pieces])
            assert rows.shape == mine[name].shape, (name, rows.shape, mine[name].shape)
            mine[name].copy_(rows)


def check_logits(ours: Tensor, theirs: Tensor, real: Tensor | None = None) -> None:
    """Equal wherever a token is real; what is said at padding is nobody's business."""
    if real is not None:
        ours, theirs = ours[real], theirs[real]
    size = theirs.std().item()
    assert 0.3 < size < 10, f"the bar is absolute, so logits must be of order 1, but their std is {size}"
    difference = (ours - theirs).abs().max().item()
    print(f"logits: std {size:.2f}, largest difference {difference:.1e}")
    assert difference <= LOGITS


def check_loss(ours: Tensor, theirs: Tensor) -> None:
    """The mean over targets."""
    difference = abs(ours.item() - theirs.item())
    print(f"loss: {theirs.item():.4f}, difference {difference:.1e}")
    assert difference <= LOSS


def check_gradients(ours: nn.Module, theirs: nn.Module, table: Table) -> None:
    """Every piece of every weight."""
    mine, others = dict(ours.named_parameters()), dict(theirs.named_parameters())
    found = {name: weight.grad for name, weight in others.items() if weight.grad is not None}
    largest, worst, where = max(grad.abs().max().item() for grad in found.values()), 0.0, ""
    for name, pieces in table.items():
        wanted = [piece.turn(found[piece.name]) for piece in pieces]
        grad = mine[name].grad
        assert grad is not None, name
        for piece, want, got in zip(pieces, wanted, grad.split([len(w) for w in wanted]), strict=True):
            scale = max(want.abs().max().item(), FLOOR * largest)
            difference = (got - want).abs().max().item() / scale
            if difference >= worst:
                worst, where = difference, f"{name} from {piece.name}"
    print(f"gradients of {len(table)} tensors: largest relative difference {worst:.1e} ({where})")
    assert worst <= GRADIENTS, where


def ragged(lengths: Sequence[int], vocab: int, side: str = "right", seed: int = 0) -> Tensor:
    """Random ids from 1 to vocab - 2 (others are special somewhere), -1 at padding."""
    draw, longest = torch.Generator().manual_seed(seed), max(lengths)
    ids_BL = torch.randint(1, vocab - 1, (len(lengths), longest), generator=draw)
    from_end_BL = longest - torch.arange(longest)[None] if side == "left" else 1 + torch.arange(longest)[None]
    return ids_BL.masked_fill(from_end_BL > torch.tensor(lengths)[:, None], -1)


def filled(ids_BL: Tensor, pad: int) -> Tensor:
    """The same ids with another number at padding, for implementations that take a mask."""
    return ids_BL.masked_fill(ids_BL < 0, pad)


def check_decoder(ours: Decoder, theirs: nn.Module, table: Table, ids_BL: Tensor) -> None:
    """Logits, loss of the next token and gradients of a decoder of transformers and of ours.

    Theirs takes positions by column unless it is told them, and would let padding predict a first token.
    """
    real_BL = ids_BL >= 0
    pos_BL = (real_BL.cumsum(1) - 1).masked_fill(~real_BL, -1)
    target_BL = F.pad(ids_BL[:, 1:], (0, 1), value=-1).masked_fill(~real_BL, -1)
    answer = theirs(
        filled(ids_BL, 3),
        attention_mask=real_BL.long(),
        position_ids=pos_BL.clamp(min=0),
        labels=filled(target_BL.roll(1, 1), -100),
    )
    check_logits(ours(ids_BL), answer.logits, real_BL)
    states_BLD = ours.states(ids_BL, None if real_BL.all() else pos_BL)
    loss = ours.head.loss(states_BLD, target_BL) / (target_BL >= 0).sum()
    check_loss(loss, answer.loss)
    loss.backward()
    answer.loss.backward()
    check_gradients(ours, theirs, table)


def check_encoder_decoder(
    ours: EncoderDecoder,
    theirs: nn.Module,
    table: Table,
    source_BM: Tensor,
    target_BL: Tensor,
    start: int,
    pad: int,
) -> None:
    """The same for an encoder-decoder; the decoder is given `start`, then the target up to its last token."""
    given_BL = F.pad(target_BL[:, :-1], (1, 0), value=start)
    answer = theirs(
        filled(source_BM, pad),
        attention_mask=(source_BM >= 0).long(),
        decoder_input_ids=filled(given_BL, pad),
        labels=filled(target_BL, -100),
    )
    check_logits(ours(source_BM, given_BL), answer.logits, given_BL >= 0)
    real_BL = given_BL >= 0
    pos_BL = None if real_BL.all() else (real_BL.cumsum(1) - 1).masked_fill(~real_BL, -1)
    states_BLD = ours.states(given_BL, pos_BL, ours.encode(source_BM))
    loss = ours.head.loss(states_BLD, target_BL) / (target_BL >= 0).sum()
    check_loss(loss, answer.loss)
    loss.backward()
    answer.loss.backward()
    check_gradients(ours, theirs, table)
