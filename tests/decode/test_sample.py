"""What may be drawn, how often it is drawn, and on what a draw depends."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from regard.decode import Rules
from regard.decode.sample import draw, filtered, key, mix, noise, penalise

LOGITS = [2.0, 1.0, 0.5, 0.0, -0.5, -1.0, -2.0, -4.0]


def naive(logits: list[float], rules: Rules) -> list[float]:
    """The probabilities that the definitions give, with lists and loops."""
    weights = {i: math.exp(x / rules.temperature) for i, x in enumerate(logits)}
    ranked = sorted(weights, key=lambda i: -weights[i])
    if rules.top_k is not None:
        ranked = ranked[: rules.top_k]
    if rules.top_p is not None:
        total, mass, kept = sum(weights[i] for i in ranked), 0.0, []
        for i in ranked:
            kept.append(i)
            mass += weights[i] / total
            if mass >= rules.top_p:
                break
        ranked = kept
    if rules.min_p is not None:
        ranked = [i for i in ranked if weights[i] >= rules.min_p * weights[ranked[0]]]
    total = sum(weights[i] for i in ranked)
    return [weights[i] / total if i in ranked else 0.0 for i in weights]


CASES = [
    Rules(method="sample"),
    Rules(method="sample", temperature=0.7),
    Rules(method="sample", temperature=2.5),
    Rules(method="sample", top_k=3),
    Rules(method="sample", top_k=100),
    Rules(method="sample", top_p=0.75),
    Rules(method="sample", top_p=0.01),
    Rules(method="sample", top_p=1.0),
    Rules(method="sample", min_p=0.2),
    Rules(method="sample", min_p=1.0),
    Rules(method="sample", top_k=5, top_p=0.8),
    Rules(method="sample", temperature=1.5, top_k=6, top_p=0.9, min_p=0.3),
]


@pytest.mark.parametrize("rules", CASES, ids=range(len(CASES)))
def test_filters_are_as_defined(rules: Rules) -> None:
    order = torch.randperm(len(LOGITS), generator=torch.Generator().manual_seed(1))
    rows = [LOGITS, [LOGITS[i] for i in order.tolist()], [-x for x in LOGITS]]
    x_NV, ids_NV = filtered(torch.tensor(rows), rules)
    p_NV = torch.zeros(3, len(LOGITS), dtype=torch.float64).scatter(1, ids_NV, x_NV.softmax(-1))
    expected = torch.tensor([naive(row, rules) for row in rows], dtype=torch.float64)
    torch.testing.assert_close(p_NV, expected, rtol=1e-6, atol=1e-9)


def test_the_token_that_crosses_p_stays() -> None:
    logits = torch.tensor([[0.5, 0.3, 0.2]]).log()
    for p, kept in ((0.49, 1), (0.51, 2), (0.79, 2), (0.81, 3)):
        x_NV, _ = filtered(logits, Rules(method="sample", top_p=p))
        assert int(x_NV.isfinite().sum()) == kept, p


def chi_square(counts: Tensor, p: Tensor) -> float:
    live = p > 0
    assert int(counts[~live].sum()) == 0, "drawn although it was excluded"
    expected = p[live] * counts.sum()
    return float(((counts[live] - expected) ** 2 / expected).sum())


@pytest.mark.parametrize("rules", CASES, ids=range(len(CASES)))
def test_draws_have_the_distribution(rules: Rules) -> None:
    """Chi-square over places and over rows; 99.9 % quantile of 7 degrees of freedom is 24.3."""
    p = torch.tensor(naive(LOGITS, rules), dtype=torch.float64)
    rows, places = 500, 40
    keys = torch.tensor([key(0, [n], None) for n in range(rows)])
    logits = torch.tensor(LOGITS).expand(rows, -1)
    ids = torch.cat([draw(logits, rules, keys, place) for place in range(places)])
    assert chi_square(torch.bincount(ids, minlength=8).double(), p) < 24.3


def test_draws_are_independent_over_places_rows_and_seeds() -> None:
    """Pairs of draws fill the 4 x 4 table evenly; 99.9 % quantile of 15 degrees of freedom is 37.7."""
    rules, logits, even = Rules(method="sample"), torch.zeros(4000, 4), torch.full((16,), 1 / 16)

    def ids(seed: int, place: int, draw_number: int = 0) -> Tensor:
        keys = torch.tensor([key(seed, [n], None, draw_number) for n in range(4000)])
        return draw(logits, rules, keys, place)

    first = ids(0, 0)
    for other in (ids(0, 1), ids(1, 0), ids(0, 0, 1), first.roll(1)):
        pairs = torch.bincount(first * 4 + other, minlength=16).double()
        assert chi_square(pairs, even.double()) < 37.7


def test_a_draw_depends_on_its_own_row_only() -> None:
    rules = Rules(method="sample", top_k=6)
    logits = torch.randn(7, 50)
    keys = torch.tensor([key(3, [n, n], [n]) for n in range(7)])
    together = draw(logits, rules, keys, 5)
    order = torch.randperm(7)
    assert torch.equal(draw(logits[order], rules, keys[order], 5), together[order])
    alone = [draw(logits[n : n + 1], rules, keys[n : n + 1], 5) for n in range(7)]
    assert torch.equal(torch.cat(alone), together)


def test_key_is_made_of_seed_prompt_source_and_draw() -> None:
    same = key(0, [1, 2], [3])
    assert key(0, [1, 2], [3]) == same
    others = [key(1, [1, 2], [3]), key(0, [1], [2, 3]), key(0, [1, 2], None), key(0, [1, 2], [3], 1)]
    assert len({same, *others}) == 5


def test_mix_is_splitmix64() -> None:
    """The first outputs of the published generator with seed 0: mix(seed + n * golden)."""
    golden = 0x9E3779B97F4A7C15
    states = [(n * golden + 2**63) % 2**64 - 2**63 for n in (1, 2, 3)]
    expected = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert [x % 2**64 for x in mix(torch.tensor(states)).tolist()] == expected


def test_noise_is_exponential() -> None:
    keys = torch.tensor([key(0, [n], None) for n in range(20)])
    e = noise(keys, 0, torch.arange(5000).expand(20, -1)).flatten()
    assert e.min() > 0
    for quantile in (0.01, 0.1, 0.5, 0.9, 0.99):
        share = float((e < -math.log1p(-quantile)).double().mean())
        assert abs(share - quantile) < 4 * math.sqrt(quantile * (1 - quantile) / 100_000)


def test_temperature_zero_is_greedy() -> None:
    logits = torch.randn(9, 30)
    keys = torch.arange(9)
    assert torch.equal(draw(logits, Rules(method="sample", temperature=0), keys, 0), logits.argmax(-1))


def test_repetition_divides_positive_and_multiplies_negative_logits() -> None:
    logits = torch.tensor([[3.0, -3.0, 3.0, -3.0, 0.0]])
    seen = torch.tensor([[True, True, False, False, True]])
    assert penalise(logits, seen, 1.5).tolist() == [[2.0, -4.5, 3.0, -3.0, 0.0]]
