"""Costs against their definitions, written out."""

from __future__ import annotations

import math

import pytest
import torch

from regard.errors import UsageError
from regard.tasks.loss import entropy, nll, smoothed

LOGITS = torch.tensor([[2.0, 0.5, -1.0, 0.0, 1.0], [0.0, 0.0, 0.0, 0.0, 0.0], [-3.0, 1.0, 4.0, 1.0, 5.0]])
TARGET = torch.tensor([0, 3, 2])


def against(q_NV: torch.Tensor) -> float:
    """-sum q log p by hand."""
    return float(-(q_NV * LOGITS.double().log_softmax(-1)).sum())


def test_nll_is_a_sum() -> None:
    logp = LOGITS.double().log_softmax(-1)
    by_hand = -float(logp[0, 0] + logp[1, 3] + logp[2, 2])
    assert float(nll(LOGITS, TARGET)) == pytest.approx(by_hand, abs=1e-5)


@pytest.mark.parametrize("epsilon", [0.1, 0.3])
def test_the_three_conventions_of_label_smoothing(epsilon: float) -> None:
    vocab = 5
    truth = torch.nn.functional.one_hot(TARGET, vocab).double()
    fairseq = (1 - epsilon) * truth + epsilon / (vocab - 1) * (1 - truth)
    by_torch = (1 - epsilon) * truth + epsilon / vocab
    constant = float(-(fairseq[0] * fairseq[0].log()).sum())
    assert float(smoothed(epsilon, "torch")(LOGITS, TARGET)) == pytest.approx(against(by_torch), abs=1e-5)
    assert float(smoothed(epsilon, "fairseq")(LOGITS, TARGET)) == pytest.approx(against(fairseq), abs=1e-5)
    by_t2t = float(smoothed(epsilon, "t2t")(LOGITS, TARGET))
    assert by_t2t == pytest.approx(against(fairseq) - 3 * constant, abs=1e-5)
    assert entropy(epsilon, vocab) == pytest.approx(constant)


def test_fairseq_as_its_code_writes_it() -> None:
    """(1 - e - e/(V-1)) nll + e/(V-1) sum of all -log p."""
    logp, each = LOGITS.double().log_softmax(-1), 0.1 / 4
    by_hand = float((1 - 0.1 - each) * nll(LOGITS.double(), TARGET) + each * -logp.sum())
    assert float(smoothed(0.1, "fairseq")(LOGITS, TARGET)) == pytest.approx(by_hand, abs=1e-5)


def test_t2t_is_zero_for_the_smoothed_truth_itself() -> None:
    vocab, epsilon = 7, 0.1
    q = torch.full((1, vocab), epsilon / (vocab - 1))
    q[0, 2] = 1 - epsilon
    assert float(smoothed(epsilon, "t2t")(q.log(), torch.tensor([2]))) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("convention", ["torch", "fairseq", "t2t"])
def test_smoothed_costs_of_parts_add_up(convention: str) -> None:
    cost = smoothed(0.1, convention)  # type: ignore[arg-type]
    parts = cost(LOGITS[:1], TARGET[:1]) + cost(LOGITS[1:], TARGET[1:])
    assert float(cost(LOGITS, TARGET)) == pytest.approx(float(parts), abs=1e-5)


def test_a_uniform_guess_costs_log_vocab_whatever_the_smoothing() -> None:
    uniform = torch.zeros(4, 11)
    for cost in (nll, smoothed(0.1, "torch"), smoothed(0.1, "fairseq")):
        assert float(cost(uniform, torch.arange(4))) == pytest.approx(4 * math.log(11), abs=1e-5)


def test_no_smoothing_is_nll_and_a_wrong_epsilon_is_refused() -> None:
    assert smoothed(0.0, "t2t") is nll
    with pytest.raises(UsageError, match="less than 1"):
        smoothed(1.0)
