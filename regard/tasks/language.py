"""The next token: language modelling."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from regard.data.batch import Batch, Batches, pad
from regard.data.segments import Segments
from regard.data.synthetic import Split
from regard.data.tokens import Bpe, Tokens
from regard.dims import Dims
from regard.errors import UsageError
from regard.model import Decoder, Model
from regard.nn.context import places
from regard.spec import Recipe, of, part
from regard.tasks.corpus import EOS, Corpus, Cut, Document, Files
from regard.tasks.loss import nll
from regard.tasks.task import SAMPLES, Figures, Loss, device_of, resting, same_count, walk

if TYPE_CHECKING:
    from regard.decode import Hypothesis, Rules
    from regard.nn.cache import Cache
    from regard.nn.recent import Recent


@part
class Language(Corpus):
    """Predict each token from those before it.

        loss = -sum_t log p(x_t | x_<t)

    Text is one stream, cut into windows of the model's length. Each epoch cuts it at other places, visits the
    windows in another order and asks for every token once; or each window begins anywhere, as in nanoGPT.
    Evaluation walks through the split in windows that do not overlap.

    With `memory`, text is read in order: as many streams as a batch has rows, side by side, window after
    window, and each window sees so many tokens before it, in training without gradient (see
    `regard.nn.recent`). Evaluation does the same, and may have another memory: task.memory=2000.

    Options:
        text: a file, or a list of files
        valid: files, or a share of the text: 0.1 is its last 10 %
        test: files
        tokens: how text is cut into tokens; trained on the train split
        document: file (text is one stream with its line ends) or line (each line ends with </s>)
        window: tokens of a window; the model's length if not given
        cut: once (an epoch asks for every token once) or anywhere (each window begins at a random token)
        memory: how many tokens before a window are remembered (Transformer-XL); none: windows are alone
    """

    metric = "loss"
    better = "min"

    def __init__(
        self,
        text: Files,
        valid: Files | float = 0.1,
        test: Files | None = None,
        tokens: Recipe[Tokens] = of(Bpe),
        document: Document = "file",
        window: int | None = None,
        cut: Cut = "once",
        memory: int | None = None,
    ) -> None:
        super().__init__(text, valid, test, tokens, document)
        self.cut, self.memory = cut, memory
        if memory is not None and memory < 0:
            raise UsageError(f"memory must be a number of tokens, but is {memory}.")
        if memory is not None and cut == "anywhere":
            raise UsageError("memory needs windows that follow each other; leave cut at once.")
        if window is not None and window < 2:
            raise UsageError(f"window must be at least 2 tokens, but is {window}.")
        self.length = self.window = window

    def fit_to(self, dims: Dims) -> None:
        """A window is as long as the model, unless a shorter one was asked for."""
        if self.window and self.window > dims.length:
            raise UsageError(
                f"window must be at most dims.length, but they are {self.window} and {dims.length}."
            )
        self.length = self.window or dims.length

    def batches(
        self,
        split: Split,
        tokens: int | None = None,
        size: int | None = None,
        seed: int = 0,
        shuffle: bool | None = None,
    ) -> Batches:
        """Windows of the split: `size` of them, or as many as `tokens` allow."""
        if not self.length:
            raise UsageError(
                "how long a window is must be known: give the task a window, or call fit_to(dims)."
            )
        stream, length = self.stream(split), self.length

        def make(windows: Sequence[tuple[int, int, int]], epoch: int) -> Batch:
            rows = [stream[start : stop + 1].tolist() for _, start, stop in windows]
            tensors = {"ids": pad([row[:-1] for row in rows]), "target": pad([row[1:] for row in rows])}
            if any(len(row) != len(rows[0]) for row in rows):
                tensors["pos"] = places(tensors["ids"])
            return Batch([n for n, _, _ in windows], tensors, tokens=sum(len(row) - 1 for row in rows))

        size = size if tokens is None else max(1, tokens // length)
        if self.memory is not None:
            if size is None:
                raise UsageError("streams side by side need a number: give train.size or train.tokens.")
            moving = split == "train" if shuffle is None else shuffle
            return Segments(len(stream) - 1, size, length, make, seed, moving)
        # the first token has nothing before it: it is never asked for
        return self.windows(split, len(stream) - 1, length, make, size, seed, shuffle, self.cut)

    def loss(self, model: Model, batch: Batch) -> Loss:
        """-log p of every next token, summed."""
        return self._loss(model, batch, batch.tensors.get("pos"))

    def loss_after(self, model: Model, batch: Batch, memory: Recent) -> Loss:
        """The same after what is remembered."""
        start_B = memory.next_B.to(batch["ids"].device)
        return self._loss(model, batch, places(batch["ids"], start_B) if "pos" in batch else None, memory)

    def _loss(self, model: Model, batch: Batch, pos_BL: Tensor | None, cache: Cache | None = None) -> Loss:
        if not isinstance(model, Decoder):
            raise UsageError(
                f"language modelling needs a decoder, but the model is of kind {type(model).__name__}; "
                "choose a system such as gpt or llama."
            )
        aux: dict[str, Tensor] = {}
        x_BLD = model.states(batch["ids"], pos_BL, cache, losses=aux)
        return Loss(model.head.loss(x_BLD, batch["target"], nll), batch.tokens, aux)

    def remember(self, model: Model, rows: int) -> Recent:
        """An empty memory of what the layers read."""
        if model.limit is not None:
            raise UsageError(
                f"a memory goes on and on, but the model holds only {model.limit} positions; choose relative "
                "positions such as transformer_xl, rotary or t5_bias."
            )
        return model.recent(rows, self.memory, states=True)

    def mean_loss(self, model: Model, split: Split, limit: int | None = None) -> float:
        """Nats per target over a split, each target once.

        With a memory, in at most 64 streams, fewer where the split is short: what a stream has not yet read
        should not matter, so each has at least 32 windows if it can.
        """
        if self.memory is None:
            return super().mean_loss(model, split, limit)
        streams = min(SAMPLES, max(1, len(self.stream(split)) // (32 * (self.length or 1))))
        batches, total, count = self.batches(split, size=streams, shuffle=False), 0.0, 0
        self.remember(model, streams)  # refuses what cannot go on
        memory = model.recent(streams, self.memory)
        with resting(model):
            for batch in walk(batches, limit):
                loss = self.loss_after(model, batch.to(device_of(model)), memory)
                total, count = total + float(loss.sum), count + loss.count
        return total / count

    def evaluate(self, model: Model, split: Split = "valid", limit: int | None = None) -> Figures:
        """loss in nats per token, ppl = exp(loss), and bits per byte, which does not depend on the tokens:

            bits_per_byte = loss / ln 2 * tokens / bytes

        Gao et al. 2020, section 3.1, arXiv 2101.00027. Bytes are those of the text in UTF-8.
        """
        loss = self.mean_loss(model, split, limit)
        share = len(self.stream(split)) / self.bytes[split]
        return {
            "loss": loss,
            "ppl": math.exp(min(loss, 700.0)),
            "bits_per_byte": loss / math.log(2) * share,
        }

    def predict(self, model: Model, inputs: Sequence[str], rules: Rules) -> list[str]:
        """What each text goes on with (without the text itself)."""
        one = dataclasses.replace(rules, nbest=1)
        return [found[0].text or "" for found in self.hypotheses(model, inputs, one)]

    def hypotheses(self, model: Model, inputs: Sequence[str], rules: Rules) -> list[list[Hypothesis]]:
        """Several continuations of each text, with their log probabilities."""
        from regard.decode import generate

        prompts = [self._prompt(text) for text in inputs]
        return generate(model, prompts, None, rules, self._end, self.tokens.decode)

    def score(self, model: Model, inputs: Sequence[str], outputs: Sequence[str]) -> list[float]:
        """log p(output | input): how likely the text goes on so."""
        from regard.decode import score

        same_count(inputs, outputs)
        prompts = [self._prompt(text) for text in inputs]
        return score(model, prompts, [self.tokens.encode(text) for text in outputs])

    @property
    def _end(self) -> int | None:
        return self.tokens.id(EOS) if EOS in self.tokens.specials else None

    def _prompt(self, text: str) -> list[int]:
        """A text as ids; an empty one becomes the end of the document, or the line, before."""
        end = self._end
        return self.tokens.encode(text) or ([end] if end is not None else self.tokens.encode("\n"))
