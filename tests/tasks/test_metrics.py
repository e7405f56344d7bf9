"""Figures against numbers known elsewhere."""

from __future__ import annotations

import pytest

from regard.errors import DataError
from regard.tasks.metrics import accuracy, bleu, chrf, macro_f1


def test_bleu_has_its_signature_and_knows_case() -> None:
    score, signature = bleu(["The cat sat on the mat ."], ["the cat sat on the mat ."])
    lowered, lower_signature = bleu(["The cat sat on the mat ."], ["the cat sat on the mat ."], lower=True)
    assert score < lowered == pytest.approx(100)
    assert "case:mixed" in signature and "case:lc" in lower_signature and "nrefs:1" in signature
    assert "tok:13a" in signature and "smooth:exp" in signature


def test_bleu_by_hand() -> None:
    """Precisions 5/6, 3/5, 1/4 and, smoothed, 1/(2 3); no brevity penalty."""
    score, _ = bleu(["the cat sat on a mat"], ["the cat sat in a mat"])
    assert score == pytest.approx(100 * (5 / 6 * 3 / 5 * 1 / 4 * 1 / 6) ** 0.25, abs=1e-6)


def test_chrf_is_100_for_the_truth() -> None:
    score, signature = chrf(["ein Mann"], ["ein Mann"])
    assert score == pytest.approx(100) and "nc:6" in signature


def test_ragged_references_are_refused() -> None:
    """sacrebleu itself gives a score here."""
    with pytest.raises(DataError, match="2 and 1"):
        bleu(["a", "b"], ["a"])
    with pytest.raises(DataError, match="nothing to score"):
        chrf([], [])


def test_accuracy_and_macro_f1() -> None:
    truth, found = [0, 0, 0, 0, 1, 1, 2], [0, 0, 0, 1, 1, 0, 1]
    assert accuracy(found, truth) == pytest.approx(4 / 7)
    # class 0: tp 3 fp 1 fn 1; class 1: tp 1 fp 2 fn 1; class 2: never found
    assert macro_f1(found, truth) == pytest.approx((6 / 8 + 2 / 5 + 0) / 3)
    assert macro_f1([3, 3], [3, 3]) == 1.0
