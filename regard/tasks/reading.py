"""What tasks for encoders share: a model that reads, and what it says of rows of ids."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor

from regard.data.batch import pad
from regard.errors import UsageError
from regard.model import Encoder, Model
from regard.nn.context import places
from regard.nn.head import Pooled
from regard.tasks.task import device_of

CLS, SEP, UNK = "[CLS]", "[SEP]", "[UNK]"


def reader(model: Model) -> Encoder:
    """The model, if it reads in both directions."""
    if not isinstance(model, Encoder):
        raise UsageError(
            f"this task needs an encoder, but the model is of kind {type(model).__name__}; "
            "choose a system such as bert."
        )
    return model


def padded(rows: Sequence[Sequence[int]]) -> dict[str, Tensor]:
    """`ids` and, where rows differ in length, `pos`."""
    ids_BL = pad(rows)
    same = all(len(row) == len(rows[0]) for row in rows)
    return {"ids": ids_BL} if same else {"ids": ids_BL, "pos": places(ids_BL)}


def logits(model: Model, rows: Sequence[Sequence[int]], size: int = 16) -> Iterator[Tensor]:
    """For each row its logits: (L, V) for its tokens, or (C,) with a pooled head."""
    encoder, device = reader(model), device_of(model)
    for row in rows:
        if len(row) > model.dims.length:
            raise UsageError(
                f"a text must have at most {model.dims.length - 2} tokens for this model, "
                f"but one has {len(row) - 2}; shorten it."
            )
    for start in range(0, len(rows), size):
        some = rows[start : start + size]
        given = {name: tensor.to(device) for name, tensor in padded(some).items()}
        x_BLD = encoder.states(given["ids"], given.get("pos"))
        if isinstance(encoder.head, Pooled):
            yield from encoder.head(x_BLD, given.get("pos")).float()
        else:
            for row, x_LD in zip(some, x_BLD, strict=True):
                yield encoder.head(x_LD[None, : len(row)])[0].float()
