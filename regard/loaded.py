"""A trained model ready to answer: the run's model, its tokens and its task in one object."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from regard.errors import CheckFailed, DataError, UsageError
from regard.heap import in_large_pages, keep_memory

if TYPE_CHECKING:
    from regard.data.tokens import Tokens
    from regard.decode import Hypothesis, Rules
    from regard.model import Model
    from regard.packed import Precision
    from regard.tasks import Task

Side = Literal["left", "right"]


class InputError(DataError):
    """One of the inputs cannot be answered: its number, from 1, and why."""

    def __init__(self, number: int, said: str) -> None:
        self.number, self.said = number, said
        super().__init__(f"input {number}: {said}")


class Loaded:
    """What `regard.load` returns.

    model    the model itself, in eval mode
    tokens   how it reads and writes text; None if the folder holds none
    task     what it was trained to do; None for a folder with a model alone
    folder   where it came from
    """

    def __init__(self, model: Model, tokens: Tokens | None, task: Task | None, folder: Path) -> None:
        self.model, self.tokens, self.task, self.folder = model, tokens, task, folder
        self.cut = 0  # inputs that `truncate` shortened so far

    @overload
    def predict(self, inputs: str, truncate: Side | None = None, **rules: Any) -> str: ...
    @overload
    def predict(self, inputs: Sequence[str], truncate: Side | None = None, **rules: Any) -> list[str]: ...
    def predict(
        self, inputs: str | Sequence[str], truncate: Side | None = None, **rules: Any
    ) -> str | list[str]:
        """One answer for each input: a translation, a continuation, a label, whatever the task is.

        Options:
            inputs: a text, or any number of texts
            truncate: cut inputs that are too long for the model at this end (counted in `cut`) instead of
                refusing them
            rules: fields of `regard.decode.Rules`, such as beam=5, or temperature=0.8 and top_p=0.9
        """
        if isinstance(inputs, str):
            return self.predict([inputs], truncate, **rules)[0]
        task = self._task()
        given = self.rules(rules)
        return task.predict(self.model, self.fitted(inputs, truncate), given) if inputs else []

    def hypotheses(
        self, inputs: Sequence[str], truncate: Side | None = None, **rules: Any
    ) -> list[list[Hypothesis]]:
        """Several answers for each input, best first, with their log probabilities: nbest=5, beam=5."""
        task = self._task()
        find = getattr(task, "hypotheses", None)
        if find is None:
            raise UsageError(f"{type(task).__name__.lower()} has one answer for each input; leave nbest out.")
        found: list[list[Hypothesis]] = find(self.model, self.fitted(inputs, truncate), self.rules(rules))
        return found

    def score(self, inputs: Sequence[str], outputs: Sequence[str]) -> list[float]:
        """log p(output | input) in nats for each pair."""
        return self._task().score(self.model, inputs, outputs)

    def rules(self, given: dict[str, Any]) -> Rules:
        """The rules of decoding: as given, and where nothing is said, those that the task evaluates with."""
        from regard.decode import Rules

        given = {k: tuple(v) if isinstance(v, list) else v for k, v in given.items()}
        known = Rules.__dataclass_fields__
        for name in given:
            if name not in known:
                raise UsageError(f"Rules has no option {name!r}; it takes {', '.join(known)}.")
        if "method" not in given:
            if "beam" in given:
                given["method"] = "beam"
            elif given.keys() & {"temperature", "top_k", "top_p", "min_p"}:
                given["method"] = "sample"
            elif not given.keys() & {"repetition", "stop", "draft"} and getattr(self.task, "beam", 1) > 1:
                given = {"method": "beam", "beam": self.task.beam, "alpha": self.task.alpha, **given}  # type: ignore[union-attr]
        return Rules(**given)

    def fitted(self, inputs: Sequence[str], truncate: Side | None) -> list[str]:
        """Inputs that the model can hold; too long ones are cut, or refused with their number."""
        from regard.tasks import Classify

        task = self._task()
        if isinstance(task, Classify) and task.longest:
            return list(inputs)  # it was trained on texts cut to that length, and cuts these too
        tokens, most = task.tokens, self.model.dims.length - 2  # room for a start and an end
        kept: list[str] = []
        for number, text in enumerate(inputs, 1):
            try:
                ids = tokens.encode(text)
            except DataError as error:
                raise InputError(number, str(error)) from None
            if len(ids) > most:
                if truncate is None:
                    said = f"{len(ids)} tokens, but the model holds {most}; shorten it, or cut it with "
                    raise InputError(number, said + "--truncate left or right.")
                self.cut += 1
                text = tokens.decode(ids[-most:] if truncate == "left" else ids[:most])
            kept.append(text)
        return kept

    def _task(self) -> Task:
        if self.task is None:
            raise UsageError(
                f"{self.folder} holds a model without a task, so it cannot be asked in words; "
                "load the run folder it came from, or call .model."
            )
        return self.task


def load(path: str | Path, precision: Precision | None = None, compile: bool = False) -> Loaded:
    """Load a run folder (config.yaml, tokens, model) or a model folder (config.json, model.safetensors).

    Options:
        precision: fp32, bf16 or int8 makes the model ready to answer quickly on a CPU, and only that (see
            `regard.packed`); None leaves it as it was saved
        compile: compile the step that writes a token, once many have been written (see `regard.decode.quick`)
    """
    loaded = _load(Path(path))
    keep_memory()  # every token takes the same buffers again
    if precision in (None, "fp32"):  # the others are read in a form of their own
        in_large_pages(loaded.model.parameters())
    if precision is not None:
        from regard.packed import packed

        loaded.model = packed(loaded.model, precision)
    if compile:
        from regard.decode.quick import compiled

        loaded.model = compiled(loaded.model)
    return loaded


def _load(folder: Path) -> Loaded:
    from regard.save import load_model

    if not folder.is_dir():
        raise UsageError(
            f"{folder} is no folder; give a run folder, such as runs/demo-dates, or a model folder."
        )
    if (folder / "manifest.json").is_file():
        raise UsageError(
            f"{folder} is a checkpoint inside a run; give the run folder {folder.parent.parent}."
        )
    if (folder / "config.yaml").is_file():
        return _load_run(folder)
    if (folder / "config.json").is_file() or (folder / "model.safetensors").is_file():
        return Loaded(load_model(folder), _tokens(folder), None, folder)
    raise UsageError(
        f"{folder} is neither a run (it has no config.yaml) nor a saved model (it has no config.json)."
    )


def _load_run(folder: Path) -> Loaded:
    from regard.run import read_run
    from regard.save import load_model

    run = read_run(folder)
    if run.task is None:
        raise UsageError(f"{folder / 'config.yaml'} has no task, so there is nothing to ask.")
    if not (folder / "model").is_dir():
        raise UsageError(f"{folder} has no finished model yet; go on with: regard train {folder} --resume")
    task = run.task.build()
    try:
        task.open(folder)
    except OSError as error:
        raise CheckFailed(f"{error.filename or folder}: {error.strerror or error}.") from None
    model = load_model(folder / "model")
    task.fit_to(model.dims)
    return Loaded(model, task.tokens, task, folder)


def _tokens(folder: Path) -> Tokens | None:
    from regard.data.tokens import load_tokens

    weights = ("config.json", "model.safetensors")
    return load_tokens(folder) if any(p.name not in weights for p in folder.iterdir()) else None
