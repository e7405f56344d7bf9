"""Small models with strong opinions, and the slow ways to the same answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from regard.decode import Hypothesis, Rules, generate
from regard.model import EncoderDecoder, Model

EOS = 1
START = 2


def shaken(model: Model, seed: int, strength: float) -> Model:
    """Weights with which answers and their ends differ.

    Large feed-forward layers make the next token depend on the last one in a wild way; large cross-attention
    or large embeddings with a tied head would say one token again and again.
    """
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() > 1:
                scale = strength if "ffn" in name else 1.0 if "self" in name else 0.6
                weight.copy_(torch.randn(weight.shape, generator=random) * scale / weight.shape[-1] ** 0.5)
    return model.eval()


@dataclass
class Asked:
    """A model with prompts (and sources) of all lengths."""

    model: Model
    prompts: list[list[int]]
    sources: list[list[int]] | None
    known: dict[tuple[int, ...], Tensor] = field(default_factory=dict)

    def part(self, numbers: Sequence[int]) -> Asked:
        """Some of them, in that order."""
        sources = None if self.sources is None else [self.sources[n] for n in numbers]
        return Asked(self.model, [self.prompts[n] for n in numbers], sources)

    def answers(self, rules: Rules, eos: int | None = EOS) -> list[list[Hypothesis]]:
        """What `generate` answers."""
        return generate(self.model, self.prompts, self.sources, rules, eos)

    def logits(self, number: int, ids: Sequence[int]) -> Tensor:
        """The logits of the next token after the prompt and ids: no cache, no batch, no padding."""
        if (number, *ids) not in self.known:
            self.known[number, *ids] = self._logits(number, ids)
        return self.known[number, *ids]

    def _logits(self, number: int, ids: Sequence[int]) -> Tensor:
        target_1L = torch.tensor([[*self.prompts[number], *ids]])
        with torch.no_grad():
            if isinstance(self.model, EncoderDecoder):
                assert self.sources is not None
                logits = self.model(torch.tensor([self.sources[number]]), target_1L)
            else:
                logits = self.model(target_1L)
        last: Tensor = logits[0, -1].double()
        return last


Make = Callable[..., Asked]
