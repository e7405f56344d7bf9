"""log p of given answers, in one pass: what the model thinks of y after x."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from regard.decode.engine import at_rest, check, check_rows, padded, prompted
from regard.errors import UsageError
from regard.model import Decoder, EncoderDecoder, Model

Ids = Sequence[int]


def score(
    model: Model,
    prompts: Sequence[Ids],
    continuations: Sequence[Ids],
    sources: Sequence[Ids] | None = None,
    eos: int | None = None,
    budget: int = 16384,
) -> list[float]:
    """log p(continuation | prompt, source) in nats, one number for each.

    Options:
        eos: if given, that the answer ends there is part of the answer: the end token is counted too
        budget: most tokens side by side
    """
    each = score_tokens(model, prompts, continuations, sources, eos, budget)
    return [sum(logps) for logps in each]


def score_tokens(
    model: Model,
    prompts: Sequence[Ids],
    continuations: Sequence[Ids],
    sources: Sequence[Ids] | None = None,
    eos: int | None = None,
    budget: int = 16384,
) -> list[list[float]]:
    """log p of each token of the continuations, given all before it; see `score`."""
    if len(prompts) != len(continuations):
        raise UsageError(
            f"Every prompt needs its continuation, but there are {len(prompts)} prompts and "
            f"{len(continuations)} continuations."
        )
    writer = check(model, prompts, sources)
    check_rows("Continuation", continuations)
    answers = [list(answer) if eos is None else [*answer, eos] for answer in continuations]
    # The last token is asked for but not read.
    inputs = [[*prompt, *answer[:-1]] for prompt, answer in zip(prompts, answers, strict=True)]
    check(model, inputs, sources)
    found: list[list[float]] = [[] for _ in prompts]
    with at_rest(writer), torch.no_grad():
        for numbers in _batches(inputs, answers, sources, budget):
            some = [sources[n] for n in numbers] if sources is not None else None
            rows = _logps(
                writer,
                [inputs[n] for n in numbers],
                [answers[n] for n in numbers],
                some,
                [prompts[n] for n in numbers],
            )
            for number, row in zip(numbers, rows, strict=True):
                found[number] = row
    return found


def _batches(
    inputs: Sequence[Ids], answers: Sequence[Ids], sources: Sequence[Ids] | None, budget: int
) -> list[list[int]]:
    """Numbers of pairs of like length, as many as the budget allows; pairs that ask nothing are left out."""

    def size(number: int) -> int:
        return len(inputs[number]) + (len(sources[number]) if sources is not None else 0)

    batches: list[list[int]] = []
    width = 0  # the padded size of a pair: that of the first, which is the longest
    for number in sorted((n for n in range(len(inputs)) if answers[n]), key=size, reverse=True):
        if not batches or width * (len(batches[-1]) + 1) > budget:
            batches.append([])
            width = size(number)
        batches[-1].append(number)
    return batches


def _logps(
    model: Decoder | EncoderDecoder,
    inputs: Sequence[Ids],
    answers: Sequence[Ids],
    sources: Sequence[Ids] | None,
    prompts: Sequence[Ids],
) -> list[list[float]]:
    device = next(model.parameters()).device
    ids_BL = padded(inputs, device)
    # What each position is asked for: -1 inside the prompt and at padding.
    pairs = zip(inputs, answers, strict=True)
    target_BL = padded([[-1] * (len(row) - len(answer)) + list(answer) for row, answer in pairs], device)
    memory = None
    if isinstance(model, EncoderDecoder):
        assert sources is not None
        memory = model.encode(padded(sources, device))
    x_BLD = prompted(model, ids_BL, prompts, memory=memory)
    asked_BL = target_BL >= 0
    logps = _gather(model, x_BLD[asked_BL], target_BL[asked_BL]).tolist()
    rows, start = [], 0
    for answer in answers:
        rows.append(logps[start : start + len(answer)])
        start += len(answer)
    return rows


def _gather(model: Model, x_ND: Tensor, target_N: Tensor, rows: int = 512) -> Tensor:
    """log p of the targets; a few rows at a time, because their logits are as wide as the vocabulary."""
    parts = []
    for x_1ND, target_part_N in zip(x_ND[None].split(rows, 1), target_N.split(rows), strict=True):
        logits_NV = model.head(x_1ND)[0].float()
        parts.append(logits_NV.gather(1, target_part_N[:, None])[:, 0] - logits_NV.logsumexp(-1))
    return torch.cat(parts)
