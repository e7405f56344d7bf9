"""How a run is trained, as data: the options under `train:` in a recipe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from regard.errors import UsageError
from regard.spec import Recipe, of, part
from regard.train.optim import Adamw, Optimizer
from regard.train.schedule import Constant, Schedule


@part
@dataclass(frozen=True)
class Training:
    """How long, how fast and how carefully to train.

    Options:
        steps: number of updates.
        tokens: targets in one batch (batches by token budget); or
        size: samples in one batch.
        accumulate: parts into which each batch is cut so that it fits in memory; the result is the same.
        lr: the highest learning rate; none means the schedule's own (noam's formula, else 1e-3).
        optimizer: adamw, adafactor or muon.
        schedule: constant, linear, cosine, inverse_sqrt, noam or wsd.
        clip: the gradient's norm is cut to this; none never cuts.
        precision: fp32, or bf16 for products in bfloat16 (weights stay fp32), or auto: the one of both in
            which a step is quicker, measured once when the run starts, said, and kept when it is resumed.
        compile: compile the model with torch.compile; pays on long runs where lengths are few. auto tries it
            where it may pay, measures, says what came out, and keeps to it when the run is resumed.
        recompute: keep only the blocks' inputs and compute the rest again on the way back: less memory.
        ema: decay of a running average of the weights, such as 0.999, which is then evaluated and saved.
        average: the saved model is the mean of this many last checkpoints (Vaswani et al. 2017, section 6.1).
        patience: stop after this many evaluations without a new best.
        evaluate_every: steps between evaluations; none evaluates at the end only.
        save_every: steps between checkpoints.
        keep: how many last checkpoints are kept, at least 2 (and always the best one).
        log_every: steps between lines in metrics.jsonl.
        seed: of the first weights, the order of the data and dropout.
        threads: processor threads; none means the physical cores, or OMP_NUM_THREADS.
        minutes: stop cleanly when the training has taken this long; a schedule that falls has then fallen.
        shard: with several processes, split weights and optimizer over them (FSDP2) instead of copying (DDP).
        nonfinite: at a loss or gradient that is not finite: stop, or skip the batch (10 in a row stop too).
        tensorboard: also write TensorBoard files into the run folder.
    """

    steps: int = 1000
    tokens: int | None = None
    size: int | None = None
    accumulate: int = 1
    lr: float | None = None
    optimizer: Recipe[Optimizer] = of(Adamw)
    schedule: Recipe[Schedule] = of(Constant)
    clip: float | None = 1.0
    precision: Literal["fp32", "bf16", "auto"] = "fp32"
    compile: bool | Literal["auto"] = False
    recompute: bool = False
    ema: float | None = None
    average: int | None = None
    patience: int | None = None
    evaluate_every: int | None = None
    save_every: int = 500
    keep: int = 2
    log_every: int = 10
    seed: int = 0
    threads: int | None = None
    minutes: float | None = None
    shard: bool = False
    nonfinite: Literal["stop", "skip"] = "stop"
    tensorboard: bool = False

    def __post_init__(self) -> None:
        """Refuse numbers that cannot be meant."""
        least = {"steps": 1, "tokens": 1, "size": 1, "accumulate": 1, "average": 1, "patience": 1}
        least |= {"evaluate_every": 1, "save_every": 1, "keep": 2, "log_every": 1, "threads": 1}
        for name, bound in least.items():
            value = getattr(self, name)
            if value is not None and value < bound:
                raise UsageError(f"train.{name} must be at least {bound}, but {value} was given.")
        for name in ("lr", "clip", "minutes"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise UsageError(f"train.{name} must be more than 0, but {value} was given.")
        if self.ema is not None and not 0 < self.ema < 1:
            raise UsageError(f"train.ema must lie between 0 and 1, but {self.ema} was given.")
        if self.tokens is not None and self.size is not None:
            raise UsageError("train.tokens and train.size cannot both be given: a batch has one measure.")
        if self.ema is not None and self.average is not None:
            raise UsageError("train.ema and train.average cannot both be given: choose one way to average.")
        if self.compile is True and self.recompute:
            raise UsageError(
                "train.compile and train.recompute cannot both be true: a compiled model decides itself what "
                "to compute again."
            )
        if self.patience is not None and self.evaluate_every is None:
            raise UsageError("train.patience counts evaluations, so train.evaluate_every must be given too.")

    def planned(self, step: int, seconds: float) -> int:
        """How many steps the run will have: all of them, or what its minutes allow at the pace of `step`."""
        if self.minutes is None or seconds <= 0:
            return self.steps
        return min(self.steps, max(step, 1, round(step * 60 * self.minutes / seconds)))
