"""Each test here runs for each system that writes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import regard
from regard.model import EncoderDecoder
from regard.nn.pattern import Window
from tests.decode.asked import START, Asked, Make, shaken

# Each system with a seed of weights that answer in many ways.
SYSTEMS = {"gpt": 1, "llama": 1, "vanilla": 0, "t5": 1, "window": 2}

NAMES = {"window": "llama"}
EXTRA: dict[str, dict[str, Any]] = {"window": {"pattern": regard.of(Window, width=4)}, "llama": {"groups": 1}}
SIZE = {"width": 16, "heads": 2, "layers": 2}


@pytest.fixture(params=sorted(SYSTEMS))
def system(request: pytest.FixtureRequest) -> str:
    """Each system that writes: learned, rotary, sinusoidal and relative positions; groups; a ring of keys."""
    name: str = request.param
    return name


@pytest.fixture
def make(system: str) -> Make:
    """Builds a tiny model of the system and `count` prompts of different lengths."""

    def build(
        count: int = 5, vocab: int = 11, seed: int = 0, length: int = 32, strength: float = 3.0
    ) -> Asked:
        recipe = regard.system(
            NAMES.get(system, system), vocab=vocab, **SIZE, length=length, **EXTRA.get(system, {})
        )
        model = shaken(regard.build(recipe, seed=seed), seed + SYSTEMS[system], strength)
        random = torch.Generator().manual_seed(101 + seed)
        rows = [torch.randint(vocab, (n + 1,), generator=random).tolist() for n in range(count)]
        if isinstance(model, EncoderDecoder):
            return Asked(model, [[START] for _ in rows], rows)
        return Asked(model, rows, None)

    return build
