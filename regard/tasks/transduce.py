"""A sequence in, another sequence out: what translate, algorithms and dates have in common."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from regard.data.batch import Batch, Batches, Numbers, pad
from regard.data.synthetic import Split
from regard.errors import UsageError
from regard.model import Decoder, EncoderDecoder, Model
from regard.nn.context import places
from regard.nn.head import Cost, nll
from regard.tasks.task import Figures, Loss, Task, same_count

if TYPE_CHECKING:
    from regard.decode import Hypothesis, Rules

BOS, EOS, UNK = "<s>", "</s>", "<unk>"
Row = tuple[list[int], list[int]]  # ids of a source and of its target, without <s> and </s>


class Transduce(Task):
    """Source to target, by teacher forcing: the decoder reads <s> y1 .. yn and is asked y1 .. yn </s>.

        loss = -sum_t log p(y_t | y_<t, x)

    Sutskever et al. 2014, section 2, arXiv 1409.3215. The source is x1 .. xm </s>. An encoder-decoder reads
    it with its encoder; a decoder reads it first, as a prompt: x1 .. xm </s> <s> y1 .. yn.
    """

    cost: Cost = nll

    @property
    def bos(self) -> int:
        """The id that the decoder starts with."""
        return self.tokens.id(BOS)

    @property
    def eos(self) -> int:
        """The id that ends sources and targets."""
        return self.tokens.id(EOS)

    def rows(self, split: Split, numbers: Sequence[int], epoch: int, seed: int) -> list[Row]:
        """The samples with these numbers, as ids."""
        raise NotImplementedError

    def sizes(self, split: Split) -> int | list[tuple[int, int]]:
        """How many samples the split has, or the lengths of source and target of each of them."""
        raise NotImplementedError

    def batches(
        self,
        split: Split,
        tokens: int | None = None,
        size: int | None = None,
        seed: int = 0,
        shuffle: bool | None = None,
    ) -> Batches:
        """See `Task.batches`. Where lengths are known, samples of like length are put together."""

        def make(numbers: Numbers, epoch: int) -> Batch:
            rows = self.rows(split, numbers.tolist(), epoch, seed)
            sources = [[*source, self.eos] for source, _ in rows]
            return pair_batch(
                sources, [[*target, self.eos] for _, target in rows], self.bos, numbers.tolist()
            )

        shuffle = split == "train" if shuffle is None else shuffle
        return Batches(self.sizes(split), make, tokens=tokens, size=size, seed=seed, shuffle=shuffle)

    def loss(self, model: Model, batch: Batch) -> Loss:
        """-log p(target | source), summed over the target's tokens and its end."""
        return pair_loss(model, batch, self.cost)

    def predict(self, model: Model, inputs: Sequence[str], rules: Rules) -> list[str]:
        """The target of each source. An empty line stays an empty line."""
        one = dataclasses.replace(rules, nbest=1)
        return [found[0].text or "" for found in self.hypotheses(model, inputs, one)]

    def hypotheses(self, model: Model, inputs: Sequence[str], rules: Rules) -> list[list[Hypothesis]]:
        """Several targets of each source, best first, with their log probabilities."""
        from regard.decode import Hypothesis

        asked = [n for n, text in enumerate(inputs) if text.strip()]
        sources = [self.tokens.encode(self.clean(inputs[n])) for n in asked]
        answers = [[Hypothesis([], 0.0, 0.0, "")] for _ in inputs]
        for number, found in zip(asked, self.answers(model, sources, rules), strict=True):
            answers[number] = found
        return answers

    def score(self, model: Model, inputs: Sequence[str], outputs: Sequence[str]) -> list[float]:
        """log p(target | source), the end of the target included."""
        from regard.decode import score

        same_count(inputs, outputs)
        sources = [[*self.tokens.encode(self.clean(text)), self.eos] for text in inputs]
        targets = [self.tokens.encode(self.clean(text)) for text in outputs]
        prompts, given = self.prompts(model, sources)
        return score(model, prompts, targets, given, eos=self.eos)

    def clean(self, text: str) -> str:
        """What is done to a text before it becomes tokens."""
        return text

    def answers(self, model: Model, sources: Sequence[list[int]], rules: Rules) -> list[list[Hypothesis]]:
        """What the model writes for each source (given without its end), in the order asked."""
        from regard.decode import generate

        prompts, given = self.prompts(model, [[*source, self.eos] for source in sources])
        return generate(model, prompts, given, rules, eos=self.eos, decode=self.tokens.decode)

    def prompts(
        self, model: Model, sources: list[list[int]]
    ) -> tuple[list[list[int]], list[list[int]] | None]:
        """What the decoder reads first, and what the encoder reads if there is one."""
        if isinstance(writer(model), EncoderDecoder):
            return [[self.bos] for _ in sources], sources
        return [[*source, self.bos] for source in sources], None


