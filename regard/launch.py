"""`regard train` and `regard evaluate`: from a run file to a run folder, and its figures."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.errors import UsageError
from regard.run import Run, read_run
from regard.spec import Recipe
from regard.strict_yaml import dump

if TYPE_CHECKING:
    from regard.data.synthetic import Split
    from regard.model import Model
    from regard.packed import Precision
    from regard.tasks import Task
    from regard.train import Summary

LAYOUT = ("config.yaml", "regard.json", "checkpoints", ".lock")


def train(
    recipe: str | Path | dict[str, Any],
    overrides: Sequence[str] = (),
    out: str | Path | None = None,
    resume: bool = False,
    allow_changed: Sequence[str] = (),
) -> Summary:
    """Train what a run file describes and leave everything about it in the folder `out`.

    Options:
        recipe: a run file, a run folder (its config.yaml), or the same as a mapping
        overrides: changes such as "train.steps=100"
        out: the run folder; runs/NAME after the file's name if not given
        resume: go on where the run in that folder stopped
        allow_changed: what may differ from the checkpoint on resuming: data, tokens or model
    """
    run = complete(read_run(recipe, overrides), recipe)
    folder = Path(out) if out is not None else default_folder(recipe)
    from regard.data.text import write_lines
    from regard.machine import facts
    from regard.train import start
    from regard.train import train as loop
    from regard.train.disk import locked

    with start() as group:
        with group.first_first():
            if group.first:
                with locked(folder):
                    clear(folder, resume)
                    write_lines(folder / "regard.json", json.dumps(facts(), indent=1).splitlines())
                    task, model = prepare(run, folder)
                    task.batches("valid", size=1)  # a missing split is told now, not at the first evaluation
                    refuse_changes(run.resolved(model), task, folder, allow_changed)
                    write_config(run, model, folder)
            else:
                task, model = prepare(run, folder)
        for note in task.notes if group.first else ():
            print(note, file=sys.stderr)
        training = run.training.build()
        config = run.resolved(model)
        return loop(
            model,
            task,
            training,
            folder,
            resume=resume,
            config=config,
            allow_changed=allow_changed,
            group=group,
        )


def complete(run: Run, recipe: object) -> Run:
    """A run that can be trained has a model, a task and a training."""
    if not run.model or run.task is None:
        missing = "model" if not run.model else "task"
        raise UsageError(f"{recipe} has no section {missing!r}, so there is nothing to train.")
    return run


def default_folder(recipe: object) -> Path:
    """runs/NAME for NAME.yaml; a run folder stays itself."""
    path = Path(recipe) if isinstance(recipe, str | Path) else Path("run")
    return path if path.is_dir() else Path("runs") / path.stem


def clear(folder: Path, resume: bool) -> None:
    """Make a folder ready for a run: refuse to mix it with another, forget one that never saved anything."""
    from regard.train import checkpoint

    there = [p.name for p in folder.iterdir() if p.name != ".lock"] if folder.is_dir() else []
    saved = checkpoint.steps(folder / "checkpoints")
    if saved and not resume:
        raise UsageError(
            f"{folder} already holds a run: go on with --resume, or choose another folder with --out."
        )
    if there and not saved and not any(name in LAYOUT for name in there):
        raise UsageError(f"{folder} holds other files and no run; choose another folder with --out.")
    if not saved:  # killed before its first checkpoint: its tokens may be half written
        for name in ("tokens", "data"):
            shutil.rmtree(folder / name, ignore_errors=True)


def refuse_changes(config: dict[str, Any], task: Task, folder: Path, allowed: Sequence[str]) -> None:
    """Refuse another model, other tokens or other data before the folder's records are written anew."""
    from regard.train import checkpoint
    from regard.train.state import changes, facts

    found = checkpoint.newest(folder / "checkpoints", warn=lambda text: None)
    if found is not None:
        for _ in changes(found, config, facts(config, task, 1, 1), allowed):
            pass  # what is only worth a warning is said by the training itself


