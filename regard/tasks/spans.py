"""T5's span corruption as arithmetic on lists of ids.

    x:       Thank you for inviting me to your party last week
    inputs:  Thank you <0> me to your party <1> week </s>
    targets: <0> for inviting <1> last </s>

Raffel et al. 2020, section 3.1.4 and figure 2, arXiv 1910.10683, with the lengths of the official code.
The figure ends the targets with one more sentinel. The official code does not make it, because there a text
starts with a kept span and ends with a dropped one, and its lengths (568 -> 512 and 114) are without it; so
are ours.
"""

from __future__ import annotations

import numpy as np

from regard.errors import UsageError


def noise(length: int, density: float, mean: float) -> tuple[int, int]:
    """How many of `length` tokens are dropped, and in how many spans: both at least 1, and one token kept.

    dropped = round(density length),  spans = round(dropped / mean)
    """
    dropped = min(max(round(length * density), 1), length - 1)
    spans = min(max(round(dropped / mean), 1), dropped, length - dropped)
    return dropped, spans


def lengths(raw: int, density: float = 0.15, mean: float = 3.0) -> tuple[int, int]:
    """Lengths of inputs and targets for a text of `raw` tokens: (512, 114) for 568."""
    dropped, spans = noise(raw, density, mean)
    return raw - dropped + spans + 1, dropped + spans + 1


def raw_length(inputs: int, density: float = 0.15, mean: float = 3.0) -> int:
    """The longest text whose corrupted inputs still have at most `inputs` tokens: 568 for 512."""
    if inputs < lengths(2, density, mean)[0]:
        raise UsageError(f"span corruption needs a model of at least length 3, but it is {inputs}.")
    raw = 2
    while lengths(raw + 1, density, mean)[0] <= inputs:
        raw += 1
    return raw


def spans(length: int, draw: np.random.Generator, density: float = 0.15, mean: float = 3.0) -> np.ndarray:
    """Lengths of the spans in order: kept, dropped, kept, dropped, ...; they sum to `length`."""
    if length < 2:  # nothing to keep
        return np.array([0, length])
    dropped, count = noise(length, density, mean)
    both = np.empty(2 * count, dtype=np.int64)
    both[0::2] = _segments(length - dropped, count, draw)
    both[1::2] = _segments(dropped, count, draw)
    return both


def corrupt(ids: list[int], sizes: np.ndarray, vocab: int, eos: int) -> tuple[list[int], list[int]]:
    """Inputs and targets; sentinel n is id vocab - 1 - n and stands where span n was."""
    inputs: list[int] = []
    targets: list[int] = []
    at = 0
    for n in range(len(sizes) // 2):
        kept, dropped, sentinel = int(sizes[2 * n]), int(sizes[2 * n + 1]), vocab - 1 - n
        inputs += [*ids[at : at + kept], sentinel]
        targets += [sentinel, *ids[at + kept : at + kept + dropped]]
        at += kept + dropped
    return [*inputs, eos], [*targets, eos]


def reconstruct(inputs: list[int], targets: list[int], first: int) -> list[int]:
    """The text again: each sentinel (an id of at least `first`) of the inputs replaced by its span.

    A span that the targets do not have is empty; what stands in them before any sentinel is not used.
    """
    spans: dict[int, list[int]] = {}
    current: list[int] = []
    for token in targets[:-1]:
        if token >= first:
            current = spans.setdefault(token, [])
        else:
            current.append(token)
    text: list[int] = []
    for token in inputs[:-1]:
        text += spans.get(token, []) if token >= first else [token]
    return text


def _segments(items: int, count: int, draw: np.random.Generator) -> np.ndarray:
    """Items cut into `count` pieces, none empty, every way equally likely."""
    cuts = (
        np.sort(draw.choice(items - 1, count - 1, replace=False)) + 1 if count > 1 else np.empty(0, np.int64)
    )
    return np.diff(np.concatenate([[0], cuts, [items]]))