def pair_batch(
    sources: Sequence[list[int]], targets: Sequence[list[int]], start: int, numbers: Sequence[int]
) -> Batch:
    """Sources, what the decoder reads (`target`) and what it is asked (`answer`), padded.

    `source_pos` and `target_pos` are there only where something is padded: no padding, no work for it.
    """
    tensors = {
        "source": pad(sources),
        "target": pad([[start, *target[:-1]] for target in targets]),
        "answer": pad(targets),
    }
    for name, rows in (("source", sources), ("target", targets)):
        if any(len(row) != len(rows[0]) for row in rows):
            tensors[f"{name}_pos"] = places(tensors[name])
    return Batch(list(numbers), tensors, tokens=sum(map(len, targets)))


def pair_loss(model: Model, batch: Batch, cost: Cost) -> Loss:
    """The cost of the answers: through encoder and decoder, or with the source as a prompt."""
    given, model = batch.tensors, writer(model)
    aux: dict[str, Tensor] = {}
    if isinstance(model, EncoderDecoder):
        memory = model.encode(given["source"], given.get("source_pos"), losses=aux)
        x_BLD = model.states(given["target"], given.get("target_pos"), memory=memory, losses=aux)
    else:
        ids_BL = torch.cat([given["source"], given["target"]], 1)
        padded = "source_pos" in given or "target_pos" in given
        # a prefix model reads the source and <s> in both directions
        prefix_B = (given["source"] >= 0).sum(1) + 1 if model.prefixed else None
        x_BLD = model.states(ids_BL, places(ids_BL) if padded else None, losses=aux, prefix_B=prefix_B)
        x_BLD = x_BLD[:, given["source"].shape[1] :]  # the source itself is not asked for
    return Loss(model.head.loss(x_BLD, given["answer"], cost), batch.tokens, aux)


def writer(model: Model) -> Decoder | EncoderDecoder:
    """The model, if it can write a sequence; an encoder alone cannot."""
    if not isinstance(model, Decoder | EncoderDecoder):
        raise UsageError(
            "a task that writes a sequence needs a decoder or an encoder-decoder, but the model is of kind "
            f"{type(model).__name__}; choose a system such as vanilla, t5 or gpt."
        )
    return model


class Exact(Transduce):
    """Source to target with one right answer, scored by whether it was given."""

    metric = "exact"
    better = "max"

    def figures(
        self, model: Model, split: Split, pairs: Sequence[tuple[str, str]], limit: int | None
    ) -> Figures:
        """loss, and by greedy search: exact answers, and right tokens at their place (of the longer text)."""
        from regard.decode import Rules

        # an answer that is longer than all right ones is wrong: no need to see its end
        rules = Rules(length=max(len(self.tokens.encode(target)) for _, target in pairs) + 2)
        found = self.answers(model, [self.tokens.encode(source) for source, _ in pairs], rules)
        answers = [best[0].text or "" for best in found]
        exact = sum(answer == target for answer, (_, target) in zip(answers, pairs, strict=True))
        right = total = 0
        for answer, (_, target) in zip(answers, pairs, strict=True):
            right += sum(a == b for a, b in zip(answer, target, strict=False))
            total += max(len(answer), len(target))
        return {
            "loss": self.mean_loss(model, split, limit),
            "exact": exact / len(pairs),
            "token": right / max(total, 1),
        }
