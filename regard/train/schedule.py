"""Learning-rate schedules: each a closed formula of the step, so that a resumed run has nothing to restore.

The learning rate of step t (counted from 1) is `peak * factor(t, T)`, T the number of steps of the run; where
it ends by the clock (`train.minutes`), the number that it will have come to at the pace so far.
A factor rises to 1 and falls again; the peak is the run's `lr`, or, where none is given, the schedule's own.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Literal

from regard.errors import UsageError
from regard.spec import part


class Schedule(ABC):
    """How the learning rate moves over a run. A family: constant linear cosine inverse_sqrt noam wsd."""

    warmup: int

    def lr(self, step: int, steps: int, peak: float | None = None, width: int = 512) -> float:
        """The learning rate of update number `step` (from 1) of a run of `steps` updates."""
        return (self.peak(width) if peak is None else peak) * self.factor(step, steps)

    def peak(self, width: int) -> float:
        """The highest learning rate when the run names none."""
        return 1e-3

    @abstractmethod
    def factor(self, step: int, steps: int) -> float:
        """The learning rate at `step` as a share of the highest one."""

    def rise(self, step: int) -> float:
        """Linear warm-up: t / warmup until step `warmup`, then 1."""
        return min(1.0, step / self.warmup) if self.warmup else 1.0

    def done(self, step: int, steps: int) -> float:
        """How much of the way from the end of the warm-up to the last step is behind: 0 to 1."""
        return min(1.0, max(0.0, (step - self.warmup) / max(1, steps - self.warmup)))


@part
class Constant(Schedule):
    """The same learning rate throughout, after a linear warm-up.

    Options:
        warmup: steps of linear rise from 0; 0 for none.
    """

    def __init__(self, warmup: int = 0) -> None:
        self.warmup = whole("warmup", warmup)

    def factor(self, step: int, steps: int) -> float:
        """1 after the warm-up."""
        return self.rise(step)


@part
class Linear(Schedule):
    """Linear warm-up, then linear fall that reaches `floor` at the last step.

        1 - (1 - floor) (t - warmup) / (T - warmup)

    As in BERT (Devlin et al. 2018, appendix A.2, arXiv:1810.04805).

    Options:
        warmup: steps of linear rise.
        floor: where it ends, as a share of the peak.
    """

    def __init__(self, warmup: int = 0, floor: float = 0.0) -> None:
        self.warmup, self.floor = whole("warmup", warmup), share("floor", floor)

    def factor(self, step: int, steps: int) -> float:
        """Up the ramp, then down the line."""
        return self.rise(step) * (1.0 - (1.0 - self.floor) * self.done(step, steps))


@part
class Cosine(Schedule):
    """Linear warm-up, then half a cosine down to `floor` at the last step.

        floor + (1 - floor) (1 + cos(pi p)) / 2,   p = (t - warmup) / (T - warmup)

    Loshchilov and Hutter 2017, equation 5 with one period (arXiv:1608.03983).

    Options:
        warmup: steps of linear rise.
        floor: where it ends, as a share of the peak.
    """

    def __init__(self, warmup: int = 0, floor: float = 0.0) -> None:
        self.warmup, self.floor = whole("warmup", warmup), share("floor", floor)

    def factor(self, step: int, steps: int) -> float:
        """Up the ramp, then down the cosine."""
        fall = 0.5 * (1.0 + math.cos(math.pi * self.done(step, steps)))
        return self.rise(step) * (self.floor + (1.0 - self.floor) * fall)


@part
class InverseSqrt(Schedule):
    """Rises for `warmup` steps, then falls with the square root of the step.

        min(t / warmup, sqrt(warmup / t))         start: linear (fairseq's inverse_sqrt)
        min(1, sqrt(warmup / t))                  start: flat   (T5: with warmup 10000 and lr 0.01,
                                                                 1 / sqrt(max(t, 10^4)))

    Raffel et al. 2020, section 3.1.2 (arXiv:1910.10683).

    Options:
        warmup: the step from which it falls.
        start: linear (rises from 0) or flat (at the peak from the first step).
    """

    def __init__(self, warmup: int = 4000, start: Literal["linear", "flat"] = "linear") -> None:
        self.warmup, self.start = whole("warmup", warmup, least=1), start

    def factor(self, step: int, steps: int) -> float:
        """Before the warm-up's end the ramp (or 1), after it sqrt(warmup / t)."""
        before = self.rise(step) if self.start == "linear" else 1.0
        return before * math.sqrt(self.warmup / max(step, self.warmup))


@part
class Noam(Schedule):
    """The schedule of the Transformer paper.

        lr(t) = constant * width^-0.5 * min(t^-0.5, t * warmup^-1.5)

    Its peak, at t = warmup, is constant / sqrt(width * warmup): 6.99e-4 for width 512 and warmup 4000.
    Tensor2Tensor's `transformer_base_v3` is constant 2, warmup 8000: 9.88e-4. If the run gives an `lr`, that
    is the peak instead, and the shape stays. Vaswani et al. 2017, section 5.3, equation 3 (arXiv:1706.03762).

    Options:
        warmup: the step of the peak.
        constant: factor in front of the formula.
    """

    def __init__(self, warmup: int = 4000, constant: float = 1.0) -> None:
        self.warmup, self.constant = whole("warmup", warmup, least=1), constant

    def peak(self, width: int) -> float:
        """constant / sqrt(width * warmup)."""
        return self.constant / math.sqrt(width * self.warmup)

    def factor(self, step: int, steps: int) -> float:
        """min(t / warmup, sqrt(warmup / t)): the formula divided by its own peak."""
        return min(step / self.warmup, math.sqrt(self.warmup / max(step, 1)))


@part
class Wsd(Schedule):
    """Warm-up, stable, decay: flat for most of the run, then a quick fall over its last part.

        1 until step T (1 - cooldown);  then, with q going from 0 to 1,
        1 - q (fall: linear)   or   1 - sqrt(q) (fall: sqrt)

    The name is from Hu et al. 2024, section 4 (arXiv:2404.06395); the 1 - sqrt fall, which they found best,
    from Haegele et al. 2024, section 3 (arXiv:2405.18392).

    Options:
        warmup: steps of linear rise.
        cooldown: the share of the run that falls, at its end.
        floor: where it ends, as a share of the peak.
        fall: sqrt or linear.
    """

    def __init__(
        self,
        warmup: int = 0,
        cooldown: float = 0.2,
        floor: float = 0.0,
        fall: Literal["sqrt", "linear"] = "sqrt",
    ) -> None:
        self.warmup, self.fall = whole("warmup", warmup), fall
        self.cooldown, self.floor = share("cooldown", cooldown), share("floor", floor)

    def factor(self, step: int, steps: int) -> float:
        """Ramp, plateau, fall."""
        length = steps * self.cooldown
        gone = min(1.0, max(0.0, (step - (steps - length)) / length)) if length else 0.0
        left = 1.0 - (math.sqrt(gone) if self.fall == "sqrt" else gone)
        return self.rise(step) * (self.floor + (1.0 - self.floor) * left)


def whole(name: str, value: int, least: int = 0) -> int:
    """The value itself, if it is at least `least`."""
    if value < least:
        raise UsageError(f"{name} must be at least {least}, but {value} was given.")
    return value


def share(name: str, value: float) -> float:
    """The value itself, if it lies between 0 and 1."""
    if not 0.0 <= value <= 1.0:
        raise UsageError(f"{name} must lie between 0 and 1, but {value} was given.")
    return value
