"""Schedules against their formulas and the figures of the papers."""

from __future__ import annotations

import math

import pytest

from regard.errors import UsageError
from regard.spec import kinds, read
from regard.train.schedule import Constant, Cosine, InverseSqrt, Linear, Noam, Schedule, Wsd


def test_noam_has_the_peak_of_the_paper_at_its_place() -> None:
    schedule = Noam()
    rates = {t: schedule.lr(t, 100_000) for t in (1, 2000, 3999, 4000, 4001, 16_000, 100_000)}
    assert max(rates, key=lambda t: rates[t]) == 4000
    assert f"{rates[4000]:.3g}" == "0.000699"
    for t, rate in rates.items():
        assert rate == pytest.approx(512**-0.5 * min(t**-0.5, t * 4000**-1.5), rel=1e-12)
    assert rates[1] == pytest.approx(1.7469e-7, rel=1e-4)
    assert rates[16_000] == pytest.approx(rates[4000] / 2, rel=1e-12)


def test_noam_of_tensor2tensor() -> None:
    schedule = Noam(warmup=8000, constant=2.0)
    assert f"{schedule.lr(8000, 100_000):.3g}" == "0.000988"
    # linear_warmup * rsqrt_decay * rsqrt_hidden_size, as that library writes it
    for t in (1, 5000, 8000, 20_000):
        expected = 2.0 * min(1.0, t / 8000) * max(t, 8000) ** -0.5 * 512**-0.5
        assert schedule.lr(t, 100_000) == pytest.approx(expected, rel=1e-12)


def test_noam_follows_the_width_unless_the_run_names_a_peak() -> None:
    assert Noam().lr(4000, 8000, width=128) == pytest.approx((128 * 4000) ** -0.5, rel=1e-12)
    assert Noam().lr(4000, 8000, peak=5e-3, width=128) == 5e-3
    assert Noam().lr(1000, 8000, peak=5e-3, width=128) == 1.25e-3


def test_inverse_sqrt() -> None:
    schedule = InverseSqrt(warmup=2000)
    table = {1: 1 / 2000, 1000: 0.5, 2000: 1.0, 8000: 0.5, 32_000: 0.25}
    for t, factor in table.items():
        assert schedule.factor(t, 10) == pytest.approx(factor, rel=1e-12)


def test_inverse_sqrt_of_t5() -> None:
    schedule = InverseSqrt(warmup=10_000, start="flat")
    for t in (1, 10_000, 40_000, 524_288):
        assert schedule.lr(t, 524_288, peak=0.01) == pytest.approx(1 / math.sqrt(max(t, 10_000)), rel=1e-12)


def test_cosine_table() -> None:
    schedule = Cosine(warmup=100, floor=0.1)
    table = {1: 0.01, 50: 0.5, 100: 1.0, 600: 0.55, 1100: 0.1}
    for t, factor in table.items():
        assert schedule.factor(t, 1100) == pytest.approx(factor, rel=1e-12)
    assert schedule.factor(350, 1100) == pytest.approx(
        0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi / 4)), rel=1e-12
    )


def test_linear_table() -> None:
    schedule = Linear(warmup=10)
    table = {1: 0.1, 10: 1.0, 35: 0.75, 60: 0.5, 110: 0.0}
    for t, factor in table.items():
        assert schedule.factor(t, 110) == pytest.approx(factor, abs=1e-12)


def test_constant_table() -> None:
    assert [Constant(warmup=4).factor(t, 9) for t in (1, 2, 4, 5, 9)] == [0.25, 0.5, 1.0, 1.0, 1.0]
    assert Constant().factor(1, 9) == 1.0


@pytest.mark.parametrize(("fall", "middle"), [("linear", 0.5), ("sqrt", 1 - math.sqrt(0.5))])
def test_wsd_table(fall: str, middle: float) -> None:
    schedule = read(Schedule, {"kind": "wsd", "warmup": 10, "cooldown": 0.2, "fall": fall}).build()
    table = {5: 0.5, 10: 1.0, 80: 1.0, 90: middle, 100: 0.0}
    for t, factor in table.items():
        assert schedule.factor(t, 100) == pytest.approx(factor, abs=1e-12)
    assert Wsd(cooldown=0.0).factor(100, 100) == 1.0


def test_every_schedule_stays_between_zero_and_its_peak() -> None:
    assert sorted(kinds(Schedule)) == ["constant", "cosine", "inverse_sqrt", "linear", "noam", "wsd"]
    for kind in kinds(Schedule):
        schedule = read(Schedule, {"kind": kind, "warmup": 7}).build()
        factors = [schedule.factor(t, 40) for t in range(1, 41)]
        assert max(factors) == pytest.approx(1.0), kind
        assert min(factors) >= 0.0, kind
        assert factors.index(max(factors)) == 6, kind  # step 7, not 6 or 8
        if kind != "inverse_sqrt":
            assert factors[0] == pytest.approx(1 / 7), kind


def test_what_cannot_be_meant_is_refused() -> None:
    with pytest.raises(UsageError, match="warmup must be at least 1, but 0"):
        Noam(warmup=0)
    with pytest.raises(UsageError, match=r"floor must lie between 0 and 1, but 1\.5"):
        Cosine(floor=1.5)
