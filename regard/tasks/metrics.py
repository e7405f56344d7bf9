"""Figures that are not losses. Each says exactly what was counted."""

from __future__ import annotations

from collections.abc import Sequence

from regard.errors import DataError


def bleu(answers: Sequence[str], truth: Sequence[str], lower: bool = False) -> tuple[float, str]:
    """Corpus BLEU (Papineni et al. 2002) by sacrebleu, tokens 13a, and its signature."""
    from sacrebleu.metrics.bleu import BLEU

    check_counts(answers, truth)
    metric = BLEU(lowercase=lower)
    return float(metric.corpus_score(list(answers), [list(truth)]).score), str(metric.get_signature())


def chrf(answers: Sequence[str], truth: Sequence[str], lower: bool = False) -> tuple[float, str]:
    """Corpus chrF2 (Popovic 2015) by sacrebleu, and its signature."""
    from sacrebleu.metrics.chrf import CHRF

    check_counts(answers, truth)
    metric = CHRF(lowercase=lower)
    return float(metric.corpus_score(list(answers), [list(truth)]).score), str(metric.get_signature())


def accuracy(answers: Sequence[int], truth: Sequence[int]) -> float:
    """The share of answers that are right."""
    check_counts(answers, truth)
    return sum(a == t for a, t in zip(answers, truth, strict=True)) / len(truth)


def macro_f1(answers: Sequence[int], truth: Sequence[int]) -> float:
    """The mean over classes of F1 = 2 tp / (2 tp + fp + fn), each class counting the same, however rare.

    Classes that are neither in the truth nor among the answers are left out.
    """
    check_counts(answers, truth)
    each = []
    for label in sorted({*answers, *truth}):
        pairs = list(zip(answers, truth, strict=True))
        both = sum(a == label and t == label for a, t in pairs)
        one = sum((a == label) != (t == label) for a, t in pairs)
        each.append(2 * both / (2 * both + one))
    return sum(each) / len(each)


def check_counts(answers: Sequence[object], truth: Sequence[object]) -> None:
    """Refuse to score what does not pair up: sacrebleu would give a score without a word."""
    if len(answers) != len(truth):
        raise DataError(
            f"as many answers as references are needed, but {len(answers)} and {len(truth)} were given."
        )
    if not truth:
        raise DataError("there is nothing to score: no reference was given.")
