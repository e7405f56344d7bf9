"""Training, the whole of it: `train` is the loop; `backward`, `update` and `record` are one step.

With the batch of step t cut into parts (processes times `accumulate`):

    g = sum over parts of the gradient of (the loss summed over the part's targets) / (targets in the batch)
    if the loss and |g| are finite:   w = optimizer(w, g min(1, clip / |g|), lr(t))

so the same global batch gives the same step however it is cut. Everything random in step t is seeded from
(seed, t, part), and the data of step t is a pure function of t: a resumed run has nothing to lose.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from regard.spec import Recipe
from regard.train.disk import write_json
from regard.train.optim import set_lr
from regard.train.parallel import Group, adding, start, whole
from regard.train.precision import autocast, seed
from regard.train.session import Session
from regard.train.state import NonFinite, Summary
from regard.train.training import Training

if TYPE_CHECKING:
    from regard.data.batch import Batch
    from regard.model import Model
    from regard.tasks.task import Task

SKIPS = 10  # so many bad batches in a row are no accident


@dataclass(frozen=True)
class Step:
    """What one step gave: loss summed over `count` targets, norm of the gradient; good if both are finite."""

    loss: float
    count: int
    norm: float
    lr: float
    good: bool


def train(
    recipe: Recipe[Model],
    task: Task,
    training: Training,
    out: Path,
    *,
    resume: bool = False,
    config: dict[str, Any] | None = None,
    allow_changed: Sequence[str] = (),
    group: Group | None = None,
) -> Summary:
    """Train a model on a prepared task; the result is left in `out/model`, all else about the run in `out`.

    recipe         the model, not yet built
    resume         go on from the newest good checkpoint in `out`, or start if there is none
    config         the whole run as data: kept in each checkpoint, compared on resuming
    allow_changed  what may differ from the checkpoint on resuming: "data", "tokens", "model"
    group          the processes that train together, if they have been started already
    """
    with ExitStack() as stack:
        group = group or stack.enter_context(start())
        run = Session(recipe, task, training, Path(out), group, stack)
        run.prepare(resume, config, allow_changed)
        parts = run.parts()
        while True:
            if run.evaluation_is_due():
                run.evaluate()
            if run.saving_is_due():
                run.save()
            run.leave_if_asked()
            if run.over():
                return run.finish()
            with group.together(run.state.step + 1):
                total = backward(run, parts)
                step = update(run, total)
            record(run, step)


def backward(run: Session, parts: Iterator[Batch]) -> Tensor:
    """Gradients of the summed loss over this process's parts of the next batch, added over processes.

    Returns, added over processes too: the loss, its targets, who was asked to stop, and the time spent.
    """
    step, training, group = run.state.step + 1, run.training, run.group
    total = torch.zeros(4, dtype=torch.float64, device=group.device)
    done = run.state.step / training.planned(run.state.step, run.state.seconds)
    for piece in range(training.accumulate):
        batch, share = next(parts), 1.0
        memory = run.carry.of(step - 1, piece, batch)
        if batch.tokens == 0:
            if group.world == 1:
                continue
            # The other processes wait for gradients: send some that count nothing.
            batch, share, memory = run.lent(), 0.0, None
        seed(training.seed, step, group.rank * training.accumulate + piece)
        with adding(run.objective, last=piece == training.accumulate - 1):
            with autocast(group.device, run.precision):
                loss, count = run.objective(batch.to(group.device), memory, done)
            (loss * share).backward()
        total[0] += loss.detach() * share
        total[1] += count * share
    total[2] = float(run.signals.asked > 0)
    total[3] = run.seconds() if group.first else 0.0
    return group.add(total)


def update(run: Session, total: Tensor) -> Step:
    """Scale and clip the gradients, and step if all is finite: the one place where the host waits."""
    training, state = run.training, run.state
    grads = [p.grad for p in run.parameters if p.grad is not None]
    norms = torch.stack(torch._foreach_norm(grads)) if grads else total.new_zeros(1)
    norm = whole(torch.linalg.vector_norm(norms)).double().reshape(1)
    loss, count, asked, state.seconds, norm_of_sum = torch.cat([total, norm]).tolist()
    run.asked = bool(asked)
    state.step += 1
    scale = run.group.world / max(count, 1.0)  # DDP and FSDP2 leave the mean over processes
    steps = training.planned(state.step, state.seconds)
    lr = run.schedule.lr(state.step, steps, training.lr, run.model.dims.width)
    good = math.isfinite(loss) and math.isfinite(norm_of_sum * scale)
    step = Step(loss, int(count), norm_of_sum * scale, lr, good)
    if step.good:
        cut = min(1.0, training.clip / (step.norm + 1e-6)) if training.clip else 1.0
        torch._foreach_mul_(grads, scale * cut)
        set_lr(run.optimizers, lr)
        for optimizer in run.optimizers:
            optimizer.step()
        if run.ema:
            run.ema.update(state.step)
    for optimizer in run.optimizers:
        optimizer.zero_grad(set_to_none=True)
    return step


def record(run: Session, step: Step) -> None:
    """Note what the step gave, and now and then write it down."""
    state, training = run.state, run.training
    if not step.good:
        return pass_over(run, step)
    state.skipped, state.tokens = 0, state.tokens + step.count
    state.window_loss, state.window_tokens = state.window_loss + step.loss, state.window_tokens + step.count
    if state.step % training.log_every == 0 or state.step == training.steps:
        state.loss = state.window_loss / max(state.window_tokens, 1)
        state.window_loss, state.window_tokens = 0.0, 0
        figures = {"step": state.step, "loss": state.loss, "lr": step.lr, "grad_norm": step.norm}
        run.log.metrics({**figures, "tokens": state.tokens, "epoch": run.batches.epoch_of(state.step - 1)[0]})
    if run.log.wants_progress():
        left = (training.steps - state.step) * state.seconds / state.step
        if training.minutes:
            left = min(left, 60 * training.minutes - state.seconds)
        run.log.progress(state.step, step.loss / max(step.count, 1), step.lr, step.norm, state.tokens, left)


def pass_over(run: Session, step: Step) -> None:
    """A step that is not finite has not touched the weights: say which samples were in it."""
    state = run.state
    state.skipped += 1
    run.carry.forget()  # what is not finite must not be remembered
    samples = [int(number) for number in run.batches.at(state.step - 1).ids]
    what = f"loss {step.loss / max(step.count, 1)}, gradient norm {step.norm}"
    path = run.out / f"nonfinite-step-{state.step:06d}.json"
    if run.group.first:
        told = {"step": state.step, "loss": repr(step.loss), "grad_norm": repr(step.norm), "samples": samples}
        write_json(path, told)
    run.log.metrics({"step": state.step, "skipped": True})
    if run.training.nonfinite == "stop" or state.skipped >= SKIPS:
        raise NonFinite(
            f"step {state.step} is not finite ({what}): the weights are as before it, and its {len(samples)} "
            f"samples are listed in {path}; lower train.lr, or skip such batches with train.nonfinite=skip."
        )
    run.log.warn(
        f"step {state.step} is not finite ({what}) and was skipped; its samples are listed in {path}."
    )
