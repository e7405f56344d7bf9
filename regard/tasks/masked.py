"""Hidden words: BERT's way to learn from plain text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from regard.data.batch import Batch, Batches, pad
from regard.data.synthetic import Split, draws
from regard.data.tokens import Tokens, Wordpiece
from regard.dims import Dims
from regard.errors import UsageError
from regard.model import Model
from regard.nn.head import nll
from regard.spec import Recipe, of, part
from regard.tasks.cloze import choose, hide, how_many
from regard.tasks.corpus import Corpus, Document, Files
from regard.tasks.reading import CLS, SEP, UNK, logits, padded, reader
from regard.tasks.task import Figures, Loss, device_of, resting, same_count, walk

if TYPE_CHECKING:
    from regard.decode import Rules

MASK = "[MASK]"


@part
class Masked(Corpus):
    """Some tokens of a text are hidden; the model says what they were, from both sides.

        loss = -sum_{t hidden} log p(x_t | the text with its holes)

    Devlin et al. 2019, section 3.1 and appendix A.1, arXiv 1810.04805: round(15 % of the length) tokens,
    drawn without replacement, never [CLS] or [SEP]; 80 % become [MASK], 10 % stay, 10 % become a random word.
    What is hidden is a pure function of (seed, epoch, sample). A sample is [CLS] text [SEP], as long as the
    model.
    Differs from the paper: no next sentence prediction (Liu et al. 2019, arXiv 1907.11692, found it useless).

    Options:
        text: a file, or a list of files
        valid: files, or a share of the text: 0.1 is its last 10 %
        test: files
        tokens: how text is cut into tokens; trained on the train split
        document: line (each line ends with [SEP]) or file (text is one stream with its line ends)
        rate: share of the tokens that are hidden
        max_predictions: at most so many in one sample
        whole_words: hide all tokens of a word or none
    """

    end = SEP

    def __init__(
        self,
        text: Files,
        valid: Files | float = 0.1,
        test: Files | None = None,
        tokens: Recipe[Tokens] = of(Wordpiece),
        document: Document = "line",
        rate: float = 0.15,
        max_predictions: int = 20,
        whole_words: bool = False,
    ) -> None:
        super().__init__(text, valid, test, tokens, document)
        if not 0 < rate < 1 or max_predictions < 1:
            raise UsageError(
                f"rate must lie between 0 and 1 and max_predictions be at least 1, but they are {rate} and "
                f"{max_predictions}."
            )
        self.rate, self.max_predictions, self.whole_words = rate, max_predictions, whole_words

    @property
    def specials(self) -> list[str]:
        """BERT's own."""
        return [UNK, CLS, SEP, MASK]

    def fit_to(self, dims: Dims) -> None:
        """A sample is as long as the model, [CLS] and [SEP] included."""
        if dims.length < 3:
            raise UsageError(f"dims.length must be at least 3: [CLS] text [SEP], but is {dims.length}.")
        self.length = dims.length - 2

    def batches(
        self,
        split: Split,
        tokens: int | None = None,
        size: int | None = None,
        seed: int = 0,
        shuffle: bool | None = None,
    ) -> Batches:
        """Samples with holes; `tokens` counts what the model reads."""
        if not self.length:
            raise UsageError("the length of a sample must be known: call fit_to(dims) first.")
        stream, first = self.stream(split), seed if split == "train" else 0  # valid and test stay the same

        def make(windows: Sequence[tuple[int, int, int]], epoch: int) -> Batch:
            rows = [
                self.holes(stream[start:stop].tolist(), first, epoch, number)
                for number, start, stop in windows
            ]
            inputs, targets = zip(*rows, strict=True)
            tensors = padded(inputs) | {"target": pad(targets)}
            asked = sum(target >= 0 for _, targets in rows for target in targets)
            return Batch([number for number, _, _ in windows], tensors, tokens=asked)

        size = size if tokens is None else max(1, tokens // (self.length + 2))
        return self.windows(split, len(stream), self.length, make, size, seed, shuffle)

    def holes(self, text: list[int], seed: int, epoch: int, number: int) -> tuple[list[int], list[int]]:
        """[CLS] text [SEP] with holes, and what was there; -1 where nothing is asked."""
        ids = [self.tokens.id(CLS), *text, self.tokens.id(SEP)]
        draw = draws(seed, epoch, number)
        count = how_many(len(ids), self.rate, self.max_predictions)
        return hide(ids, choose(self.groups(ids), count, draw), self.tokens.id(MASK), self.tokens.vocab, draw)

    def groups(self, ids: Sequence[int]) -> list[list[int]]:
        """Positions that are hidden together: each alone, or the pieces of a word. Never [CLS] or [SEP]."""
        never = {self.tokens.id(CLS), self.tokens.id(SEP)}
        places = [n for n, token in enumerate(ids) if token not in never]
        if not self.whole_words:
            return [[n] for n in places]
        groups: list[list[int]] = []
        for n in places:
            if groups and groups[-1][-1] == n - 1 and self.tokens.continues(ids[n]):
                groups[-1].append(n)
            else:
                groups.append([n])
        return groups

    def loss(self, model: Model, batch: Batch) -> Loss:
        """-log p of the hidden tokens, summed."""
        aux: dict[str, Tensor] = {}
        x_BLD = reader(model).states(batch["ids"], batch.tensors.get("pos"), losses=aux)
        return Loss(model.head.loss(x_BLD, batch["target"], nll), batch.tokens, aux)

    def evaluate(self, model: Model, split: Split = "valid", limit: int | None = None) -> Figures:
        """loss in nats per hidden token, and accuracy: the share of them that the model names."""
        right = asked = 0
        with resting(model):
            for batch in walk(self.batches(split, size=64, shuffle=False), limit):
                batch = batch.to(device_of(model))
                x_BLD = reader(model).states(batch["ids"], batch.tensors.get("pos"))
                hidden_BL = batch["target"] >= 0
                best_N = model.head(x_BLD[hidden_BL]).argmax(-1)
                right += int((best_N == batch["target"][hidden_BL]).sum())
                asked += batch.tokens
        return {"loss": self.mean_loss(model, split, limit), "accuracy": right / asked}

    def predict(self, model: Model, inputs: Sequence[str], rules: Rules) -> list[str]:
        """The texts with every [MASK] in them replaced by the most probable token; rules are not asked."""
        mask, never = self.tokens.id(MASK), [self.tokens.id(name) for name in self.specials]
        rows = [self._ids(text) for text in inputs]
        asked = [n for n, row in enumerate(rows) if mask in row]
        answers = list(inputs)
        with resting(model):
            for number, logits_LV in zip(asked, logits(model, [rows[n] for n in asked]), strict=True):
                logits_LV[:, never] = -torch.inf
                best = logits_LV.argmax(-1).tolist()
                filled = [new if old == mask else old for old, new in zip(rows[number], best, strict=True)]
                answers[number] = self.tokens.decode(filled)
        return answers

    def score(self, model: Model, inputs: Sequence[str], outputs: Sequence[str]) -> list[float]:
        """log p of the output's tokens at the [MASK]s of the input, given the rest, each hole by itself."""
        same_count(inputs, outputs)
        rows, truth, mask = [], [], self.tokens.id(MASK)
        for text, filled in zip(inputs, outputs, strict=True):
            rows.append(self._ids(text))
            truth.append(self._ids(filled))
            if len(rows[-1]) != len(truth[-1]):
                raise UsageError(
                    f"an output must have a token for each token of its input, but {filled!r} has "
                    f"{len(truth[-1]) - 2} and {text!r} has {len(rows[-1]) - 2}."
                )
        scores = []
        with resting(model):
            for row, ids, logits_LV in zip(rows, truth, logits(model, rows), strict=True):
                logp_LV = logits_LV.log_softmax(-1)
                scores.append(sum(float(logp_LV[n, ids[n]]) for n, token in enumerate(row) if token == mask))
        return scores

    def _ids(self, text: str) -> list[int]:
        """[CLS] text [SEP]; the word [MASK] in it is a hole."""
        ids = [self.tokens.id(CLS)]
        for n, piece in enumerate(re.split(r"\[MASK\]", text)):
            ids += ([self.tokens.id(MASK)] if n else []) + self.tokens.encode(piece)
        return [*ids, self.tokens.id(SEP)]
