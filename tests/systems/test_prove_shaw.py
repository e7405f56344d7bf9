"""Distances carry to texts longer than any that was learned from; places that were never seen do not.

Shaw et al. 2018 say that relative positions may generalise to unseen lengths (section 3.2): a word is to be
copied, of 5 to 20 letters while learning, of 40 when asked.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import regard
from regard.model import Model
from regard.nn.position import Learned, Shaw
from regard.spec import Recipe, of

pytestmark = pytest.mark.prove
LETTERS, SHORT, LONG = 64, 20, 40


def drawn(count: int, length: int, random: torch.Generator) -> Tensor:
    """A word, a mark (0), and the word again."""
    word_BL = torch.randint(1, LETTERS + 1, (count, length), generator=random)
    return torch.cat([word_BL, torch.zeros(count, 1, dtype=torch.long), word_BL], 1)


def learned(position: Recipe[Any], seed: int, steps: int = 1000, rate: float = 3e-3) -> Model:
    """Two layers that have learned to copy words of 5 to 20 letters."""
    options = {"vocab": LETTERS + 1, "width": 64, "heads": 4, "layers": 2, "length": 2 * LONG + 1}
    model = regard.build(regard.system("gpt", position=position, **options), seed).train()
    optimizer, random = torch.optim.Adam(model.parameters(), lr=rate), torch.Generator().manual_seed(seed)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = rate * min(1.0, (step + 1) / 100) * (1 - step / steps)
        length = int(torch.randint(5, SHORT + 1, (), generator=random))
        ids_BL = drawn(64, length, random)
        y_BLV = model(ids_BL[:, :-1])[:, length:]
        loss = F.cross_entropy(y_BLV.flatten(0, 1), ids_BL[:, length + 1 :].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model.eval()


def copied(model: Model, length: int) -> float:
    """Percent of the letters of words of that length."""
    ids_BL = drawn(500, length, torch.Generator().manual_seed(9))
    with torch.no_grad():
        best_BL = model(ids_BL[:, :-1])[:, length:].argmax(-1)
    return 100 * float((best_BL == ids_BL[:, length + 1 :]).double().mean())


def test_distances_carry_to_longer_words_and_places_do_not() -> None:
    """The bar of 20 points, three seeds. Both copy what is as long as what they learned from."""
    found = {}
    for name, position in {"shaw": of(Shaw, distance=16), "learned": of(Learned)}.items():
        models = [learned(position, seed) for seed in range(3)]
        found[name] = [(copied(model, SHORT), copied(model, LONG)) for model in models]
    print(found)
    for (near, far), (_, blind) in zip(found["shaw"], found["learned"], strict=True):
        assert near >= 95
        assert far >= blind + 20
