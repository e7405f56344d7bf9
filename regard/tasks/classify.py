"""A label for a text, or one for each of its words."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from regard.data.batch import Batch, Batches, Numbers, pad
from regard.data.synthetic import Split
from regard.data.tables import read_table
from regard.data.text import replacing
from regard.data.tokens import Tokens, Words
from regard.dims import Dims
from regard.errors import DataError, UsageError
from regard.model import Model
from regard.nn.head import Pooled, nll
from regard.spec import Recipe, of, part
from regard.tasks.metrics import accuracy, macro_f1
from regard.tasks.reading import CLS, SEP, UNK, logits, padded, reader
from regard.tasks.task import (
    Figures,
    Loss,
    Task,
    digest_of_files,
    digest_of_texts,
    hold_out,
    resting,
    same_count,
    settle_tokens,
)

if TYPE_CHECKING:
    from regard.decode import Rules

Sample = tuple[list[int], list[int]]  # ids, and one label, or one for each id (-1 where there is none)


@part
class Classify(Task):
    """Texts with labels from tables (.tsv or .jsonl): sentiment, topics, parts of speech.

        loss = -sum log p(label | text)

    The text becomes [CLS] text [SEP]. Labels are those of the train split; another one elsewhere is an error.
    With `each`, the text is words between spaces with as many labels between spaces, and the label of a word
    stands at its first token. Devlin et al. 2019, section 4, arXiv 1810.04805.

    Options:
        train, valid, test: tables; without `valid`, part of `train` is held out
        text, label: the names of the fields
        fields: the names of all columns of a .tsv file whose first line does not name them
        each: one label for each word
        tokens: how text is cut into tokens; trained on the train split
        lower: all text is lower-cased
        longest: cut texts to this many tokens (not with `each`); a longer one is refused otherwise
    """

    metric = "accuracy"
    better = "max"
    files = ("train", "valid", "test")

    def __init__(
        self,
        train: str,
        valid: str | None = None,
        test: str | None = None,
        text: str = "text",
        label: str = "label",
        fields: list[str] | None = None,
        each: bool = False,
        tokens: Recipe[Tokens] = of(Words),
        lower: bool = False,
        longest: int | None = None,
    ) -> None:
        super().__init__()
        self.where: dict[Split, str | None] = {"train": train, "valid": valid, "test": test}
        self.text, self.label, self.fields, self.each = text, label, fields, each
        self.recipe, self.lower, self.longest = tokens, lower, longest
        self.labels: list[str] = []
        self.samples: dict[Split, list[Sample]] = {}

    def prepare(self, folder: Path | None = None) -> None:
        """Read the tables, collect the labels, train the tokens, encode everything."""
        self.notes = []
        tables = {split: self._read(split, path) for split, path in self.where.items() if path is not None}
        self.labels = sorted({name for _, names, _ in tables["train"] for name in names})
        if "valid" not in tables:
            tables["train"], tables["valid"], note = hold_out(tables["train"])
            self.notes.append(note)
        if len(self.labels) < 2:
            raise DataError(
                f"{self.where['train']}: at least two labels are needed, but there is {self.labels}."
            )
        texts = [text for text, _, _ in tables["train"]]
        self.tokens = settle_tokens(folder, self.recipe, lambda: texts, [UNK, CLS, SEP])
        if folder:
            with replacing(folder / "labels.json") as file:
                file.write(json.dumps(self.labels, ensure_ascii=False).encode())
        known = {name: n for n, name in enumerate(self.labels)}
        for split, rows in tables.items():
            self.samples[split] = [self._sample(text, names, known, where) for text, names, where in rows]

    def open(self, folder: Path) -> None:
        """Tokens and labels."""
        super().open(folder)
        self.labels = json.loads((folder / "labels.json").read_text(encoding="utf-8"))

    def needs(self) -> dict[str, object]:
        """The vocabulary, and a head with a score for each label."""
        head = "each" if self.each else "pooled"
        return {"vocab": self.tokens.vocab, "classes": len(self.labels), "head": head}

    def fit_to(self, dims: Dims) -> None:
        """Refuse texts that the model cannot hold."""
        for split, rows in self.samples.items():
            most = max(len(ids) for ids, _ in rows)
            if most > dims.length:
                raise DataError(
                    f"the longest text of the {split} split has {most} tokens with [CLS] and [SEP], but the "
                    f"model holds dims.length = {dims.length}; raise it, or cut texts with task.longest."
                )

    def data_digest(self) -> str:
        """The sha256 over the tables and how they are read."""
        how = [self.text, self.label, str(self.fields), str(self.each), str(self.lower), str(self.longest)]
        return digest_of_texts([digest_of_files(self.where.values()), *how])

    def batches(
        self,
        split: Split,
        tokens: int | None = None,
        size: int | None = None,
        seed: int = 0,
        shuffle: bool | None = None,
    ) -> Batches:
        """Samples of the split; with a budget of tokens, of like length."""
        samples = self._samples(split)

        def make(numbers: Numbers, epoch: int) -> Batch:
            return self._batch([samples[n] for n in numbers.tolist()], numbers.tolist())

        shuffle = split == "train" if shuffle is None else shuffle
        lengths = [len(ids) for ids, _ in samples]
        return Batches(lengths, make, tokens=tokens, size=size, seed=seed, shuffle=shuffle)

    def loss(self, model: Model, batch: Batch) -> Loss:
        """-log p of the labels, summed."""
        aux: dict[str, Tensor] = {}
        pos_BL = batch.tensors.get("pos")
        x_BLD = reader(model).states(batch["ids"], pos_BL, losses=aux)
        if isinstance(model.head, Pooled):
            return Loss(model.head.loss(x_BLD, batch["target"], nll, pos_BL), batch.tokens, aux)
        return Loss(model.head.loss(x_BLD, batch["target"], nll), batch.tokens, aux)

    def evaluate(self, model: Model, split: Split = "valid", limit: int | None = None) -> Figures:
        """loss, accuracy and macro F1 over labels (with `each`: over words)."""
        found: list[int] = []
        truth: list[int] = []
        with resting(model):
            samples = self._samples(split)[:limit]
            for (_, targets), scores in zip(samples, logits(model, [ids for ids, _ in samples]), strict=True):
                best = scores.argmax(-1).reshape(-1).tolist()  # one label, or one for each token
                found += [label for label, target in zip(best, targets, strict=True) if target >= 0]
                truth += [target for target in targets if target >= 0]
        return {
            "loss": self.mean_loss(model, split, limit),
            "accuracy": accuracy(found, truth),
            "macro_f1": macro_f1(found, truth),
        }

    def predict(self, model: Model, inputs: Sequence[str], rules: Rules) -> list[str]:
        """The label of each text, or the labels of its words between spaces; rules are not asked."""
        rows = [self._encode(text) for text in inputs]
        answers: list[str] = []
        with resting(model):
            for (_, first), scores in zip(rows, logits(model, [ids for ids, _ in rows]), strict=True):
                best = scores.argmax(-1).reshape(-1).tolist()
                answers.append(" ".join(self.labels[best[n]] for n in (first if self.each else [0])))
        return answers

    def score(self, model: Model, inputs: Sequence[str], outputs: Sequence[str]) -> list[float]:
        """log p(label | text), or the sum over the words' labels."""
        same_count(inputs, outputs)
        known = {name: n for n, name in enumerate(self.labels)}
        samples = [
            self._sample(text, names.split() if self.each else [names], known, "an output")
            for text, names in zip(inputs, outputs, strict=True)
        ]
        sums = []
        with resting(model):
            for (_, targets), scores in zip(samples, logits(model, [ids for ids, _ in samples]), strict=True):
                logp = scores.log_softmax(-1).reshape(len(targets), -1)
                sums.append(sum(float(logp[n, label]) for n, label in enumerate(targets) if label >= 0))
        return sums

    def _samples(self, split: Split) -> list[Sample]:
        if split not in self.samples:
            raise UsageError(f"there is no {split} split; give task.{split}, a table.")
        return self.samples[split]

    def _read(self, split: Split, path: str) -> list[tuple[str, list[str], str]]:
        """Text, labels and where they stand."""
        rows = []
        header = 1 if Path(path).suffix != ".tsv" or self.fields else 2
        for number, row in enumerate(read_table(path, self.fields), header):
            for name in (self.text, self.label):
                if name not in row:
                    raise DataError(f"{path}: there is no field {name!r}; there are {', '.join(row)}.")
            text = row[self.text].lower() if self.lower else row[self.text]
            names = row[self.label].split() if self.each else [row[self.label]]
            where = f"{path}:{number}"
            if self.each and len(names) != len(text.split()):
                raise DataError(
                    f"{where}: each word must have its label, but there are {len(text.split())} words and "
                    f"{len(names)} labels."
                )
            rows.append((text, names, where))
        return rows

    def _encode(self, text: str) -> tuple[list[int], list[int]]:
        """[CLS] text [SEP] as ids, and where each word starts (only with `each`)."""
        text = text.lower() if self.lower else text
        ids, first = [self.tokens.id(CLS)], []
        for word in text.split() if self.each else ():
            first.append(len(ids))
            ids += self.tokens.encode(word) or [self.tokens.id(UNK)]
        if not self.each:
            inner = self.tokens.encode(text)
            ids += inner[: self.longest - 2] if self.longest else inner
        return [*ids, self.tokens.id(SEP)], first

    def _sample(self, text: str, names: list[str], known: dict[str, int], where: str) -> Sample:
        unknown = [name for name in names if name not in known]
        if unknown:
            raise DataError(
                f"{where}: the label {unknown[0]!r} is not one of the train split: {', '.join(known)}."
            )
        ids, first = self._encode(text)
        if not self.each:
            return ids, [known[names[0]]]
        targets = [-1] * len(ids)
        for position, name in zip(first, names, strict=True):
            targets[position] = known[name]
        return ids, targets

    def _batch(self, samples: Sequence[Sample], numbers: Sequence[int]) -> Batch:
        target = pad([targets for _, targets in samples])
        tensors = padded([ids for ids, _ in samples]) | {"target": target if self.each else target[:, 0]}
        return Batch(list(numbers), tensors, tokens=sum(t >= 0 for _, targets in samples for t in targets))
