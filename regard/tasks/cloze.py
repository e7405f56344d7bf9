"""BERT's choice of the tokens to hide, as arithmetic on lists of ids."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def how_many(length: int, rate: float = 0.15, most: int = 20) -> int:
    """min(most, max(1, round(rate length))); the length counts [CLS] and [SEP], as in the official code."""
    return min(most, max(1, round(length * rate)))


def choose(groups: Sequence[Sequence[int]], count: int, draw: np.random.Generator) -> list[int]:
    """Positions to predict, drawn without replacement, at most `count` of them, in order.

    A group is hidden as a whole or not at all: single positions, or the pieces of whole words. A group that
    would exceed the count is passed over, as in the official code.
    """
    chosen: list[int] = []
    for n in draw.permutation(len(groups)):
        if len(chosen) >= count:
            break
        if len(chosen) + len(groups[n]) <= count:
            chosen += groups[n]
    return sorted(chosen)


def hide(
    ids: Sequence[int], chosen: Sequence[int], mask: int, vocab: int, draw: np.random.Generator
) -> tuple[list[int], list[int]]:
    """Inputs and targets: of the chosen 80 % become [MASK], 10 % stay, 10 % become any word there is.

    Targets are -1 (no target) elsewhere. The random word may be the right one by chance.
    Devlin et al. 2019, section 3.1 and appendix A.1, arXiv 1810.04805.
    """
    inputs, targets = list(ids), [-1] * len(ids)
    kind, word = draw.random(len(chosen)), draw.integers(0, vocab, len(chosen))
    for n, position in enumerate(chosen):
        targets[position] = ids[position]
        if kind[n] < 0.8:
            inputs[position] = mask
        elif kind[n] >= 0.9:
            inputs[position] = int(word[n])
    return inputs, targets