def prepare(run: Run, folder: Path | None) -> tuple[Task, Recipe[Model]]:
    """The task with its data read and checked, and the model's recipe made to fit it."""
    assert run.task is not None
    task = run.task.build()
    task.prepare(folder)
    model = run.recipe(task.needs())
    task.fit_to(dims_of(model))
    return task, model


def dims_of(recipe: Recipe[Model]) -> Any:
    """The numbers of a model's recipe."""
    from regard.dims import Dims

    own = recipe.options["dims"]
    return own if isinstance(own, Dims) else Dims(**own)


def write_config(run: Run, model: Recipe[Model], folder: Path) -> None:
    """config.yaml: the run with every default written out."""
    from regard.data.text import write_lines

    config = run.resolved(model)
    note = [f"# {run.name}, resolved: every default written out"]
    write_lines(folder / "config.yaml", [*note, *dump(config).split("\n")[:-1]])


def dry_run(recipe: str | Path, overrides: Sequence[str] = ()) -> str:
    """Do everything but train: read, prepare, build, time three steps, and say what would be done."""
    import torch

    from regard.cost import parameters
    from regard.model import build
    from regard.train.log import clock

    run = complete(read_run(recipe, overrides), recipe)
    task, made = prepare(run, None)
    training = run.training.build()
    if training.threads:
        torch.set_num_threads(training.threads)
    model = build(made, training.seed).train()
    batches = task.batches("train", tokens=training.tokens, size=training.size, seed=training.seed)
    times, targets = [], 0
    for step in range(3):
        before = time.monotonic()
        loss = task.loss(model, batches.at(step))
        (loss.sum / max(loss.count, 1)).backward()
        times.append(time.monotonic() - before)
        targets += loss.count
    count = parameters(model)
    seconds = min(times[1:]) * training.steps
    lines = [
        f"would train  {type(model).__name__}, {count.total:,} parameters, on {type(task).__name__.lower()}",
        f"batches      about {targets // 3:,} targets, {batches.steps_in(0):,} steps an epoch, "
        f"{training.steps:,} steps",
        f"checkpoint   {3 * 4 * count.total / 1e6:,.0f} MB each (weights and the optimizer's two moments), "
        f"{training.keep} kept and the best",
        f"time         about {clock(seconds)} with {torch.get_num_threads()} threads "
        "(forward and backward of 3 steps, without evaluations)",
    ]
    return "\n".join([*lines, *task.notes])


def evaluate(
    run: str | Path,
    split: Split = "test",
    limit: int | None = None,
    overrides: Sequence[str] = (),
    precision: Precision | None = None,
) -> dict[str, Any]:
    """Measure the model of a run folder on a split and keep the figures in RUN/eval/SPLIT.json."""
    from regard.data.text import write_lines
    from regard.save import load_model

    folder = Path(run)
    if not (folder / "config.yaml").is_file():
        raise UsageError(f"{folder} is no run folder: it has no config.yaml.")
    for text in overrides:
        if not text.startswith("task."):
            raise UsageError(
                f"only the task can be changed for an evaluation (task.key=value), not {text!r}."
            )
    found = complete(read_run(folder, overrides), folder)
    if not (folder / "model").is_dir():
        raise UsageError(f"{folder} has no finished model yet; go on with: regard train {folder} --resume")
    assert found.task is not None
    task, model = found.task.build(), load_model(folder / "model")
    task.prepare(folder)
    task.fit_to(model.dims)
    if precision is not None:
        from regard.packed import packed

        model = packed(model, precision)
    figures = dict(task.evaluate(model, split, limit))
    told = {"split": split, "limit": limit, "changed": list(overrides), "precision": precision, **figures}
    (folder / "eval").mkdir(exist_ok=True)
    write_lines(folder / "eval" / f"{split}.json", json.dumps(told, indent=1).splitlines())
    return {"split": split, **figures}


def figures_line(figures: dict[str, Any]) -> str:
    """Figures for people: numbers in one line, then what says how they were made."""
    numbers = [f"{k} {v:.4g}" for k, v in figures.items() if isinstance(v, int | float)]
    words = [f"{k} {v}" for k, v in figures.items() if isinstance(v, str) and k != "split"]
    return "\n".join(["   ".join([str(figures.get("split", "")), *numbers]).strip(), *words])
