"""Everything around the steps: build, resume, evaluate, save, leave, finish."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from regard.data.batch import Batch
from regard.data.prefetch import prefetch
from regard.errors import CheckFailed, UsageError
from regard.heap import keep_memory
from regard.model import Model, build
from regard.nn.block import Block
from regard.save import save as save_model
from regard.save import weights
from regard.spec import Recipe, write
from regard.train import checkpoint
from regard.train.carry import Carry
from regard.train.checkpoint import Checkpoint, Tensors
from regard.train.disk import locked, preflight, write_json
from regard.train.log import Log, clock
from regard.train.parallel import Group, Objective, spread
from regard.train.precision import Precision, compile_model, recompute, seed, threads
from regard.train.settle import settle
from regard.train.signals import Interrupted, Signals, Stopped
from regard.train.state import NonFinite, State, Summary, changes, clean, facts
from regard.train.training import Training
from regard.train.weights import Ema, finite, mean, optimizer_state, put, put_optimizer_state, take

if TYPE_CHECKING:
    from regard.tasks.task import Task

EVALUATION = 1 << 32  # stands for the part in the seed of an evaluation


class Session:
    """What the loop works on: model, optimizers, data, log, and where the run stands (`state`)."""

    def __init__(
        self, recipe: Recipe[Model], task: Task, training: Training, out: Path, group: Group, stack: ExitStack
    ) -> None:
        self.recipe, self.task, self.training, self.out, self.group = recipe, task, training, out, group
        self.checkpoints, self.stack = out / "checkpoints", stack
        if group.first:
            stack.enter_context(locked(out))
        self.signals = stack.enter_context(Signals())
        self.threads = stack.enter_context(threads(training.threads))
        keep_memory()
        self.log = stack.enter_context(
            Log(out if group.first else None, training.steps, training.tensorboard)
        )
        self.schedule, optimizer = training.schedule.build(), training.optimizer.build()
        if training.shard and group.world > 1 and not optimizer.shards:
            raise UsageError("adafactor cannot be sharded: use train.shard=false, or adamw or muon.")
        self.model = build(recipe, seed=training.seed).to(group.device).train()
        self.batches = task.batches("train", tokens=training.tokens, size=training.size, seed=training.seed)
        if self.batches.carried and training.compile is True:
            raise UsageError("train.compile cannot carry a memory from step to step: leave it false.")
        self.carry = Carry(task, self.model, self.batches, group, training.accumulate)
        blocks = [module for module in self.model.modules() if isinstance(module, Block)]
        if training.recompute:
            recompute(blocks)
        if training.compile is True:
            compile_model(self.model)
        self.extra = self.made_beside()
        self.objective = spread(Objective(task, self.model, self.extra), group, training.shard, blocks)
        self.learns: nn.Module = self.model
        if self.extra is not None:
            self.learns = nn.ModuleDict({"model": self.model, "extra": self.extra})
        self.optimizers = optimizer.make(list(self.learns.named_parameters()))
        self.parameters = list(self.learns.parameters())
        self.ema = Ema(self.model, training.ema) if training.ema else None
        self.state, self.saved, self.improved, self.asked = State(), 0, False, False
        self.precision: Precision = "fp32"  # both are settled when the run begins
        self.compiled = training.compile is True

    def made_beside(self) -> nn.Module | None:
        """What the task learns beside the model; the same seed gives the same weights."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.training.seed)
            extra = self.task.extra(self.model)
        if extra is not None and self.training.compile is True:
            raise UsageError("train.compile cannot show what single layers say: leave it false.")
        return None if extra is None else extra.to(self.group.device).train()

    def prepare(self, resume: bool, config: dict[str, Any] | None, allow_changed: Sequence[str]) -> None:
        """What can be refused is refused here; then the run stands where its newest good checkpoint does."""
        self.config = config or {"model": write(self.recipe, resolved=True)}
        self.facts = facts(self.config, self.task, self.threads, self.group.world)
        if self.group.first:
            checkpoint.sweep(self.out)
            if not resume and checkpoint.steps(self.checkpoints):
                raise UsageError(
                    f"{self.out} already holds a run: go on with --resume, or choose another folder."
                )
            size = sum(p.numel() * p.element_size() for p in self.parameters)
            sets = 4 if self.ema else 3  # weights, two moments, perhaps the running average
            preflight(self.out, 2 * sets * size)
        count, world = sum(p.numel() for p in self.model.parameters()), self.group.world
        beside = sum(p.numel() for p in self.parameters) - count
        more = f" and {beside:,} for training only" if beside else ""
        self.log.say(f"{count:,} parameters{more}   {world} x {self.threads} threads   {self.group.device}")
        if (padding := self.batches.padding()) is not None:
            self.log.say(f"{len(self.batches):,} batches an epoch, {padding:.1%} padding")
        found = checkpoint.newest(self.checkpoints, self.log.warn) if self.group.first and resume else None
        step = int(self.group.tell(str(found.step if found else 0)))
        if step:
            self.restore(found or checkpoint.verify(checkpoint.place(self.checkpoints, step)), allow_changed)
        else:
            self.log.cut(0, 0)
            self.log.event("start", **self.facts)
        settle(self)
        self.began = time.monotonic() - self.state.seconds
        self.log.begin(self.state.tokens)

    def restore(self, found: Checkpoint, allow_changed: Sequence[str]) -> None:
        """Put everything back as it was at a checkpoint."""
        for text in changes(found, self.config, self.facts, allow_changed):
            self.log.warn(text)
        put(weights(self.model), found.tensors("model"))
        put_optimizer_state(self.optimizers, self.learns, found.tensors("optim"))
        if self.extra is not None and found.has("extra"):
            put(dict(self.extra.named_parameters()), found.tensors("extra"))
        if self.ema:
            put(self.ema.weights, found.tensors("ema" if found.has("ema") else "model"))
        if found.has("memory") and not self.carry.put(found.tensors("memory")):
            self.log.warn("batches have other rows than before: what they remembered is left out.")
        torch.set_rng_state(found.tensors("rng")["cpu"])
        self.state, self.saved = State(**found.state["run"]), found.step
        self.log.cut(found.state["metrics_bytes"], found.step)
        epoch, position = self.batches.epoch_of(found.step)
        where = f"epoch {epoch + 1}, {position}/{self.batches.steps_in(epoch)}"
        self.log.say(f"resumed step {found.step}: weights, optimizer, rng, data position ({where})")
        self.log.event("resume", step=found.step, **self.facts)

    def parts(self) -> Iterator[Batch]:
        """This process's parts of every batch from here on, made in the background."""
        each, parts = self.training.accumulate, self.group.world * self.training.accumulate
        mine = range(self.group.rank * each, (self.group.rank + 1) * each)
        return self.stack.enter_context(prefetch(self.batches, self.state.step, mine, parts, each + 1))

    def lent(self, ahead: int = 0) -> Batch:
        """Some part of the next batch that is not empty, or of one that comes later."""
        count = self.group.world * self.training.accumulate
        pieces = (self.batches.at(self.state.step + ahead, part, count) for part in range(count))
        return next(piece for piece in pieces if piece.tokens)

    def seconds(self) -> float:
        """Time spent in training, over all resumed runs."""
        return time.monotonic() - self.began

    def over(self) -> str:
        """Why the run is at its end; nothing if it is not."""
        state, training = self.state, self.training
        if state.step >= training.steps:
            return "steps"
        if training.patience is not None and state.waits >= training.patience:
            return "patience"
        return "minutes" if training.minutes is not None and state.seconds >= 60 * training.minutes else ""

    def evaluation_is_due(self) -> bool:
        """Every so many steps and at the end, once."""
        step, every = self.state.step, self.training.evaluate_every
        return step > self.state.evaluated and (
            bool(self.over()) or (every is not None and step % every == 0)
        )

    def evaluate(self) -> None:
        """Measure the model (its running average, if it has one) on the valid split; a new best is noted."""
        state, before = self.state, time.monotonic()
        model = self.whole_model()
        seed(self.training.seed, state.step, EVALUATION)
        figures: dict[str, Any] | None = None
        if self.group.first:
            try:
                with self.signals.hurrying():
                    figures = clean(self.task.evaluate(model, "valid", limit=self.task.limit))
            except Interrupted:
                self.log.event("interrupt", step=state.step)  # saved without it; done again after resuming
        figures = json.loads(self.group.tell(json.dumps(figures)))
        self.model.train()
        if figures is None:
            self.asked = True
            return
        state.evaluated, state.figures = state.step, figures
        self.improved = self.is_better(figures)
        state.waits = 0 if self.improved else state.waits + 1
        if self.improved:
            state.best = {"step": state.step, "value": figures[self.task.metric], "figures": figures}
        self.log.metrics({"step": state.step, "split": "valid", **figures})
        self.log.event("evaluate", step=state.step, seconds=time.monotonic() - before)
        self.log.say(f"step {state.step}   valid   {words(figures)}{'   best' if self.improved else ''}")

    def is_better(self, figures: dict[str, Any]) -> bool:
        """Is this evaluation the best so far? Of two with the same metric, the one with the smaller loss."""
        value, loss = figures.get(self.task.metric), figures.get("loss") or 0.0
        if value is None or self.state.best is None:
            return value is not None
        sign, best = 1 if self.task.better == "max" else -1, self.state.best
        return (sign * value, -loss) > (sign * best["value"], -(best["figures"].get("loss") or 0.0))

    def whole_model(self) -> Model:
        """What is evaluated: the model itself, or a copy if it is split, averaged or compiled."""
        if self.ema is None and not self.compiled and not (self.training.shard and self.group.world > 1):
            return self.model
        taken = take(self.ema.weights if self.ema else weights(self.model), keep=self.group.first)
        if not self.group.first:
            return self.model
        copy = build(self.recipe, seed=self.training.seed).to(self.group.device)
        put(weights(copy), taken)
        return copy

    def saving_is_due(self) -> bool:
        """Every so many steps, at a new best, when asked to stop, and at the end."""
        step = self.state.step
        due = step % self.training.save_every == 0 or self.improved or self.asked or bool(self.over())
        return step > self.saved and due

    def save(self) -> None:
        """A checkpoint, written by the first process; the others wait until it is safe on the disk."""
        first = self.group.first
        tensors = {
            "model": take(weights(self.model), first),
            "optim": take(optimizer_state(self.optimizers, self.learns), first),
            "rng": {"cpu": torch.get_rng_state()},
        }
        if self.ema:
            tensors["ema"] = take(self.ema.weights, first)
        if self.extra is not None:
            tensors["extra"] = take(dict(self.extra.named_parameters()), first)
        remembered = self.carry.take(self.state.step)
        if remembered:
            tensors["memory"] = remembered
        with self.group.first_first():
            if first:
                self.write(tensors)
        self.saved, self.improved = self.state.step, False

    def write(self, tensors: dict[str, Tensors]) -> None:
        """What `save` does in the first process."""
        step, before = self.state.step, time.monotonic()
        if not finite([*tensors["model"].values(), *tensors["optim"].values()]):
            raise NonFinite(
                f"a weight is not finite at step {step}: nothing is saved; resume with a smaller train.lr."
            )
        state = {"run": asdict(self.state), "metrics_bytes": self.log.settle(), "config": self.config}
        checkpoint.write(self.checkpoints, step, tensors, state, self.facts)
        checkpoint.prune(self.checkpoints, self.kept())
        self.log.event("save", step=step, seconds=time.monotonic() - before)

    def kept(self) -> set[int]:
        """Steps whose checkpoints stay: the last, the best, those to be averaged, and any newer than now."""
        there, now = checkpoint.steps(self.checkpoints), self.state.step
        last = [step for step in there if step <= now][-self.training.keep :]
        best = [self.state.best["step"]] if self.state.best else []
        return {*last, *best, *self.averaged(), *(step for step in there if step > now)}

    def averaged(self) -> list[int]:
        """The steps whose mean will be the model: the last regular ones (not those saved at a signal)."""
        if not self.training.average:
            return []
        there = [step for step in checkpoint.steps(self.checkpoints) if step <= self.state.step]
        regular = [s for s in there if s % self.training.save_every == 0 or s == self.state.step]
        return regular[-self.training.average :]

    def leave_if_asked(self) -> None:
        """After a signal, once the checkpoint is there."""
        if self.asked:
            self.log.event("stop", step=self.state.step)
            told = f"stopped at step {self.state.step} (checkpoint kept): go on with --resume in {self.out}."
            raise Stopped(told, 128 + (self.signals.asked or 15))

    def finish(self) -> Summary:
        """Write the model that the run was for, and a summary; of a run finished before, only return it."""
        path = self.out / "summary.json"
        with self.group.first_first():
            if self.group.first:
                summary = Summary.read(path)
                if summary is None or summary.step != self.state.step:
                    write_json(path, asdict(self.conclude()))
        found = Summary.read(path)
        assert found is not None
        return found

    def conclude(self) -> Summary:
        """Put the averaged weights, if that was asked, or those of the best step, into `out/model`."""
        state, model = self.state, build(self.recipe, seed=self.training.seed)
        best = state.best or {"step": state.step, "figures": state.figures}
        steps = self.averaged()
        if steps:
            found = [checkpoint.verify(checkpoint.place(self.checkpoints, step)) for step in steps]
        else:
            one = checkpoint.good(self.checkpoints, [best["step"], state.step], self.log.warn)
            if one is None:
                raise CheckFailed(
                    f"{self.checkpoints} has no good checkpoint left: there is no model to save."
                )
            found = [one]
        put(weights(model), mean(one.tensors("ema" if self.ema else "model") for one in found))
        chosen = found[-1].step
        figures = best["figures"] if chosen == best["step"] else state.figures
        if steps:
            seed(self.training.seed, state.step, EVALUATION)
            figures = clean(self.task.evaluate(model.to(self.group.device), "valid", limit=self.task.limit))
            self.log.metrics({"step": state.step, "split": "valid", "averaged": steps, **figures})
        save_model(model.cpu(), self.out / "model", tokens=self.task.tokens)
        self.log.event("finish", step=state.step, reason=self.over())
        self.log.say(
            f"done: {state.step} steps, {clock(state.seconds)}   {words(figures)}   {self.out / 'model'}"
        )
        count = sum(p.numel() for p in model.parameters())
        rest = (state.loss, figures, state.tokens, state.seconds, count, str(self.out))
        return Summary(state.step, self.over(), chosen, *rest)


def words(figures: dict[str, Any]) -> str:
    """Figures in a line for the reader."""
    return "   ".join(f"{k} {v:.4g}" for k, v in figures.items() if isinstance(v, int | float))
