"""The next token: language modelling."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from regard.data.batch import Batch, Batches, pad
from regard.data.segments import Segments
from regard.data.synthetic import Split
from regard.data.tokens import Bpe, Tokens
from regard.dims import Dims
from regard.errors import UsageError
from regard.model import Decoder, Model
from regard.nn.context import places
from regard.nn.head import nll
from regard.spec import Recipe, of, part
from regard.tasks.auxiliary import Auxiliary
from regard.tasks.corpus import EOS, Corpus, Cut, Document, Files
from regard.tasks.task import SAMPLES, Figures, Loss, device_of, resting, same_count, walk

if TYPE_CHECKING:
    from regard.decode import Hypothesis, Rules
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
        layer_losses: in training each layer predicts too, lower ones less long (Al-Rfou et al. 2018)
        targets: how many tokens ahead training asks for; those after the next count half
        positions: all, or last: training asks only for the token after each window
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
        layer_losses: bool = False,
        targets: int = 1,
        positions: Literal["all", "last"] = "all",
    ) -> None:
        super().__init__(text, valid, test, tokens, document)
        self.cut, self.memory = cut, memory
        self.layer_losses, self.targets, self.positions = layer_losses, targets, positions
        if targets < 1:
            raise UsageError(f"targets must be at least 1, the next token, but is {targets}.")
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
        return self._loss(model, batch)

    def extra(self, model: Model) -> nn.Module | None:
        """Heads of the layers, and for the tokens after the next."""
        if not self.layer_losses and self.targets == 1:
            return None
        return Auxiliary(model.dims, self.tokens.vocab, self.layer_losses, self.targets)

    def learn(
        self, model: Model, batch: Batch, memory: Recent | None, extra: nn.Module | None, done: float
    ) -> Loss:
        """The same after what is remembered, with what else is asked in training."""
        if self.positions == "last":
            batch = _last_only(batch)
        layers: list[Tensor] | None = None if extra is None else []
        loss = self._loss(model, batch, memory, layers)
        if extra is not None:
            loss.aux.update(extra(layers, batch["target"], done, batch.tokens))
        return loss

    def _loss(
        self, model: Model, batch: Batch, memory: Recent | None = None, layers: list[Tensor] | None = None
    ) -> Loss:
        if not isinstance(model, Decoder):
            raise UsageError(
                f"language modelling needs a decoder, but the model is of kind {type(model).__name__}; "
                "choose a system such as gpt or llama."
            )
        aux: dict[str, Tensor] = {}
        pos_BL = batch.tensors.get("pos")
        if memory is not None and pos_BL is not None:
            pos_BL = places(batch["ids"], memory.next_B.to(pos_BL.device))
        x_BLD = model.states(batch["ids"], pos_BL, memory, losses=aux, layers=layers)
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
                loss = self._loss(model, batch.to(device_of(model)), memory)
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


def _last_only(batch: Batch) -> Batch:
    """Only the last target of each row is asked for."""
    target_BL = batch["target"]
    place_L = torch.arange(target_BL.shape[1], device=target_BL.device)
    last_B1 = torch.where(target_BL >= 0, place_L, -1).amax(1, keepdim=True)
    asked_BL = target_BL.masked_fill(place_L != last_B1, -1)
    return Batch(batch.ids, {**batch.tensors, "target": asked_BL}, int((asked_BL >= 0).sum()))
