"""What every task can do: prepare data, make batches, give a loss, measure, answer."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, TypeVar

import torch
from torch import Tensor, nn

from regard.data.batch import Batch, Batches
from regard.data.synthetic import Split
from regard.data.tokens import Tokens, load_tokens
from regard.dims import Dims
from regard.errors import DataError, UsageError
from regard.spec import Recipe

if TYPE_CHECKING:
    from regard.decode import Rules
    from regard.model import Model
    from regard.nn.recent import Recent

Figures = dict[str, float | str]
Row = TypeVar("Row")
SAMPLES = 64  # rows of a batch where nothing is learned from it


@dataclass(frozen=True)
class Loss:
    """The cost of a batch: the sum over its targets, how many those are, and auxiliary losses."""

    sum: Tensor
    count: int
    aux: dict[str, Tensor] = field(default_factory=dict)


class Task:
    """What is asked of a model and how its answers are scored.

    `prepare` comes first; whatever is wrong with the data is said there, before the first step.

    metric   the figure that tells the best checkpoint, and `better` whether it should be large or small
    files    the options that name data files
    limit    how many samples of the valid split are enough while training; None is all of them
    notes    what was left out or repaired while reading, for the log
    """

    metric: ClassVar[str] = "loss"
    better: ClassVar[Literal["max", "min"]] = "min"
    files: ClassVar[tuple[str, ...]] = ()
    limit: int | None = None
    tokens: Tokens

    def __init__(self) -> None:
        self.notes: list[str] = []

    def prepare(self, folder: Path | None = None) -> None:
        """Read and check the data; train the tokens, or load those that an earlier call saved."""
        raise NotImplementedError

    def open(self, folder: Path) -> None:
        """Load what `prepare` saved and answers need, without the data: enough for predict and score."""
        self.tokens = load_tokens(folder / "tokens")

    def needs(self) -> dict[str, object]:
        """What the system must be given to fit this task, such as the size of the vocabulary."""
        return {"vocab": self.tokens.vocab}

    def fit_to(self, dims: Dims) -> None:
        """Learn from the model how long a sample may be, and refuse data that it cannot hold."""

    def data_digest(self) -> str:
        """The sha256 of the data: a run must not be resumed on other data."""
        raise NotImplementedError

    def batches(
        self,
        split: Split,
        tokens: int | None = None,
        size: int | None = None,
        seed: int = 0,
        shuffle: bool | None = None,
    ) -> Batches:
        """Batches of one split: of `size` samples, or of as many as `tokens` targets allow.

        The order is a pure function of (seed, epoch); by default train is shuffled and the others are not.
        """
        raise NotImplementedError

    def loss(self, model: Model, batch: Batch) -> Loss:
        """The cost of one batch, in nats, summed over its targets."""
        raise NotImplementedError

    def remember(self, model: Model, rows: int) -> Recent:
        """What training carries from batch to batch, empty; asked where batches go on (`batches.carried`)."""
        raise NotImplementedError

    def extra(self, model: Model) -> nn.Module | None:
        """What is learned beside the model and not kept: heads that only training asks."""
        return None

    def learn(
        self, model: Model, batch: Batch, memory: Recent | None, extra: nn.Module | None, done: float
    ) -> Loss:
        """The loss that training lowers, where it is more than `loss`.

        memory  what the rows go on from; then they are remembered too
        extra   what `extra` made
        done    the share of the training that is over
        """
        return self.loss(model, batch)

    def evaluate(self, model: Model, split: Split = "valid", limit: int | None = None) -> Figures:
        """Figures over a split, or about its first `limit` samples, in fixed order; at least `loss`."""
        return {"loss": self.mean_loss(model, split, limit)}

    def predict(self, model: Model, inputs: Sequence[str], rules: Rules) -> list[str]:
        """One answer for each input, in their order, whatever the task is."""
        raise NotImplementedError

    def score(self, model: Model, inputs: Sequence[str], outputs: Sequence[str]) -> list[float]:
        """log p(output | input) in nats for each pair."""
        raise NotImplementedError

    def mean_loss(self, model: Model, split: Split, limit: int | None = None) -> float:
        """Nats per target over a split, each target once."""
        total, count = 0.0, 0
        with resting(model):
            for batch in walk(self.batches(split, size=SAMPLES, shuffle=False), limit):
                loss = self.loss(model, batch.to(device_of(model)))
                total, count = total + float(loss.sum), count + loss.count
        if not count:
            raise DataError(f"the {split} split has nothing to predict; give it more data.")
        return total / count


@contextmanager
def resting(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients, for a while; the mode before is restored, also after an error."""
    was = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(was)


def walk(batches: Batches, limit: int | None = None) -> Iterator[Batch]:
    """One epoch in order, up to the batch that holds sample number `limit`."""
    seen = 0
    for step in range(batches.steps_in(0)):
        if limit is not None and seen >= limit:
            return
        batch = batches.at(step)
        seen += len(batch.ids)
        yield batch


def device_of(model: nn.Module) -> torch.device:
    """Where the weights are."""
    return next(model.parameters()).device


def same_count(inputs: Sequence[str], outputs: Sequence[str]) -> None:
    """Refuse pairs that do not pair up."""
    if len(inputs) != len(outputs):
        raise UsageError(
            f"as many outputs as inputs must be given, but there are {len(outputs)} and {len(inputs)}."
        )


def settle_tokens(
    folder: Path | None,
    recipe: Recipe[Tokens],
    lines: Callable[[], Iterable[str]],
    specials: list[str],
    last: int = 0,
) -> Tokens:
    """The tokens an earlier call saved in the folder, or new ones trained on `lines()` and saved there."""
    home = folder / "tokens" if folder else None
    if home and home.exists():
        tokens = load_tokens(home)
        needed = [*specials, *(f"<extra_id_{n}>" for n in range(last))]
        missing = [name for name in needed if name not in tokens.codec.marks]
        if missing:
            raise UsageError(
                f"the tokens in {home} lack {missing[0]}, which this task needs; use another folder."
            )
        return tokens
    tokens = recipe.build()
    tokens.fit(lines(), specials, last)
    if home:
        home.parent.mkdir(parents=True, exist_ok=True)
        tokens.save(home)
    return tokens


def hold_out(rows: list[Row]) -> tuple[list[Row], list[Row], str]:
    """Train and valid split of data that came without a valid split, and a sentence that says so.

    Every 20th sample is held out, fewer where that would be more than a thousand: always the same ones.
    """
    every = max(2, min(20, len(rows)), -(-len(rows) // 1000))
    held = rows[every - 1 :: every]
    kept = [row for n, row in enumerate(rows) if n % every != every - 1]
    if not held:
        raise DataError(f"a valid split must be given or held out, but there are only {len(rows)} samples.")
    note = f"no valid split was given: {len(held)} of {len(rows)} samples are held out for it"
    return kept, held, note


def digest_of_files(paths: Iterable[str | Path | None]) -> str:
    """The sha256 over the contents of files, in order; None is a file that was not given."""
    total = hashlib.sha256()
    for path in paths:
        if path is None:
            total.update(b"none\0")
            continue
        with Path(path).open("rb") as file:
            total.update(hashlib.file_digest(file, "sha256").digest())
    return total.hexdigest()


def digest_of_texts(texts: Iterable[str]) -> str:
    """The sha256 over texts, each ended by a zero byte."""
    total = hashlib.sha256()
    for text in texts:
        total.update(text.encode() + b"\0")
    return total.hexdigest()
