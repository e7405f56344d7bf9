"""Costs against their definitions, written out."""

from __future__ import annotations

import math

import pytest
import torch

from regard.errors import UsageError
from regard.nn.head.cost import PIECE, CrossEntropy, Summed, entropy, nll

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
    for convention, wanted in (("torch", by_torch), ("fairseq", fairseq)):
        cost = CrossEntropy(epsilon, convention)  # type: ignore[arg-type]
        assert float(cost(LOGITS, TARGET)) == pytest.approx(against(wanted), abs=1e-5)
    by_t2t = float(CrossEntropy(epsilon, "t2t")(LOGITS, TARGET))
    assert by_t2t == pytest.approx(against(fairseq) - 3 * constant, abs=1e-5)
    assert entropy(epsilon, vocab) == pytest.approx(constant)


def test_fairseq_as_its_code_writes_it() -> None:
    """(1 - e - e/(V-1)) nll + e/(V-1) sum of all -log p."""
    logp, each = LOGITS.double().log_softmax(-1), 0.1 / 4
    by_hand = float((1 - 0.1 - each) * nll(LOGITS.double(), TARGET) + each * -logp.sum())
    assert float(CrossEntropy(0.1, "fairseq")(LOGITS, TARGET)) == pytest.approx(by_hand, abs=1e-5)


def test_t2t_is_zero_for_the_smoothed_truth_itself() -> None:
    vocab, epsilon = 7, 0.1
    q = torch.full((1, vocab), epsilon / (vocab - 1))
    q[0, 2] = 1 - epsilon
    assert float(CrossEntropy(epsilon, "t2t")(q.log(), torch.tensor([2]))) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("convention", ["torch", "fairseq", "t2t"])
def test_smoothed_costs_of_parts_add_up(convention: str) -> None:
    cost = CrossEntropy(0.1, convention)  # type: ignore[arg-type]
    parts = cost(LOGITS[:1], TARGET[:1]) + cost(LOGITS[1:], TARGET[1:])
    assert float(cost(LOGITS, TARGET)) == pytest.approx(float(parts), abs=1e-5)


def test_a_uniform_guess_costs_log_vocab_whatever_the_smoothing() -> None:
    uniform = torch.zeros(4, 11)
    for cost in (nll, CrossEntropy(0.1, "torch"), CrossEntropy(0.1, "fairseq")):
        assert float(cost(uniform, torch.arange(4))) == pytest.approx(4 * math.log(11), abs=1e-5)


def test_no_smoothing_is_nll_and_a_wrong_epsilon_is_refused() -> None:
    assert float(CrossEntropy(0.0, "t2t")(LOGITS, TARGET)) == float(nll(LOGITS, TARGET))
    assert float(CrossEntropy(0.0)(torch.zeros(2, 1), torch.zeros(2).long())) == 0.0  # one word, no choice
    with pytest.raises(UsageError, match="less than 1"):
        CrossEntropy(1.0)


# ---- sums over many, piece by piece


COSTS = {
    "sharp": nll,
    "torch": CrossEntropy(0.1, "torch"),
    "fairseq": CrossEntropy(0.1),
    "t2t": CrossEntropy(0.3, "t2t"),
}


@pytest.mark.parametrize("name", COSTS)
def test_slopes_are_those_of_autograd(name: str) -> None:
    torch.manual_seed(0)
    logits, target = 3 * torch.randn(7, 11, dtype=torch.float64), torch.randint(11, (7,))
    logits[0, target[0]] = -800.0  # the truth has no probability that a number could hold
    logits[1, target[1]] = 800.0
    given = logits.clone().requires_grad_()
    value = COSTS[name](given, target)
    (wanted,) = torch.autograd.grad(value, given)
    sloped = logits.clone()
    found = COSTS[name].slope_(sloped, target)
    assert float(found) == pytest.approx(float(value.detach()), rel=1e-12)
    assert torch.allclose(sloped, wanted, atol=1e-12)


@pytest.mark.parametrize("rows", [1, 3, 100])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", COSTS)
def test_a_sum_over_pieces_has_the_slopes_of_one_product(
    name: str, bias: bool, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("regard.nn.head.cost.LARGEST", rows * 11)
    torch.manual_seed(1)
    x, w = torch.randn(8, 5, dtype=torch.float64), torch.randn(11, 5, dtype=torch.float64)
    b = torch.randn(11, dtype=torch.float64) if bias else None
    target, given = torch.randint(11, (8,)), [t.requires_grad_() for t in (x, w, b) if t is not None]
    wanted = 3 * COSTS[name](torch.nn.functional.linear(x, w, b), target)
    found = 3 * Summed.apply(x, w, b, target, COSTS[name])
    assert float(found.detach()) == pytest.approx(float(wanted.detach()), rel=1e-12)
    for ours, by_hand in zip(*(torch.autograd.grad(t, given) for t in (found, wanted)), strict=True):
        assert torch.allclose(ours, by_hand, atol=1e-11)


def test_only_asked_slopes_are_made() -> None:
    x, w, target = torch.randn(4, 3), torch.randn(6, 3, requires_grad=True), torch.tensor([0, 5, 2, 2])
    Summed.apply(x, w, None, target, nll).backward()
    assert w.grad is not None and x.grad is None
    frozen = w.detach()
    x.requires_grad_()
    Summed.apply(x, frozen, None, target, nll).backward()
    assert x.grad is not None and frozen.grad is None


def test_half_precision_costs_about_the_same() -> None:
    torch.manual_seed(2)
    x, w, target = torch.randn(300, 16), torch.randn(50, 16) / 4, torch.randint(50, (300,))
    found = []
    for half in (False, True):
        given = x.clone().requires_grad_(), w.clone().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            value = Summed.apply(*given, None, target, CrossEntropy(0.1))
        value.backward()
        assert value.dtype == given[0].grad.dtype == given[1].grad.dtype == torch.float32
        found.append((float(value.detach()), *(t.grad for t in given)))
    (sharp, *slopes), (coarse, *others) = found
    assert coarse == pytest.approx(sharp, rel=2e-3) and coarse != sharp
    for one, other in zip(slopes, others, strict=True):
        assert float((one - other).norm() / one.norm()) < 0.02


def test_all_logits_are_never_there_at_once() -> None:
    """What the graph keeps are slopes: as much as the states and the matrix, not a number a word and row."""
    x, w = torch.randn(64, 8, requires_grad=True), torch.randn(500, 8, requires_grad=True)
    assert PIECE > 64 * 500  # one piece, and still not kept
    kept: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.numel()) or t, lambda t: t):
        value = Summed.apply(x, w, None, torch.zeros(64).long(), nll)
    assert kept and sum(kept) <= x.numel() + w.numel()
    value.backward()
    with pytest.raises(RuntimeError, match="second time"):
        value.backward()  # what was kept is gone: the next step does not stand beside it


def test_a_second_derivative_is_refused_and_not_wrong() -> None:
    x, w = torch.randn(4, 3, requires_grad=True), torch.randn(6, 3, requires_grad=True)
    value = Summed.apply(x, w, None, torch.tensor([0, 5, 2, 2]), nll)
    with pytest.raises(UsageError, match="differentiated once"):
        torch.autograd.grad(value, x, create_graph=True)
