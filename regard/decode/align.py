"""Where an encoder-decoder looks while it writes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from regard.decode.engine import at_rest, check, padded
from regard.errors import UsageError
from regard.model import EncoderDecoder, Model


def align(
    model: Model, source: Sequence[int], target: Sequence[int], start: Sequence[int], layer: int = -1
) -> Tensor:
    """The cross-attention of a given pair, by teacher forcing: (target tokens, source tokens), rows sum to 1.

    Row i is where the model looked while it wrote target[i], that is when target[i - 1] was read. The mean
    over heads (Bahdanau, Cho and Bengio 2015, figure 3, arXiv 1409.0473, drew such a matrix first). It
    belongs to one answer, whatever search has found it.

    Options:
        start: what the decoder begins with, usually one start token
        layer: which layer of the decoder; negative counts from the last
    """
    if not isinstance(model, EncoderDecoder):
        raise UsageError(
            "Alignment is cross-attention, which only encoder-decoders have, "
            f"but the model is of kind {type(model).__name__}."
        )
    if not target:
        return torch.zeros(0, len(source))
    inputs = [*start, *target[:-1]]
    check(model, [inputs], [source])
    device = next(model.parameters()).device
    tape: dict[str, Tensor] = {}
    with at_rest(model), torch.no_grad():
        memory = model.encode(padded([source], device))
        model.states(padded([inputs], device), memory=memory, tape=tape)
    maps = sorted(
        (path for path in tape if path.endswith("/cross")), key=lambda path: int(path.split("/")[-2])
    )
    if not -len(maps) <= layer < len(maps):
        raise UsageError(f"layer must be one of {len(maps)} layers with cross-attention, but is {layer}.")
    weights_HLM = tape[maps[layer]][0]
    return weights_HLM.mean(0)[len(start) - 1 :].cpu()
