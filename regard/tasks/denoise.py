"""Fill in dropped spans: T5's way to learn from plain text."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from regard.data.batch import Batch, Batches
from regard.data.synthetic import Split, draws
from regard.data.tokens import Tokens, Unigram
from regard.dims import Dims
from regard.errors import UsageError
from regard.model import Model
from regard.nn.head import nll
from regard.spec import Recipe, of, part
from regard.tasks import spans
from regard.tasks.corpus import EOS, Corpus, Document, Files
from regard.tasks.task import Loss, same_count
from regard.tasks.transduce import UNK, pair_batch, pair_loss

if TYPE_CHECKING:
    from regard.decode import Rules

START = "<pad>"  # T5's decoder starts with its padding token, id 0
MARK = re.compile(r"<extra_id_(\d+)>")


@part
class Denoise(Corpus):
    """Spans of a text are dropped and marked; the model writes the spans.

        inputs:  Thank you <extra_id_0> me to your party <extra_id_1> week </s>
        targets: <extra_id_0> for inviting <extra_id_1> last </s>

    Raffel et al. 2020, section 3.1.4, arXiv 1910.10683; lengths exactly as the official code's (`spans.py`).
    Marks are the last ids of the vocabulary, counting down. What is dropped is a pure function of (seed,
    epoch, sample). The decoder starts with id 0.

    Options:
        text: a file, or a list of files
        valid: files, or a share of the text: 0.1 is its last 10 %
        test: files
        tokens: how text is cut into tokens; trained on the train split
        document: file (text is one stream with its line ends) or line (each line ends with </s>)
        density: share of the tokens that are dropped
        mean: mean length of a dropped span
        marks: how many marks there are; they are the last ids of the vocabulary
    """

    def __init__(
        self,
        text: Files,
        valid: Files | float = 0.1,
        test: Files | None = None,
        tokens: Recipe[Tokens] = of(Unigram),
        document: Document = "line",
        density: float = 0.15,
        mean: float = 3.0,
        marks: int = 100,
    ) -> None:
        super().__init__(text, valid, test, tokens, document)
        if not 0 < density < 1 or mean < 1:
            raise UsageError(
                f"density must lie between 0 and 1 and mean be at least 1, but are {density}, {mean}."
            )
        self.density, self.mean, self.marks = density, mean, marks

    @property
    def specials(self) -> list[str]:
        """T5's first three tokens."""
        return [START, EOS, UNK]

    @property
    def first_mark(self) -> int:
        """Ids from here on are marks."""
        return self.tokens.vocab - self.marks

    def fit_to(self, dims: Dims) -> None:
        """Texts are as long as their corrupted form fits: 568 tokens for a model of length 512."""
        self.length = spans.raw_length(dims.length, self.density, self.mean)
        targets = spans.lengths(self.length, self.density, self.mean)[1]
        if targets > dims.length:
            raise UsageError(
                f"targets of {targets} tokens exceed dims.length {dims.length}; lower the density."
            )
        if spans.noise(self.length, self.density, self.mean)[1] > self.marks:
            raise UsageError(
                f"marks must be as many as dropped spans, but {self.marks} are too few; raise marks."
            )

    def batches(
        self,
        split: Split,
        tokens: int | None = None,
        size: int | None = None,
        seed: int = 0,
        shuffle: bool | None = None,
    ) -> Batches:
        """Corrupted windows of the split; `tokens` counts what the decoder is asked for."""
        if not self.length:
            raise UsageError("the length of a text must be known: call fit_to(dims) first.")
        stream, eos = self.stream(split), self.tokens.id(EOS)
        first = seed if split == "train" else 0  # valid and test are corrupted the same way in every run

        def make(windows: Sequence[tuple[int, int, int]], epoch: int) -> Batch:
            rows = []
            for number, start, stop in windows:
                ids = stream[start:stop].tolist()
                sizes = spans.spans(len(ids), draws(first, epoch, number), self.density, self.mean)
                rows.append(spans.corrupt(ids, sizes, self.tokens.vocab, eos))
            inputs, targets = zip(*rows, strict=True)
            return pair_batch(inputs, targets, self.tokens.id(START), [n for n, _, _ in windows])

        if tokens is not None:
            size = max(1, tokens // spans.lengths(self.length, self.density, self.mean)[1])
        return self.windows(split, len(stream), self.length, make, size, seed, shuffle)

    def loss(self, model: Model, batch: Batch) -> Loss:
        """-log p(targets | inputs), summed."""
        return pair_loss(model, batch, nll)

    def predict(self, model: Model, inputs: Sequence[str], rules: Rules) -> list[str]:
        """The texts with each <extra_id_n> in them replaced by what the model writes for it."""
        from regard.decode import generate

        sources = [self._marked(text) for text in inputs]
        asked = [n for n, source in enumerate(sources) if max(source) >= self.first_mark]
        eos, start = self.tokens.id(EOS), self.tokens.id(START)
        one = dataclasses.replace(rules, nbest=1)
        found = generate(model, [[start] for _ in asked], [sources[n] for n in asked], one, eos)
        answers = list(inputs)
        for number, answer in zip(asked, found, strict=True):
            ids = spans.reconstruct(sources[number], [*answer[0].ids, eos], self.first_mark)
            answers[number] = self.tokens.decode(ids)
        return answers

    def score(self, model: Model, inputs: Sequence[str], outputs: Sequence[str]) -> list[float]:
        """log p(output | input); both may hold <extra_id_n>."""
        from regard.decode import score

        same_count(inputs, outputs)
        targets = [self._marked(text) for text in outputs]
        starts = [[self.tokens.id(START)] for _ in inputs]
        return score(model, starts, targets, [self._marked(text) for text in inputs])

    def _marked(self, text: str) -> list[int]:
        """A text with marks in it as ids, ended by </s>."""
        ids: list[int] = []
        at = 0
        for mark in MARK.finditer(text):
            if int(mark[1]) >= self.marks:
                raise UsageError(
                    f"marks go from <extra_id_0> to <extra_id_{self.marks - 1}>, but {mark[0]} was given."
                )
            ids += [*self.tokens.encode(text[at : mark.start()]), self.tokens.sentinel(int(mark[1]))]
            at = mark.end()
        return [*ids, *self.tokens.encode(text[at:]), self.tokens.id(EOS)]
